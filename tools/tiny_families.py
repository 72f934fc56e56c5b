"""Tiny models of further families: as tiny_models.py writes them, one model per family.

A family is a config.json (MODELS) and a function that lists its tensors, each under its name in model.safetensors and in
a GGUF file, with the change that llama.cpp's converter makes. tiny_models.py writes the models; tools/make_goldens.py
--families computes the expected logits (tests/golden/families).
"""
import gguf
import numpy as np

import tiny_bitnet
import tiny_falcon_h1
import tiny_gemma4
import tiny_gguf
import tiny_mixed
import tiny_more
import tiny_others
import tiny_positions
import tiny_quantized
import tiny_variants
from tiny_recurrent import delta_attention, mamba2
from tiny_models import BOS, CONTEXT, DROP, EOS, VOCAB, llama_config, random_tensor

NO_BIAS_KEYS = {"attention_bias": DROP, "mlp_bias": DROP}


def config(name, **changes):
    return llama_config(**{**NO_BIAS_KEYS, "architectures": [name], **changes})


EXPERTS = {"hidden_size": 64, "intermediate_size": 96, "num_experts_per_tok": 2, "num_experts": 6,
           "moe_intermediate_size": 32}

MODELS = {
    "olmo2": config("Olmo2ForCausalLM", model_type="olmo2", rope_theta=500000.0, rms_norm_eps=1e-6),
    "exaone4": config("Exaone4ForCausalLM", model_type="exaone4", num_hidden_layers=4, sliding_window=8,
                      layer_types=["sliding_attention"] * 3 + ["full_attention"], sliding_window_pattern=4),
    "granite": config("GraniteForCausalLM", model_type="granite", embedding_multiplier=3.0, residual_multiplier=0.5,
                      attention_multiplier=0.1, logits_scaling=2.0),
    "cohere": config("CohereForCausalLM", model_type="cohere", layer_norm_eps=1e-5, logit_scale=0.25, use_qk_norm=False,
                     tie_word_embeddings=True, rms_norm_eps=DROP),
    "cohere2": config("Cohere2ForCausalLM", model_type="cohere2", layer_norm_eps=1e-5, logit_scale=0.25,
                      tie_word_embeddings=True, rms_norm_eps=DROP, num_hidden_layers=4, sliding_window=8,
                      sliding_window_pattern=4),
    "glm4": config("Glm4ForCausalLM", model_type="glm4", head_dim=16, partial_rotary_factor=0.5, attention_bias=True,
                   pad_token_id=EOS),
    "smollm3": config("SmolLM3ForCausalLM", model_type="smollm3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0],
                      use_sliding_window=False, tie_word_embeddings=True, pad_token_id=EOS),
    "starcoder2": config("Starcoder2ForCausalLM", model_type="starcoder2", norm_epsilon=1e-5, use_bias=True,
                         hidden_act="gelu_pytorch_tanh", sliding_window=8, tie_word_embeddings=True, rms_norm_eps=DROP),
    "phi2": config("PhiForCausalLM", model_type="phi", layer_norm_eps=1e-5, partial_rotary_factor=0.5,
                   hidden_act="gelu_new", num_key_value_heads=4, rms_norm_eps=DROP),
    "opt": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": VOCAB, "hidden_size": 64, "ffn_dim": 96,
        "word_embed_proj_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT,
        "activation_function": "relu", "do_layer_norm_before": True, "tie_word_embeddings": True, "pad_token_id": 1,
        "bos_token_id": BOS, "eos_token_id": EOS, "torch_dtype": "float32",
    },
    "internlm2": config("InternLM2ForCausalLM", model_type="internlm2", bias=False),
    "mixtral": config("MixtralForCausalLM", model_type="mixtral", num_local_experts=4, num_experts_per_tok=2,
                      sliding_window=None),
    "qwen2moe": config("Qwen2MoeForCausalLM", model_type="qwen2_moe", shared_expert_intermediate_size=48,
                       norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, **EXPERTS),
    "qwen3moe": config("Qwen3MoeForCausalLM", model_type="qwen3_moe", norm_topk_prob=True, decoder_sparse_step=1,
                       head_dim=24, mlp_only_layers=[], rms_norm_eps=1e-6, **{**EXPERTS, "num_experts_per_tok": 3}),
    # Dense layers between those with experts: no converter writes such a GGUF.
    "qwen3moe_sparse": config("Qwen3MoeForCausalLM", model_type="qwen3_moe", norm_topk_prob=False, decoder_sparse_step=2,
                              head_dim=16, mlp_only_layers=[3], num_hidden_layers=4, **EXPERTS),
    "olmoe": config("OlmoeForCausalLM", model_type="olmoe", num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                    clip_qkv=None, intermediate_size=48),
    "glm4moe": config("Glm4MoeForCausalLM", model_type="glm4_moe", n_routed_experts=8, n_group=4, topk_group=2,
                      n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True,
                      partial_rotary_factor=0.5, head_dim=16, use_qk_norm=True, attention_bias=True, num_hidden_layers=3,
                      moe_intermediate_size=32, num_experts_per_tok=2, pad_token_id=EOS),
}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
          "num_key_value_heads": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 32,
          "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_layer_freq": 1, "rms_norm_eps": 1e-6}
