"""Families that transformers does not have, in numpy and float64, for make_goldens.py: written from their descriptions.

Baichuan 13B: a Llama without rotation, whose scores fall with the distance of a key by ALiBi. Jais: GPT-2 with ALiBi, an MLP c_fc(x) * silu(c_fc2(x)),
scores divided by the size of a head (not by its root), and factors of embeddings and logits.
"""
import numpy as np

NAMES = {"baichuan_alibi", "jais"}


def slopes(heads):
    """Press et al., "Train short, test long": 2^(-8 i / n); beyond a power of two every other one of twice as many heads."""
    power = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return np.array(first + [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)])


def silu(x):
    return x / (1 + np.exp(-x))


class Decoder:
    def __init__(self, config, tensors):
        self.c, self.jais = config, config["model_type"] == "jais"
        self.w = {name: x.astype(np.float64) for name, x in tensors.items()}

    def linear(self, x, name):
        w = self.w[name + ".weight"]
        return x @ (w if self.jais else w.T) + self.w.get(name + ".bias", 0)

    def norm(self, x, name):
        w = self.w[name + ".weight"]
        if not self.jais:
            return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * w
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + self.c["layer_norm_epsilon"]) * w + self.w[name + ".bias"]

    def attend(self, qkv, heads):
        q, k, v = (x.reshape(len(x), heads, -1) for x in np.split(qkv, 3, axis=-1))
        scale = 1 / q.shape[-1] if self.jais else q.shape[-1] ** -0.5
        at = np.arange(len(q))
        distance = at[:, None] - at[None]
        scores = np.einsum("ihd,jhd->hij", q, k) * scale - slopes(heads)[:, None, None] * distance
        scores = np.where(distance >= 0, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(len(q), -1)

    def __call__(self, ids):
        c = self.c
        if self.jais:
            x = self.w["transformer.wte.weight"][ids] * c["mup_embeddings_scale"]
            for i in range(c["n_layer"]):
                at = f"transformer.h.{i}."
                x = x + self.linear(self.attend(self.linear(self.norm(x, at + "ln_1"), at + "attn.c_attn"), c["n_head"]), at + "attn.c_proj")
                h = self.norm(x, at + "ln_2")
                x = x + self.linear(self.linear(h, at + "mlp.c_fc") * silu(self.linear(h, at + "mlp.c_fc2")), at + "mlp.c_proj")
            scale = c["mup_output_alpha"] * c["mup_width_scale"]
            return self.norm(x, "transformer.ln_f") @ self.w["transformer.wte.weight"].T * scale
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            h = self.attend(self.linear(self.norm(x, at + "input_layernorm"), at + "self_attn.W_pack"), c["num_attention_heads"])
            x = x + self.linear(h, at + "self_attn.o_proj")
            h = self.norm(x, at + "post_attention_layernorm")
            x = x + self.linear(silu(self.linear(h, at + "mlp.gate_proj")) * self.linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")
        return self.linear(self.norm(x, "model.norm"), "lm_head")
