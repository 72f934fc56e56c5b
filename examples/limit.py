#!/usr/bin/env python3
"""A bundle has limits: a prompt of 4097 tokens is rejected with an error that names the limit.

    limit.py [--layers 1] [--vocab 512]

Builds random weights in the shape of Qwen3-1.7B (28 layers; fewer with --layers), compiles them for 32 sequences of 4096 tokens, and
sends one prompt that fits and one that is a token too long. Needs numpy and gguf (tools/requirements-test.txt).
"""
import importlib.util
import pathlib
import sys
import tempfile

from common import expect, say, script, tokamak

if missing := [name for name in ("numpy", "gguf") if not importlib.util.find_spec(name)]:
    sys.exit(f"this example needs the packages {' and '.join(missing)}: pip install -r tools/requirements-test.txt")

with tempfile.TemporaryDirectory() as folder:
    gguf, bundle = pathlib.Path(folder, "qwen3-1.7b.gguf"), pathlib.Path(folder, "qwen3-1.7b.tkm")
    say("writing random weights")
    script("tools/random_model.py", gguf, "--shape", "qwen3-1.7b", "--type", "q4_0", "--context", 32768, *sys.argv[1:])
    say("compiling")
    tokamak("compile", gguf, "-o", bundle, "--max-batch", 32, "--max-len", 4096)
    print(f"model {gguf.stat().st_size / 1e6:.0f} MB, bundle {bundle.stat().st_size / 1e6:.0f} MB, 32 sequences of 4096 tokens")

    say("a prompt of 4095 tokens")
    fits = tokamak("run", bundle, "a" * 4095, "--max-tokens", 1, "--temperature", 0, "--json")
    print("4095 tokens and one more:", "answered")
    refused = tokamak("run", bundle, "a" * 4097, "--max-tokens", 1, "--temperature", 0, "--json", may_fail=True)
    print("4097 tokens:", refused.stderr.strip())
    expect(fits.returncode == 0, "a prompt that fits is answered")
    expect(refused.returncode != 0 and "4096" in refused.stderr, "a prompt that does not fit is rejected with the limit")
    raised = tokamak("run", bundle, "a", "--context", 8192, "--max-tokens", 1, may_fail=True)
    print("requesting 8192:", raised.stderr.strip())
    expect(raised.returncode != 0, "a bundle's limit cannot be raised")
