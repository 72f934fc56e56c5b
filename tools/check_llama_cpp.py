#!/usr/bin/env python3
"""GGUF files that `tokamak convert` writes, read by llama.cpp: its log-probabilities and greedy tokens against the goldens.

    tools/check_llama_cpp.py --build build/release [--only granite4,qwen35]
    tools/check_llama_cpp.py --build build/release --variants FOLDER     # what tools/check_variants.py --keep FOLDER left

Prints a row per model: NMSE of the largest row, greedy tokens that agree up to the end of text, or why llama.cpp does not load it.
Run by hand: needs the package xllamacpp (llama.cpp as a library, no build) and numpy. Each model has a process of its own, which llama.cpp may end.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent


def server_of(path):
    import xllamacpp as llama
    p = llama.CommonParams()
    p.model.path = path
    p.n_ctx = p.n_batch = p.n_ubatch = 512
    p.n_parallel = p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.warmup = p.fit_params = p.cache_prompt = False
    p.cache_ram_mib = 0
    p.verbosity = 1
    p.cache_type_k = p.cache_type_v = llama.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return llama.Server(p)


def tokens_of(server, ids, count, vocab):
    answer = server.handle_completions({"prompt": ids, "n_predict": count, "n_probs": vocab, "temperature": 0, "cache_prompt": False})
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    return answer["choices"][0]["logprobs"]["content"]


def compare(path, golden):
    """Logits are known up to a constant, which the mean of the differences is."""
    import numpy as np
    server, vocab = server_of(path), golden["vocab"]
    worst = equal = count = 0
    for s in golden["sequences"]:
        for row, logits in zip(s["rows"], s["logits"]):
            got, want = np.full(vocab, np.nan), np.array(logits)
            for token in tokens_of(server, s["ids"][:row + 1], 1, vocab)[0]["top_logprobs"]:
                got[token["id"]] = token["logprob"]
            error = (got - want)[np.isfinite(got)]
            worst = max(worst, ((error - error.mean()) ** 2).sum() / (want ** 2).sum())
        greedy = [t["id"] for t in tokens_of(server, s["ids"], len(s["greedy"]), vocab)]  # shorter where a text ends
        equal += sum(a == b for a, b in zip(greedy, s["greedy"]))
        count += len(greedy)
    return f"{worst:.1e}, {equal}/{count}"


def row_of(path, golden):
    done = subprocess.run([sys.executable, __file__, "--compare", path, golden], capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return done.stdout.splitlines()[-1]
    why = [line for line in (done.stdout + done.stderr).splitlines() if "error loading" in line or "ASSERT" in line]
    return why[0].split("error loading model: ")[-1] if why else f"failed ({done.returncode})"


def models_of(args):
    if args.variants:
        return [(path, args.variants / path.stem) for path in sorted((args.variants / "goldens").glob("*.json"))]
    return [(path, args.build / folder / json.loads(path.read_text()).get("model", path.stem))
            for goldens, folder in (("numerics", "tiny_models"), ("families", "tiny_families"))
            for path in sorted((TOP / "tests" / "golden" / goldens).glob("*.json"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--variants", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--compare", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compare:
        print("\n" + compare(args.compare[0], json.loads(pathlib.Path(args.compare[1]).read_text())), flush=True)
        os._exit(0)  # the server's threads wait for requests
    with tempfile.TemporaryDirectory() as scratch:
        for golden, folder in models_of(args):
            if (args.only and golden.stem not in args.only.split(",")) or not json.loads(golden.read_text()).get("gguf"):
                continue
            out = f"{scratch}/{golden.stem}.gguf"
            done = subprocess.run([args.build / "tokamak", "convert", folder, out], capture_output=True, text=True)
            print(f"| {golden.stem} | {row_of(out, str(golden)) if done.returncode == 0 else done.stderr.strip()} |", flush=True)


if __name__ == "__main__":
    main()
