"""The GGUF side of tiny_models.py: keys, names and layouts as llama.cpp's converter writes them.

The converter's changes: q and k rows of the llama family are permuted (half-split to interleaved rotary
order), Gemma's norm weights get their +1, GPT-2's matrices are transposed, tied output matrices are omitted, llama3
frequency scaling becomes the tensor rope_freqs.weight and longrope's factors become two tensors.
One deliberate difference: for Mistral the converter drops the sliding window; here the key llama.attention.sliding_window
is written, so that folder and file describe the same model.
"""
import math
from dataclasses import dataclass

import gguf
import numpy as np

ARCHITECTURE = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2",
                "gemma3_text": "gemma3", "phi3": "phi3", "gpt2": "gpt2"}

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    # GPT-2
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}
GEMMA_LAYER_NAMES = {**LAYER_NAMES, "post_attention_layernorm": "post_attention_norm",
                     "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "wte": "token_embd",
             "wpe": "position_embd", "ln_f": "output_norm"}


@dataclass
class Vocabulary:
    tokens: list
    specials: int  # this many leading tokens are control tokens
    merges: list
    bos: int
    eos: int
    chat_template: str


def gguf_name(name, model_type):
    stem, kind = name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{kind}"
    parts = stem.removeprefix("model.").split(".")  # layers.N.rest or h.N.rest
    names = GEMMA_LAYER_NAMES if model_type.startswith("gemma") else LAYER_NAMES
    return f"blk.{parts[1]}.{names['.'.join(parts[2:])]}.{kind}"


def permute(x, heads):
    """Rows of each head from [first half, second half] to interleaved pairs; works for matrices and biases."""
    return np.ascontiguousarray(x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape))


def convert_tensor(name, x, config):
    kind = config["model_type"]
    if kind in ("llama", "mistral"):
        if ".q_proj." in name:
            return permute(x, config["num_attention_heads"])
        if ".k_proj." in name:
            return permute(x, config["num_key_value_heads"])
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return x + np.float32(1.0)
    if kind == "gpt2" and x.ndim == 2 and not name.startswith("w"):
        return np.ascontiguousarray(x.T)
    return x


def llama3_factors(config):
    """Divisors of the rotary frequencies: slow ones by `factor`, fast ones unchanged, a ramp in between."""
    s = config["rope_scaling"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high, old = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    factors = []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / head)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(s["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / s["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_rope(w, config, tensors):
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    dims = int(head * config.get("partial_rotary_factor", 1.0))
    if config["model_type"] != "gemma2":  # its converter relies on the default
        w.add_rope_freq_base(config["rope_theta"])
    if config["model_type"] in ("llama", "mistral", "phi3"):
        w.add_rope_dimension_count(dims)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(scaling["factor"])
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config)
    elif kind == "longrope":
        old = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / old
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(old)))
        tensors["rope_factors_long.weight"] = np.array(scaling["long_factor"], dtype=np.float32)
        tensors["rope_factors_short.weight"] = np.array(scaling["short_factor"], dtype=np.float32)
    if config["model_type"] == "phi3":
        w.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])


def add_windows(w, config):
    kind, window = config["model_type"], config.get("sliding_window")
    if kind == "phi3":
        w.add_sliding_window(window or 0)
    elif kind in ("mistral", "gemma2", "gemma3_text") and window:
        w.add_sliding_window(window)
    if kind == "gemma3_text" and "layer_types" in config:
        w.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
        w.add_rope_freq_base_swa(config["rope_local_base_freq"])


def add_parameters(w, config, tensors):
    if config["model_type"] == "gpt2":
        w.add_block_count(config["n_layer"])
        w.add_context_length(config["n_ctx"])
        w.add_embedding_length(config["n_embd"])
        w.add_feed_forward_length(4 * config["n_embd"])
        w.add_head_count(config["n_head"])
        w.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    if config["model_type"] in ("llama", "mistral"):
        w.add_vocab_size(config["vocab_size"])
    if config.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(config["final_logit_softcapping"])
    add_rope(w, config, tensors)
    add_windows(w, config)


def add_vocabulary(w, v):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(v.tokens)
    w.add_token_types([3 if i < v.specials else 1 for i in range(len(v.tokens))])
    w.add_token_merges(v.merges)
    w.add_bos_token_id(v.bos)
    w.add_eos_token_id(v.eos)
    w.add_add_bos_token(False)
    w.add_chat_template(v.chat_template)


def write(path, config, hf_tensors, vocabulary):
    w = gguf.GGUFWriter(path, ARCHITECTURE[config["model_type"]])
    w.add_type(gguf.GGUFType.MODEL)
    # Loaders look for model names here: transformers detects Mistral by it; llama.cpp expects Phi 3's tokens for "phi3".
    w.add_name("tiny mistral" if config["model_type"] == "mistral" else "tiny model")
    tensors = {}
    add_parameters(w, config, tensors)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocabulary(w, vocabulary)
    for hf_name, x in hf_tensors.items():
        tensors[gguf_name(hf_name, config["model_type"])] = convert_tensor(hf_name, x, config)
    for tensor_name, x in tensors.items():
        w.add_tensor(tensor_name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
