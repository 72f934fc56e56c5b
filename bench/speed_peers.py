#!/usr/bin/env python3
"""Prefill and decode speed of Tokamak and llama.cpp on the same file and threads, in one run, as ratios.

    bench/speed_peers.py MODEL.gguf [MODEL2.gguf ...] [--tokamak build/release/tokamak] [--threads 1,2]
                         [--prompt 512] [--gen 64] [--repeat 3] [--json]

Needs the package llama-cpp-python (built for this machine). Both engines get one sequence, greedy decoding, and report the
best and the median of `repeat` rounds after one warm-up round. The engines alternate, so that other load affects both.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", type=pathlib.Path)
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--json", action="store_true")
    return p.parse_args()


def llamacpp_rates(args, model_path, threads):
    import llama_cpp
    model = llama_cpp.Llama(str(model_path), n_ctx=args.prompt + args.gen + 8, n_batch=512, n_ubatch=512, n_threads=threads,
                            n_threads_batch=threads, verbose=False)
    vocab, ctx = model.n_vocab(), model.ctx

    def evaluate(ids):  # the C call itself, without the package's Python wrapper
        array = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")

    prompt = [(i * 104729 + 11) % vocab for i in range(args.prompt)]
    prefill, decode = [], []
    for round_ in range(args.repeat + 1):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        t0 = time.perf_counter()
        evaluate(prompt)
        t1 = time.perf_counter()
        for i in range(args.gen):
            evaluate([(i * 7919 + 3) % vocab])
        t2 = time.perf_counter()
        if round_:
            prefill.append(args.prompt / (t1 - t0))
            decode.append(args.gen / (t2 - t1))
    model.close()
    return prefill, decode


def tokamak_rates(args, model_path, threads):
    out = subprocess.run([args.tokamak, "bench", "latency", model_path, "--prompt", str(args.prompt), "--gen", str(args.gen),
                          "--threads", str(threads), "--repeat", str(args.repeat), "--json"],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)[0]


def main():
    args = parse_args()
    rows = []
    for model in args.models:
        for threads in map(int, args.threads.split(",")):
            peer_prefill, peer_decode = llamacpp_rates(args, model, threads)
            ours = tokamak_rates(args, model, threads)
            rows.append({
                "model": model.name, "threads": threads,
                "tokamak_prefill": ours["prefill_tokens_per_second_best"], "llamacpp_prefill": max(peer_prefill),
                "tokamak_decode": ours["decode_tokens_per_second_best"], "llamacpp_decode": max(peer_decode),
                "tokamak_prefill_median": ours["prefill_tokens_per_second"],
                "llamacpp_prefill_median": statistics.median(peer_prefill),
                "tokamak_decode_median": ours["decode_tokens_per_second"],
                "llamacpp_decode_median": statistics.median(peer_decode),
                "weights_gb_per_second": ours["decode_weight_gb_per_second"]})
            if not args.json:
                r = rows[-1]
                print(f"{r['model']:<36} {threads}T  prefill {r['tokamak_prefill']:8.1f} / {r['llamacpp_prefill']:8.1f} = "
                      f"{r['tokamak_prefill'] / r['llamacpp_prefill']:5.2f}x   decode {r['tokamak_decode']:7.1f} / "
                      f"{r['llamacpp_decode']:7.1f} = {r['tokamak_decode'] / r['llamacpp_decode']:5.2f}x   "
                      f"{r['weights_gb_per_second']:.1f} GB/s of weights", flush=True)
    if args.json:
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