MODELS["deepseek2"] = config("DeepseekV2ForCausalLM", model_type="deepseek_v2", topk_method="greedy", n_group=1, topk_group=1,
                             norm_topk_prob=False, routed_scaling_factor=1.5, aux_loss_alpha=0.0, **LATENT)
MODELS["deepseek3"] = config("DeepseekV3ForCausalLM", model_type="deepseek_v3", topk_method="noaux_tc", n_group=4,
                             topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid",
                             rope_interleave=True, rope_scaling={
                                 "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
                                 "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
                             **{**LATENT, "q_lora_rank": 40})
MODELS["glm47_flash"] = config("Glm4MoeLiteForCausalLM", model_type="glm4_moe_lite", topk_method="noaux_tc", n_group=1, topk_group=1,
                               norm_topk_prob=True, routed_scaling_factor=1.5, pad_token_id=EOS, **{**LATENT, "q_lora_rank": 40})
GPT_OSS = config("GptOssForCausalLM", model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=16,
                 intermediate_size=32, attention_bias=True, sliding_window=8, swiglu_limit=7.0, rope_scaling={
                     "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
                     "beta_slow": 1.0, "truncate": False},
                 layer_types=["sliding_attention", "full_attention"])
MODELS["gpt_oss"] = GPT_OSS
MODELS["gpt_oss_mxfp4"] = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}
MODELS["mamba2"] = {
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "vocab_size": VOCAB, "hidden_size": 48, "expand": 2,
    "num_heads": 6, "head_dim": 16, "state_size": 20, "n_groups": 1, "conv_kernel": 4, "num_hidden_layers": 3, "chunk_size": 8,
    "use_bias": False, "use_conv_bias": True, "hidden_act": "silu", "layer_norm_epsilon": 1e-5, "rms_norm": True,
    "residual_in_fp32": True, "tie_word_embeddings": False, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS,
    "torch_dtype": "float32",
}
# llama.cpp normalises each group for itself, transformers all of them together.
MODELS["mamba2_groups"] = {**MODELS["mamba2"], "n_groups": 2, "state_size": 16, "conv_kernel": 3, "use_conv_bias": False,
                           "tie_word_embeddings": True, "time_step_limit": [0.05, 0.6]}
MODELS["qwen3next"] = config(
    "Qwen3NextForCausalLM", model_type="qwen3_next", head_dim=16, partial_rotary_factor=0.5, rms_norm_eps=1e-6,
    num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_value_heads=4,
    linear_num_key_heads=2, linear_key_head_dim=12, linear_value_head_dim=8, linear_conv_kernel_dim=4, norm_topk_prob=True,
    shared_expert_intermediate_size=48, decoder_sparse_step=1, mlp_only_layers=[], pad_token_id=EOS, **EXPERTS)
# In shapes that llama.cpp takes; these goldens are its logits (tools/llama_goldens.py).
MODELS["qwen3next_even"] = {**MODELS["qwen3next"], "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_hidden_layers": 4,
                            "layer_types": ["linear_attention", "full_attention"] * 2}
