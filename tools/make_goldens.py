#!/usr/bin/env python3
"""Computes the expected outputs of the tiny models with transformers and writes tests/golden/numerics/NAME.json.

    tools/make_goldens.py [--only llama,gemma3] [--out tests/golden/numerics] [--llama-cpp]
    tools/make_goldens.py --families [--only olmo2]: the models of tiny_families.py, in tests/golden/families

Run by hand, not by `make test`: it needs torch, transformers 5 and accelerate (gigabytes). The goldens are committed.
The models come from tools/tiny_models.py, weights in float32, maths in float64 where transformers allows it (it always computes
norms, softmax and rotary tables in float32: the goldens are good to about 1e-7 relative), eager attention.

The JSON:
    {"format": 1, "model": "llama",                 folder and GGUF name from tiny_models.py
     "gguf": true,                                  NAME.gguf exists too and is the same model
     "vocab": 128,
     "weights_sha256": "...",                       tiny_models.fingerprint of the weights
     "sequences": [{                                independent sequences, each from position 0
        "ids": [...],                               input tokens; every position is computed in one causal pass
        "rows": [0, 1, ...],                        the positions whose logits are kept
        "logits": [[...vocab numbers...], ...],     one list per row, 9 significant digits
        "greedy": [...16 ids...],                   argmax continuation after the whole of ids
        "greedy_margin": 0.01,                      smallest gap between best and second-best logit along the way
        "nll": 123.4}]}                             sum of -log p(ids[i+1] | ids[..i]) over the whole sequence

Checks while computing them: the GGUF contains the same tensors (read back and un-converted here); transformers gives the same
logits from the GGUF where it supports that kind (--llama-cpp: llama.cpp too); greedy margins are wide enough that
float32 cannot flip them; every feature of a model changes its logits (window, scaling, caps), so that a test against
the golden can fail.
"""
import argparse
import copy
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import numpy_models  # noqa: E402
import tiny_gguf  # noqa: E402
import tiny_models  # noqa: E402
import tiny_families  # noqa: E402

GREEDY = 16
LENGTHS = [40, 33]
ROWS = [0, 1, 5, 6, 7, 8, 9, 12, 16, 25]  # around the windows and the original contexts; the last three are added

