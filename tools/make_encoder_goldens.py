#!/usr/bin/env python3
"""Writes tests/golden/encoders/NAME.json: vectors of the tiny encoders (tiny_encoders.py), computed by transformers in float64.

    tools/make_encoder_goldens.py [--only bert,roberta]      needs torch and transformers

Nomic's encoder is not part of transformers: it is written here from its description, in numpy.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_encoders  # noqa: E402
import tiny_models  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = (5, 1, 33, 17)


def sequences():
    rng = np.random.RandomState(7)
    out = []
    for n in LENGTHS:
        ids = [tiny_encoders.CLS] + [int(x) for x in rng.randint(5, tiny_encoders.VOCAB, n)] + [tiny_encoders.SEP]
        second = len(ids) // 2 if n > 16 else 0
        out.append((ids, second))
    return out


def nomic_vector(c, t, ids, types):
    def norm(x, name):
        m = x.mean(-1, keepdims=True)
        return (x - m) / np.sqrt(x.var(-1, keepdims=True) + c["layer_norm_epsilon"]) * t[name + ".weight"] + t[name + ".bias"]

    def rotate(x):
        half = x.shape[-1] // 2
        angle = np.arange(len(ids))[:, None] * c["rotary_emb_base"] ** (-np.arange(half) / half)[None, :]
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    t = {k: v.astype(np.float64) for k, v in t.items()}
    heads, hidden = c["n_head"], c["n_embd"]
    x = norm(t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][types], "emb_ln")
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}."
        q, k, v = [(x @ w.T).reshape(len(ids), heads, -1) for w in np.split(t[at + "attn.Wqkv.weight"], 3)]
        q, k = rotate(q), rotate(k)
        s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(hidden // heads)
        p = np.exp(s - s.max(-1, keepdims=True))
        a = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(len(ids), hidden)
        x = norm(x + a @ t[at + "attn.out_proj.weight"].T, at + "norm1")
        gate = x @ t[at + "mlp.fc12.weight"].T
        h = x @ t[at + "mlp.fc11.weight"].T * (gate / (1 + np.exp(-gate)))
        x = norm(x + h @ t[at + "mlp.fc2.weight"].T, at + "norm2")
    return x.mean(0)


def vector_of(name, model, tensors, ids, second):
    config = tiny_encoders.ENCODERS[name]
    types = [1 if second and i >= second else 0 for i in range(len(ids))]
    if config["model_type"] == "nomic_bert":
        return nomic_vector(config, tensors, ids, types)
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if config.get("type_vocab_size") == 2:
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        out = model(**inputs)
    if hasattr(out, "logits"):
        return out.logits[0].numpy()
    x = out.last_hidden_state[0].numpy()
    x = x[0] if tiny_encoders.pooling_of(name) == "cls" else x.mean(0)
    for matrix in (m for t, m in tensors.items() if "_Dense/" in t):
        x = matrix.astype(np.float64) @ x
    return x


def load(folder, config):
    if config["model_type"] == "nomic_bert":
        return None
    kind = (transformers.AutoModelForSequenceClassification if config["architectures"][0].endswith("Classification")
            else transformers.AutoModel)
    model, info = kind.from_pretrained(folder, attn_implementation="eager", torch_dtype=torch.float64,
                                       output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "pooler" not in k]
    assert not missing and not info["unexpected_keys"], info
    return model.double().eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden" / "encoders")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only.split(",") if args.only else tiny_encoders.ENCODERS:
            config = tiny_encoders.ENCODERS[name]
            tensors = tiny_encoders.weights_of(name, tiny_models.Weights)
            tiny_encoders.write_model(name, pathlib.Path(scratch), tensors)
            model = load(pathlib.Path(scratch) / name, config)
            golden = {"format": 1, "model": name, "gguf": name in tiny_encoders.AS_GGUF,
                      "pooling": tiny_encoders.pooling_of(name), "weights_sha256": tiny_models.fingerprint(tensors),
                      "sequences": []}
            for ids, second in sequences():
                if config.get("type_vocab_size", 1) != 2:
                    second = 0
                vector = vector_of(name, model, tensors, ids, second)
                golden["sequences"].append({"ids": ids, "second": second,
                                            "vector": [float(f"{x:.10g}") for x in np.asarray(vector, dtype=np.float64)]})
            text = json.dumps({k: v for k, v in golden.items() if k != "sequences"})[:-1] + ', "sequences": [\n '
            text += ",\n ".join(json.dumps(s, separators=(",", ":")) for s in golden["sequences"]) + "]}\n"
            path = args.out / f"{name}.json"
            path.write_text(text)
            print(f"{name}: {len(golden['sequences'][0]['vector'])} numbers, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
