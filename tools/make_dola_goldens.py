#!/usr/bin/env python3
"""Writes tests/golden/dola.json: greedy answers of the tiny models under DoLa by transformers' generate(dola_layers=...), and the
log-probabilities of the contrasted distribution at every step.

    tools/make_dola_goldens.py OUTPUT

Run by hand. It needs torch and a transformers that still has DoLa inside: 4.51.3; newer ones load it from the hub. A case whose answer
differs between float32 and float64 is left out: its candidates are too close to each other.
"""
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_goldens  # noqa: E402
import tiny_models  # noqa: E402

MODELS = ["llama", "smollm2", "gpt2", "gemma3", "qwen3"]
CASES = 14
TOPS = 5


class Recorder(transformers.LogitsProcessor):
    """Keeps the contrasted scores, before any other processor of the request."""

    def __init__(self):
        self.rows = []

    def __call__(self, input_ids, scores):
        self.rows.append(torch.log_softmax(scores[0].double(), -1))
        return scores


def answer(model, case):
    recorder = Recorder()
    processors = transformers.LogitsProcessorList([recorder])
    if case["repetition_penalty"] != 1:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    ids = torch.tensor([case["prompt"]])
    # With a cache, that version gives other logits for gemma3 than without.
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=case["max_tokens"],
                             use_cache=False, dola_layers=case["layers"], logits_processor=processors, pad_token_id=tiny_models.EOS, eos_token_id=None)
    return out[0].tolist()[len(case["prompt"]):], recorder.rows


def random_case(rng, name, layers):
    text = range(len(tiny_models.SPECIAL), tiny_models.VOCAB)
    prompt = [rng.choice(text) for _ in range(rng.randint(1, 20))]
    chosen = sorted(rng.sample(range(layers), rng.randint(1, layers)))
    return {"model": name, "prompt": prompt, "layers": chosen, "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
            "max_tokens": rng.randint(2, 20)}


def main():
    rng = random.Random(6)
    cases, dropped = [], 0
    for name, model, wide in tiny_goldens.models(MODELS):
        for _ in range(CASES):
            case = random_case(rng, name, model.config.get_text_config().num_hidden_layers)
            case["ids"], rows = answer(model, case)
            other, exact = answer(wide, case)
            if other != case["ids"] or any((a - b).nan_to_num(0, 0, 0).abs().max() > 1e-3 for a, b in zip(rows, exact)):
                dropped += 1
                continue
            case["tops"] = tiny_goldens.top_logprobs(exact, TOPS, -1000)
            cases.append(case)
    tiny_goldens.write_cases(sys.argv[1], cases)
    print(f"{len(cases)} cases, {dropped} left out")


if __name__ == "__main__":
    main()
