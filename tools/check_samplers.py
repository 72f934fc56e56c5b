#!/usr/bin/env python3
"""Compares the samplers of `tokamak serve` with those of transformers and with the formulas of llama.cpp and of the papers.

The server reports the probabilities after all stages (post_sampling_probs) of the next token; the same model without samplers gives what goes in. All of the 20
tokens that a request may choose among are compared, with texts as contexts and several values of every parameter.
"""
import argparse
import math
import pathlib
import random
import sys
import urllib.request
import json

import numpy as np
import torch
from transformers import generation

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from served import Server  # noqa: E402

TOKENS = 20  # as many as the server reports


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


class Client:
    def __init__(self, server):
        self.url = server.url

    def ask(self, context, allowed, **fields):
        """Probabilities of the next token by id, after all stages."""
        body = {"prompt": context, "max_tokens": 1, "allowed_token_ids": allowed, "logprobs": TOKENS, "post_sampling_probs": True,
                "return_tokens_as_token_ids": True, "temperature": 1.0, **fields}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            top = json.load(answer)["choices"][0]["logprobs"]["top_logprobs"][0]
        return {int(name.removeprefix("token_id:")): math.exp(p) for name, p in top.items() if math.exp(p) > 0}


# --- what is expected: f(logits) gives logits, -inf for tokens that are removed

def by_transformers(processor):
    def run(logits, context):
        ids = torch.tensor([context])
        return processor(ids, torch.tensor(logits, dtype=torch.float64)[None])[0].numpy()
    return run


def keep(logits, kept):
    return np.where(kept, logits, -np.inf)


def top_n_sigma(n):
    """Top-n-sigma (Tang et al. 2024): logits at least max - n * deviation."""
    return lambda logits, context: keep(logits, logits >= logits.max() - n * logits.std())


def dynamic_temperature(temperature, spread, exponent):
    """llama.cpp's entropy sampling: between temperature -+ spread by normalised entropy."""
    def run(logits, context):
        p = softmax(logits)
        entropy = -(p * np.log(p)).sum() / math.log(len(p))
        return logits / ((temperature - spread) + 2 * spread * entropy ** exponent)
    return run


def xtc(threshold):
    """XTC with probability 1: all tokens that reach the threshold go, except the least likely of them."""
    def run(logits, context):
        p = softmax(logits)
        above = np.flatnonzero(p >= threshold)
        if len(above) < 2:
            return logits
        out = logits.copy()
        out[above] = -np.inf
        least = above[np.argmin(p[above])]
        out[least] = logits[least]
        return out
    return run


def dry(multiplier, base, allowed):
    """DRY (p-e-w): what would extend the longest repetition of the end of the text."""
    def run(logits, context):
        out = logits.copy()
        for token in range(len(logits)):
            best = 0
            for i in range(1, len(context)):
                if context[i] != token:
                    continue
                length = 0
                while length < i and context[i - 1 - length] == context[-1 - length]:
                    length += 1
                best = max(best, length)
            if best >= allowed:
                out[token] -= multiplier * base ** (best - allowed)
        return out
    return run


def cases():
    g = generation
    for k in (1, 2, 7, 19):
        yield f"top_k {k}", {"top_k": k}, by_transformers(g.TopKLogitsWarper(k))
    for p in (0.1, 0.5, 0.9, 0.999):
        yield f"top_p {p}", {"top_p": p}, by_transformers(g.TopPLogitsWarper(p))
        yield f"typical_p {p}", {"typical_p": p}, by_transformers(g.TypicalLogitsWarper(p))
    for p in (0.01, 0.1, 0.5, 1.0):
        yield f"min_p {p}", {"min_p": p}, by_transformers(g.MinPLogitsWarper(p))
    for t in (0.2, 0.7, 1.5):
        yield f"temperature {t}", {"temperature": t}, by_transformers(g.TemperatureLogitsWarper(t))
    for n in (0.5, 1.0, 2.0, 3.0):
        yield f"top_n_sigma {n}", {"top_n_sigma": n}, top_n_sigma(n)
    for t, r, e in ((1.0, 0.5, 1.0), (0.8, 0.7, 2.0), (1.5, 1.0, 0.5)):
        yield f"dynatemp {t} {r} {e}", {"temperature": t, "dynatemp_range": r, "dynatemp_exponent": e}, dynamic_temperature(t, r, e)
    for threshold in (0.01, 0.05, 0.2):
        yield f"xtc {threshold}", {"xtc_probability": 1.0, "xtc_threshold": threshold}, xtc(threshold)
    for m, b, a in ((0.8, 1.75, 2), (1.5, 1.2, 1)):
        yield f"dry {m} {b} {a}", {"dry_multiplier": m, "dry_base": b, "dry_allowed_length": a, "dry_sequence_breakers": []}, dry(m, b, a)


def penalty_error(logits, expected, context, factor):
    """transformers' repetition penalty depends on the zero of the logits, which probabilities do not tell: the best zero."""
    processor = by_transformers(generation.RepetitionPenaltyLogitsProcessor(factor))

    def error(zero):
        return np.abs(softmax(processor(logits + zero, context)) - expected).max()
    steps = np.linspace(-40, 40, 801)
    for _ in range(4):
        best = min(steps, key=error)
        steps = np.linspace(best - (steps[1] - steps[0]), best + (steps[1] - steps[0]), 81)
    return error(best)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokamak")
    parser.add_argument("model", help="stories260K.gguf or another with at least 512 tokens")
    parser.add_argument("--contexts", type=int, default=12)
    args = parser.parse_args()
    rng = random.Random(1)
    compared = wrong = 0
    with Server(args.tokamak, args.model, "--threads", 1) as server:
        client = Client(server)
        for number in range(args.contexts):
            allowed = sorted(rng.sample(range(3, 512), TOKENS))
            part = [rng.choice(allowed) for _ in range(6)]
            context = part + [rng.choice(allowed) for _ in range(rng.randint(1, 8))] + part[:rng.randint(2, 6)]
            before = client.ask(context, allowed)
            logits = np.array([math.log(before.get(i, 1e-300)) for i in allowed])
            place = {token: i for i, token in enumerate(allowed)}
            local = [place[t] for t in context]
            for name, fields, run in cases():
                wanted = run(logits, local)
                expected, removed = softmax(wanted), np.isneginf(wanted)
                after = client.ask(context, allowed, **fields)
                have = np.array([after.get(i, 0.0) for i in allowed])
                error = np.abs(have - expected).max()
                compared += 1
                if error > 2e-6 or (have[removed] > 0).any() or (have[~removed & (expected > 1e-12)] == 0).any():
                    wrong += 1
                    print(f"context {number}, {name}: differs by {error:.2e}; kept {(have > 0).sum()}, expected {(~removed).sum()}")
            for factor in (1.1, 1.5, 0.8):
                after = client.ask(context, allowed, repetition_penalty=factor)
                error = penalty_error(logits, np.array([after.get(i, 0.0) for i in allowed]), local, factor)
                compared += 1
                if error > 1e-4:
                    wrong += 1
                    print(f"context {number}, repetition_penalty {factor}: differs by {error:.2e}")
    print(f"{compared} distributions compared, {wrong} differ")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