# Config changes that must change the logits: model -> changes, applied one at a time.
SWITCHED = {
    "llama_linear": [{"rope_scaling": None}], "llama_llama3": [{"rope_scaling": None}],
    "llama_yarn": [{"rope_scaling": None}], "mistral": [{"sliding_window": None}, {"sliding_window": 9}],
    "qwen3_window": [{"use_sliding_window": False}, {"max_window_layers": 2}, {"rope_scaling": None}],
    "gpt2_scaled": [{"scale_attn_weights": True}, {"scale_attn_by_inverse_layer_idx": False}],
    "gemma2": [{"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, {"sliding_window": 9}],
    "gemma2_scalar": [{"query_pre_attn_scalar": 16}],
    "gemma3": [{"rope_scaling": None}, {"sliding_window": 9}, {"rope_local_base_freq": 5000.0}],
    "gemma3_types": [{"rope_local_base_freq": 10000.0}, {"sliding_window": 7},
                     {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}],
    "phi3": [{"sliding_window": None}, {"sliding_window": 11}],
    "phi3_longrope": [{"original_max_position_embeddings": 63}],
}

FAMILIES_SWITCHED = {
    "exaone4": [{"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2}, {"sliding_window": 9}],
    "granite": [{"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"attention_multiplier": 0.25},
                {"logits_scaling": 1.0}],
    "cohere": [{"logit_scale": 0.5}], "cohere2": [{"sliding_window": 9}, {"sliding_window_pattern": 2}],
    "glm4": [{"partial_rotary_factor": 0.25}], "smollm3": [{"no_rope_layers": [1, 1, 1, 1]}],
    "starcoder2": [{"sliding_window": None}, {"sliding_window": 9}], "phi2": [{"partial_rotary_factor": 1.0}],
    "mixtral": [{"num_experts_per_tok": 1}], "qwen2moe": [{"norm_topk_prob": True}, {"num_experts_per_tok": 3}],
    "qwen3moe": [{"norm_topk_prob": False}], "olmoe": [{"norm_topk_prob": True}],
    "gpt_oss": [{"sliding_window": 9}, {"swiglu_limit": 3.0}, {"rope_scaling": None}],
    "deepseek2": [{"routed_scaling_factor": 1.0}, {"num_experts_per_tok": 2}],
    "deepseek3": [{"rope_scaling": None}, {"topk_group": 1}, {"norm_topk_prob": False}],
    "qwen3next": [{"partial_rotary_factor": 1.0}, {"norm_topk_prob": False}],
    "mamba2_groups": [{"time_step_limit": [0.0, 0.6]}, {"time_step_limit": [0.05, 10.0]}],
    "llama4": [{"attention_chunk_size": 9}, {"attn_temperature_tuning": False}, {"floor_scale": 6}, {"use_qk_norm": False},
               {"no_rope_layers": [1, 1, 0, 0, 1]}, {"rope_scaling": None}],
    "gemma3n": [{"sliding_window": 7}, {"activation_sparsity_pattern": [0.6, 0.0, 0.6, 0.0, 0.0, 0.0]},
                {"rope_local_base_freq": 100.0}, {"final_logit_softcapping": 30.0}, {"altup_active_idx": 1}],
    "falcon_h1": [{"key_multiplier": 1.0}, {"mlp_multipliers": [0.9, 1.0]}, {"ssm_multipliers": [0.7, 1.2, 0.8, 1.4, 1.0]},
                  {"attention_in_multiplier": 1.0}, {"ssm_out_multiplier": 1.0}],
    "falcon_h1_norm": [{"mamba_norm_before_gate": True}],
    "gemma4": [{"sliding_window": 7}, {"final_logit_softcapping": 30.0}, {"rope_parameters": {
        **tiny_families.MODELS["gemma4"]["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}],
    "gemma4_moe": [{"top_k_experts": 3}, {"rope_parameters": {**tiny_families.MODELS["gemma4"]["rope_parameters"], "full_attention": {
        "rope_type": "proportional", "partial_rotary_factor": 1.0, "rope_theta": 100.0}}}],
    "olmo3": [{"sliding_window": 9}, {"rope_scaling": None}], "glm": [{"partial_rotary_factor": 0.25}],
    "ministral3": [{"rope_scaling": {**tiny_families.MODELS["ministral3"]["rope_scaling"], "llama_4_scaling_beta": 0.1}}],
    "stablelm": [{"partial_rotary_factor": 0.5}], "gpt_neox": [{"rotary_pct": 0.5}, {"use_parallel_residual": False}],
    "granitemoe": [{"num_experts_per_tok": 1}, {"logits_scaling": 1.0}, {"residual_multiplier": 1.0}],
    "dots1": [{"norm_topk_prob": False}, {"topk_group": 2}], "ernie4_5_moe": [{"moe_k": 3}],
    "minimax_m2": [{"rotary_dim": 16}, {"num_experts_per_tok": 3}], "qwen35": [{"partial_rotary_factor": 0.25}],
    "qwen35moe": [{"num_experts_per_tok": 3}],
    "afmoe": [{"sliding_window": 9}, {"route_scale": 1.0}, {"mup_enabled": False}],
    "exaone_moe": [{"sliding_window": 9}, {"topk_group": 1}, {"routed_scaling_factor": 1.0}],
    "phimoe_mixed": [{"router_jitter_noise": 0.01}], "minicpm3": [{"scale_emb": 6}, {"scale_depth": 1.0}, {"dim_model_base": 64}],
    "hyperclovax": [{"use_post_norm": False}, {"logits_scaling": 1.0}], "gpt_neo": [{"window_size": 9}],
    "jamba": [{"attn_layer_offset": 1, "num_experts_per_tok": 1}],
    "glm4moe": [{"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}, {"topk_group": 1}, {"n_group": 1, "topk_group": 1},
                {"partial_rotary_factor": 1.0}],
}

# transformers reads these kinds of GGUF correctly; for the others it drops rope scaling, windows or head sizes.
GGUF_BY_TRANSFORMERS = {"llama", "smollm2", "qwen2", "gpt2"}
# llama.cpp has no sliding window for these two. (Its GELU is a float16 table: 1e-7 is its best for Gemma and GPT-2.)
NOT_BY_LLAMA_CPP = {"mistral", "phi3"}


def sequences():
    rng = np.random.RandomState(20240229)
    return [rng.randint(len(tiny_models.SPECIAL), tiny_models.VOCAB, size=n).tolist() for n in LENGTHS]


def load(folder, **kwargs):
    # Eager attention of transformers 5.23 adds Falcon's ALiBi twice.
    attention = "sdpa" if folder.name == "falcon_rw" else "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention,
                                                              experts_implementation="eager", **kwargs)
    return model.double().eval()


def logits_of(model, ids):
    if isinstance(model, numpy_models.Decoder):
        return model(ids)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def greedy_of(model, ids):
    ids, margin = list(ids), float("inf")
    for _ in range(GREEDY):
        row = logits_of(model, ids)[-1]
        best = np.sort(row)[-2:]
        margin = min(margin, float(best[1] - best[0]))
        ids.append(int(row.argmax()))
    return ids[-GREEDY:], margin


def nll_of(logits, ids):
    z = logits - logits.max(axis=1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return float(-sum(logp[i, ids[i + 1]] for i in range(len(ids) - 1)))


def nmse(a, b):
    return float(((a - b) ** 2).sum() / (b ** 2).sum())


def golden_of(name, model, gguf, weights, lengths=LENGTHS, kept=ROWS):
    result = {"format": 1, "model": name, "gguf": gguf, "vocab": tiny_models.VOCAB,
              "weights_sha256": tiny_models.fingerprint(weights), "sequences": []}
    for ids, length in zip(sequences(), lengths):
        ids = ids[:length]
        logits = logits_of(model, ids)
        rows = kept + [len(ids) - 3, len(ids) - 2, len(ids) - 1]
        greedy, margin = greedy_of(model, ids)
        assert margin > 2e-3, f"{name}: greedy margin {margin:.2g} is too small: float32 might flip it; change a weight"
        result["sequences"].append({
            "ids": ids, "rows": rows, "logits": [[float(f"{x:.9g}") for x in logits[r]] for r in rows],
            "greedy": greedy, "greedy_margin": float(f"{margin:.4g}"), "nll": float(f"{nll_of(logits, ids):.10g}")})
    return result


def check_tensors(name, folder, path):
    """The GGUF, un-converted, contains exactly the tensors of the folder."""
    config, wanted = tiny_models.MODELS[name], tiny_models.weights_of(name)
    found = {t.name: t.data.reshape(t.shape[::-1]) for t in gguf.GGUFReader(path).tensors}
    for hf_name, x in wanted.items():
        y = found.pop(tiny_gguf.gguf_name(hf_name, config["model_type"]))
        if config["model_type"] in ("llama", "mistral") and (".q_proj." in hf_name or ".k_proj." in hf_name):
            heads = config["num_attention_heads" if ".q_proj." in hf_name else "num_key_value_heads"]
            y = y.reshape(heads, y.shape[0] // heads // 2, 2, *y.shape[1:]).swapaxes(1, 2).reshape(y.shape)
        elif config["model_type"] == "gpt2" and y.ndim == 2 and not hf_name.startswith("w"):
            y = y.T
        elif config["model_type"].startswith("gemma") and hf_name.endswith("norm.weight"):
            x = x + np.float32(1)
        assert np.array_equal(x, y), f"{name}: {hf_name} differs in the GGUF"
    assert set(found) <= {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}, found.keys()


def check_switch(name, config, out, golden, change):
    """Without the feature the logits must differ: otherwise the golden would not detect its absence."""
    config = copy.deepcopy(config)
    config.update(change)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").symlink_to((out / name / "model.safetensors").resolve())
        model = load(folder)
    s = golden["sequences"][0]
    error = nmse(logits_of(model, s["ids"])[s["rows"]], np.array(s["logits"]))
    print(f"  with {change}: NMSE {error:.1e}")
    assert error > 1e-4, f"{name}: {change} changes too little"


def check_gguf_by_transformers(name, out, golden):
    model = load(out, gguf_file=f"{name}.gguf")
    s = golden["sequences"][0]
    error = nmse(logits_of(model, s["ids"])[s["rows"]], np.array(s["logits"]))
    print(f"  GGUF by transformers: NMSE {error:.1e}")
    assert error < 1e-14


def check_gguf_by_llama_cpp(name, out, golden):
    import llama_cpp
    s = golden["sequences"][0]
    model = llama_cpp.Llama(str(out / f"{name}.gguf"), n_ctx=tiny_models.CONTEXT, logits_all=True, verbose=False,
                            n_threads=1, flash_attn=False, type_k=0, type_v=0)
    model.eval(s["ids"])
    scores = np.array(model.scores[:len(s["ids"])], dtype=np.float64)
    error = nmse(scores[s["rows"]], np.array(s["logits"]))
    print(f"  GGUF by llama.cpp: NMSE {error:.1e}")
    assert error < 1e-6


def family_golden(name, models, out):
    t = tiny_models.write_family(name, models)
    config = tiny_families.MODELS[name]
    if name in tiny_families.REFERENCE:
        config = {k: v for k, v in {**config, **tiny_families.REFERENCE[name]}.items() if v is not None}
        tiny_models.write_folder(models / name, config, t.reference)
    model = numpy_models.Decoder(config, t.hf) if name in numpy_models.NAMES else load(models / name)
    golden = golden_of(name, model, name not in tiny_families.NOT_AS_GGUF, t.hf, [24, 17], [0, 5, 9, 12])
    tiny_models.write_golden(out / f"{name}.json", golden)
    print(f"{name}: greedy margin {min(s['greedy_margin'] for s in golden['sequences'])}")
    for change in FAMILIES_SWITCHED.get(name, []):
        check_switch(name, config, models, golden, change)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--families", action="store_true", help="the models of tiny_families.py")
    parser.add_argument("--only", default="")
    parser.add_argument("--llama-cpp", action="store_true", help="also compare llama.cpp's logits (needs llama-cpp-python)")
    args = parser.parse_args()
    args.out = args.out or root / "tests" / "golden" / ("families" if args.families else "numerics")
    args.out.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        models = pathlib.Path(scratch)
        if args.families:
            ours = [n for n in tiny_families.MODELS if n not in tiny_families.BY_LLAMA]
            for name in args.only.split(",") if args.only else ours:
                family_golden(name, models, args.out)
            return
        for name in args.only.split(",") if args.only else tiny_models.MODELS:
            tiny_models.write_model(name, models)
            golden = golden_of(name, load(models / name), name not in tiny_models.NOT_AS_GGUF,
                               tiny_models.weights_of(name))
            path = args.out / f"{name}.json"
            tiny_models.write_golden(path, golden)
            margin = min(s["greedy_margin"] for s in golden["sequences"])
            print(f"{name}: {path.stat().st_size / 1024:.0f} KiB, greedy margin {margin}")
            for change in SWITCHED.get(name, []):
                check_switch(name, tiny_models.MODELS[name], models, golden, change)
            if golden["gguf"]:
                check_tensors(name, models / name, models / f"{name}.gguf")
                if name in GGUF_BY_TRANSFORMERS:
                    check_gguf_by_transformers(name, models, golden)
                if args.llama_cpp and name not in NOT_BY_LLAMA_CPP:
                    check_gguf_by_llama_cpp(name, models, golden)


if __name__ == "__main__":
    main()
