"""BitNet b1.58 for tiny_families.py: ternary weights and inputs rounded to int8, packed (folder) or as they were before both (folder and GGUF)."""
import numpy as np

from tiny_more import Writer

NOT_AS_GGUF = {"bitnet_llama"}


def quantization(kind, mode):
    return {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": mode, "modules_to_not_convert": None}


def models(config, drop):
    """name -> config.json"""
    wide = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 2}
    return {
        # llama.cpp's graph has SiLU
        "bitnet_silu": config("BitNetForCausalLM", model_type="bitnet", hidden_act="silu", rms_norm_eps=1e-5,
                              quantization_config=quantization("autobitlinear", "online")),
        "bitnet_llama": config("LlamaForCausalLM", model_type="llama", quantization_config=quantization("bitlinear", "offline"), **wide),
    }


def ternary(x):
    """The codes of weights and their scale, in float32 as in training."""
    inverse = np.float32(1) / np.float32(max(np.abs(x.astype(np.float64)).mean(), 1e-5))
    return np.clip(np.rint(x * inverse), -1, 1).astype(np.float32), inverse


def tensors(t, c):
    w, sub = Writer(t, c), c["model_type"] == "bitnet"
    packed = c["quantization_config"]["quantization_mode"] == "offline"
    divided = c["quantization_config"]["linear_class"] == "bitlinear"
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.qkv(at + "self_attn.", blk)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        w.mlp(at, blk, c["intermediate_size"], ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden)
        if sub:
            w.norm(at + "self_attn.attn_sub_norm", blk + "attn_sub_norm", w.hidden)
            w.norm(at + "mlp.ffn_sub_norm", blk + "ffn_sub_norm", c["intermediate_size"])
    w.ends("embed_tokens", "norm", "model.")
    for name in [n for n in t.gguf if n.startswith("blk.") and t.gguf[n].ndim == 2]:
        codes, inverse = ternary(t.gguf[name])
        t.gguf[name] = codes / inverse
    for name in [n for n in t.hf if packed and "layers" in n and t.hf[n].ndim == 2]:
        codes, inverse = ternary(t.hf[name])
        parts = (codes + 1).astype(np.uint8).reshape(4, -1, codes.shape[1])
        t.hf[name] = parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6
        t.hf[name + "_scale"] = np.array([inverse if divided else 1 / inverse], dtype=np.float32)


def fields(c):
    """All metadata keys."""
    return {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "feed_forward_length": c["intermediate_size"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": c["rope_theta"],
            "rope.dimension_count": c["hidden_size"] // c["num_attention_heads"], "rope.scaling.type": "linear", "rope.scaling.factor": 1.0}
