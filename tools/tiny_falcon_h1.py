"""Falcon-H1, for tiny_families.py: tensors under their names in folders and in GGUF, whose matrices are multiplied by the factors."""
import numpy as np

import tiny_more
import tiny_recurrent

SCALES = {"key_multiplier": 0.7, "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.25,
          "ssm_out_multiplier": 0.6, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "mlp_multipliers": [0.9, 1.3],
          "ssm_multipliers": [0.7, 1.2, 0.8, 1.4, 0.9]}
SIZES = {"model_type": "falcon_h1", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "head_dim": 16, "mamba_n_heads": 6,
         "mamba_d_head": 16, "mamba_d_ssm": 96, "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_d_conv": 4, "mamba_expand": 2,
         "mamba_conv_bias": True, "mamba_proj_bias": False, "projectors_bias": False, "pad_token_id": 0}


def models(config):
    """name -> config.json"""
    return {"falcon_h1": config("FalconH1ForCausalLM", **SIZES, **SCALES, mamba_rms_norm=False, mamba_norm_before_gate=True),
            "falcon_h1_norm": config("FalconH1ForCausalLM", **SIZES, **SCALES, mamba_rms_norm=True, mamba_norm_before_gate=False)}


def tensors(t, c):
    w, inner, vectors = tiny_more.Writer(t, c), c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.qkv(at + "self_attn.", blk)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        tiny_recurrent.mamba(t, at + "mamba.", blk, w.hidden, c["mamba_n_heads"], c["mamba_d_head"], c["mamba_n_groups"], c["mamba_d_state"],
                             c["mamba_d_conv"])
        if not c["mamba_rms_norm"]:
            del t.hf[at + "mamba.norm.weight"], t.gguf[blk + "ssm_norm.weight"]
        w.mlp(at + "feed_forward.", blk, c["intermediate_size"], ("gate_proj", "up_proj", "down_proj"))
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "pre_ff_layernorm", blk + "ffn_norm", w.hidden)
        t.gguf[blk + "ffn_norm"] = t.gguf.pop(blk + "ffn_norm.weight")  # as the converter names it
        gate, down = c["mlp_multipliers"]
        attention = c["attention_in_multiplier"]
        for name, factor in (("attn_q", attention), ("attn_k", attention * c["key_multiplier"]), ("attn_v", attention),
                             ("attn_output", c["attention_out_multiplier"]), ("ssm_out", c["ssm_out_multiplier"]),
                             ("ffn_gate", gate), ("ffn_down", down)):
            t.gguf[f"{blk}{name}.weight"] = t.gguf[f"{blk}{name}.weight"] * np.float32(factor)
        parts = np.repeat(c["ssm_multipliers"], (inner, inner, vectors, vectors, c["mamba_n_heads"])) * c["ssm_in_multiplier"]
        t.gguf[blk + "ssm_in.weight"] = t.gguf[blk + "ssm_in.weight"] * parts[:, None].astype(np.float32)
    w.ends("embed_tokens", "final_layernorm", "model.")
    for name, key in (("token_embd", "embedding_multiplier"), ("output", "lm_head_multiplier")):
        t.gguf[name + ".weight"] = t.gguf[name + ".weight"] * np.float32(c[key])


def fields(c):
    return {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
            "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "rope.freq_base": c["rope_theta"], "ssm.conv_kernel": c["mamba_d_conv"],
            "ssm.state_size": c["mamba_d_state"], "ssm.inner_size": c["mamba_d_ssm"], "ssm.time_step_rank": c["mamba_n_heads"],
            "ssm.group_count": c["mamba_n_groups"]}
