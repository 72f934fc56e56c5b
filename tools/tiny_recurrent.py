"""Layers with a recurrent state, for tiny_families.py: tensors under their names in folders and in GGUF."""
import numpy as np


def delta_attention(t, c, at, blk):
    hidden, heads, keys = c["hidden_size"], c["linear_num_value_heads"], c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values, at = heads * c["linear_value_head_dim"], at + "linear_attn."
    t.matrix(at + "in_proj_qkvz", blk + "ssm_in", 2 * keys + 2 * values, hidden, 1.3)
    t.matrix(at + "in_proj_ba", blk + "ssm_ba", 2 * heads, hidden, 1.3)
    groups, share = c["linear_num_key_heads"], values // c["linear_num_key_heads"]
    parts = t.gguf.pop(blk + "ssm_in.weight").reshape(groups, -1, hidden)
    parts = np.split(parts, np.cumsum([keys // groups, keys // groups, share]), axis=1)
    parts = [x.reshape(-1, hidden) for x in parts]
    t.gguf[blk + "attn_qkv.weight"], t.gguf[blk + "attn_gate.weight"] = np.concatenate(parts[:3]), parts[3]
    taps = t.random(at + "conv1d", (2 * keys + values, 1, c["linear_conv_kernel_dim"]), 0.5)
    t.hf[at + "conv1d.weight"], t.gguf[blk + "ssm_conv1d.weight"] = taps, taps[:, 0]
    t.add(at + "dt_bias", blk + "ssm_dt.bias", t.random(at + "dt_bias", (heads,), 0.7, -1.0))
    a = t.random(at + "A_log", (heads,), 0.5, 0.3)
    t.hf[at + "A_log"], t.gguf[blk + "ssm_a"] = a, -np.exp(a)
    t.norm(at + "norm", blk + "ssm_norm", c["linear_value_head_dim"])
    t.matrix(at + "out_proj", blk + "ssm_out", hidden, values, 1.5)


def mamba(t, at, blk, hidden, heads, head, groups, state, taps, bias=True):
    inner = heads * head
    channels = inner + 2 * groups * state
    t.matrix(at + "in_proj", blk + "ssm_in", inner + channels + heads, hidden, 1.3)
    conv = t.random(at + "conv1d", (channels, 1, taps), 0.5)
    t.hf[at + "conv1d.weight"], t.gguf[blk + "ssm_conv1d.weight"] = conv, conv[:, 0]
    if bias:
        t.add(at + "conv1d.bias", blk + "ssm_conv1d.bias", t.random(at + "conv1d.bias", (channels,), 0.2))
    t.add(at + "dt_bias", blk + "ssm_dt.bias", t.random(at + "dt_bias", (heads,), 0.7, -1.0))
    a, d = t.random(at + "A_log", (heads,), 0.5, 0.3), t.random(at + "D", (heads,), 0.3, 1.0)
    t.hf[at + "A_log"], t.gguf[blk + "ssm_a"] = a, -np.exp(a)[:, None]
    t.hf[at + "D"], t.gguf[blk + "ssm_d"] = d, d[:, None]
    t.norm(at + "norm", blk + "ssm_norm", inner)
    t.gguf[blk + "ssm_norm.weight"] = t.gguf[blk + "ssm_norm.weight"].reshape(groups, -1)
    t.matrix(at + "out_proj", blk + "ssm_out", hidden, inner, 1.6)


def mamba2(t, c):
    hidden = c["hidden_size"]
    t.add("backbone.embeddings.weight", "token_embd.weight", t.random("token_embd", (c["vocab_size"], hidden), 0.35))
    for i in range(c["num_hidden_layers"]):
        blk = f"blk.{i}."
        t.norm(f"backbone.layers.{i}.norm", blk + "attn_norm", hidden)
        mamba(t, f"backbone.layers.{i}.mixer.", blk, hidden, c["num_heads"], c["head_dim"], c["n_groups"], c["state_size"],
              c["conv_kernel"], c["use_conv_bias"])
    t.norm("backbone.norm_f", "output_norm", hidden)
    if not c["tie_word_embeddings"]:
        t.matrix("lm_head", "output", c["vocab_size"], hidden, 2.0)
