"""Families with names, norms or parts of their own, for tiny_families.py: tensors under their names in folders and in GGUF."""
import numpy as np

import tiny_gguf
import tiny_recurrent

PERMUTED = {"arcee", "olmo", "minicpm", "granitemoehybrid"}
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 20, "mamba_d_conv": 4, "mamba_expand": 2}
ALPHA = 50.0


def models(config, drop):
    """name -> config.json"""
    gpt = {"hidden_size": drop, "intermediate_size": drop, "num_hidden_layers": drop, "num_attention_heads": drop, "rope_theta": drop,
           "num_key_value_heads": drop, "max_position_embeddings": drop, "rms_norm_eps": drop, "hidden_act": drop, "n_embd": 64,
           "n_head": 4, "n_layer": 2, "n_positions": 64, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}
    return {
        "arcee": config("ArceeForCausalLM", model_type="arcee", hidden_act="relu2", head_dim=16),
        "nemotron": config("NemotronForCausalLM", model_type="nemotron", hidden_act="relu2", norm_eps=1e-5, rms_norm_eps=drop,
                           partial_rotary_factor=0.5, head_dim=16),
        "apertus": config("ApertusForCausalLM", model_type="apertus", hidden_act="xielu", pad_token_id=0,
                          rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "hunyuan": config("HunYuanDenseV1ForCausalLM", model_type="hunyuan_v1_dense", head_dim=16, pad_token_id=0,
                          rope_scaling={"type": "dynamic", "alpha": ALPHA, "factor": 1.0}),
        "hunyuan_moe": config("HunYuanMoEV1ForCausalLM", model_type="hunyuan_v1_moe", head_dim=16, pad_token_id=0, num_experts=6,
                              moe_topk=[2, 2], moe_intermediate_size=[96, 96], num_shared_expert=[1, 1]),
        "olmo": config("OlmoForCausalLM", model_type="olmo", clip_qkv=1.5, rms_norm_eps=drop, pad_token_id=0),
        "falcon": config("FalconForCausalLM", model_type="falcon", new_decoder_architecture=True, num_kv_heads=2, bias=False, alibi=False,
                         layer_norm_epsilon=1e-5, rms_norm_eps=drop, hidden_act=drop, intermediate_size=drop, num_key_value_heads=drop,
                         tie_word_embeddings=True),
        "gptj": config("GPTJForCausalLM", model_type="gptj", rotary_dim=8, n_inner=96, activation_function="gelu_new", **gpt),
        "starcoder": config("GPTBigCodeForCausalLM", model_type="gpt_bigcode", multi_query=True, n_inner=96,
                            activation_function="gelu_pytorch_tanh", **{**gpt, "tie_word_embeddings": True}),
        "minicpm": config("MiniCPMForCausalLM", model_type="minicpm", scale_emb=3, scale_depth=1.4, dim_model_base=32),
        "qwen": config("QWenLMHeadModel", model_type="qwen", intermediate_size=192, kv_channels=16, seq_length=64, layer_norm_epsilon=1e-6,
                       rms_norm_eps=drop, num_key_value_heads=drop, rope_theta=drop, rotary_emb_base=10000, hidden_act=drop),
        "chatglm": config("ChatGLMModel", model_type="chatglm", num_layers=2, padded_vocab_size=128, ffn_hidden_size=96, kv_channels=16,
                          multi_query_attention=True, multi_query_group_num=2, seq_length=64, layernorm_epsilon=1e-5, rope_ratio=5,
                          add_qkv_bias=True, num_hidden_layers=drop, intermediate_size=drop, num_key_value_heads=drop, rms_norm_eps=drop,
                          rope_theta=drop, hidden_act=drop, max_position_embeddings=drop),
        "command_r_plus": config("CohereForCausalLM", model_type="cohere", layer_norm_eps=1e-5, logit_scale=0.25, use_qk_norm=True,
                                 tie_word_embeddings=True, rms_norm_eps=drop),
        "granite4": config("GraniteMoeHybridForCausalLM", model_type="granitemoehybrid", hidden_size=48, num_hidden_layers=3,
                           layer_types=["mamba", "attention", "mamba"], num_local_experts=4, num_experts_per_tok=2, intermediate_size=32,
                           shared_intermediate_size=40, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.1,
                           logits_scaling=2.0, position_embedding_type="nope", **MAMBA),
        "nemotron_h": config("NemotronHForCausalLM", model_type="nemotron_h", hidden_size=48, head_dim=16, hybrid_override_pattern="M-*EM",
                             num_hidden_layers=5, mamba_num_heads=6, mamba_head_dim=16, n_groups=2, ssm_state_size=20, conv_kernel=4,
                             mlp_hidden_act="relu2", layer_norm_epsilon=1e-5, time_step_min=0.0, n_routed_experts=6, n_shared_experts=1,
                             num_experts_per_tok=2, moe_intermediate_size=32, moe_shared_expert_intermediate_size=40, n_group=1,
                             topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, hidden_act=drop, rms_norm_eps=drop,
                             rope_theta=drop, pad_token_id=0),
        "lfm2": config("Lfm2ForCausalLM", model_type="lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
                       conv_L_cache=3, conv_bias=False, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=16,
                       norm_eps=1e-5, rms_norm_eps=drop, tie_word_embeddings=True, pad_token_id=0),
        "lfm2moe": config("Lfm2MoeForCausalLM", model_type="lfm2_moe", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
                          conv_L_cache=4, conv_bias=False, norm_eps=1e-5, rms_norm_eps=drop, tie_word_embeddings=True, num_experts=6,
                          num_experts_per_tok=2, moe_intermediate_size=32, num_dense_layers=1, use_expert_bias=True, norm_topk_prob=True,
                          routed_scaling_factor=1.0, pad_token_id=0),
    }


NOT_AS_GGUF = {"gptj"}
ARCHITECTURE = {"hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "gpt_bigcode": "starcoder",
                "granitemoehybrid": "granitehybrid", "nemotron_h": "nemotron_h_moe", "lfm2_moe": "lfm2moe"}
REFERENCE = {  # families that transformers does not have
    "minicpm": {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0,
                "residual_multiplier": 1.4 / 2 ** 0.5, "attention_multiplier": 0.25, "logits_scaling": 2.0},
    "qwen": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "intermediate_size": 96, "rms_norm_eps": 1e-6, "hidden_act": "silu",
             "num_key_value_heads": 4, "rope_theta": 10000.0},
    "chatglm": {"model_type": "glm", "architectures": ["GlmForCausalLM"], "num_hidden_layers": 2, "intermediate_size": 96, "rms_norm_eps": 1e-5,
                "num_key_value_heads": 2, "rope_theta": 50000.0, "head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5,
                "hidden_act": "silu", "max_position_embeddings": 64, "pad_token_id": 0, "num_layers": None},
}


