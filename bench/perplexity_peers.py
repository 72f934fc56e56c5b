#!/usr/bin/env python3
"""Perplexity of one GGUF in Tokamak, transformers (float32) and llama.cpp, on the same windows of the same text.

    bench/perplexity_peers.py MODEL.gguf TEXT [--tokamak build/release/tokamak] [--tokens 16384] [--window 512]
                              [--skip transformers,llamacpp]

Convention (llama.cpp's): the text is tokenised as a whole and split into independent windows, the first token of each is replaced
by BOS if the model uses one, and the second half of each window is scored. All engines get Tokamak's token ids, so that
only the maths differs. Needs the packages torch, transformers, gguf and llama-cpp-python for the peers.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("text", type=pathlib.Path)
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--skip", default="")
    return p.parse_args()


def add_bos(model):
    """(wants BOS, its id) as the file says."""
    import gguf
    fields = gguf.GGUFReader(model).fields
    get = lambda key: fields[key].contents() if key in fields else None
    arch_wants = get("tokenizer.ggml.model") == "llama"
    wants = get("tokenizer.ggml.add_bos_token")
    return (arch_wants if wants is None else bool(wants)), get("tokenizer.ggml.bos_token_id")


def windows_of(args):
    text = args.text.read_bytes().decode()  # no newline translation
    out = subprocess.run([args.tokamak, "tokenize", args.model, "--json-lines", "--no-parse-special"],
                         input=json.dumps(text) + "\n", capture_output=True, text=True, check=True).stdout
    ids = json.loads(out)[: args.tokens]
    wants, bos = add_bos(args.model)
    windows = [ids[i:i + args.window] for i in range(0, len(ids) - args.window + 1, args.window)]
    for w in windows:
        if wants and bos is not None:
            w[0] = bos
    return windows


def transformers_ppl(args, windows):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(args.model.parent, gguf_file=args.model.name, dtype=torch.float32)
    model.eval()
    nll, count, first = 0.0, 0, args.window // 2
    with torch.no_grad():
        for w in windows:
            logits = model(torch.tensor([w])).logits[0].double()
            logp = torch.log_softmax(logits, -1)
            target = torch.tensor(w[first + 1:])
            nll -= logp[first:-1].gather(1, target[:, None]).sum().item()
            count += len(target)
    return math.exp(nll / count)


def llamacpp_ppl(args, windows):
    import llama_cpp
    import numpy as np
    model = llama_cpp.Llama(str(args.model), n_ctx=args.window, n_batch=args.window, logits_all=True, verbose=False)
    nll, count, first = 0.0, 0, args.window // 2
    for w in windows:
        model.reset()
        model.eval(w)
        scores = np.array(model.scores[:len(w)], dtype=np.float64)
        top = scores.max(1, keepdims=True)
        logz = top[:, 0] + np.log(np.exp(scores - top).sum(1))
        for j in range(first, len(w) - 1):
            nll -= scores[j, w[j + 1]] - logz[j]
            count += 1
    return math.exp(nll / count)


def tokamak_ppl(args, activations):
    out = subprocess.run([args.tokamak, "eval", "perplexity", args.model, args.text, "--window", str(args.window),
                          "--tokens", str(args.tokens), "--activations", activations, "--json"],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)["ppl"]


def main():
    args = parse_args()
    skip = args.skip.split(",")
    windows = windows_of(args)
    print(f"{args.model.name}: {len(windows)} windows of {args.window} tokens")
    base = None
    if "transformers" not in skip:
        base = transformers_ppl(args, windows)
        print(f"  transformers f32              {base:.5f}")

    def line(name, ppl):
        change = f"  ({(ppl / base - 1) * 100:+.3f} % of transformers)" if base else ""
        print(f"  {name:<28}  {ppl:.5f}{change}", flush=True)

    if "tokamak" not in skip:
        line("tokamak --activations f32", tokamak_ppl(args, "f32"))
        line("tokamak (default)", tokamak_ppl(args, "auto"))
    if "llamacpp" not in skip:
        line("llama.cpp", llamacpp_ppl(args, windows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
