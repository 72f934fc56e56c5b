"""Gemma 4, for tiny_families.py: tensors under their names in folders and in GGUF."""
import numpy as np

EMBEDDING = 0.21  # deviation; greedy choices must not be close

COMMON = {"model_type": "gemma4_text", "hidden_size": 48, "head_dim": 16, "global_head_dim": 32, "intermediate_size": 64, "sliding_window": 6,
          "rms_norm_eps": 1e-6, "final_logit_softcapping": 6.0, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
          "pad_token_id": 0, "vocab_size_per_layer_input": 128, "rope_parameters": {
              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
              "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0}}}


def models(config, drop):
    """name -> config.json"""
    usual = {**COMMON, "hidden_act": drop, "rope_theta": drop}
    return {
        "gemma4": config("Gemma4ForCausalLM", **usual, num_hidden_layers=6, layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
                         hidden_size_per_layer_input=12, num_kv_shared_layers=2, use_double_wide_mlp=True, attention_k_eq_v=False),
        "gemma4_moe": config("Gemma4ForCausalLM", **usual, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2,
                             hidden_size_per_layer_input=0, num_kv_shared_layers=0, attention_k_eq_v=True, num_global_key_value_heads=1,
                             enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32),
    }


def experts(t, c, at, blk):
    hidden, count, ffn = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    t.matrix(at + "router.proj", blk + "ffn_gate_inp", count, hidden, 12.0)
    t.add(at + "router.scale", blk + "ffn_gate_inp.scale", t.random(at + "router.scale", (hidden,), 0.2, 1.0))
    t.add(at + "router.per_expert_scale", blk + "ffn_down_exps.scale", t.random(at + "router.per_expert_scale", (count,), 0.3, 1.0))
    t.add(at + "experts.gate_up_proj", blk + "ffn_gate_up_exps.weight", t.random(at + "gate_up", (count, 2 * ffn, hidden), 1.3 * hidden ** -0.5))
    t.add(at + "experts.down_proj", blk + "ffn_down_exps.weight", t.random(at + "down", (count, hidden, ffn), 1.3 * ffn ** -0.5))
    for hf, name in (("pre_feedforward_layernorm_2", "pre_ffw_norm_2"), ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
                     ("post_feedforward_layernorm_2", "post_ffw_norm_2")):
        t.norm(at + hf, blk + name, hidden)


def tensors(t, c):
    hidden, per, heads, layers = c["hidden_size"], c["hidden_size_per_layer_input"], c["num_attention_heads"], c["num_hidden_layers"]
    t.add("model.embed_tokens.weight", "token_embd.weight", t.random("token_embd", (c["vocab_size"], hidden), EMBEDDING))
    if per:
        t.add("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight",
              t.random("per_layer", (c["vocab_size_per_layer_input"], layers * per), 0.3))
        t.matrix("model.per_layer_model_projection", "per_layer_model_proj", layers * per, hidden)
        t.norm("model.per_layer_projection_norm", "per_layer_proj_norm", per)
    for i in range(layers):
        at, blk, full = f"model.layers.{i}.", f"blk.{i}.", c["layer_types"][i] == "full_attention"
        head = c["global_head_dim"] if full else c["head_dim"]
        kv = c.get("num_global_key_value_heads") if full and c["attention_k_eq_v"] else c["num_key_value_heads"]
        shared = i >= layers - c["num_kv_shared_layers"]
        t.matrix(at + "self_attn.q_proj", blk + "attn_q", heads * head, hidden, 1.3)
        t.norm(at + "self_attn.q_norm", blk + "attn_q_norm", head)
        if not shared:
            t.matrix(at + "self_attn.k_proj", blk + "attn_k", kv * head, hidden, 1.3)
            t.norm(at + "self_attn.k_norm", blk + "attn_k_norm", head)
        if not shared and not (full and c["attention_k_eq_v"]):
            t.matrix(at + "self_attn.v_proj", blk + "attn_v", kv * head, hidden, 1.3)
        t.matrix(at + "self_attn.o_proj", blk + "attn_output", hidden, heads * head)
        ffn = c["intermediate_size"] * (2 if shared and c.get("use_double_wide_mlp") else 1)
        for part, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            t.matrix(f"{at}mlp.{part}_proj", f"{blk}ffn_{part}", rows, columns, 1.3)
        for hf, name in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"),
                         ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm")):
            t.norm(at + hf, blk + name, hidden)
        t.add(at + "layer_scalar", blk + "layer_output_scale.weight", t.random(at + "layer_scalar", (1,), 0.1, 0.9))
        if c.get("enable_moe_block"):
            experts(t, c, at, blk)
        if per:
            t.matrix(at + "per_layer_input_gate", blk + "inp_gate", per, hidden)
            t.matrix(at + "per_layer_projection", blk + "proj", hidden, per)
            t.norm(at + "post_per_layer_input_norm", blk + "post_norm", hidden)
    t.norm("model.norm", "output_norm", hidden)


def fields(c, tensors):
    """All metadata keys; adds the rotary factors."""
    rope, full = c["rope_parameters"], c["global_head_dim"]
    turned = int(full * rope["full_attention"]["partial_rotary_factor"] / 2)
    tensors["rope_freqs.weight"] = np.array([1.0] * turned + [1e30] * (full // 2 - turned), np.float32)
    slides = [x == "sliding_attention" for x in c["layer_types"]]
    layers, ffn = c["num_hidden_layers"], c["intermediate_size"]
    out = {"block_count": layers, "context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
           "feed_forward_length": ffn, "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
           "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "attention.key_length": full, "attention.value_length": full,
           "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
           "rope.dimension_count": full, "rope.dimension_count_swa": c["head_dim"], "attention.sliding_window": c["sliding_window"],
           "attention.sliding_window_pattern": slides, "attention.shared_kv_layers": c["num_kv_shared_layers"],
           "embedding_length_per_layer_input": c["hidden_size_per_layer_input"], "final_logit_softcapping": c["final_logit_softcapping"],
           "rope.freq_base": rope["full_attention"]["rope_theta"], "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"]}
    if c.get("use_double_wide_mlp"):
        out["feed_forward_length"] = [ffn * (2 if i >= layers - c["num_kv_shared_layers"] else 1) for i in range(layers)]
    if c["attention_k_eq_v"]:
        out["attention.head_count_kv"] = [c["num_key_value_heads"] if s else c["num_global_key_value_heads"] for s in slides]
    if c.get("enable_moe_block"):
        out.update({"expert_count": c["num_experts"], "expert_used_count": c["top_k_experts"],
                    "expert_feed_forward_length": c["moe_intermediate_size"]})
    return out
