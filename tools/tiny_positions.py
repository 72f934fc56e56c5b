"""Families for tiny_families.py whose positions are ALiBi's or rotations of another kind: tensors under their names in folders and in GGUF."""
import numpy as np

import tiny_gguf
from tiny_more import Writer, split_qkv


def models(config, drop):
    """name -> config.json"""
    own = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rope_theta", "num_key_value_heads",
                         "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias"), drop)
    gpt = {**own, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "layer_norm_epsilon": 1e-5}
    falcon = {**own, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": True}
    return {
        "bloom": config("BloomForCausalLM", model_type="bloom", n_head=6, n_layer=2, seq_length=64, layer_norm_epsilon=1e-5,
                        tie_word_embeddings=True, **{**own, "hidden_size": 48}),
        "mpt": config("MptForCausalLM", model_type="mpt", d_model=48, n_heads=6, n_layers=2, max_seq_len=64, expansion_ratio=4, no_bias=True,
                      tie_word_embeddings=True, layer_norm_epsilon=1e-5, attn_config={
                          "alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.5, "softmax_scale": None, "attn_type": "multihead_attention"}, **own),
        "falcon_rw": config("FalconForCausalLM", model_type="falcon", alibi=True, bias=True, multi_query=False, parallel_attn=False,
                            new_decoder_architecture=False, layer_norm_epsilon=1e-5, **falcon),
        "codegen": config("CodeGenForCausalLM", model_type="codegen", rotary_dim=8, n_ctx=64, n_inner=96, activation_function="gelu_new",
                          tie_word_embeddings=False, **gpt),
        "nanochat": config("NanoChatForCausalLM", model_type="nanochat", hidden_act="relu2", rms_norm_eps=1e-6, head_dim=16,
                           final_logit_softcapping=3.0, pad_token_id=0, tie_word_embeddings=False),
        "baichuan": config("BaichuanForCausalLM", model_type="baichuan", rms_norm_eps=1e-6, rope_theta=drop, num_key_value_heads=drop),
        "baichuan_alibi": config("BaichuanForCausalLM", model_type="baichuan", rms_norm_eps=1e-6, rope_theta=drop, num_key_value_heads=drop,
                                 max_position_embeddings=drop, model_max_length=64, hidden_size=48, num_attention_heads=6, intermediate_size=80),
        "jais": config("JAISLMHeadModel", model_type="jais", activation_function="swiglu", position_embedding_type="alibi",
                       mup_embeddings_scale=2.5, mup_output_alpha=3.0, mup_width_scale=0.125, mup_scale_qk_dot_by_d=True,
                       tie_word_embeddings=True, **{**gpt, "n_inner": 80, "n_embd": 48, "n_head": 6}),
    }


NOT_AS_GGUF = {"falcon_rw", "codegen", "nanochat"}


def grouped(w, at, blk, bias):
    """For each head its query, key and value; GGUF has all queries first."""
    w.matrix(at + "query_key_value", blk + "attn_qkv", 3 * w.hidden, w.hidden, 1.3, bias)
    for end in (".weight", ".bias"):
        x = w.t.gguf[blk + "attn_qkv" + end]
        x = x.reshape(w.heads, 3, w.head, *x.shape[1:])
        w.t.gguf[blk + "attn_qkv" + end] = np.concatenate([x[:, j].reshape(w.hidden, *x.shape[3:]) for j in range(3)])


def bloom(t, c):
    """BLOOM, and Falcon-RW without a norm after the embedding."""
    heads = c.get("n_head") or c["num_attention_heads"]
    w = Writer(t, {**c, "num_attention_heads": heads, "num_key_value_heads": heads})
    for i in range(c.get("n_layer") or c["num_hidden_layers"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        grouped(w, at + "self_attention.", blk, 0.3)
        w.matrix(at + "self_attention.dense", blk + "attn_output", w.hidden, w.hidden, 1.0, 0.2)
        w.mlp(at, blk, 4 * w.hidden, (None, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), 0.2)
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden, True)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden, True)
    if c["model_type"] == "bloom":
        w.norm("transformer.word_embeddings_layernorm", "token_embd_norm", w.hidden, True)
    w.ends("word_embeddings", "ln_f", "transformer.", True)


def mpt(t, c):
    w = Writer(t, {**c, "hidden_size": c["d_model"], "num_attention_heads": c["n_heads"], "num_key_value_heads": c["n_heads"]})
    for i in range(c["n_layers"]):
        at, blk = f"transformer.blocks.{i}.", f"blk.{i}."
        w.fused_qkv(at + "attn.", blk, "Wqkv")
        w.matrix(at + "attn.out_proj", blk + "attn_output", w.hidden, w.hidden)
        w.mlp(at, blk, c["expansion_ratio"] * w.hidden, (None, "ffn.up_proj", "ffn.down_proj"))
        w.norm(at + "norm_1", blk + "attn_norm", w.hidden)
        w.norm(at + "norm_2", blk + "ffn_norm", w.hidden)
    w.ends("wte", "norm_f", "transformer.")


def baichuan(t, c):
    """A Llama with one matrix for q, k and v, which llama.cpp's converter splits."""
    w = Writer(t, {**c, "num_key_value_heads": c["num_attention_heads"]})
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.fused_qkv(at + "self_attn.", blk, "W_pack")
        fused = t.gguf.pop(blk + "attn_qkv.weight")
        for part, x in zip("qkv", np.split(fused, 3)):
            t.gguf[f"{blk}attn_{part}.weight"] = x if part == "v" else tiny_gguf.permute(x, w.heads)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.hidden)
        w.mlp(at, blk, c["intermediate_size"], ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden)
    w.ends("embed_tokens", "norm", "model.")
    t.reference.update({name.replace("self_attn.W_pack", "W_pack"): x for name, x in t.hf.items()})
    split_qkv(t, w, "W_pack")


def jais(t, c):
    """GPT-2 with a gate; GGUF has the factors of embeddings and logits in its tables."""
    w = Writer(t, {**c, "num_key_value_heads": c["n_head"]})
    for i in range(c["n_layer"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        w.fused_qkv(at + "attn.", blk, "c_attn", 0.3)
        w.matrix(at + "attn.c_proj", blk + "attn_output", w.hidden, w.hidden, 1.0, 0.2)
        w.mlp(at, blk, c["n_inner"], ("mlp.c_fc2", "mlp.c_fc", "mlp.c_proj"), 0.2)
        w.norm(at + "ln_1", blk + "attn_norm", w.hidden, True)
        w.norm(at + "ln_2", blk + "ffn_norm", w.hidden, True)
    w.ends("wte", "ln_f", "transformer.", True)
    for name in t.hf:
        if name.endswith(".weight") and ".c_" in name:
            t.hf[name] = np.ascontiguousarray(t.hf[name].T)
    table = t.hf["transformer.wte.weight"].astype(np.float64)
    t.gguf["token_embd.weight"] = (table * c["mup_embeddings_scale"]).astype(np.float32)
    t.gguf["output.weight"] = (table * c["mup_output_alpha"] * c["mup_width_scale"]).astype(np.float32)


def codegen(t, c):
    w = Writer(t, {**c, "num_key_value_heads": c["n_head"]})
    for i in range(c["n_layer"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        w.matrix(at + "attn.qkv_proj", blk + "attn_qkv", 3 * w.hidden, w.hidden, 1.3)
        w.matrix(at + "attn.out_proj", blk + "attn_output", w.hidden, w.hidden)
        w.mlp(at, blk, c["n_inner"], (None, "mlp.fc_in", "mlp.fc_out"), 0.2)
        w.norm(at + "ln_1", blk + "attn_norm", w.hidden, True)
    w.ends("wte", "ln_f", "transformer.", True, head_bias=0.2)


def nanochat(t, c):
    w = Writer(t, c)
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.qkv(at + "self_attn.", blk)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        w.mlp(at, blk, c["intermediate_size"], (None, "mlp.fc1", "mlp.fc2"))
    w.ends("embed_tokens", None, "model.")


OWN = {"bloom": bloom, "mpt": mpt, "codegen": codegen, "nanochat": nanochat, "baichuan": baichuan, "jais": jais}
REFERENCE = {  # transformers does not have it
    "baichuan": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
}


def own_fields(t):
    """All metadata keys of these families."""
    c = t.c
    if c["model_type"] == "bloom":
        return {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 192, "attention.head_count": 6,
                "attention.head_count_kv": 6, "attention.layer_norm_epsilon": 1e-5}
    if c["model_type"] == "jais":
        return {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 80, "attention.head_count": 6,
                "attention.layer_norm_epsilon": 1e-5, "attention.max_alibi_bias": 8.0}
    if c["model_type"] == "baichuan":
        heads = c["num_attention_heads"]
        fields = {"block_count": 2, "context_length": 64, "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
                  "attention.head_count": heads, "attention.head_count_kv": heads, "attention.layer_norm_rms_epsilon": 1e-6,
                  "rope.dimension_count": c["hidden_size"] // heads}
        # llama.cpp takes models of 40 layers for Baichuan 13B, without a key.
        return fields if "max_position_embeddings" in c else {**fields, "attention.max_alibi_bias": 8.0}
    return {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 192, "attention.head_count": 6,
            "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 1.5, "attention.max_alibi_bias": 8.0}