MODELS["mamba2_grouped"] = {**MODELS["mamba2"], "n_groups": 2, "state_size": 16, "tie_word_embeddings": True}
MODELS["exaone"] = config("ExaoneForCausalLM", model_type="exaone", activation_function="silu", num_layers=2)
LLAMA4 = config("Llama4ForCausalLM", model_type="llama4_text", **tiny_variants.LLAMA4)
MODELS["llama4"] = {**LLAMA4, "attention_chunk_size": 8, "floor_scale": 5, "attn_scale": 1.5}
MODELS["llama4_long"] = {**LLAMA4, "interleave_moe_layer_step": 1}  # with the chunk of published models, which llama.cpp assumes
MODELS["gemma3n"] = config("Gemma3nForCausalLM", model_type="gemma3n_text", hidden_act=DROP, **tiny_variants.GEMMA3N)
MODELS.update(tiny_others.models(config, DROP, EXPERTS))
MODELS.update(tiny_more.models(config, DROP) | tiny_mixed.models(config, DROP) | tiny_positions.models(config, DROP) | tiny_gemma4.models(config, DROP) | tiny_falcon_h1.models(config) | tiny_bitnet.models(config, DROP))
BY_LLAMA = {"qwen3next_even", "mamba2_grouped", "exaone"}
GGUF_ONLY = {"mamba2_grouped"}  # the folder means something else: see mamba2_groups
# Families that transformers does not have: equal to another one with other names.
REFERENCE = {"gpt_oss_mxfp4": {"quantization_config": None},  # with the decoded values
             "internlm2": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, **tiny_others.REFERENCE,
             **tiny_more.REFERENCE, **tiny_mixed.REFERENCE, **tiny_positions.REFERENCE}
NOT_AS_GGUF = {"opt", "qwen3moe_sparse", "mamba2_groups"} | tiny_others.NOT_AS_GGUF | tiny_more.NOT_AS_GGUF | tiny_mixed.NOT_AS_GGUF | tiny_positions.NOT_AS_GGUF | tiny_bitnet.NOT_AS_GGUF
# Quantised checkpoints, wide enough for groups of 128; the reference has the decoded values.
WIDE = {"hidden_size": 128, "intermediate_size": 256}
for _name, (_base, _quantization, _) in tiny_quantized.QUANTIZED.items():
    _base = MODELS.get(_base) or config("LlamaForCausalLM")
    MODELS[_name] = {**_base, **WIDE, "quantization_config": _quantization}
    if "head_dim" in _base:
        MODELS[_name]["head_dim"] = 32
    if "kv_lora_rank" in _base:  # whole blocks of 32
        MODELS[_name].update({"hidden_size": 64, "intermediate_size": 96, "kv_lora_rank": 32, "qk_nope_head_dim": 32,
                              "v_head_dim": 32, "q_lora_rank": 32})
    REFERENCE[_name] = {"quantization_config": None}
    NOT_AS_GGUF.add(_name)
MXFP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)

ARCHITECTURE = {"cohere": "command-r", "phi": "phi2", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
                "glm4_moe": "glm4moe", "gpt_oss": "gpt-oss", "qwen3_next": "qwen3next",
                **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "deepseek2"), "llama4_text": "llama4", "gemma3n_text": "gemma3n", "gemma4_text": "gemma4", "falcon_h1": "falcon-h1",
                **tiny_others.ARCHITECTURE, **tiny_more.ARCHITECTURE, **tiny_mixed.ARCHITECTURE}
INTERLEAVED_BY_CONVERTER = {"granite", "smollm3", "mixtral", "internlm2", "ministral3", "granitemoeshared"}


