#!/usr/bin/env python3
"""A two-layer MLP before and after fusion: launches and bytes.

mlp.tkg is plain maths: matrix, bias, ReLU, matrix, bias, residual. Bias, activation and residual are computed while the
matrix product's result is still in cache, so they cost no launch and no memory traffic.
"""
from common import HERE, expect, table, tokamak, tokamak_json

GRAPH = HERE / "mlp.tkg"
SHAPE = ("--shape", "T=64")


def counts(*flags):
    return tokamak_json("debug", "opt", GRAPH, *SHAPE, *flags)


plain = counts("--passes", "dead-code")["after"]
simplified = counts("--disable-pass", "fuse")["after"]
fused = counts()["after"]
table(("64 tokens", "launches", "bytes moved", "of which activations"),
      [(name, c["kernels"], f"{c['bytes']:,.0f}", f"{c['bytes'] - plain_weights:,.0f}")
       for plain_weights in [2102272] for name, c in (("original", plain), ("simplified", simplified), ("fused", fused))])
print(tokamak("debug", "opt", GRAPH, *SHAPE).stdout)
print(tokamak("debug", "check", GRAPH, "--backend", "cpu").stdout.strip())
expect(fused["kernels"] < simplified["kernels"] < plain["kernels"], "each step saves launches")
expect(fused["bytes"] < simplified["bytes"] < plain["bytes"], "and bytes")
