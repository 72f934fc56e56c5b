#!/usr/bin/env python3
"""Writes tests/golden/contrastive.json: answers of the tiny models by transformers' contrastive search, generate(penalty_alpha=, top_k=).

    tools/make_contrastive_goldens.py OUTPUT

Run by hand. It needs torch and a transformers that still has contrastive search inside: 4.51.3; newer ones load it from the hub. A case
whose answer differs between float32 and float64 is left out: its candidates are too close to each other.
"""
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_goldens  # noqa: E402
import tiny_models  # noqa: E402

MODELS = ["llama", "smollm2", "gpt2", "qwen3"]
CASES = 16


def answer(model, case):
    ids = torch.tensor([case["prompt"]])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=case["max_tokens"],
                             penalty_alpha=case["alpha"], top_k=case["top_k"], pad_token_id=tiny_models.EOS, eos_token_id=case["stop"])
    return out[0].tolist()[len(case["prompt"]):]


def random_case(rng, name):
    text = range(len(tiny_models.SPECIAL), tiny_models.VOCAB)
    return {"model": name, "prompt": [rng.choice(text) for _ in range(rng.randint(1, 30))], "alpha": rng.choice([0.05, 0.2, 0.6, 0.9]),
            "top_k": rng.choice([2, 4, 7]), "max_tokens": rng.randint(1, 24), "stop": rng.choice([None, None, rng.sample(list(text), 8)])}


def main():
    rng = random.Random(7)
    cases, dropped, differ = [], 0, 0
    for name, model, wide in tiny_goldens.models(MODELS):
        for _ in range(CASES):
            case = random_case(rng, name)
            case["ids"] = answer(model, case)
            if answer(wide, case) != case["ids"]:
                dropped += 1
                continue
            differ += answer(model, {**case, "alpha": None, "top_k": None}) != case["ids"]
            cases.append(case)
    tiny_goldens.write_cases(sys.argv[1], cases)
    print(f"{len(cases)} cases, {dropped} left out; {differ} differ from greedy answers")


if __name__ == "__main__":
    main()
