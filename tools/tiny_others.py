"""Families that are a known decoder with some other names or parts, for tiny_families.py."""
import numpy as np

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LINEAR = {"head_dim": 16, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "num_hidden_layers": 4, "linear_num_value_heads": 4,
          "linear_num_key_heads": 2, "linear_key_head_dim": 12, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
          "layer_types": ["linear_attention", "full_attention"] * 2, "pad_token_id": 0}


def models(config, drop, experts):
    """name -> config.json"""
    return {
        "ernie4_5": config("Ernie4_5ForCausalLM", model_type="ernie4_5", head_dim=16, use_bias=False, tie_word_embeddings=True),
        "seed_oss": config("SeedOssForCausalLM", model_type="seed_oss", head_dim=16, attention_bias=True, attention_out_bias=False),
        "glm": config("GlmForCausalLM", model_type="glm", head_dim=16, partial_rotary_factor=0.5, attention_bias=True, pad_token_id=0),
        "olmo3": config("Olmo3ForCausalLM", model_type="olmo3", num_hidden_layers=4, rope_theta=500000.0, sliding_window=7, rope_scaling=YARN,
                        layer_types=["sliding_attention"] * 3 + ["full_attention"], pad_token_id=0),
        "ministral3": config("Ministral3ForCausalLM", model_type="ministral3", head_dim=16, sliding_window=None, rope_scaling={
            **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}),
        "qwen2_vl": config("Qwen2VLForConditionalGeneration", model_type="qwen2_vl", rope_scaling={
            "type": "mrope", "mrope_section": [2, 3, 3]}),
        "qwen3_vl": config("Qwen3VLForConditionalGeneration", model_type="qwen3_vl_text", head_dim=16, rope_scaling={
            "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}),
        "qwen3_vl_moe": config("Qwen3VLMoeForConditionalGeneration", model_type="qwen3_vl_moe_text", head_dim=16, rope_scaling={
            "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}, **experts),
        "stablelm": config("StableLmForCausalLM", model_type="stablelm", layer_norm_eps=1e-5, partial_rotary_factor=0.25,
                           use_qkv_bias=True, rms_norm_eps=drop),
        "gpt_neox": config("GPTNeoXForCausalLM", model_type="gpt_neox", layer_norm_eps=1e-5, rotary_pct=0.25, hidden_act="gelu",
                           num_key_value_heads=4, use_parallel_residual=True, rms_norm_eps=drop),
        "granitemoe": config("GraniteMoeSharedForCausalLM", model_type="granitemoeshared", num_local_experts=4,
                             num_experts_per_tok=2, shared_intermediate_size=48, intermediate_size=32, embedding_multiplier=3.0,
                             residual_multiplier=0.5, attention_multiplier=0.1, logits_scaling=2.0),
        "dots1": config("Dots1ForCausalLM", model_type="dots1", n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1,
                        n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, num_experts_per_tok=2,
                        moe_intermediate_size=32),
        "ernie4_5_moe": config("Ernie4_5_MoeForCausalLM", model_type="ernie4_5_moe", moe_num_experts=6, moe_k=2,
                               moe_num_shared_experts=2, moe_intermediate_size=32, moe_layer_start_index=1,
                               moe_layer_end_index=-1, num_hidden_layers=3, tie_word_embeddings=True),
        "minimax_m2": config("MiniMaxM2ForCausalLM", model_type="minimax_m2", num_local_experts=6, num_experts_per_tok=2,
                             head_dim=16, rotary_dim=8, intermediate_size=32),
        "qwen35": config("Qwen3_5ForCausalLM", model_type="qwen3_5_text", **LINEAR),
        "qwen35moe": config("Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", shared_expert_intermediate_size=48,
                            **LINEAR, **experts),
    }


NOT_AS_GGUF = {"glm"}
ARCHITECTURE = {"olmo3": "olmo2", "ministral3": "mistral3", "qwen2_vl": "qwen2vl", "qwen3_vl_text": "qwen3vl", "qwen3_vl_moe_text": "qwen3vlmoe", "gpt_neox": "gptneox", "granitemoeshared": "granitemoe",
                "ernie4_5_moe": "ernie4_5-moe", "minimax_m2": "minimax-m2", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
REFERENCE = {"qwen2_vl": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_scaling": None},
             "qwen3_vl": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_scaling": None},
             "qwen3_vl_moe": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "rope_scaling": None, "norm_topk_prob": True}}


def granite_experts(t, c, at, blk):
    hidden, count, ffn, shared = c["hidden_size"], c["num_local_experts"], c["intermediate_size"], c["shared_intermediate_size"]
    t.matrix(at + "block_sparse_moe.router.layer", blk + "ffn_gate_inp", count, hidden, 2.0)
    gate, up = (t.random(at + part, (count, ffn, hidden), hidden ** -0.5) for part in ("gate", "up"))
    down = t.random(at + "down", (count, hidden, ffn), 2.0 * ffn ** -0.5)
    t.hf[at + "block_sparse_moe.input_linear.weight"] = np.concatenate([gate, up], 1)
    t.hf[at + "block_sparse_moe.output_linear.weight"] = down
    t.gguf.update({blk + "ffn_gate_exps.weight": gate, blk + "ffn_up_exps.weight": up, blk + "ffn_down_exps.weight": down})
    parts = [t.random(at + "shared." + part, (shared, hidden), hidden ** -0.5) for part in ("gate", "up")]
    t.hf[at + "shared_mlp.input_linear.weight"] = np.concatenate(parts)
    t.gguf.update({blk + "ffn_gate_shexp.weight": parts[0], blk + "ffn_up_shexp.weight": parts[1]})
    t.matrix(at + "shared_mlp.output_linear", blk + "ffn_down_shexp", hidden, shared)


def gpt_neox(t, c):
    """For each head its query, its key and its value; GGUF has all queries first."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    t.add("gpt_neox.embed_in.weight", "token_embd.weight", t.random("token_embd", (c["vocab_size"], hidden), 0.35))
    for i in range(c["num_hidden_layers"]):
        at, blk = f"gpt_neox.layers.{i}.", f"blk.{i}."
        t.matrix(at + "attention.query_key_value", blk + "attn_qkv", 3 * hidden, hidden, 1.3, 0.4)
        for end in (".weight", ".bias"):
            x = t.gguf[blk + "attn_qkv" + end]
            x = x.reshape(heads, 3, hidden // heads, *x.shape[1:])
            t.gguf[blk + "attn_qkv" + end] = np.concatenate([x[:, j].reshape(hidden, *x.shape[3:]) for j in range(3)])
        t.matrix(at + "attention.dense", blk + "attn_output", hidden, hidden, 1.0, 0.2)
        t.matrix(at + "mlp.dense_h_to_4h", blk + "ffn_up", c["intermediate_size"], hidden, 1.3, 0.2)
        t.matrix(at + "mlp.dense_4h_to_h", blk + "ffn_down", hidden, c["intermediate_size"], 2.0, 0.1)
        t.norm(at + "input_layernorm", blk + "attn_norm", hidden, True)
        t.norm(at + "post_attention_layernorm", blk + "ffn_norm", hidden, True)
    t.norm("gpt_neox.final_layer_norm", "output_norm", hidden, True)
    t.matrix("embed_out", "output", c["vocab_size"], hidden, 2.0)


def linear_attention(t, c, at, blk):
    """Qwen3.5: matrices of their own for gates, rates and steps. GGUF has value heads in turn of their keys: the first of each, the second of each."""
    hidden, heads, groups, size = c["hidden_size"], c["linear_num_value_heads"], c["linear_num_key_heads"], c["linear_value_head_dim"]
    keys, values, at = groups * c["linear_key_head_dim"], heads * size, at + "linear_attn."

    def in_turn(x, width, first=0):
        tail = x[first:].reshape(groups, heads // groups, width, -1).swapaxes(0, 1).reshape(x[first:].shape)
        return np.concatenate([x[:first], tail])

    for name, own, rows, width, first in (("in_proj_qkv", "attn_qkv", 2 * keys + values, size, 2 * keys), ("in_proj_z", "attn_gate", values, size, 0),
                                          ("in_proj_b", "ssm_beta", heads, 1, 0), ("in_proj_a", "ssm_alpha", heads, 1, 0)):
        x = t.random(at + name, (rows, hidden), 1.3 / hidden ** 0.5)
        t.hf[f"{at}{name}.weight"], t.gguf[f"{blk}{own}.weight"] = x, in_turn(x, width, first)
    taps = t.random(at + "conv1d", (2 * keys + values, 1, c["linear_conv_kernel_dim"]), 0.5)
    t.hf[at + "conv1d.weight"], t.gguf[blk + "ssm_conv1d.weight"] = taps, in_turn(taps[:, 0], size, 2 * keys)
    bias, a = t.random(at + "dt_bias", (heads,), 0.7, -1.0), t.random(at + "A_log", (heads,), 0.5, 0.3)
    t.hf[at + "dt_bias"], t.gguf[blk + "ssm_dt.bias"] = bias, in_turn(bias, 1)
    t.hf[at + "A_log"], t.gguf[blk + "ssm_a"] = a, -np.exp(in_turn(a, 1))
    t.norm(at + "norm", blk + "ssm_norm", size)
    out = t.random(at + "out_proj", (hidden, values), 1.5 / values ** 0.5)
    t.hf[at + "out_proj.weight"], t.gguf[blk + "ssm_out.weight"] = out, np.ascontiguousarray(in_turn(out.T, size).T)


def stack_experts(t, c):
    """Qwen3.5 and Qwen3-VL are published with one tensor for all experts, the latter as [in, out]."""
    turned = c["model_type"] == "qwen3_vl_moe_text"
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}.mlp.experts."
        take = {part: np.stack([t.hf.pop(f"{at}{e}.{part}_proj.weight") for e in range(c["num_experts"])])
                for part in ("gate", "up", "down")}
        for name, x in (("gate_up_proj", np.concatenate([take["gate"], take["up"]], 1)), ("down_proj", take["down"])):
            t.hf[at + name] = np.ascontiguousarray(x.swapaxes(1, 2)) if turned else x


def own_fields(c):
    """Metadata keys that differ from those of other families."""
    kind = c["model_type"]
    if kind == "ministral3":
        scaling = c["rope_scaling"]
        return {"attention.temperature_scale": scaling["llama_4_scaling_beta"],
                "rope.scaling.yarn_log_multiplier": scaling["mscale_all_dim"]}
    if kind == "gpt_neox":
        return {"rope.dimension_count": int(c["rotary_pct"] * (c["hidden_size"] // c["num_attention_heads"])),
                "use_parallel_residual": True}
    if kind == "minimax_m2":
        return {"rope.dimension_count": c["rotary_dim"], "expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2}
    if kind == "granitemoeshared":
        return {"attention.scale": c["attention_multiplier"], "embedding_scale": c["embedding_multiplier"],
                "residual_scale": c["residual_multiplier"], "logit_scale": c["logits_scaling"],
                "expert_shared_feed_forward_length": c["shared_intermediate_size"]}
    if kind == "ernie4_5_moe":
        return {"expert_count": c["moe_num_experts"], "expert_used_count": c["moe_k"], "interleave_moe_layer_step": 1,
                "leading_dense_block_count": c["moe_layer_start_index"],
                "expert_shared_feed_forward_length": c["moe_num_shared_experts"] * c["moe_intermediate_size"]}
    return {}
