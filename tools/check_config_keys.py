#!/usr/bin/env python3
"""Changes and removes each key of the config.json of tiny models in turn: either the logits equal those of transformers, or the model is refused.

    tools/check_config_keys.py --build build/release [--only llama,phi3] [--keep FOLDER] [--removed]

Finds keys that change what a model computes and that the importer ignores. The weights stay, so a change that needs other
tensors is skipped where transformers reports missing ones. Run by hand: needs torch, transformers 5.23 and the programs
tokamak and family_table of the build.
"""
import argparse
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_variants  # noqa: E402
import make_goldens  # noqa: E402
import tiny_models  # noqa: E402

IGNORED = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache", "vocab_size", "bos_token_id",
           "eos_token_id", "pad_token_id", "num_hidden_layers", "max_position_embeddings", "initializer_range", "return_dict",
           "output_hidden_states", "output_attentions", "output_router_logits", "router_aux_loss_coef", "id2label", "label2id",
           "problem_type", "is_encoder_decoder", "chunk_size_feed_forward", "tokenizer_class"}
ABSENT = {"clip_qkv": 0.5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0, "logit_scale": 0.5, "query_pre_attn_scalar": 7,
          "attention_multiplier": 0.5, "logits_scaling": 3.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
          "partial_rotary_factor": 0.5, "sliding_window": 4, "use_sliding_window": True, "rope_theta": 77.0, "qk_layernorm": True,
          "routed_scaling_factor": 3.0, "norm_topk_prob": False, "is_causal": False, "use_bidirectional_attention": True,
          "no_rope_layers": [0, 1, 0, 1], "no_rope_layer_interval": 2, "hidden_act": "relu", "attention_bias": True,
          "swiglu_limit": 0.5, "layer_types": ["sliding_attention", "full_attention"] * 2, "rms_norm_eps": 0.1}


def others(key, value):
    """Values to try in place of this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, 0] if value else [1]
    if isinstance(value, float):
        return [value * 1.7 + 0.1, 0.0]
    if value is None:
        return [ABSENT.get(key), True, 3, 0.5]
    if isinstance(value, str):
        activations = ["relu", "gelu", "gelu_pytorch_tanh", "silu", "relu2", "quick_gelu", "gelu_10"]
        return activations if value in activations or "gelu" in value else ["other"]
    if isinstance(value, list) and value:
        if isinstance(value[0], str):
            return [value[::-1], value[1:] + value[:1], [max(set(value), key=value.count)] * len(value)]
        return [value[::-1], [x + 1 if isinstance(x, (int, float)) else x for x in value]]
    return []


def removals(config):
    for key in config:
        if key not in ("architectures", "model_type"):
            yield f"-{key}", {key: None}


def changes(config):
    for key, value in config.items():
        if key in IGNORED or key.startswith("_"):
            continue
        if isinstance(value, dict):
            for inner, part in value.items():
                for new in others(inner, part) if not isinstance(part, dict) else []:
                    yield f"{key}.{inner}={new}", {key: {**value, inner: new}}
        for new in others(key, value) if not isinstance(value, dict) else []:
            if new is not None:
                yield f"{key}={new}", {key: new}
    for key, new in ABSENT.items():
        if key not in config:
            yield f"+{key}={new}", {key: new}
    for inner in ({"rope_type": "linear", "factor": 3.0}, {"rope_type": "dynamic", "factor": 3.0, "alpha": 50.0}, {"rope_type": "ntk", "factor": 2.0},
                  {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3},
                  {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.1},
                  {"rope_type": "proportional", "partial_rotary_factor": 0.5}, {"rope_type": "default", "partial_rotary_factor": 0.5}):
        text = ",".join(f"{k}:{v}" for k, v in inner.items())
        if "rope_parameters" in config:
            yield f"rope={text}", {"rope_parameters": {"rope_theta": 10000.0, **inner}}
        yield f"rope_scaling={text}", {"rope_scaling": inner, "rope_parameters": None}


def logits_of(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    if any(info.get(k) for k in ("missing_keys", "mismatched_keys", "error_msgs")):
        raise ValueError("other tensors")
    ids = make_goldens.sequences()[0][:40]
    return ids, make_goldens.logits_of(model.double().eval(), ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--removed", action="store_true", help="only remove keys: are the defaults those of transformers?")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    tokamak, counts = str(args.build / "tokamak"), {"refused": 0, "skipped": 0}
    names = {}
    with tempfile.TemporaryDirectory() as scratch:
        models = args.keep or pathlib.Path(scratch)
        goldens = models / "goldens"
        goldens.mkdir(parents=True, exist_ok=True)
        for variant in args.only.split(",") if args.only else check_variants.VARIANTS:
            base = models / variant
            check_variants.model_of(*check_variants.VARIANTS[variant]).save_pretrained(base)
            config = json.loads((base / "config.json").read_text())
            for number, (text, change) in enumerate([
                    ("unchanged", {}), *removals(config), *([] if args.removed else changes(config))]):
                folder = models / f"{variant}-{number}"
                folder.mkdir(exist_ok=True)
                changed = {k: v for k, v in {**copy.deepcopy(config), **change}.items() if v is not None or k not in change}
                tiny_models.write_json(folder / "config.json", changed)
                for file in base.glob("*.safetensors"):
                    if not (folder / file.name).exists():
                        (folder / file.name).symlink_to(file.resolve())
                tiny_models.write_json(folder / "tokenizer.json", tiny_models.tokenizer_json())
                seen = subprocess.run([tokamak, "inspect", folder], capture_output=True, text=True)
                if seen.returncode:
                    counts["refused"] += 1
                    if len(seen.stderr.strip().splitlines()) != 1:
                        print(f"{variant} {text}: {seen.stderr.strip()}")
                    continue
                try:
                    ids, logits = logits_of(folder)
                    assert np.isfinite(logits).all()
                except Exception:  # transformers has no such model
                    counts["skipped"] += 1
                    continue
                names[folder.name] = f"{variant} {text}"
                rows = [0, 9, 20, 39]
                (goldens / f"{folder.name}.json").write_text(json.dumps({
                    "format": 1, "model": folder.name, "gguf": False, "vocab": tiny_models.VOCAB, "weights_sha256": "", "sequences": [{
                        "ids": ids, "rows": rows, "logits": [[float(f"{x:.9g}") for x in logits[r]] for r in rows], "greedy": [int(logits[-1].argmax())],
                        "greedy_margin": 0, "nll": make_goldens.nll_of(logits, ids)}]}))
        table = subprocess.run([args.build / "tests/cuda_backend/family_table", "cpu"], capture_output=True, text=True, env={
            **os.environ, "TOKAMAK_TABLE_GOLDENS": str(goldens), "TOKAMAK_TINY_FAMILIES": str(models)})
    rows = [line for line in table.stdout.splitlines() if line.startswith(tuple(f"| {name} |" for name in names))]
    if len(rows) != len(names):
        sys.exit(f"family_table compared {len(rows)} of {len(names)} models: {table.stderr}")
    wrong = [line for line in rows if "WRONG" in line or "nan" in line]
    for line in wrong:
        print(f"{names[re.split(r' *[|] *', line)[1]]}: {line}")
    print(table.stderr, end="")
    print(f"{len(names)} compared, {len(wrong)} wrong, {counts['refused']} refused, {counts['skipped']} not loaded by transformers")
    return 1 if wrong or table.returncode == 2 else 0


if __name__ == "__main__":
    sys.exit(main())
