"""Llama 4 and Gemma 3n, for tiny_families.py: tensors under their names in folders and in GGUF."""
import numpy as np

import tiny_gguf

LLAMA4 = {"num_hidden_layers": 5, "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96, "num_local_experts": 4,
          "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": True, "pad_token_id": 0, "rope_scaling": {
              "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}}
SPARSITY = {0.0: -np.inf, 0.6: 0.2533471}  # to the number of standard deviations that a gate must exceed the mean by
GEMMA3N = {"num_hidden_layers": 6, "hidden_size": 48, "head_dim": 16, "intermediate_size": [64] * 6, "sliding_window": 6,
           "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2, "num_kv_shared_layers": 2,
           "activation_sparsity_pattern": [0.6, 0.0, 0.6, 0.0, 0.0, 0.6], "altup_num_inputs": 4, "altup_active_idx": 0,
           "altup_coef_clip": 120.0, "altup_correct_scale": True, "hidden_size_per_layer_input": 12, "laurel_rank": 8,
           "vocab_size_per_layer_input": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
           "final_logit_softcapping": 6.0, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "pad_token_id": 0}


def llama4_mlp(t, c, at, blk, layer):
    """Experts are one tensor in the folder, [in, out], with all gates before the rest."""
    hidden, count, ffn, at = c["hidden_size"], c["num_local_experts"], c["intermediate_size"], at + "feed_forward."
    parts = (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn))
    if (layer + 1) % c["interleave_moe_layer_step"] != 0:
        ffn = c["intermediate_size_mlp"]
        for part, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            t.matrix(f"{at}{part}_proj", f"{blk}ffn_{part}", rows, columns, 2.0 if part == "down" else 1.0)
        return
    t.matrix(at + "router", blk + "ffn_gate_inp", count, hidden, 2.0)
    stacks = {}
    for part, rows, columns in parts:
        x = t.random(f"{at}experts.{part}", (count, rows, columns), (4.0 if part == "down" else 2.0) / columns ** 0.5)
        t.gguf[f"{blk}ffn_{part}_exps.weight"], stacks[part] = x, np.ascontiguousarray(x.swapaxes(1, 2))
        t.matrix(f"{at}shared_expert.{part}_proj", f"{blk}ffn_{part}_shexp", rows, columns)
    t.hf[at + "experts.gate_up_proj"] = np.concatenate([stacks["gate"], stacks["up"]], -1)
    t.hf[at + "experts.down_proj"] = stacks["down"]


def llama4_fields(c, tensors):
    """The converter writes neither the chunk nor the temperature: llama.cpp knows those of the published models."""
    fields = {"expert_count": c["num_local_experts"], "expert_used_count": c["num_experts_per_tok"],
              "expert_feed_forward_length": c["intermediate_size"], "feed_forward_length": c["intermediate_size_mlp"],
              "interleave_moe_layer_step": c["interleave_moe_layer_step"]}
    if "attention_chunk_size" in c:
        fields.update({"attention.sliding_window": c["attention_chunk_size"], "attention.temperature_scale": c["attn_scale"],
                       "attention.temperature_length": c["floor_scale"]})
    return fields


def gemma3n(t, c):
    hidden, head, per, rank, n = c["hidden_size"], c["head_dim"], c["hidden_size_per_layer_input"], c["laurel_rank"], c["altup_num_inputs"]
    heads, kv, layers, ffn = c["num_attention_heads"], c["num_key_value_heads"], c["num_hidden_layers"], c["intermediate_size"][0]
    t.add("model.embed_tokens.weight", "token_embd.weight", t.random("token_embd", (c["vocab_size"], hidden), 0.1))
    t.add("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight",
          t.random("per_layer", (c["vocab_size_per_layer_input"], layers * per), 0.3))
    t.matrix("model.per_layer_model_projection", "per_layer_model_proj", layers * per, hidden)
    t.norm("model.per_layer_projection_norm", "per_layer_proj_norm", per)
    for hf, name in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")):
        parts = [t.random(f"{hf}.{i}", (hidden, hidden), hidden ** -0.5) for i in range(n - 1)]
        t.hf.update({f"model.{hf}.{i}.weight": x for i, x in enumerate(parts)})
        t.gguf[name + ".weight"] = np.stack(parts)
    for i in range(layers):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        for part, rows in (("q", heads), ("k", kv), ("v", kv)):
            t.matrix(f"{at}self_attn.{part}_proj", f"{blk}attn_{part}", rows * head, hidden, 1.3)
        t.matrix(at + "self_attn.o_proj", blk + "attn_output", hidden, heads * head)
        for part in "qk":
            t.norm(f"{at}self_attn.{part}_norm", f"{blk}attn_{part}_norm", head)
        for part, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            t.matrix(f"{at}mlp.{part}_proj", f"{blk}ffn_{part}", rows, columns, 1.3)
        for hf, name in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"),
                         ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm"),
                         ("post_per_layer_input_norm", "post_norm"), ("altup.router_norm", "altup_router_norm"),
                         ("laurel.post_laurel_norm", "laurel_post_norm")):
            t.norm(at + hf, blk + name, hidden)
        t.matrix(at + "per_layer_input_gate", blk + "inp_gate", per, hidden)
        t.matrix(at + "per_layer_projection", blk + "proj", hidden, per)
        t.matrix(at + "altup.modality_router", blk + "altup_router", n, hidden, 20.0)
        t.matrix(at + "altup.prediction_coefs", blk + "altup_predict_coef", n * n, n, 0.5)
        t.matrix(at + "altup.correction_coefs", blk + "altup_correct_coef", n, n, 0.5)
        t.add(at + "altup.correct_output_scale", blk + "altup_correct_scale.weight", t.random(at + "scale", (hidden,), 0.2, 1.0))
        t.matrix(at + "laurel.linear_left", blk + "laurel_l", rank, hidden)
        t.matrix(at + "laurel.linear_right", blk + "laurel_r", hidden, rank)
    t.norm("model.norm", "output_norm", hidden)


def gemma3n_fields(c):
    return {"feed_forward_length": c["intermediate_size"], "altup.active_idx": c["altup_active_idx"],
            "altup.num_inputs": c["altup_num_inputs"], "embedding_length_per_layer_input": c["hidden_size_per_layer_input"],
            "attention.shared_kv_layers": c["num_kv_shared_layers"], "rope.freq_base_swa": c["rope_local_base_freq"],
            "activation_sparsity_scale": [float(SPARSITY[s]) for s in c["activation_sparsity_pattern"]],
            "attention.sliding_window_pattern": [x == "sliding_attention" for x in c["layer_types"]],
            "final_logit_softcapping": c["final_logit_softcapping"]}


def own_fields(c, tensors):
    """Metadata keys that differ from those of other families; adds tensors that are not weights."""
    if c["model_type"] == "gemma3n_text":
        return gemma3n_fields(c)
    if c["model_type"] != "llama4_text":
        return {}
    if c.get("rope_scaling"):
        tensors["rope_freqs.weight"] = tiny_gguf.llama3_factors(c)
    return llama4_fields(c, tensors)
