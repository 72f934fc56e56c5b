#!/usr/bin/env python3
"""Cost of different LoRA adapters in one batch: `tokamak serve` with N adapters, N requests at a time.

    tools/random_model.py 1b.gguf --shape llama-1b --type q4_0
    bench/adapters.py 1b.gguf [--adapters 32] [--rank 16] [--output 32] [--rounds 3] [--folder DIR] [--json FILE]

Writes N random PEFT adapters that change all seven matrices of each layer, starts the server with them, and measures in turn, in
each round: all requests without an adapter, all with one adapter, each with its own. Prompts are short, so that the time is that of
decode steps of N rows; the best round counts. The last column is what the adapters cost relative to one. A server without slots
(`no slots`) runs first. Needs numpy, gguf and safetensors.
"""
import argparse
import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile
import time
import urllib.request

import gguf
import numpy as np
from safetensors.numpy import save_file

from served import Server

MODULES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
           "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="GGUF of the Llama architecture")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--adapters", type=int, default=32, help="adapters, and requests at a time")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--prompt", type=int, default=4, help="tokens per prompt")
    p.add_argument("--output", type=int, default=32, help="tokens per answer")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, help="of the server")
    p.add_argument("--folder", type=pathlib.Path, help="keep the adapters here, and use those that are there")
    p.add_argument("--generate-only", action="store_true", help="write the adapters into --folder and stop")
    p.add_argument("--json", type=pathlib.Path, help="also write the result here")
    return p.parse_args()


def matrices(path):
    """(module, columns, rows) of each matrix that the adapters change."""
    for t in gguf.GGUFReader(path).tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", t.name)
        if match and match[2] in MODULES:
            yield f"base_model.model.model.layers.{match[1]}.{MODULES[match[2]]}", int(t.shape[0]), int(t.shape[1])


def write_adapter(folder, shapes, rank, seed):
    if (folder / "adapter_model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng, tensors = np.random.default_rng(seed), {}
    for module, columns, rows in shapes:
        a = rng.standard_normal((rank, columns), dtype=np.float32) * columns ** -0.5
        b = rng.standard_normal((rows, rank), dtype=np.float32) * 0.1 * rank ** -0.5
        tensors[module + ".lora_A.weight"], tensors[module + ".lora_B.weight"] = a.astype(np.float16), b.astype(np.float16)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
              "target_modules": sorted({m.rsplit(".", 1)[1] for m in MODULES.values()})}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


class AdapterServer(Server):
    def __init__(self, args, *more):
        threads = ["--threads", args.threads] if args.threads else []
        super().__init__(args.tokamak, args.model, "--max-num-seqs", args.adapters, "--context", args.prompt + args.output + 64, *threads, *more)
        models = json.load(urllib.request.urlopen(self.url + "/v1/models"))["data"]
        self.base = next(m["id"] for m in models if not m.get("parent"))

    def answer(self, model, key, args):
        prompt = [1 + (key * 31 + i * 7) % 200 for i in range(args.prompt)]
        body = {"model": model, "prompt": prompt, "max_tokens": args.output, "ignore_eos": True, "temperature": 0,
                "stream": False}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        tokens = json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"]
        if tokens != args.output:
            sys.exit(f"{model} answered {tokens} tokens instead of {args.output}")

    def measure(self, models, args):
        """Wall and CPU time in milliseconds per decode step, all requests at once."""
        cpu, start = self.cpu_seconds(), time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
            list(pool.map(lambda item: self.answer(item[1], item[0], args), enumerate(models)))
        return [1e3 * x / args.output for x in (time.perf_counter() - start, self.cpu_seconds() - cpu)]


def best(rows):
    return {"wall_ms": min(r[0] for r in rows), "cpu_ms": min(r[1] for r in rows)}


def main():
    args = parse_args()
    scratch = None if args.folder else tempfile.TemporaryDirectory(prefix="adapters-")
    folder = args.folder or pathlib.Path(scratch.name)
    shapes, n = list(matrices(args.model)), args.adapters
    names = [f"adapter{i}" for i in range(n)]
    for i, name in enumerate(names):
        write_adapter(folder / name, shapes, args.rank, i)
    if args.generate_only:
        return
    result = {}
    with AdapterServer(args) as server:
        result["no slots"] = best([server.measure([server.base] * n, args) for _ in range(args.rounds)])
    with AdapterServer(args, "--max-loras", str(n), "--lora-modules", *(f"{name}={folder / name}" for name in names)) as server:
        cases = {"no adapter": [server.base] * n, "one adapter": names[:1] * n, f"{n} adapters": names}
        server.measure(names, args)  # every adapter is in its slot before the first measurement
        rounds = [{case: server.measure(models, args) for case, models in cases.items()} for _ in range(args.rounds)]
        result.update({case: best([r[case] for r in rounds]) for case in cases})
    one = result["one adapter"]
    print(f"{'':14}{'wall ms/step':>14}{'CPU ms/step':>14}{'wall / one':>12}{'CPU / one':>12}")
    for case, r in result.items():
        print(f"{case:14}{r['wall_ms']:14.1f}{r['cpu_ms']:14.1f}{r['wall_ms'] / one['wall_ms']:12.3f}{r['cpu_ms'] / one['cpu_ms']:12.3f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
