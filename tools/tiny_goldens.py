"""What the scripts that write goldens of decoding methods share: tiny models in two precisions, cases, and the file."""
import json
import pathlib
import tempfile

import torch
import transformers

import tiny_models


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").float().eval()


def models(names):
    """Yields (name, model in float32, the same in float64)."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            tiny_models.write_model(name, pathlib.Path(folder))
            path = pathlib.Path(folder) / name
            yield name, load(path), load(path).double()


def top_logprobs(rows, count, least=float("-inf")):
    """[[id, log-probability], ...] of the likeliest tokens of each row, those above `least`."""
    out = []
    for row in rows:
        values, ids = torch.topk(row, count)
        out.append([[i, round(v, 6)] for i, v in zip(ids.tolist(), values.tolist()) if v > least])
    return out


def write_cases(path, cases):
    with open(path, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