class Writer:
    """Adds the parts of a layer under names of the family; the defaults are Llama's."""

    def __init__(self, t, c):
        self.t, self.c, self.kind = t, c, c["model_type"]
        self.hidden = c.get("n_embd") or c["hidden_size"]
        self.heads = c.get("n_head") or c["num_attention_heads"]
        self.head = c.get("head_dim") or self.hidden // self.heads
        self.kv = 1 if self.kind == "gpt_bigcode" else self.heads if self.kind in ("gptj", "qwen") else (
            c.get("num_kv_heads") or c.get("multi_query_group_num") or c["num_key_value_heads"])

    def matrix(self, hf, name, rows, columns, gain=1.0, bias=0.0, heads=0):
        t, permute = self.t, heads and self.kind in PERMUTED
        x = t.random(hf, (rows, columns), gain / columns ** 0.5)
        t.hf[hf + ".weight"], t.gguf[name + ".weight"] = x, tiny_gguf.permute(x, heads) if permute else x
        if bias:
            b = t.random(hf + ".bias", (rows,), bias)
            t.hf[hf + ".bias"], t.gguf[name + ".bias"] = b, b

    def norm(self, hf, name, size, bias=False, minus=0.0):
        t = self.t
        x = t.random(hf, (size,), 0.2, 1.0 - minus)
        t.hf[hf + ".weight"], t.gguf[name + ".weight"] = x, x + np.float32(minus)
        if bias:
            t.add(hf + ".bias", name + ".bias", t.random(hf + ".bias", (size,), 0.1))

    def qkv(self, at, blk, names=("q_proj", "k_proj", "v_proj"), bias=0.0):
        for part, hf, count in zip("qkv", names, (self.heads, self.kv, self.kv)):
            self.matrix(at + hf, f"{blk}attn_{part}", count * self.head, self.hidden, 1.3, bias, 0 if part == "v" else count)

    def fused_qkv(self, at, blk, hf, bias=0.0, grouped=False):
        """One tensor; `grouped`: for each key head its queries, its key and its value, which GGUF has apart."""
        t, rows = self.t, (self.heads + 2 * self.kv) * self.head
        self.matrix(at + hf, blk + "attn_qkv", rows, self.hidden, 1.3, bias)
        if grouped:
            x = t.hf[f"{at}{hf}.weight"].reshape(self.kv, -1, self.head, self.hidden)
            t.gguf[blk + "attn_qkv.weight"] = np.concatenate(
                [y.reshape(-1, self.hidden) for y in (x[:, :-2], x[:, -2], x[:, -1])])

    def mlp(self, at, blk, ffn, names=(None, "mlp.up_proj", "mlp.down_proj"), bias=0.0):
        gate, up, down = names
        if gate:
            self.matrix(at + gate, blk + "ffn_gate", ffn, self.hidden, 1.0, bias)
        self.matrix(at + up, blk + "ffn_up", ffn, self.hidden, 1.3, bias)
        self.matrix(at + down, blk + "ffn_down", self.hidden, ffn, 2.0, bias)

    def ends(self, embed, final, root="", bias=False, minus=0.0, head="lm_head", head_bias=0.0):
        t, c = self.t, self.c
        t.add(root + embed + ".weight", "token_embd.weight", t.random("token_embd", (c["vocab_size"], self.hidden), 0.35))
        if final:
            self.norm(root + final, "output_norm", self.hidden, bias, minus)
        if not c["tie_word_embeddings"]:
            self.matrix(head, "output", c["vocab_size"], self.hidden, 2.0, head_bias)

    def short_conv(self, at, blk):
        t = self.t
        self.matrix(at + "in_proj", blk + "shortconv.in_proj", 3 * self.hidden, self.hidden, 1.3)
        conv = t.random(at + "conv", (self.hidden, 1, self.c["conv_L_cache"]), 0.5)
        t.hf[at + "conv.weight"], t.gguf[blk + "shortconv.conv.weight"] = conv, conv[:, 0]
        self.matrix(at + "out_proj", blk + "shortconv.out_proj", self.hidden, self.hidden, 1.6)


