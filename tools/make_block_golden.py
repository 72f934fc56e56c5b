#!/usr/bin/env python3
"""Writes the golden data of the block formats: random blocks of every type and the values that the Python package
`gguf` decodes them to (as a hash and the first values), and the blocks that it encodes random values to.

The scale fields are random bytes too, so they include NaN, infinity, zero and subnormal scales. NaN
results are replaced by one canonical NaN before hashing: their payload is not part of any format.
With --check PROGRAM [ARGS]: fresh data from --seed is written to a temporary file and PROGRAM is run on it.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

DECODED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ2_XXS, T.IQ2_XS,
           T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ1_S, T.IQ1_M, T.IQ4_NL, T.IQ4_XS, T.TQ1_0, T.TQ2_0, T.MXFP4, T.NVFP4,
           T.F16, T.BF16, "q1_0", "q2_0"]
ENCODED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.TQ1_0, T.TQ2_0, T.MXFP4, T.F16, T.BF16]
# Offsets of the half-precision scales in a block, used to give most blocks sane ones.
SCALE_AT = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
            T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0],
            T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ1_S: [0], T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64],
            "q1_0": [0], "q2_0": [0]}
# Types without a decoder in the package: a half scale, then `bits` per value, lowest bits first, value + offset.
PLAIN = {"q1_0": (128, 18, 1, 2, -1), "q2_0": (64, 18, 2, 1, -1)}  # elements, bytes, bits, step, offset
NASTY_HALVES = [0x7C00, 0xFC00, 0x7E01, 0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF]


def fnv1a(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def decode_plain(raw, bits, step, offset):
    scale = np.ascontiguousarray(raw[:, :2]).view(np.float16).astype(np.float32)
    q = np.unpackbits(raw[:, 2:], axis=1, bitorder="little").reshape(raw.shape[0], -1, bits)
    q = (q * (1 << np.arange(bits))).sum(axis=2)
    return scale * (q * step + offset).astype(np.float32)


def decode_case(qtype, rng, blocks):
    plain = PLAIN.get(qtype)
    elements, size = plain[:2] if plain else GGML_QUANT_SIZES[qtype]
    if elements == 1:
        elements, size = 32, 64
    raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    for i in range(blocks):
        for at in SCALE_AT.get(qtype, []):
            half = np.float16(rng.normal() * 0.01) if i < blocks - 4 else None
            bits = half.view(np.uint16) if half is not None else NASTY_HALVES[int(rng.integers(len(NASTY_HALVES)))]
            raw[i, at:at + 2] = np.array([bits], dtype=np.uint16).view(np.uint8)
    with np.errstate(all="ignore"):
        values = decode_plain(raw, *plain[2:]) if plain else quants.dequantize(raw, qtype)
    values = values.reshape(-1).astype(np.float32)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return {"type": qtype if plain else qtype.name.lower(), "blocks": raw.tobytes().hex(), "values": int(values.size),
            "nan": int(np.isnan(values).sum()), "first": [f"{b:08x}" for b in bits[:8]], "fnv1a": fnv1a(bits.tobytes())}


def encode_case(qtype, rng, source):
    encoded = quants.quantize(source.reshape(-1, 256), qtype)
    raw = np.ascontiguousarray(encoded).view(np.uint8).tobytes()
    return {"type": qtype.name.lower(), "fnv1a": fnv1a(raw), "first": raw[:24].hex()}


def make(seed, blocks):
    rng = np.random.default_rng(seed)
    source = (rng.normal(size=32 * 16) * np.repeat(10.0 ** rng.uniform(-6, 3, 16), 32)).astype(np.float32)
    source[32:64] = 0
    return {"decode": [decode_case(t, rng, blocks) for t in DECODED],
            "encode_source": source.tobytes().hex(),
            "encode": [encode_case(t, rng, source) for t in ENCODED]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "src/tensor/testdata/block_golden.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--check", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    text = json.dumps(make(args.seed, args.blocks), indent=1) + "\n"
    if not args.check:
        args.out.write_text(text)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.json"
        path.write_text(text)
        return subprocess.run(args.check, env={**os.environ, "TK_BLOCK_GOLDEN": str(path)}).returncode


if __name__ == "__main__":
    sys.exit(main())
