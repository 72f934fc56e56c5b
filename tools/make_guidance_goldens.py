#!/usr/bin/env python3
"""Writes tests/golden/guidance.json: greedy answers of the tiny models under classifier-free guidance by transformers' generate()
(UnbatchedClassifierFreeGuidanceLogitsProcessor), and the log-probabilities of the guided distribution at every step.

    tools/make_guidance_goldens.py OUTPUT

Run by hand, as tools/make_goldens.py, which says what it needs. A case whose answer differs between float32 and float64 is left out:
its candidates are too close to each other.
"""
import json
import pathlib
import random
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
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


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


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
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            tiny_models.write_model(name, pathlib.Path(folder))
            model, wide = load(pathlib.Path(folder) / name), load(pathlib.Path(folder) / name).double()
            for _ in range(CASES):
                case = random_case(rng, name)
                case["ids"], rows = answer(model, case)
                other, exact = answer(wide, case)
                if other != case["ids"]:
                    dropped += 1
                    continue
                case["tops"] = []
                for row in exact:
                    values, ids = torch.topk(row, TOPS)
                    case["tops"].append([[i, round(v, 6)] for i, v in zip(ids.tolist(), values.tolist())])
                cases.append(case)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{len(cases)} cases, {dropped} left out")


if __name__ == "__main__":
    main()