def llama_like(t, c):
    w, kind = Writer(t, c), c["model_type"]
    minus, layer_norm = (1.0, True) if kind == "nemotron" else (0.0, False)
    names = ("attention_layernorm", "feedforward_layernorm") if kind == "apertus" else ("input_layernorm", "post_attention_layernorm")
    for i in range(c["num_hidden_layers"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        w.qkv(at + "self_attn.", blk)
        w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        if kind in ("apertus", "hunyuan_v1_dense", "hunyuan_v1_moe"):
            for part, hf in (("q", "query_layernorm"), ("k", "key_layernorm")):
                w.norm(f"{at}self_attn.{hf if kind != 'apertus' else part + '_norm'}", f"{blk}attn_{part}_norm", w.head)
        if kind == "cohere":
            for part, count in (("q", w.heads), ("k", w.kv)):
                t.add(f"{at}self_attn.{part}_norm.weight", f"{blk}attn_{part}_norm.weight",
                      t.random(f"{at}{part}_norm", (count, w.head), 0.2, 1.0))
        gated = kind in ("hunyuan_v1_dense", "olmo", "minicpm", "cohere")
        if kind == "hunyuan_v1_moe":
            hunyuan_experts(w, at, blk)
        else:
            w.mlp(at, blk, c["intermediate_size"], ("mlp.gate_proj" if gated else None, "mlp.up_proj", "mlp.down_proj"))
        for hf, name in zip(names, ("attn_norm", "ffn_norm")):
            if kind != "olmo" and (kind != "cohere" or name == "attn_norm"):
                w.norm(at + hf, blk + name, w.hidden, layer_norm, minus)
        if kind == "apertus":
            for name, mean in (("alpha_p", 0.4), ("alpha_n", -0.6)):
                t.hf[f"{at}mlp.act_fn.{name}"] = t.random(at + name, (1,), 0.3, mean)
            t.hf[at + "mlp.act_fn.beta"] = np.array(0.5, dtype=np.float32)
            t.hf[at + "mlp.act_fn.eps"] = np.array(-1e-6, dtype=np.float32)
    w.ends("embed_tokens", None if kind == "olmo" else "norm", "model.", layer_norm, minus)
    if kind == "minicpm":
        t.reference = t.hf


def hunyuan_experts(w, at, blk):
    c, ffn = w.c, w.c["intermediate_size"]
    w.matrix(at + "mlp.gate.wg", blk + "ffn_gate_inp", c["num_experts"], w.hidden, 2.0)
    for part, rows, columns in (("gate", ffn, w.hidden), ("up", ffn, w.hidden), ("down", w.hidden, ffn)):
        w.t.stack(f"{at}mlp.experts.{{}}.{part}_proj", f"{blk}ffn_{part}_exps", c["num_experts"], rows, columns)
        w.matrix(f"{at}mlp.shared_mlp.{part}_proj", f"{blk}ffn_{part}_shexp", rows, columns)


def falcon(t, c):
    w = Writer(t, c)
    for i in range(c["num_hidden_layers"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        w.fused_qkv(at, blk, "self_attention.query_key_value", grouped=True)
        w.matrix(at + "self_attention.dense", blk + "attn_output", w.hidden, w.hidden)
        w.mlp(at, blk, 4 * w.hidden, (None, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"))
        w.norm(at + "ln_attn", blk + "attn_norm_2", w.hidden, True)
        w.norm(at + "ln_mlp", blk + "attn_norm", w.hidden, True)
    w.ends("word_embeddings", "ln_f", "transformer.", True)


def gpt(t, c):
    w, coder = Writer(t, c), c["model_type"] == "gpt_bigcode"
    for i in range(c["n_layer"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        if coder:
            w.fused_qkv(at, blk, "attn.c_attn", 0.3)
            w.norm(at + "ln_2", blk + "ffn_norm", w.hidden, True)
        else:
            w.qkv(at + "attn.", blk)
        w.matrix(at + ("attn.c_proj" if coder else "attn.out_proj"), blk + "attn_output", w.hidden, w.hidden, 1.0, 0.2 * coder)
        w.mlp(at, blk, c["n_inner"], (None, "mlp.c_fc", "mlp.c_proj") if coder else (None, "mlp.fc_in", "mlp.fc_out"), 0.2)
        w.norm(at + "ln_1", blk + "attn_norm", w.hidden, True)
    w.ends("wte", "ln_f", "transformer.", True, head_bias=0.2)
    if coder:
        t.add("transformer.wpe.weight", "position_embd.weight", t.random("wpe", (c["n_positions"], w.hidden), 0.35))


def renamed(t, names):
    for name, x in t.hf.items():
        for old, new in names.items():
            name = name.replace(old, new)
        t.reference[name] = x


def qwen(t, c):
    w = Writer(t, c)
    for i in range(c["num_hidden_layers"]):
        at, blk = f"transformer.h.{i}.", f"blk.{i}."
        w.fused_qkv(at, blk, "attn.c_attn", 0.3)
        w.matrix(at + "attn.c_proj", blk + "attn_output", w.hidden, w.hidden)
        w.mlp(at, blk, 96, ("mlp.w2", "mlp.w1", "mlp.c_proj"))
        w.norm(at + "ln_1", blk + "attn_norm", w.hidden)
        w.norm(at + "ln_2", blk + "ffn_norm", w.hidden)
    w.ends("wte", "ln_f", "transformer.")
    renamed(t, {"transformer.h.": "model.layers.", "attn.c_proj": "self_attn.o_proj", "mlp.w2": "mlp.gate_proj", "mlp.w1": "mlp.up_proj",
                "mlp.c_proj": "mlp.down_proj", "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
                "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm"})
    split_qkv(t, w, "attn.c_attn")


def split_qkv(t, w, name):
    for key in [k for k in t.reference if name in k]:
        x, sizes = t.reference.pop(key), [w.heads * w.head, (w.heads + w.kv) * w.head]
        for part, y in zip("qkv", np.split(x, sizes)):
            t.reference[key.replace(name, f"self_attn.{part}_proj")] = np.ascontiguousarray(y)


def chatglm(t, c):
    w, ffn = Writer(t, c), c["ffn_hidden_size"]
    for i in range(c["num_layers"]):
        at, blk = f"transformer.encoder.layers.{i}.", f"blk.{i}."
        w.fused_qkv(at, blk, "self_attention.query_key_value", 0.3)
        w.matrix(at + "self_attention.dense", blk + "attn_output", w.hidden, w.hidden)
        w.matrix(at + "mlp.dense_h_to_4h", blk + "ffn_up", 2 * ffn, w.hidden)
        w.matrix(at + "mlp.dense_4h_to_h", blk + "ffn_down", w.hidden, ffn, 2.0)
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden)
    w.norm("transformer.encoder.final_layernorm", "output_norm", w.hidden)
    w.ends("transformer.embedding.word_embeddings", None, head="transformer.output_layer")
    renamed(t, {"transformer.encoder.layers.": "model.layers.", "self_attention.dense": "self_attn.o_proj",
                "mlp.dense_h_to_4h": "mlp.gate_up_proj", "mlp.dense_4h_to_h": "mlp.down_proj",
                "transformer.encoder.final_layernorm": "model.norm", "transformer.embedding.word_embeddings": "model.embed_tokens",
                "transformer.output_layer": "lm_head"})
    split_qkv(t, w, "self_attention.query_key_value")


def exaone(t, c, decoder):
    """A Llama under other names, which GGUF does not store in interleaved order."""
    decoder(t, c)
    t.reference, t.hf = t.hf, {}
    names = {"model.layers": "transformer.h", "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention",
             "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj", "input_layernorm": "ln_1",
             "post_attention_layernorm": "ln_2", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"}
    for name, x in t.reference.items():
        for old, new in names.items():
            name = name.replace(old, new)
        t.hf[name] = x


def granite4(t, c):
    w, count, ffn, shared = Writer(t, c), c["num_local_experts"], c["intermediate_size"], c["shared_intermediate_size"]
    for i, kind in enumerate(c["layer_types"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        if kind == "mamba":
            tiny_recurrent.mamba(t, at + "mamba.", blk, w.hidden, 6, 16, 1, 20, 4)
        else:
            w.qkv(at + "self_attn.", blk)
            w.matrix(at + "self_attn.o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        w.matrix(at + "block_sparse_moe.router.layer", blk + "ffn_gate_inp", count, w.hidden, 2.0)
        gate, up = (t.random(at + part, (count, ffn, w.hidden), w.hidden ** -0.5) for part in ("gate", "up"))
        down = t.random(at + "down", (count, w.hidden, ffn), 2.0 * ffn ** -0.5)
        t.hf[at + "block_sparse_moe.input_linear.weight"] = np.concatenate([gate, up], 1)
        t.hf[at + "block_sparse_moe.output_linear.weight"] = down
        t.gguf.update({blk + "ffn_gate_exps.weight": gate, blk + "ffn_up_exps.weight": up, blk + "ffn_down_exps.weight": down})
        parts = [t.random(at + "shared." + part, (shared, w.hidden), w.hidden ** -0.5) for part in ("gate", "up")]
        t.hf[at + "shared_mlp.input_linear.weight"] = np.concatenate(parts)
        t.gguf.update({blk + "ffn_gate_shexp.weight": parts[0], blk + "ffn_up_shexp.weight": parts[1]})
        w.matrix(at + "shared_mlp.output_linear", blk + "ffn_down_shexp", w.hidden, shared)
        w.norm(at + "input_layernorm", blk + "attn_norm", w.hidden)
        w.norm(at + "post_attention_layernorm", blk + "ffn_norm", w.hidden)
    w.ends("embed_tokens", "norm", "model.")


def nemotron_h(t, c):
    w, count = Writer(t, c), c["n_routed_experts"]
    for i, kind in enumerate(c["hybrid_override_pattern"]):
        at, blk = f"backbone.layers.{i}.mixer.", f"blk.{i}."
        w.norm(f"backbone.layers.{i}.norm", blk + "attn_norm", w.hidden)
        if kind == "M":
            tiny_recurrent.mamba(t, at, blk, w.hidden, 6, 16, 2, 20, 4)
        elif kind == "*":
            w.qkv(at, blk)
            w.matrix(at + "o_proj", blk + "attn_output", w.hidden, w.heads * w.head)
        elif kind == "-":
            w.mlp(at, blk, c["intermediate_size"], (None, "up_proj", "down_proj"))
        else:
            w.matrix(at + "gate", blk + "ffn_gate_inp", count, w.hidden, 2.0)
            t.add(at + "gate.e_score_correction_bias", blk + "exp_probs_b.bias", t.random(at + "bias", (count,), 0.2))
            for part, rows, columns in (("up", 32, w.hidden), ("down", w.hidden, 32)):
                t.stack(f"{at}experts.{{}}.{part}_proj", f"{blk}ffn_{part}_exps", count, rows, columns, 1.4)
            for part, rows, columns in (("up", 40, w.hidden), ("down", w.hidden, 40)):
                w.matrix(f"{at}shared_experts.{part}_proj", f"{blk}ffn_{part}_shexp", rows, columns)
    w.ends("embeddings", "norm_f", "backbone.")


def lfm2(t, c):
    w, moe = Writer(t, c), c["model_type"] == "lfm2_moe"
    ffn = c["intermediate_size"] if moe else (2 * c["intermediate_size"] // 3 + 15) // 16 * 16
    for i, kind in enumerate(c["layer_types"]):
        at, blk = f"model.layers.{i}.", f"blk.{i}."
        if kind == "conv":
            w.short_conv(at + "conv.", blk)
        else:
            w.qkv(at + "self_attn.", blk)
            w.matrix(at + "self_attn.out_proj", blk + "attn_output", w.hidden, w.hidden)
            for part in "qk":
                w.norm(f"{at}self_attn.{part}_layernorm", f"{blk}attn_{part}_norm", w.head)
        at += "feed_forward."
        if moe and i >= c["num_dense_layers"]:
            w.matrix(at + "gate", blk + "ffn_gate_inp", c["num_experts"], w.hidden, 2.0)
            t.add(at + "expert_bias", blk + "exp_probs_b.bias", t.random(at + "bias", (c["num_experts"],), 0.2))
            for part, hf, rows, columns in (("gate", "w1", 32, w.hidden), ("up", "w3", 32, w.hidden), ("down", "w2", w.hidden, 32)):
                t.stack(f"{at}experts.{{}}.{hf}", f"{blk}ffn_{part}_exps", c["num_experts"], rows, columns)
        else:
            w.mlp(at, blk, ffn, ("w1", "w3", "w2"))
        at = f"model.layers.{i}."
        w.norm(at + "operator_norm", blk + "attn_norm", w.hidden)
        w.norm(at + "ffn_norm", blk + "ffn_norm", w.hidden)
    w.ends("embed_tokens", "embedding_norm", "model.")
    t.gguf["token_embd_norm.weight"] = t.gguf.pop("output_norm.weight")


OWN = {"falcon": falcon, "gptj": gpt, "gpt_bigcode": gpt, "qwen": qwen, "chatglm": chatglm, "granitemoehybrid": granite4,
       "nemotron_h": nemotron_h, "lfm2": lfm2, "lfm2_moe": lfm2,
       **dict.fromkeys(("arcee", "nemotron", "apertus", "hunyuan_v1_dense", "hunyuan_v1_moe", "olmo", "minicpm"), llama_like)}


def own_fields(t):
    """All metadata keys of these families; keys with a dot at their end have no architecture before them."""
    c = t.c
    kind, w = c["model_type"], Writer(t, c)
    layers = c.get("num_hidden_layers") or c.get("n_layer") or c["num_layers"]
    eps = next(c[k] for k in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "layer_norm_eps") if k in c) \
        if kind != "olmo" else 1e-5
    layer_norm = kind in ("nemotron", "olmo", "falcon", "gpt_bigcode")
    fields = {"block_count": layers, "context_length": 64, "embedding_length": w.hidden, "attention.head_count": w.heads,
              "attention.head_count_kv": w.kv, "rope.freq_base": float(c.get("rope_theta", 10000.0)), "rope.dimension_count": w.head,
              "feed_forward_length": c.get("intermediate_size") or c.get("n_inner") or c.get("ffn_hidden_size") or 4 * w.hidden,
              "attention.key_length": w.head, "attention.value_length": w.head,
              "attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon": eps}
    if kind == "apertus":
        fields.update({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    if kind == "nemotron":
        fields["rope.dimension_count"] = w.head // 2
    if kind.startswith("hunyuan") and "rope_scaling" in c:
        fields.update({"rope.freq_base": c["rope_theta"] * ALPHA ** (w.head / (w.head - 2)), "rope.scaling.type": "none"})
    if kind == "hunyuan_v1_moe":
        fields.update({"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 96, "expert_shared_count": 1,
                       "expert_shared_feed_forward_length": 96})
    if kind == "olmo":
        fields["attention.clamp_kqv"] = c["clip_qkv"]
    if kind == "minicpm":
        fields.update({"embedding_scale": 3.0, "residual_scale": 1.4 / 2 ** 0.5, "logit_scale": 2.0})
    if kind == "chatglm":
        fields.update({"rope.freq_base": 50000.0, "rope.dimension_count": w.head // 2})
    if kind == "apertus":
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            fields[f"xielu.{name}."] = [float(t.hf[f"model.layers.{i}.mlp.act_fn.{name}"].reshape(-1)[0]) for i in range(layers)]
    ssm = {"ssm.conv_kernel": 4, "ssm.state_size": 20, "ssm.inner_size": 96, "ssm.time_step_rank": 6}
    if kind == "granitemoehybrid":
        fields.update({**ssm, "ssm.group_count": 1, "attention.head_count_kv": [0 if x == "mamba" else w.kv for x in c["layer_types"]],
                       "rope.scaling.finetuned": False, "attention.scale": 0.1, "embedding_scale": 3.0, "residual_scale": 0.5,
                       "logit_scale": 2.0, "expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 40})
    if kind == "nemotron_h":
        pattern = c["hybrid_override_pattern"]
        fields.update({**ssm, "ssm.group_count": 2, "attention.head_count_kv": [w.kv if x == "*" else 0 for x in pattern],
                       "feed_forward_length": [{"-": c["intermediate_size"], "E": 32}.get(x, 0) for x in pattern],
                       "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_count": 1,
                       "expert_shared_feed_forward_length": 40, "expert_weights_norm": True, "expert_weights_scale": 1.5,
                       "expert_group_count": 1, "attention.layer_norm_epsilon": c["layer_norm_epsilon"]})
    if kind.startswith("lfm2"):
        fields.update({"shortconv.l_cache": c["conv_L_cache"], "attention.head_count_kv": [0 if x == "conv" else w.kv for x in c["layer_types"]]})
        if kind == "lfm2":
            fields["feed_forward_length"] = 64
        else:
            fields.update({"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32, "leading_dense_block_count": 1,
                           "expert_gating_func": 2})
    return fields