class Tensors:
    """A model's tensors under their names in model.safetensors and in GGUF."""

    def __init__(self, model, c):
        self.model, self.c = model, c
        self.hf, self.gguf = {}, {}
        self.reference = {}  # for transformers, where its names or values differ
        self.types = {}  # of tensors of the folder, where numpy has none

    def random(self, key, shape, deviation, mean=0.0):
        return random_tensor(self.model, key, shape, deviation, mean)

    def add(self, hf, name, x, heads=0):
        self.hf[hf] = x
        self.gguf[name] = tiny_gguf.permute(x, heads) if heads and self.converter_permutes() else x

    def converter_permutes(self):
        return self.c["model_type"] in INTERLEAVED_BY_CONVERTER

    def matrix(self, hf, name, rows, columns, gain=1.0, bias=0.0, heads=0):
        self.add(hf + ".weight", name + ".weight", self.random(hf, (rows, columns), gain / columns ** 0.5), heads)
        if bias:
            self.add(hf + ".bias", name + ".bias", self.random(hf + ".bias", (rows,), bias), heads)

    def norm(self, hf, name, size, bias=False):
        self.add(hf + ".weight", name + ".weight", self.random(hf, (size,), 0.2, 1.0))
        if bias:
            self.add(hf + ".bias", name + ".bias", self.random(hf + ".bias", (size,), 0.1))

    def stack(self, hf, name, count, rows, columns, gain=1.0):
        """Experts: a tensor each in the folder, one in GGUF."""
        parts = [self.random(hf.format(e), (rows, columns), gain / columns ** 0.5) for e in range(count)]
        for e, x in enumerate(parts):
            self.hf[hf.format(e) + ".weight"] = x
        self.gguf[name + ".weight"] = np.stack(parts)


def sizes(c):
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return c["hidden_size"], head, c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])


def attention(t, c, at, blk):
    hidden, head, heads, kv = sizes(c)
    kind = c["model_type"]
    all_biases = kind in ("starcoder2", "phi", "opt")
    bias = 0.4 if all_biases or kind in ("qwen2_moe", "qwen2_vl", "stablelm") or c.get("attention_bias") else 0.0
    for part, count in (("q", heads * 2 if "linear_num_key_heads" in c else heads), ("k", kv), ("v", kv)):
        t.matrix(f"{at}self_attn.{part}_proj", f"{blk}attn_{part}", count * head, hidden, 1.3, bias,
                 0 if part == "v" else count)
    out = {"phi": "dense", "opt": "out_proj"}.get(kind, "o_proj")
    t.matrix(f"{at}self_attn.{out}", f"{blk}attn_output", hidden, heads * head, 1.0, 0.2 if all_biases or kind == "gpt_oss" else 0.0)
    if kind == "gpt_oss":
        t.add(at + "self_attn.sinks", blk + "attn_sinks.weight", t.random(at + "sinks", (heads,), 1.0))
    wide = kind in ("olmo2", "olmo3", "olmoe", "minimax_m2")
    narrow = kind in ("exaone4", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "dots1") or "linear_num_key_heads" in c
    if wide or narrow or (c.get("use_qk_norm") and kind != "llama4_text"):
        t.norm(at + "self_attn.q_norm", blk + "attn_q_norm", heads * head if wide else head)
        t.norm(at + "self_attn.k_norm", blk + "attn_k_norm", kv * head if wide else head)


def latent_attention(t, c, at, blk):
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    at += "self_attn."
    if c["q_lora_rank"]:
        t.matrix(at + "q_a_proj", blk + "attn_q_a", c["q_lora_rank"], hidden, 1.3)
        t.norm(at + "q_a_layernorm", blk + "attn_q_a_norm", c["q_lora_rank"])
        t.matrix(at + "q_b_proj", blk + "attn_q_b", heads * (nope + rope), c["q_lora_rank"], 1.3)
    else:
        t.matrix(at + "q_proj", blk + "attn_q", heads * (nope + rope), hidden, 1.3)
    t.matrix(at + "kv_a_proj_with_mqa", blk + "attn_kv_a_mqa", rank + rope, hidden, 1.3)
    t.norm(at + "kv_a_layernorm", blk + "attn_kv_a_norm", rank)
    t.matrix(at + "kv_b_proj", blk + "attn_kv_b", heads * (nope + value), rank, 1.3)
    if c["model_type"] != "deepseek_v2":  # in two parts; early files have it whole
        k, v = np.split(t.gguf.pop(blk + "attn_kv_b.weight").reshape(heads, nope + value, rank), [nope], axis=1)
        t.gguf[blk + "attn_k_b.weight"], t.gguf[blk + "attn_v_b.weight"] = k.swapaxes(1, 2), v
    t.matrix(at + "o_proj", blk + "attn_output", hidden, heads * value)


