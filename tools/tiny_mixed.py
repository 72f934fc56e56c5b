"""More families for tiny_families.py: experts, latent attention and Mamba; tensors under their names in folders and in GGUF."""
import numpy as np

from tiny_more import Writer

LATENT = {"q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
          "num_key_value_heads": 4}
WINDOWS = {"num_hidden_layers": 4, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 32}
MAMBA = {"hidden_size": 48, "state_size": 6, "conv_kernel": 4, "num_hidden_layers": 3, "expand": 2, "time_step_rank": 5, "use_bias": False,
         "use_conv_bias": True, "hidden_act": "silu", "layer_norm_epsilon": 1e-5, "pad_token_id": 0}
LONG = {"type": "longrope", "original_max_position_embeddings": 16}


def models(config, drop):
    """name -> config.json"""
    own = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rope_theta", "num_key_value_heads",
                         "max_position_embeddings", "rms_norm_eps", "hidden_act"), drop)
    phimoe = config("PhimoeForCausalLM", model_type="phimoe", num_local_experts=6, num_experts_per_tok=2, intermediate_size=48,
                    attention_bias=True, lm_head_bias=True, router_jitter_noise=0.01, sliding_window=None)
    return {
        "afmoe": config("AfmoeForCausalLM", model_type="afmoe", head_dim=16, num_dense_layers=1, route_scale=1.5, mup_enabled=True,
                        pad_token_id=0, **WINDOWS, **ROUTED),
        "exaone_moe": config("ExaoneMoeForCausalLM", model_type="exaone_moe", head_dim=16, first_k_dense_replace=1, n_group=4, topk_group=2,
                             norm_topk_prob=True, routed_scaling_factor=1.5, pad_token_id=0, **WINDOWS, **ROUTED),
        "dbrx": config("DbrxForCausalLM", model_type="dbrx", d_model=64, n_heads=4, n_layers=2, max_seq_len=64, attn_config={
            "kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 10000.0}, ffn_config={
                "ffn_hidden_size": 48, "moe_num_experts": 6, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}}, **own),
        "minicpm3": config("MiniCPM3ForCausalLM", model_type="minicpm3", scale_emb=12, scale_depth=1.4, dim_model_base=256,
                           tie_word_embeddings=True, rms_norm_eps=1e-5, **LATENT, rope_scaling={
                               **LONG, "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.1, 1.5, 2.5, 4.0]}),
        "youtu": config("YoutuForCausalLM", model_type="youtu", tie_word_embeddings=False, rms_norm_eps=1e-6, **{**LATENT, "v_head_dim": 12}),
        "phimoe": phimoe,
        "phimoe_mixed": {**phimoe, "router_jitter_noise": 0.3, "rope_scaling": {
            **LONG, "short_factor": [1.5] * 8, "long_factor": [1.5] * 8, "short_mscale": 1.25, "long_mscale": 1.25}},
        "ling": config("BailingMoeV2ForCausalLM", model_type="bailing_moe_v2", head_dim=16, first_k_dense_replace=1, n_group=4, topk_group=2,
                       norm_topk_prob=True, routed_scaling_factor=1.5, use_qk_norm=True, partial_rotary_factor=0.5, pad_token_id=0, **ROUTED),
        "flex_olmo": config("FlexOlmoForCausalLM", model_type="flex_olmo", num_experts=6, num_experts_per_tok=3, intermediate_size=48,
                            norm_topk_prob=False, rms_norm_eps=1e-6, pad_token_id=0),
        "hyperclovax": config("HyperCLOVAXForCausalLM", model_type="hyperclovax", embedding_multiplier=3.0, residual_multiplier=0.5,
                              attention_multiplier=0.1, logits_scaling=0.5, use_post_norm=True),
        "gpt_neo": config("GPTNeoForCausalLM", model_type="gpt_neo", num_layers=2, num_heads=4, intermediate_size=96, window_size=8,
                          attention_types=[[["global", "local"], 1]], activation_function="gelu_new", layer_norm_epsilon=1e-5,
                          tie_word_embeddings=True, **{k: v for k, v in own.items() if k not in (
                              "hidden_size", "max_position_embeddings", "intermediate_size")}),
        "mamba": config("MambaForCausalLM", model_type="mamba", tie_word_embeddings=True, **{**own, **MAMBA}),
        "falcon_mamba": config("FalconMambaForCausalLM", model_type="falcon_mamba", tie_word_embeddings=True, mixer_rms_eps=1e-6, **{**own, **MAMBA}),
        "jamba": config("JambaForCausalLM", model_type="jamba", hidden_size=48, num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1,
                        num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=6, mamba_d_conv=4,
                        mamba_expand=2, mamba_dt_rank=5, use_mamba_kernels=False, pad_token_id=0, rope_theta=drop),
    }


NOT_AS_GGUF = {"phimoe_mixed", "flex_olmo", "hyperclovax", "gpt_neo"}
ARCHITECTURE = {"exaone_moe": "exaone-moe", "youtu": "deepseek2", "bailing_moe_v2": "bailingmoe2", "falcon_mamba": "mamba"}
REFERENCE = {  # families that transformers does not have
    "ling": {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8, "n_shared_experts": 1},
}


def experts(w, at, blk, count, ffn, gate, names, gain=1.0, gguf=True):
    """A router and its experts, a tensor each in the folder."""
    w.matrix(at + gate, blk + "ffn_gate_inp", count, w.hidden, 2.0)
    for part, hf, rows, columns in zip(("gate", "up", "down"), names, (ffn, ffn, w.hidden), (w.hidden, w.hidden, ffn)):
        w.t.stack(at + hf, f"{blk}ffn_{part}_exps", count, rows, columns, 2.0 if part == "down" else gain)


def shared(w, at, blk, ffn):
    for part, rows, columns in (("gate", ffn, w.hidden), ("up", ffn, w.hidden), ("down", w.hidden, ffn)):
        w.matrix(f"{at}mlp.shared_experts.{part}_proj", f"{blk}ffn_{part}_shexp", rows, columns)


NAMES = ["mlp.experts.{}." + part + "_proj" for part in ("gate", "up", "down")]
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def routed(t, c):
    """AFMoE, K-EXAONE and Ling: dense layers, then experts chosen with a bias, and one that all tokens pass."""
    w, kind = Writer(t, c), c["model_type"]
    ling = kind == "bailing_moe_v2"
    norms = {"afmoe": [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"),
                       ("pre_mlp_layernorm", "ffn_norm"), ("post_mlp_layernorm", "post_ffw_norm")]}.get(
                           kind, [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")])
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        part = "attention." if ling else "self_attn."
        if ling:
            w.fused_qkv(at, blk, "attention.query_key_value")
        else:
            w.qkv(at + part, blk)
        w.matrix(at + part + ("dense" if ling else "o_proj"), blk + "attn_output", w.hidden, w.heads * w.head)
        for q in "qk":
            name = {"q": "query_layernorm", "k": "key_layernorm"}[q] if ling else q + "_norm"
            w.norm(at + part + name, f"{blk}attn_{q}_norm", w.head)
        if kind == "afmoe":
            w.matrix(at + "self_attn.gate_proj", blk + "attn_gate", w.heads * w.head, w.hidden, 1.3)
        if i == 0:
            w.mlp(at, blk, c["intermediate_size"], MLP)
        else:
            experts(w, at, blk, c["num_experts"], 32, "mlp.router.gate" if kind == "afmoe" else "mlp.gate", NAMES)
            bias = {"afmoe": "mlp.expert_bias", "exaone_moe": "mlp.gate.e_score_correction_bias"}.get(kind, "mlp.gate.expert_bias")
            t.add(at + bias, blk + "exp_probs_b.bias", t.random(at + "bias", (c["num_experts"],), 0.2))
            shared(w, at, blk, 32)
        for hf, name in norms:
            w.norm(at + hf, blk + name, w.hidden)
    w.ends("word_embeddings" if ling else "embed_tokens", "norm", "model.")
    if ling:
        names = {"attention.dense": "self_attn.o_proj", "attention.query_layernorm": "self_attn.q_norm", "attention.key_layernorm":
                 "self_attn.k_norm", "word_embeddings": "embed_tokens", "gate.expert_bias": "gate.e_score_correction_bias"}
        for name, x in t.hf.items():
            for old, new in names.items():
                name = name.replace(old, new)
            if "query_key_value" not in name:
                t.reference[name] = x
                continue
            for q, y in zip("qkv", np.split(x, [w.heads * w.head, (w.heads + w.kv) * w.head])):
                t.reference[name.replace("attention.query_key_value", f"self_attn.{q}_proj")] = np.ascontiguousarray(y)


def dbrx(t, c):
    ffn, count = c["ffn_config"]["ffn_hidden_size"], c["ffn_config"]["moe_num_experts"]
    w = Writer(t, {**c, "hidden_size": c["d_model"], "num_attention_heads": c["n_heads"], "num_key_value_heads": c["attn_config"]["kv_n_heads"]})
    for i in range(c["n_layers"]):
        at, blk = f"transformer.blocks.{i}.", f"blk.{i}."
        w.fused_qkv(at + "norm_attn_norm.attn.", blk, "Wqkv")
        w.matrix(at + "norm_attn_norm.attn.out_proj", blk + "attn_output", w.hidden, w.hidden)
        w.norm(at + "norm_attn_norm.norm_1", blk + "attn_norm", w.hidden)
        w.norm(at + "norm_attn_norm.norm_2", blk + "attn_output_norm", w.hidden)
        w.matrix(at + "ffn.router.layer", blk + "ffn_gate_inp", count, w.hidden, 2.0)
        for hf, part in (("w1", "gate"), ("v1", "up"), ("w2", "down")):
            x = t.random(at + hf, (count, ffn, w.hidden), (2.0 / ffn ** 0.5 if part == "down" else w.hidden ** -0.5))
            t.hf[f"{at}ffn.experts.mlp.{hf}"] = x.reshape(-1, w.hidden)
            t.gguf[f"{blk}ffn_{part}_exps.weight"] = np.ascontiguousarray(x.swapaxes(1, 2)) if part == "down" else x
    w.ends("wte", "norm_f", "transformer.")


def latent(t, c):
    w, rank = Writer(t, c), c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        a = at + "self_attn."
        w.matrix(a + "q_a_proj", blk + "attn_q_a", c["q_lora_rank"], w.hidden, 1.3)
        w.norm(a + "q_a_layernorm", blk + "attn_q_a_norm", c["q_lora_rank"])
        w.matrix(a + "q_b_proj", blk + "attn_q_b", w.heads * (nope + rope), c["q_lora_rank"], 1.3)
        # Small vectors: their norms have an epsilon of their own.
        w.matrix(a + "kv_a_proj_with_mqa", blk + "attn_kv_a_mqa", rank + rope, w.hidden, 0.02 if c["model_type"] == "minicpm3" else 1.3)
        w.norm(a + "kv_a_layernorm", blk + "attn_kv_a_norm", rank)
        w.matrix(a + "kv_b_proj", blk + "attn_kv_b", w.heads * (nope + value), rank, 1.3)
        w.matrix(a + "o_proj", blk + "attn_output", w.hidden, w.heads * value)
        w.mlp(at, blk, c["intermediate_size"], MLP)
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden)
    w.ends("embed_tokens", "norm", "model.")


def plain(t, c):
    """Phi-3.5-MoE, FlexOlmo and HyperCLOVA X."""
    w, kind = Writer(t, c), c["model_type"]
    phi = kind == "phimoe"
    norms = {"flex_olmo": [("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm")],
             "phimoe": [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]}.get(
                 kind, [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("post_norm1", "n1"), ("post_norm2", "n2")])
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.qkv(at + "self_attn.", blk, bias=0.3 * phi)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head, 1.0, 0.2 * phi)
        if phi:
            experts(w, at, blk, 6, 48, "block_sparse_moe.gate", ["block_sparse_moe.experts.{}." + n for n in ("w1", "w3", "w2")])
        elif kind == "flex_olmo":
            experts(w, at, blk, 6, 48, "mlp.gate", NAMES)
            w.norm(at + "self_attn.q_norm", blk + "attn_q_norm", w.heads * w.head)
            w.norm(at + "self_attn.k_norm", blk + "attn_k_norm", w.kv * w.head)
        else:
            w.mlp(at, blk, c["intermediate_size"], MLP)
        for hf, name in norms:
            w.norm(at + hf, blk + name, w.hidden, phi)
    w.ends("embed_tokens", "norm", "model.", phi, head_bias=0.2 * phi)


def gpt_neo(t, c):
    w = Writer(t, {**c, "num_attention_heads": c["num_heads"], "num_key_value_heads": c["num_heads"]})
    for i in range(c["num_layers"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        w.qkv(at + "attn.attention.", blk)
        w.matrix(at + "attn.attention.out_proj", blk + "attn_output", w.hidden, w.hidden, 1.0, 0.2)
        w.mlp(at, blk, c["intermediate_size"], (None, "mlp.c_fc", "mlp.c_proj"), 0.2)
        w.norm(at + "ln_1", blk + "attn_norm", w.hidden, True)
        w.norm(at + "ln_2", blk + "ffn_norm", w.hidden, True)
    w.ends("wte", "ln_f", "transformer.", True)
    t.add("transformer.wpe.weight", "position_embd.weight", t.random("wpe", (c["max_position_embeddings"], w.hidden), 0.35))


def mamba_part(w, at, blk, state, taps, rank, norms):
    t, inner = w.t, 2 * w.hidden
    w.matrix(at + "in_proj", blk + "ssm_in", 2 * inner, w.hidden, 1.3)
    conv = t.random(at + "conv1d", (inner, 1, taps), 0.5)
    t.hf[at + "conv1d.weight"], t.gguf[blk + "ssm_conv1d.weight"] = conv, conv[:, 0]
    t.add(at + "conv1d.bias", blk + "ssm_conv1d.bias", t.random(at + "conv1d.bias", (inner,), 0.2))
    w.matrix(at + "x_proj", blk + "ssm_x", rank + 2 * state, inner, 1.5)
    t.add(at + "dt_proj.weight", blk + "ssm_dt.weight", t.random(at + "dt_proj", (inner, rank), 1.0 / rank ** 0.5))
    t.add(at + "dt_proj.bias", blk + "ssm_dt.bias", t.random(at + "dt_proj.bias", (inner,), 0.7, -1.0))
    a = t.random(at + "A_log", (inner, state), 0.5, 0.3)
    t.hf[at + "A_log"], t.gguf[blk + "ssm_a"] = a, -np.exp(a)
    t.add(at + "D", blk + "ssm_d", t.random(at + "D", (inner,), 0.3, 1.0))
    w.matrix(at + "out_proj", blk + "ssm_out", w.hidden, inner, 1.6)
    for part, size in (("dt", rank), ("b", state), ("c", state)) if norms else ():
        w.norm(f"{at}{part}_layernorm", f"{blk}ssm_{part}_norm", size)


def mamba(t, c):
    w = Writer(t, {**c, "num_attention_heads": 1, "num_key_value_heads": 1})
    for i in range(c["num_hidden_layers"]):
        at, blk = f"backbone.layers.{i}.", f"blk.{i}."
        w.norm(at + "norm", blk + "attn_norm", w.hidden)
        mamba_part(w, at + "mixer.", blk, c["state_size"], c["conv_kernel"], c["time_step_rank"], False)
    w.ends("embeddings", "norm_f", "backbone.")


def jamba(t, c):
    w = Writer(t, c)
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        if i % c["attn_layer_period"] == c["attn_layer_offset"]:
            w.qkv(at + "self_attn.", blk)
            w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        else:
            mamba_part(w, at + "mamba.", blk, c["mamba_d_state"], c["mamba_d_conv"], c["mamba_dt_rank"], True)
        names = ["feed_forward." + part + "_proj" for part in ("gate", "up", "down")]
        if i % 2 == 1:
            experts(w, at, blk, c["num_experts"], c["intermediate_size"], "feed_forward.router",
                    [n.replace(".", ".experts.{}.") for n in names])
        else:
            w.mlp(at, blk, c["intermediate_size"], names)
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "pre_ff_layernorm", blk + "ffn_norm", w.hidden)
    w.ends("embed_tokens", "final_layernorm", "model.")


OWN = {**dict.fromkeys(("afmoe", "exaone_moe", "bailing_moe_v2"), routed), "dbrx": dbrx, **dict.fromkeys(("minicpm3", "youtu"), latent),
       **dict.fromkeys(("phimoe", "flex_olmo", "hyperclovax"), plain), "gpt_neo": gpt_neo, "jamba": jamba,
       **dict.fromkeys(("mamba", "falcon_mamba"), mamba)}


def own_fields(t):
    """All metadata keys of these families; a key with a dot at its end has no architecture before it."""
    c, kind = t.c, t.c["model_type"]
    if kind in ("mamba", "falcon_mamba"):
        return {"block_count": c["num_hidden_layers"], "context_length": 1 << 20, "embedding_length": c["hidden_size"], "feed_forward_length": 0,
                "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-5, "ssm.conv_kernel": 4, "ssm.inner_size": 96,
                "ssm.state_size": 6, "ssm.time_step_rank": 5, "ssm.dt_b_c_rms": kind == "falcon_mamba"}
    if kind == "dbrx":
        return {"block_count": 2, "context_length": 64, "embedding_length": 64, "feed_forward_length": 48, "attention.head_count": 4,
                "attention.head_count_kv": 2, "rope.freq_base": 10000.0, "attention.clamp_kqv": 1.5, "expert_count": 6,
                "expert_used_count": 2, "attention.layer_norm_epsilon": 1e-5}
    w = Writer(t, c)
    fields = {"block_count": c["num_hidden_layers"], "context_length": 64, "embedding_length": w.hidden, "attention.head_count": w.heads,
              "attention.head_count_kv": w.kv, "feed_forward_length": c["intermediate_size"],
              "attention.layer_norm_rms_epsilon": c["rms_norm_eps"]}
    if kind in ("afmoe", "exaone_moe", "bailing_moe_v2"):
        fields.update({"rope.freq_base": c["rope_theta"], "attention.key_length": 16, "attention.value_length": 16,
                       "rope.dimension_count": 8 if kind == "bailing_moe_v2" else 16, "expert_count": 8, "expert_used_count": 2,
                       "expert_feed_forward_length": 32, "expert_shared_count": 1, "leading_dense_block_count": 1,
                       "expert_weights_scale": 1.5, "expert_weights_norm": True})
        if kind != "bailing_moe_v2":
            fields["attention.sliding_window"] = 8
        if kind != "afmoe":
            fields.update({"expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2,
                           "expert_shared_feed_forward_length": 32})
    if kind == "phimoe":
        fields.update({"rope.freq_base": c["rope_theta"], "rope.dimension_count": w.head, "expert_count": 6, "expert_used_count": 2})
    if kind in ("minicpm3", "youtu"):
        fields.update({"attention.q_lora_rank": 40, "attention.kv_lora_rank": 24, "rope.dimension_count": 8, "attention.key_length": 24})
    if kind == "minicpm3":
        fields.update({"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": (1 + np.log(4) / np.log(16)).item() ** 0.5})
        for name in ("long", "short"):
            t.gguf[f"rope_factors_{name}.weight"] = np.array(c["rope_scaling"][name + "_factor"], dtype=np.float32)
    if kind == "youtu":
        fields.update({"rope.freq_base": c["rope_theta"], "attention.value_length": 12, "leading_dense_block_count": 2,
                       "attention.head_count_kv": 1, "attention.key_length_mla": 24, "attention.value_length_mla": 12,
                       "attention.key_length": 32})
    if kind == "jamba":
        fields.update({"attention.head_count_kv": [w.kv if i % 3 == 1 else 0 for i in range(4)], "ssm.conv_kernel": 4, "ssm.inner_size": 96,
                       "ssm.state_size": 6, "ssm.time_step_rank": 5, "expert_count": 4, "expert_used_count": 2})
    return fields
