#!/usr/bin/env python3
"""Greedy answers of one model on two backends, and how close the choice was where they part.

    tools/compare_greedy.py MODEL [--tokamak build/release/tokamak] [--backends cpu,cuda] [--tokens 128] [--storage-of cuda=f32]

Asks a server of each backend for greedy continuations with log-probabilities. Where two answers first differ, it prints the margin between the two
tokens on each side: a small one is a rounding difference, a large one is a mistake. Exits with 1 if a margin is larger than --most (nats).
"""
import argparse
import http.client
import json
import re
import subprocess
import sys

PROMPTS = ["Once upon a time", "The capital of France is", "def fibonacci(n):\n", "Water boils when", "In 1969, people", "Dear Sir or Madam,",
           "The three laws of", "She opened the door and"]


def answers(args, backend):
    command = [args.tokamak, "serve", args.model, "--port", "0", "--backend", backend, "--context", "1024", "--kv-blocks", "256"]
    command += [f for s in args.storage_of for b, _, v in [s.partition("=")] if b == backend for f in ("--storage", v)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        text = ""
        while "ready at" not in text:
            line = process.stdout.readline()
            if not line:
                sys.exit(f"{' '.join(command)} did not start: {text}")
            text += line
        host, port = re.search(r"http://([^:\s]+):(\d+)", text).groups()
        out = []
        for prompt in PROMPTS:
            c = http.client.HTTPConnection(host, int(port), timeout=300)
            c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "logprobs": 5}),
                      {"Content-Type": "application/json"})
            answer = json.loads(c.getresponse().read())
            out.append(answer["choices"][0]["logprobs"])
            c.close()
        return out
    finally:
        process.kill()
        process.wait()


def margin(side, at, other):
    """Log-probability of the chosen token less that of the other side's, or less than the lowest shown."""
    top = side["top_logprobs"][at]
    chosen = side["token_logprobs"][at]
    return (chosen - top[other], "") if other in top else (chosen - min(top.values()), ">")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--backends", default="cpu,cuda")
    p.add_argument("--storage-of", action="append", default=[], help="BACKEND=TYPES: --storage of that server")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--most", type=float, default=0.25)
    args = p.parse_args()
    names = args.backends.split(",")
    first, second = (answers(args, b) for b in names)
    worst = 0.0
    for prompt, a, b in zip(PROMPTS, first, second):
        n = min(len(a["tokens"]), len(b["tokens"]))
        at = next((i for i in range(n) if a["tokens"][i] != b["tokens"][i]), None)
        if at is None:
            close = min((sorted(t.values())[-1] - sorted(t.values())[-2] for t in a["top_logprobs"][:n] if len(t) > 1), default=0)
            print(f"{prompt!r}: {n} tokens equal; closest choice among them {close:.4f}")
            continue
        x, more_x = margin(a, at, b["tokens"][at])
        y, more_y = margin(b, at, a["tokens"][at])
        worst = max(worst, x, y)
        print(f"{prompt!r}: {at} tokens equal, then {a['tokens'][at]!r} ({names[0]}, by {more_x}{x:.4f}) and {b['tokens'][at]!r} ({names[1]}, by {more_y}{y:.4f})")
    print(f"largest margin at a difference: {worst:.4f}")
    return 1 if worst > args.most else 0


if __name__ == "__main__":
    sys.exit(main())
