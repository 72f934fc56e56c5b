#!/usr/bin/env python3
"""Tiny random models that transformers makes and saves itself, one per variant of a family, against its logits.

    tools/check_variants.py --build build/release [--only olmo3,pythia] [--keep FOLDER]

Unlike tiny_families.py, which writes files as their authors publish them, this shows that a model saved by today's
transformers loads: configurations with all their fields, rope_parameters, names of tensors. Each model is also converted to GGUF
by `tokamak convert`. Prints the table of tests/numerics/family_table.cc, and the message of what is refused.
Run by hand: needs torch, transformers 5.23 and the programs tokamak and family_table of the build.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_goldens  # noqa: E402
import tiny_models  # noqa: E402

SIZES = {"vocab_size": tiny_models.VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": tiny_models.BOS,
         "eos_token_id": tiny_models.EOS, "pad_token_id": tiny_models.EOS}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
HALF_WINDOWS = ["sliding_attention", "full_attention"] * 2
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [1.0 + 0.4 * i for i in range(8)],
        "original_max_position_embeddings": 16, "rope_theta": 10000.0}
MLA = {"kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
       "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 1, **MOE}
LINEAR = {"head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 12, "linear_value_head_dim": 8,
          "layer_types": ["linear_attention", "full_attention"] * 2}

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_expand": 2, "mamba_chunk_size": 8}
NEMOTRON = {"mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 20, "chunk_size": 8, "n_routed_experts": 6,
            "moe_shared_expert_intermediate_size": 40, **MOE}

# name -> model_type and what differs from SIZES
VARIANTS = {
    "llama32_tied": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama_linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama_yarn": ("llama", {"rope_parameters": YARN}),
    "qwen25": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}),
    "phi3_longrope": ("phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 1.0},
                               "original_max_position_embeddings": 16}),
    "mistral_window": ("mistral", {"sliding_window": 6}),
    "ministral": ("ministral", {"head_dim": 16, "sliding_window": 6, "layer_types": HALF_WINDOWS}),
    "ministral3": ("ministral3", {"head_dim": 16, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8}}),
    "gemma1": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 6}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 6, "layer_types": HALF_WINDOWS}),
    "olmo3": ("olmo3", {"sliding_window": 6, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "glm": ("glm", {"head_dim": 16}),
    "glm4": ("glm4", {"head_dim": 16}),
    "glm47_flash": ("glm4_moe_lite", MLA),
    "granite_moe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 3.0,
                                   "residual_multiplier": 0.5, "attention_multiplier": 0.1, "logits_scaling": 2.0}),
    "granite_moe_shared": ("granitemoeshared", {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48}),
    "cohere2": ("cohere2", {"sliding_window": 6, "layer_types": HALF_WINDOWS, "logit_scale": 0.25}),
    "ernie45": ("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "ernie45_moe": ("ernie4_5_moe", {"moe_num_experts": 6, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 32,
                                     "moe_layer_start_index": 1, "moe_layer_end_index": 2}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": False}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True}),
    "pythia": ("gpt_neox", {"num_key_value_heads": 4}),
    "neox_serial": ("gpt_neox", {"num_key_value_heads": 4, "use_parallel_residual": False, "hidden_act": "gelu_fast"}),
    "dots1": ("dots1", {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
                        "routed_scaling_factor": 1.5, "n_group": 2, "topk_group": 1, **MOE}),
    "minimax_m2": ("minimax_m2", {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 8}),
    "qwen2_vl": ("qwen2_vl_text", {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}}),
    "qwen25_vl": ("qwen2_5_vl_text", {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}}),
    "qwen3_vl": ("qwen3_vl_text", {"head_dim": 16, "rope_parameters": {
        "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 5e6}}),
    "qwen35": ("qwen3_5_text", LINEAR),
    "qwen35_moe": ("qwen3_5_moe_text", {**LINEAR, "num_experts": 6, "shared_expert_intermediate_size": 48, **MOE}),
    "qwen3_next": ("qwen3_next", {**LINEAR, "num_experts": 6, "shared_expert_intermediate_size": 48, **MOE}),
    "arcee": ("arcee", {"head_dim": 16, "rope_parameters": YARN}),
    "nemotron": ("nemotron", {"head_dim": 16}),
    "apertus": ("apertus", {"rope_parameters": LLAMA3}),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}}),
    "hunyuan_moe": ("hunyuan_v1_moe", {"head_dim": 16, "num_experts": 6, "moe_topk": 2}),
    "olmo1": ("olmo", {"clip_qkv": 1.5}),
    "olmoe_clip": ("olmoe", {"clip_qkv": 0.7, "num_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "gpt_j": ("gptj", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "rotary_dim": 8}),
    "falcon7b": ("falcon", {}),
    "falcon40b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon11b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}),
    "falcon_serial": ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "starcoder": ("gpt_bigcode", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64}),
    "starcoder_heads": ("gpt_bigcode", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "multi_query": False}),
    "command_r_plus": ("cohere", {"use_qk_norm": True}),
    "stablelm_12b": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "granite4": ("granitemoehybrid", {"layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 4,
                                      "num_experts_per_tok": 2, "shared_intermediate_size": 48, **MAMBA}),
    "granite4_dense": ("granitemoehybrid", {"layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 0,
                                            "shared_intermediate_size": 48, "attention_multiplier": 0.3, **MAMBA}),
    "granite4_micro": ("granitemoehybrid", {"layer_types": ["full_attention"] * 4, "num_local_experts": 0, "position_embedding_type": "rope",
                                            "shared_intermediate_size": 48, **MAMBA}),
    "nemotron_h": ("nemotron_h", {"layer_types": ["linear_attention", "mlp", "full_attention", "mlp"], "head_dim": 16, **NEMOTRON}),
    "nemotron3": ("nemotron_h", {"layer_types": ["linear_attention", "moe", "full_attention", "moe"], "head_dim": 16, **NEMOTRON}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 16}),
    "lfm2_moe": ("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 2, "num_experts": 6, "num_dense_layers": 1, **MOE}),
    "cwm": ("cwm", {"head_dim": 16, "sliding_window": 6, "rope_parameters": LLAMA3}),
    "helium": ("helium", {"head_dim": 16}),
    "jais2": ("jais2", {}),
    "internlm3": ("internlm3", {"head_dim": 16}),
    "gemma4": ("gemma4_text", {"head_dim": 16, "global_head_dim": 24, "sliding_window": 6, "layer_types": HALF_WINDOWS,
                               "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 128, "num_kv_shared_layers": 1}),
    "gemma4_moe": ("gemma4_text", {"head_dim": 16, "global_head_dim": 24, "sliding_window": 6, "layer_types": HALF_WINDOWS,
                                   "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                                   "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}),
    "gemma4_12b": ("gemma4_unified_text", {"head_dim": 256, "global_head_dim": 512, "sliding_window": 6, "layer_types": HALF_WINDOWS}),
    "falcon_h1": ("falcon_h1", {"mamba_n_heads": 8, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_chunk_size": 8,
                                "ssm_multipliers": [0.7, 1.2, 0.8, 1.4, 0.9], "key_multiplier": 0.7}),
    "solar_open": ("solar_open", {"head_dim": 16, "n_routed_experts": 6, "n_shared_experts": 1, "routed_scaling_factor": 1.5, **MOE}),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", {"head_dim": 16, "num_experts": 6, **MOE}),
    "bloom": ("bloom", {"n_head": 4}),
    # Not supported: one clear line.
    "rwkv": ("rwkv", {}),
}


def randomize(model):
    torch.manual_seed(7)
    for name, p in model.state_dict().items():
        if not p.is_floating_point():
            continue
        noise = torch.randn_like(p)
        if "norm" in name or name.endswith((".D", "dt_bias", "A_log")):
            p += 0.2 * noise
        elif p.ndim < 2 or name.endswith("bias"):
            p.copy_(0.2 * noise)
        elif "embed" in name and "out" not in name:
            p.copy_(0.35 * noise)
        else:
            p.copy_(1.5 * noise / p.shape[-1] ** 0.5)


def model_of(kind, changes):
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    except ValueError:  # the text part of a model for images has no head of its own
        model = head_for(config, kind)
    model = model.float().eval()
    with torch.no_grad():
        randomize(model)
    return model


def head_for(config, kind):
    """The whole model for images around a text configuration; only its text part is used."""
    whole = transformers.AutoConfig.for_model(kind.removesuffix("_text"))
    whole.text_config = config
    for key, small in {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 64,
                       "embed_dim": 16, "deepstack_visual_indexes": [0]}.items():
        if hasattr(whole.vision_config, key):
            setattr(whole.vision_config, key, small)
    return transformers.AutoModelForImageTextToText.from_config(whole, attn_implementation="eager")


def write(name, models):
    kind, changes = VARIANTS[name]
    model = model_of(kind, changes)
    folder = models / name
    model.save_pretrained(folder)
    tiny_models.write_json(folder / "tokenizer.json", tiny_models.tokenizer_json())
    tiny_models.write_json(folder / "tokenizer_config.json", tiny_models.tokenizer_config())
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                        experts_implementation="eager").double().eval()  # other experts have no float64
    golden = {"format": 1, "model": name, "gguf": False, "vocab": tiny_models.VOCAB, "weights_sha256": "", "sequences": []}
    for ids, length in zip(make_goldens.sequences(), (40, 33)):
        ids = ids[:length]
        logits = make_goldens.logits_of(model, ids)
        rows = [0, 5, 9, 12, 20, length - 1]
        greedy, margin = make_goldens.greedy_of(model, ids)
        golden["sequences"].append({
            "ids": ids, "rows": rows, "logits": [[float(f"{x:.9g}") for x in logits[r]] for r in rows], "greedy": greedy,
            "greedy_margin": margin, "nll": make_goldens.nll_of(logits, ids)})
    return golden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path, help="write the models there")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        models = args.keep or pathlib.Path(scratch)
        goldens = models / "goldens"
        goldens.mkdir(parents=True, exist_ok=True)
        tokamak = str(args.build / "tokamak")
        for name in args.only.split(",") if args.only else VARIANTS:
            golden = write(name, models)
            seen = subprocess.run([tokamak, "inspect", models / name], capture_output=True, text=True)
            if seen.returncode:
                print(f"{name} ({VARIANTS[name][0]}): {seen.stderr.strip()}")
                continue
            done = subprocess.run([tokamak, "convert", models / name, models / f"{name}.gguf"], capture_output=True, text=True)
            golden["gguf"] = done.returncode == 0
            if done.returncode:
                print(f"{name} to GGUF: {done.stderr.strip()}")
            (goldens / f"{name}.json").write_text(json.dumps(golden))
        sys.stdout.flush()
        return subprocess.run([args.build / "tests/cuda_backend/family_table", "ref", "cpu"], env={
            **os.environ, "TOKAMAK_TABLE_GOLDENS": str(goldens), "TOKAMAK_TINY_FAMILIES": str(models)}).returncode


if __name__ == "__main__":
    sys.exit(main())
