#!/usr/bin/env python3
"""Writes tests/golden/beams.json: beam searches of the tiny models by transformers' generate(): tokens and scores.

    tools/make_beam_goldens.py OUTPUT

Run by hand, as tools/make_goldens.py, which says what it needs. A case whose answer differs between float32 and float64 is left out:
its candidates are too close to each other.
"""
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_goldens  # noqa: E402
import tiny_models  # noqa: E402

MODELS = ["llama", "gpt2", "gemma3", "qwen3"]
CASES = 30


def answers(model, case):
    with torch.no_grad():
        out = model.generate(
            torch.tensor([case["prompt"]]), attention_mask=torch.ones(1, len(case["prompt"]), dtype=torch.long), do_sample=False,
            num_beams=case["beams"], num_return_sequences=case["n"], max_new_tokens=case["max_tokens"],
            min_new_tokens=case["min_tokens"] or None, length_penalty=case["length_penalty"], early_stopping=case["early_stopping"],
            eos_token_id=case["stop_ids"] or None, pad_token_id=tiny_models.EOS, return_dict_in_generate=True, output_scores=True)
    result = []
    for ids, score, places in zip(out.sequences.tolist(), out.sequences_scores.tolist(), out.beam_indices.tolist()):
        ids = ids[len(case["prompt"]):]
        ids = ids[:sum(place >= 0 for place in places)]
        stopped = bool(ids) and ids[-1] in case["stop_ids"]
        result.append({"ids": ids[:-1] if stopped else ids, "stop_id": ids[-1] if stopped else -1, "score": round(score, 6)})
    return result


def random_case(rng, name):
    beams = rng.choice([2, 3, 4, 6])
    text = range(len(tiny_models.SPECIAL), tiny_models.VOCAB)
    stops = rng.choice([0, 1, 6, 20, 40])
    return {"model": name, "prompt": [rng.choice(text) for _ in range(rng.randint(1, 20))], "beams": beams, "n": rng.randint(1, beams),
            "max_tokens": rng.randint(1, 24), "min_tokens": rng.choice([0, 0, 3]) if stops else 0,
            "length_penalty": rng.choice([1.0, 1.0, 0.0, 0.5, 2.0, -1.0]), "early_stopping": rng.choice([False, True, "never"]),
            "stop_ids": sorted(rng.sample(text, stops))}


def main():
    rng = random.Random(11)
    cases, dropped = [], 0
    for name, model, wide in tiny_goldens.models(MODELS):
        for _ in range(CASES):
            case = random_case(rng, name)
            case["answers"] = answers(model, case)
            other = answers(wide, case)
            if [a["ids"] for a in other] != [a["ids"] for a in case["answers"]]:
                dropped += 1
                continue
            cases.append(case)
    tiny_goldens.write_cases(sys.argv[1], cases)
    stopped = sum(a["stop_id"] >= 0 for c in cases for a in c["answers"])
    print(f"{len(cases)} cases, {dropped} left out, {stopped} answers that ended at a stop id")


if __name__ == "__main__":
    main()
