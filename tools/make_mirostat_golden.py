#!/usr/bin/env python3
"""Writes tests/golden/mirostat.json: answers of Mirostat 1 and 2 by an implementation of its own, from the paper (Basu et al. 2021) and
llama.cpp's documentation: sorted probabilities, truncation, a draw, an update of mu. Draws use the keyed noise of docs/ops.md.

    tools/make_mirostat_golden.py OUTPUT
"""
import json
import math
import sys

import numpy as np

from keyed_noise import gumbel

VOCAB, ROWS, STEPS, SLOPE_TOKENS = 300, 6, 60, 100


def truncation(version, p, mu):
    """How many of the sorted probabilities are kept."""
    if version == 2:
        surprising = [i for i, value in enumerate(p) if -math.log2(value) > mu]
        return max(1, surprising[0] if surprising else len(p))
    pairs = range(min(SLOPE_TOKENS, len(p)) - 1)
    t = [math.log((i + 2) / (i + 1)) for i in pairs]
    b = [math.log(p[i] / p[i + 1]) for i in pairs]
    s = sum(x * y for x, y in zip(t, b)) / sum(x * x for x in t)
    epsilon = s - 1
    k = (epsilon * 2 ** mu / (1 - VOCAB ** -epsilon)) ** (1 / s)
    return min(len(p), max(1, int(k)))


def run(case, logits):
    mu = 2 * case["tau"]
    ids, mus, kept = [], [], []
    for step in range(STEPS):
        x = np.array(logits[step % ROWS], dtype=np.float64)
        for token, bias in case["bias"].items():
            x[int(token)] += bias
        x = x / case["temperature"]
        allowed = [i for i in range(VOCAB) if i % case["stride"] == 0]
        order = sorted(allowed, key=lambda i: (-x[i], i))
        p = np.exp(x[order] - x[order[0]])
        p /= p.sum()
        order = order[:truncation(case["mirostat"], p, mu)]
        p = p[:len(order)] / p[:len(order)].sum()
        place = max(range(len(order)), key=lambda i: math.log(p[i]) + gumbel(case["seed"], 0, step, order[i]))
        mu -= case["eta"] * (-math.log2(p[place]) - case["tau"])
        ids.append(order[place])
        mus.append(round(mu, 5))
        kept.append(len(order))
    return {**case, "ids": ids, "mu": mus, "kept": kept}


def main():
    rng = np.random.default_rng(7)
    logits = []
    for _ in range(ROWS):
        row = -1.1 * np.log(np.arange(1, VOCAB + 1)) + rng.normal(0, 0.4, VOCAB)
        logits.append([round(float(v), 3) for v in row[rng.permutation(VOCAB)]])
    cases = []
    for mirostat in 1, 2:
        for tau, eta, temperature in (5.0, 0.1, 1.0), (2.0, 0.5, 0.7), (0.5, 1.0, 1.0), (8.0, 0.1, 1.5):
            cases.append({"mirostat": mirostat, "tau": tau, "eta": eta, "temperature": temperature, "seed": len(cases) + 1,
                          "bias": {"7": 3.0, "11": -2.0} if tau == 2.0 else {}, "stride": 3 if tau == 8.0 else 1})
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write('{"logits": [\n' + ",\n".join(json.dumps(row) for row in logits) + "\n],\n\"cases\": [\n" +
                  ",\n".join(json.dumps(run(case, logits)) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