def mlp(t, c, at, blk, ffn):
    hidden = c["hidden_size"]
    names = {"starcoder2": ("mlp.c_fc", "mlp.c_proj"), "phi": ("mlp.fc1", "mlp.fc2"), "opt": ("fc1", "fc2")}
    if c["model_type"] in names:
        up, down = names[c["model_type"]]
        t.matrix(at + up, blk + "ffn_up", ffn, hidden, 1.3, 0.2)
        t.matrix(at + down, blk + "ffn_down", hidden, ffn, 2.0, 0.1)
        return
    if c["model_type"] in ("glm", "glm4"):
        t.matrix(at + "mlp.gate_up_proj", blk + "ffn_up", 2 * ffn, hidden)
    else:
        t.matrix(at + "mlp.gate_proj", blk + "ffn_gate", ffn, hidden)
        t.matrix(at + "mlp.up_proj", blk + "ffn_up", ffn, hidden)
    t.matrix(at + "mlp.down_proj", blk + "ffn_down", hidden, ffn, 2.0)


def mxfp4(t, key, shape):
    """Random MXFP4 blocks: codes and exponents, and the values they stand for."""
    codes = (t.random(key, shape, 1.0) * 100).astype(np.int64) % 16
    exponents = 123 + (t.random(key + ".scales", (*shape[:-1], shape[-1] // 32), 1.0) * 100).astype(np.int64) % 3
    values = MXFP4_VALUES[codes] * np.exp2(np.repeat(exponents, 32, -1) - 127).astype(np.float32)
    return codes.astype(np.uint8), exponents.astype(np.uint8), values


def oss_experts(t, c, at, blk):
    """All experts in one tensor, gate and up rows in turn; GGUF has them apart."""
    hidden, count, ffn, quantized = c["hidden_size"], c["num_local_experts"], c["intermediate_size"], t.model.endswith("mxfp4")
    t.matrix(at + "mlp.router", blk + "ffn_gate_inp", count, hidden, 2.0, 0.3)
    at += "mlp.experts."
    for name, rows, columns, parts in (("gate_up_proj", 2 * ffn, hidden, ("gate", "up")), ("down_proj", hidden, ffn, ("down",))):
        codes, exponents, x = mxfp4(t, at + name, (count, rows, columns)) if quantized else (
            None, None, t.random(at + name, (count, rows, columns), (5.0 if len(parts) == 2 else 1.5) / columns ** 0.5))
        bias = t.random(at + name + "_bias", (count, rows), 0.2)
        if quantized:
            blocks = codes.reshape(count, rows, columns // 32, 16, 2)
            t.hf[at + name + "_blocks"] = blocks[..., 0] | blocks[..., 1] << 4
            t.hf[at + name + "_scales"] = exponents
        else:
            t.hf[at + name] = np.ascontiguousarray(x.swapaxes(1, 2))
        t.reference[at + name] = np.ascontiguousarray(x.swapaxes(1, 2))
        t.hf[at + name + "_bias"] = bias
        for i, part in enumerate(parts):
            step = len(parts)
            t.gguf[f"{blk}ffn_{part}_exps.bias"] = bias[:, i::step]
            if quantized:
                q = codes[:, i::step].reshape(count, rows // step, columns // 32, 2, 16)
                q = np.concatenate([exponents[:, i::step, :, None], q[..., 0, :] | q[..., 1, :] << 4], -1)
                t.gguf[f"{blk}ffn_{part}_exps.weight"] = q.reshape(count, rows // step, -1)
            else:
                t.gguf[f"{blk}ffn_{part}_exps.weight"] = x[:, i::step]


def expert_count(c):
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return next((c[n] for n in names if n in c), 0)


def expert_ffn(c):
    return c.get("moe_intermediate_size") or c["intermediate_size"]


def has_experts(c, layer):
    if layer in c.get("mlp_only_layers", []) or layer < c.get("first_k_dense_replace", c.get("moe_layer_start_index", 0)):
        return False
    return expert_count(c) > 0 and (layer + 1) % c.get("decoder_sparse_step", 1) == 0


def experts(t, c, at, blk):
    hidden, count, ffn = c["hidden_size"], expert_count(c), expert_ffn(c)
    if c["model_type"] in ("mixtral", "minimax_m2"):
        at, (gate, up, down) = at + "block_sparse_moe.", ("w1", "w3", "w2")
    else:
        at, (gate, up, down) = at + "mlp.", ("gate_proj", "up_proj", "down_proj")
    t.matrix(at + "gate", blk + "ffn_gate_inp", count, hidden, 2.0)
    t.stack(at + "experts.{}." + gate, blk + "ffn_gate_exps", count, ffn, hidden)
    t.stack(at + "experts.{}." + up, blk + "ffn_up_exps", count, ffn, hidden)
    t.stack(at + "experts.{}." + down, blk + "ffn_down_exps", count, hidden, ffn, 2.0)
    correction = {**dict.fromkeys(("glm4_moe", "glm4_moe_lite", "deepseek_v3", "dots1"), "gate."), "minimax_m2": "",
                  "ernie4_5_moe": "moe_statics."}
    if c["model_type"] in correction:
        bias = t.random(at + "bias", (count,), 0.2)
        t.add(f"{at}{correction[c['model_type']]}e_score_correction_bias", blk + "exp_probs_b.bias", bias)
        if c["model_type"] == "ernie4_5_moe":
            t.hf[at + "moe_statics.e_score_correction_bias"] = t.gguf[blk + "exp_probs_b.bias"] = bias[None]
    shared = c.get("shared_expert_intermediate_size") or c.get("n_shared_experts", c.get("moe_num_shared_experts", 0)) * ffn
    if not shared:
        return
    qwen = "shared_expert_intermediate_size" in c
    name = "shared_expert" if qwen else "shared_experts"
    for part, rows, columns in (("gate", shared, hidden), ("up", shared, hidden), ("down", hidden, shared)):
        t.matrix(f"{at}{name}.{part}_proj", f"{blk}ffn_{part}_shexp", rows, columns)
    if qwen:
        t.matrix(at + "shared_expert_gate", blk + "ffn_gate_inp_shexp", 1, hidden)


def norms_of(c):
    """Norms of a layer: name in the folder, name in GGUF."""
    before = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]
    return {
        "olmo3": [("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm")],
        "seed_oss": [before[0], ("post_attention_layernorm", "post_attention_norm")],
        "olmo2": [("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm")],
        "exaone4": [("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm")],
        "cohere": before[:1], "cohere2": before[:1], "phi": before[:1],
        "opt": [("self_attn_layer_norm", "attn_norm"), ("final_layer_norm", "ffn_norm")],
        "glm4": before + [("post_self_attn_layernorm", "post_attention_norm"), ("post_mlp_layernorm", "post_ffw_norm")],
        "gpt_oss": [before[0], ("post_attention_layernorm", "post_attention_norm")],
        "glm4_moe": [before[0], ("post_attention_layernorm", "post_attention_norm")],
    }.get(c["model_type"], before)


def decoder(t, c):
    kind, hidden = c["model_type"], c["hidden_size"]
    root = "model.decoder." if kind == "opt" else "model."
    norm_bias = kind in ("starcoder2", "phi", "opt", "stablelm")
    embedding = t.random("token_embd", (VOCAB, hidden), 0.1 if kind.startswith("granite") else 0.35)
    t.add(root + "embed_tokens.weight", "token_embd.weight", embedding)
    if kind == "opt":
        t.add(root + "embed_positions.weight", "position_embd.weight",
              t.random("position_embd", (c["max_position_embeddings"] + 2, hidden), 0.35))
    for i in range(c["num_hidden_layers"]):
        at, blk = f"{root}layers.{i}.", f"blk.{i}."
        linear = "linear_num_key_heads" in c and c["layer_types"][i] == "linear_attention"
        delta = delta_attention if kind == "qwen3_next" else tiny_others.linear_attention
        (delta if linear else latent_attention if "kv_lora_rank" in c else attention)(t, c, at, blk)
        if kind == "llama4_text":
            tiny_variants.llama4_mlp(t, c, at, blk, i)
        elif has_experts(c, i):
            own = {"gpt_oss": oss_experts, "granitemoeshared": tiny_others.granite_experts}
            own.get(kind, experts)(t, c, at, blk)
        else:
            mlp(t, c, at, blk, c["ffn_dim"] if kind == "opt" else c["intermediate_size"])
        for hf, name in norms_of(c):
            t.norm(at + hf, blk + name, hidden, norm_bias)
    final = {"phi": "final_layernorm", "opt": "final_layer_norm"}.get(kind, "norm")
    t.norm(root + final, "output_norm", hidden, norm_bias)
    if not c["tie_word_embeddings"]:
        t.matrix("lm_head", "output", VOCAB, hidden, 2.0, 0.2 if kind == "phi" else 0.0)


def qwen3next(t, c):
    """Norms are stored minus one in the folder, and the norm before the MLP has another name in GGUF."""
    decoder(t, c)
    for name in [n for n in t.gguf if n.endswith("norm.weight") and "ssm_norm" not in n]:
        t.gguf[name.replace("ffn_norm", "post_attention_norm")] = t.gguf.pop(name) + np.float32(1)


def internlm2(t, c):
    """A Llama whose q, k and v are one tensor: for each key/value head its queries, its key and its value."""
    decoder(t, c)
    _, head, heads, kv = sizes(c)
    t.reference, t.hf = t.hf, {}
    names = {"self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
             "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output"}
    for name, x in t.reference.items():
        if "_proj" in name and "self_attn.o_proj" not in name and "self_attn" in name:
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        t.hf[name] = x
    for i in range(c["num_hidden_layers"]):
        q, k, v = (t.reference[f"model.layers.{i}.self_attn.{p}_proj.weight"] for p in "qkv")
        q, k, v = (x.reshape(kv, -1, head, x.shape[-1]) for x in (q, k, v))
        t.hf[f"model.layers.{i}.attention.wqkv.weight"] = np.concatenate([q, k, v], 1).reshape(-1, c["hidden_size"])


def tensors_of(name):
    t = Tensors(name, MODELS[name])
    own = {"exaone": lambda t, c: tiny_more.exaone(t, c, decoder), "internlm2": internlm2, "mamba2": mamba2, **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), qwen3next),
           "gemma3n_text": tiny_variants.gemma3n, "gemma4_text": tiny_gemma4.tensors, "falcon_h1": tiny_falcon_h1.tensors, "gpt_neox": tiny_others.gpt_neox, **tiny_more.OWN, **tiny_mixed.OWN, **tiny_positions.OWN, **({"falcon": tiny_positions.bloom} if name == "falcon_rw" else {})}
    own.update({"cohere": tiny_more.llama_like} if name == "command_r_plus" else dict.fromkeys(("bitnet", "llama"), tiny_bitnet.tensors) if name.startswith("bitnet") else {})
    own.get(MODELS[name]["model_type"], decoder)(t, MODELS[name])
    t.reference = dict(t.hf) if name in ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe") else t.reference
    if name in ("qwen35moe", "qwen3_vl_moe"):
        tiny_others.stack_experts(t, MODELS[name])
    if name in tiny_quantized.QUANTIZED:
        t.types = tiny_quantized.quantize(t, name)
    if name == "gpt_oss_mxfp4":
        t.reference.update({k: x for k, x in t.hf.items() if not k.endswith(("_blocks", "_scales"))})
    return t


def gguf_fields(c):
    """Metadata keys after the architecture's name."""
    kind = c["model_type"]
    if kind == "mamba2":
        return {"block_count": c["num_hidden_layers"], "context_length": 1 << 20, "embedding_length": c["hidden_size"],
                "feed_forward_length": 0, "attention.head_count": 0, "vocab_size": VOCAB,
                "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"], "ssm.conv_kernel": c["conv_kernel"],
                "ssm.inner_size": c["num_heads"] * c["head_dim"], "ssm.state_size": c["state_size"],
                "ssm.time_step_rank": c["num_heads"], "ssm.group_count": c["n_groups"]}
    _, head, heads, kv = sizes(c)
    fields = {
        "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
        "attention.head_count": heads, "attention.head_count_kv": kv, "rope.freq_base": c["rope_theta"],
        "rope.dimension_count": int(head * c.get("partial_rotary_factor", 1.0)),
    }
    if "rms_norm_eps" in c:
        fields["attention.layer_norm_rms_epsilon"] = c["rms_norm_eps"]
    else:
        fields["attention.layer_norm_epsilon"] = c.get("layer_norm_eps") or c["norm_epsilon"]
    if "head_dim" in c:
        fields.update({"attention.key_length": head, "attention.value_length": head})
    if c.get("sliding_window"):
        fields["attention.sliding_window"] = c["sliding_window"]
    if "rope_scaling" in c and kind not in ("llama4_text", "qwen2_vl", "qwen3_vl_text", "qwen3_vl_moe_text"):
        scaling = c["rope_scaling"]
        fields.update({"rope.scaling.type": "yarn", "rope.scaling.factor": scaling["factor"],
                       "rope.scaling.original_context_length": scaling["original_max_position_embeddings"]})
    if kind == "granite":
        fields.update({"attention.scale": c["attention_multiplier"], "embedding_scale": c["embedding_multiplier"],
                       "residual_scale": c["residual_multiplier"], "logit_scale": c["logits_scaling"]})
    if kind.startswith("cohere"):
        fields["logit_scale"] = c["logit_scale"]
    if expert_count(c):
        fields.update({"expert_count": expert_count(c), "expert_used_count": c.get("num_experts_per_tok") or c["moe_k"]})
        if "moe_intermediate_size" in c or kind == "gpt_oss":
            fields["expert_feed_forward_length"] = expert_ffn(c)
        if "shared_expert_intermediate_size" in c:
            fields["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    if "kv_lora_rank" in c:
        key, value, rope = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"], c["qk_rope_head_dim"]
        fields.update({"attention.kv_lora_rank": c["kv_lora_rank"], "rope.dimension_count": rope,
                       "attention.key_length": key, "attention.value_length": value})
        if c["q_lora_rank"]:
            fields["attention.q_lora_rank"] = c["q_lora_rank"]
        if "rope_scaling" in c:
            fields.update({"rope.scaling.yarn_log_multiplier": 0.1 * c["rope_scaling"]["mscale_all_dim"]})
        if kind != "deepseek_v2":
            fields.update({"attention.head_count_kv": 1, "attention.key_length": c["kv_lora_rank"] + rope,
                           "attention.value_length": c["kv_lora_rank"], "attention.key_length_mla": key,
                           "attention.value_length_mla": value})
    if "linear_num_key_heads" in c:
        fields.update({"ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
                       "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"],
                       "ssm.inner_size": c["linear_value_head_dim"] * c["linear_num_value_heads"],
                       "attention.recurrent_layers": [x == "linear_attention" for x in c["layer_types"]]})
    if "n_routed_experts" in c:
        softmax = kind == "deepseek_v2"
        fields.update({"expert_gating_func": 1 if softmax else 2, "expert_weights_norm": c["norm_topk_prob"],
                       "expert_shared_count": c["n_shared_experts"], "expert_weights_scale": c["routed_scaling_factor"],
                       "expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"],
                       "leading_dense_block_count": c["first_k_dense_replace"]})
        if kind == "glm4_moe_lite":  # config.json does not say it, so that the converter does not write it
            del fields["expert_gating_func"]
    return fields


def write_gguf(path, t, vocabulary):
    c, tensors = t.c, t.gguf
    architecture = ARCHITECTURE.get(c["model_type"], c["model_type"])
    w = gguf.GGUFWriter(path, architecture)
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name("tiny model")
    own = {"gemma4_text": lambda: tiny_gemma4.fields(c, tensors), "falcon_h1": lambda: tiny_falcon_h1.fields(c),
           "bitnet": lambda: tiny_bitnet.fields(c), **dict.fromkeys(tiny_more.OWN, lambda: tiny_more.own_fields(t)),
           **dict.fromkeys(tiny_mixed.OWN, lambda: tiny_mixed.own_fields(t)), **dict.fromkeys(tiny_positions.OWN, lambda: tiny_positions.own_fields(t))}
    fields = own.get(c["model_type"], lambda: {
        **gguf_fields(c), **tiny_variants.own_fields(c, tensors), **tiny_others.own_fields(c)})()
    for key, value in fields.items():
        add = {bool: w.add_bool, float: w.add_float32, str: w.add_string, list: w.add_array}.get(type(value), w.add_uint32)
        add(key.strip(".") if key.endswith(".") else f"{architecture}.{key}", value)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    tiny_gguf.add_vocabulary(w, vocabulary)
    for name, x in tensors.items():
        quantized = gguf.GGMLQuantizationType.MXFP4 if x.dtype == np.uint8 else None
        w.add_tensor(name, np.ascontiguousarray(x), raw_dtype=quantized)
    for step in (w.write_header_to_file, w.write_kv_data_to_file, w.write_tensors_to_file, w.close):
        step()
