#!/usr/bin/env python3
"""Plans of fixed sizes 128, 512 and 2048: which one runs, what padding costs, and that nothing is compiled at run time.

    buckets.py [MODEL]      default: the small model that `make serve` downloads

A prompt of 32 tokens is padded to 128 rows; one of 4096 runs in steps of 512, which need no padding. With --shapes dynamic
nothing is padded. Padding does not change a bit of the answer.
"""
import pathlib
import subprocess
import sys
import tempfile

from common import expect, say, script, table, tokamak, tokamak_json

BUCKETS = "128,512,2048"


def model():
    if len(sys.argv) > 1:
        return sys.argv[1]
    return script("tools/get_model.py", stdout=subprocess.PIPE).stdout.split("\n")[-2]


def measure(path, prompt, *flags):
    """Cost of a prompt and one more token, and which plans ran."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = pathlib.Path(folder, "model.tkm")
        tokamak("compile", path, "-o", bundle, "--max-batch", 2, "--max-len", 4224, "--max-tokens", 2048, *flags)
        return tokamak_json("bench", "latency", bundle, "--prompt", prompt, "--gen", 1, "--repeat", 1, "--threads", 1)[0]


rows, compiles, waste = [], 0, {}
path = model()
for prompt in (32, 4096):
    for name, flags in (("buckets", ("--shapes", "buckets", "--buckets", BUCKETS)), ("dynamic", ("--shapes", "dynamic"))):
        say(f"{prompt} tokens, {name}: compiling and measuring")
        row = measure(path, prompt, *flags)
        dispatch = row["dispatch"]
        plans = ", ".join(f"{plan} x{n}" for plan, n in dispatch["steps"].items() if n and plan.startswith("step"))
        waste[prompt, name] = dispatch["padding_waste"]
        rows.append((f"{prompt} tokens, {name}", plans, dispatch["padded_rows"], f"{dispatch['padding_waste']:.0%}",
                     f"{row['prefill_tokens_per_second_best']:.0f}"))
        compiles += dispatch["compiles"]
table(("prompt, plans", "plans that ran (a warm-up round and a measured one)", "rows of padding", "waste", "prefill tokens/s"), rows)
print(f"compiled while running: {compiles}")
expect(waste[32, "buckets"] > 0.7 and waste[4096, "buckets"] == 0, "32 tokens in 128 rows waste three quarters, 4096 nothing")
expect(waste[32, "dynamic"] == waste[4096, "dynamic"] == 0, "a dynamic plan pads nothing")
expect(compiles == 0, "no shape triggers a compilation")
