#!/usr/bin/env python3
"""Writes tests/golden/guidance.json: greedy answers of the tiny models under classifier-free guidance by transformers' generate()
(UnbatchedClassifierFreeGuidanceLogitsProcessor), and the log-probabilities of the guided distribution at every step.

    tools/make_guidance_goldens.py OUTPUT

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
CASES = 12
TOPS = 5


class Recorder(transformers.LogitsProcessor):
    """Keeps the guided scores, before any other processor of the request."""

    def __init__(self, guidance):
        self.guidance, self.rows = guidance, []

    def __call__(self, input_ids, scores):
        scores = self.guidance(input_ids, scores)
        self.rows.append(torch.log_softmax(scores[0].double(), -1))
        return scores


def answer(model, case):
    negative = torch.tensor([case["negative"]]) if case["negative"] else None
    guidance = transformers.UnbatchedClassifierFreeGuidanceLogitsProcessor(case["scale"], model, unconditional_ids=negative)
    recorder = Recorder(guidance)
    processors = transformers.LogitsProcessorList([recorder])
    if case["repetition_penalty"] != 1:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    ids = torch.tensor([case["prompt"]])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=case["max_tokens"],
                             logits_processor=processors, pad_token_id=tiny_models.EOS, eos_token_id=None)
    return out[0].tolist()[len(case["prompt"]):], recorder.rows


def random_case(rng, name):
    text = range(len(tiny_models.SPECIAL), tiny_models.VOCAB)
    prompt = [rng.choice(text) for _ in range(rng.randint(1, 20))]
    negative = [rng.choice(text) for _ in range(rng.choice([0, 1, 7, 25]))]
    if negative and rng.random() < 0.5:
        negative = prompt[: rng.randint(1, len(prompt))] + negative  # a common prefix
    return {"model": name, "prompt": prompt, "negative": negative, "scale": rng.choice([0.5, 1.5, 2.0, 3.0, 7.5]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.3]), "max_tokens": rng.randint(2, 20)}


def main():
    rng = random.Random(5)
    cases, dropped = [], 0
    for name, model, wide in tiny_goldens.models(MODELS):
        for _ in range(CASES):
            case = random_case(rng, name)
            case["ids"], rows = answer(model, case)
            other, exact = answer(wide, case)
            if other != case["ids"]:
                dropped += 1
                continue
            case["tops"] = tiny_goldens.top_logprobs(exact, TOPS)
            cases.append(case)
    tiny_goldens.write_cases(sys.argv[1], cases)
    print(f"{len(cases)} cases, {dropped} left out")


if __name__ == "__main__":
    main()
