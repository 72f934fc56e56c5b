"""Families for tiny_families.py whose positions are ALiBi's or rotations of another kind: tensors under their names in folders and in GGUF."""
import numpy as np

from tiny_more import Writer


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


OWN = {"bloom": bloom, "mpt": mpt, "codegen": codegen, "nanochat": nanochat}


def own_fields(t):
    """All metadata keys of these families."""
    c = t.c
    if c["model_type"] == "bloom":
        return {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 192, "attention.head_count": 6,
                "attention.head_count_kv": 6, "attention.layer_norm_epsilon": 1e-5}
    return {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 192, "attention.head_count": 6,
            "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 1.5, "attention.max_alibi_bias": 8.0}
