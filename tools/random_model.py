#!/usr/bin/env python3
"""Writes a GGUF of a given shape (Llama, Qwen2, Qwen3, Qwen3-MoE, DeepSeek-V2 or Mamba-2 architecture) with random weights, for measuring speed, not quality.

    tools/random_model.py out.gguf --shape llama-1b --type q4_0 [--embedding-type q6_k] [--layers 2 ...] [--quick]

Quantised tensors are random blocks, not quantised floats: fast enough for billions of weights. Scales are chosen so
that a layer preserves the magnitude of its input and activations stay finite at any depth. The vocabulary is bytes and
placeholders (any text can be tokenised, the output is noise); --tokenizer-from copies a real one of at most the same size.
Needs numpy and gguf.
"""
import argparse
import math
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

SHAPES = {  # hidden, ffn, layers, heads, kv heads, head size, vocabulary, rotary base, tied
    "tiny": (256, 512, 2, 4, 2, 64, 512, 10000.0, True),
    "smollm2-135m": (576, 1536, 30, 9, 3, 64, 49152, 100000.0, True),
    "qwen-0.5b": (896, 4864, 24, 14, 2, 64, 151936, 1000000.0, True),
    "llama-1b": (2048, 8192, 16, 32, 8, 64, 128256, 500000.0, True),
    "qwen2-7b": (3584, 18944, 28, 28, 4, 128, 152064, 1000000.0, False),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128, 151936, 1000000.0, True),
    "llama-3b": (3072, 8192, 28, 24, 8, 128, 128256, 500000.0, True),
    "llama-7b": (4096, 11008, 32, 32, 32, 128, 32000, 10000.0, False),
    "llama-8b": (4096, 14336, 32, 32, 8, 128, 128256, 500000.0, False),
    "qwen3-30b-a3b": (2048, 768, 48, 32, 4, 128, 151936, 1000000.0, False),
    "deepseek-lite": (2048, 10944, 27, 16, 16, 192, 102400, 10000.0, False),  # all layers as the first: without experts
    "mamba2-1.3b": (2048, 0, 48, 64, 0, 64, 50288, 10000.0, True),
}
RECURRENT = {"state": 128, "groups": 1, "taps": 4}  # of Mamba-2
EXPERTS = {"qwen3-30b-a3b": (128, 8)}  # in a layer, used by a token
LATENT = {"rank": 512, "nope": 128, "rope": 64, "value": 128}  # of latent attention
TYPES = {name.lower(): T[name] for name in
         ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")}
UNIFORM = 1 / math.sqrt(12)  # standard deviation of a uniform number per unit of width


def halves(rng, n, value, signed=False):
    """n half-precision scales around `value` as bytes [n, 2]; signs vary so that block means cancel out."""
    scale = value * rng.uniform(0.8, 1.2, n).astype(np.float32)
    if signed:
        scale *= rng.integers(0, 2, n, dtype=np.int8) * 2 - 1
    return scale.astype(np.float16).view(np.uint8).reshape(n, 2)


def noise(rng, n, size):
    return np.frombuffer(rng.bytes(n * size), dtype=np.uint8).reshape(n, size)


def simple_blocks(kind, rng, n, std):
    levels = 32 if kind in (T.Q5_0, T.Q5_1) else 16
    step = std / (levels * UNIFORM)
    quants = noise(rng, n, 20 if levels == 32 else 16)
    if kind in (T.Q4_0, T.Q5_0):
        return [halves(rng, n, step, signed=True), quants]
    if kind == T.IQ4_NL:
        return [halves(rng, n, std / 68, signed=True), quants]  # 68: deviation of its sixteen values
    scale = halves(rng, n, step)
    low = (scale.view(np.float16).astype(np.float32) * (-(levels - 1) / 2)).astype(np.float16).view(np.uint8)
    return [scale, low, quants]


def k_blocks(kind, rng, n, std):
    if kind == T.Q6_K:
        scales = rng.integers(32, 96, (n, 16), dtype=np.int8) * (rng.integers(0, 2, (n, 16), dtype=np.int8) * 2 - 1)
        return [noise(rng, n, 192), scales.astype(np.int8).view(np.uint8), halves(rng, n, std / (64 * UNIFORM * 66))]
    levels = 16 if kind == T.Q4_K else 32
    scale = halves(rng, n, std / (levels * UNIFORM * 44))
    # Scale and minimum of a sub-block are the same 6-bit number, so that every sub-block is centred on zero.
    low = (scale.view(np.float16).astype(np.float32) * ((levels - 1) / 2)).astype(np.float16).view(np.uint8)
    six = rng.integers(28, 60, (n, 8), dtype=np.uint8)
    first, last = six[:, :4], six[:, 4:]
    packed = np.concatenate([first | last >> 4 << 6, first | last >> 4 << 6, (last & 15) | (last & 15) << 4], axis=1)
    return [scale, low, packed, noise(rng, n, 128 if levels == 16 else 160)]


def repeating_tensor(made, kind, rng, rows, columns, std):
    """As random_tensor, but rows repeat: tensors of one kind and width share 1,024 of them."""
    key = (kind, columns, std)
    if key not in made:
        made[key] = random_tensor(kind, rng, 1024, columns, std)
    return np.resize(made[key], (rows, made[key].shape[1]))


def random_tensor(kind, rng, rows, columns, std):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if columns % elements != 0:
        sys.exit(f"rows of {columns} values do not fill {kind.name} blocks of {elements}")
    if elements == 1:
        out = np.empty((rows, columns), np.float32 if kind == T.F32 else np.uint16)
        for at in range(0, rows, 4096):
            part = rng.standard_normal((min(4096, rows - at), columns), dtype=np.float32) * np.float32(std)
            if kind == T.F16:
                part = part.astype(np.float16).view(np.uint16)
            elif kind == T.BF16:
                part = (part.view(np.uint32) >> 16).astype(np.uint16)
            out[at:at + len(part)] = part
        return out.view(np.uint8)
    blocks = rows * columns // elements
    out = np.empty((blocks, size), np.uint8)
    chunk = 1 << 18
    for at in range(0, blocks, chunk):
        n = min(chunk, blocks - at)
        if kind == T.Q8_0:
            quants = np.maximum(noise(rng, n, 32).view(np.int8), -127).view(np.uint8)
            parts = [halves(rng, n, std / (255 * UNIFORM), signed=True), quants]
        elif elements == 32:
            parts = simple_blocks(kind, rng, n, std)
        else:
            parts = k_blocks(kind, rng, n, std)
        np.concatenate(parts, axis=1, out=out[at:at + n])
    return out.reshape(rows, -1)


def architecture(s):
    if s.shape in EXPERTS:
        return "qwen3moe"
    if is_recurrent(s):
        return "mamba2"
    return "deepseek2" if is_latent(s) else s.shape[:5] if s.shape.startswith(("qwen2", "qwen3")) else "llama"


def is_latent(s):
    return s.shape.startswith("deepseek")


def is_recurrent(s):
    return s.shape.startswith("mamba2")


def recurrent_tensors(s, kind):
    state, groups, taps = RECURRENT.values()
    inner = s.heads * s.head_dim
    channels = inner + 2 * groups * state
    yield "token_embd.weight", kind, s.vocab, s.hidden, 0.02
    for i in range(s.layers):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", T.F32, s.hidden, 0, 1.0
        yield at + "ssm_in.weight", kind, inner + channels + s.heads, s.hidden, 1 / math.sqrt(s.hidden)
        yield at + "ssm_conv1d.weight", T.F32, channels, taps, 0.5
        for name, rows, value in (("ssm_conv1d.bias", channels, 0.1), ("ssm_dt.bias", s.heads, -2.0), ("ssm_a", (s.heads, 1), -1.0),
                                  ("ssm_d", (s.heads, 1), 1.0), ("ssm_norm.weight", (groups, inner // groups), 1.0)):
            yield at + name, T.F32, rows, 0, value
        yield at + "ssm_out.weight", kind, s.hidden, inner, 1 / math.sqrt(2 * s.layers * inner)
    yield "output_norm.weight", T.F32, s.hidden, 0, 1.0


def add_recurrent_keys(writer, s):
    writer.add_ssm_conv_kernel(RECURRENT["taps"])
    writer.add_ssm_inner_size(s.heads * s.head_dim)
    writer.add_ssm_state_size(RECURRENT["state"])
    writer.add_ssm_time_step_rank(s.heads)
    writer.add_ssm_group_count(RECURRENT["groups"])


def latent_attention(s):
    rank, nope, rope, value = LATENT.values()
    into = 1.0
    return (("attn_q", s.heads * (nope + rope), s.hidden, into), ("attn_kv_a_mqa", rank + rope, s.hidden, into),
            ("attn_k_b", (s.heads, rank), nope, into), ("attn_v_b", (s.heads, value), rank, into),
            ("attn_output", s.hidden, s.heads * value, 1 / math.sqrt(2 * s.layers)))


def add_latent_keys(writer, s):
    rank, nope, rope, value = LATENT.values()
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(nope + rope)
    writer.add_value_length_mla(value)
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(rope)
    writer.add_leading_dense_block_count(s.layers)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(s.ffn)


def feed_forward(s, back):
    """(name, rows, columns, gain); rows of experts: (experts, rows)."""
    experts = EXPERTS.get(s.shape, (None,))[0]
    rows = lambda n: (experts, n) if experts else n
    suffix = "_exps" if experts else ""
    return (*((("ffn_gate_inp", experts, s.hidden, 1.0),) if experts else ()), (f"ffn_gate{suffix}", rows(s.ffn), s.hidden, 1.0),
            (f"ffn_up{suffix}", rows(s.ffn), s.hidden, 1.0), (f"ffn_down{suffix}", rows(s.hidden), s.ffn, back))


def tensor_list(s, kind, embedding_kind):
    """(name, type, rows, columns, standard deviation); columns 0: `rows` times the last number."""
    if is_recurrent(s):
        yield from recurrent_tensors(s, kind)
        return
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    into, back = 1.0, 1 / math.sqrt(2 * s.layers)  # contributions to the residual stream must not accumulate
    yield "token_embd.weight", embedding_kind, s.vocab, s.hidden, 0.02
    attention = latent_attention(s) if is_latent(s) else (
        ("attn_q", q, s.hidden, into), ("attn_k", kv, s.hidden, into), ("attn_v", kv, s.hidden, into),
        ("attn_output", s.hidden, q, back))
    for i in range(s.layers):
        for name, rows, columns, gain in (*attention, *feed_forward(s, back)):
            t = T.F32 if name == "ffn_gate_inp" else TYPES[s.value_type or s.type] if name in ("attn_v", "ffn_down") else kind
            yield f"blk.{i}.{name}.weight", t, rows, columns, gain / math.sqrt(columns)
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", T.F32, s.hidden, 0, 1.0
        for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)) if architecture(s) == "qwen2" else ():
            yield f"blk.{i}.{name}.bias", T.F32, rows, 0, 0.1
        if is_latent(s):
            yield f"blk.{i}.attn_kv_a_norm.weight", T.F32, LATENT["rank"], 0, 1.0
        for name in ("attn_q_norm", "attn_k_norm") if architecture(s).startswith("qwen3") else ():
            yield f"blk.{i}.{name}.weight", T.F32, s.head_dim, 0, 1.0
    yield "output_norm.weight", T.F32, s.hidden, 0, 1.0
    if not s.tied:
        yield "output.weight", embedding_kind, s.vocab, s.hidden, 0.02


def byte_alphabet():
    """How byte-level BPE encodes the 256 bytes: printable ones as themselves, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def add_made_up_tokenizer(writer, vocab):
    tokens = [*byte_alphabet(), "ab", "<|end|>"]
    types = [1] * 257 + [3]
    tokens += [f"<|filler_{i}|>" for i in range(len(tokens), vocab)]
    types += [5] * (vocab - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens[:vocab])
    writer.add_token_types(types[:vocab])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_add_bos_token(False)


def copy_tokenizer(writer, path, vocab):
    reader = gguf.GGUFReader(path)
    if len(reader.fields["tokenizer.ggml.tokens"].contents()) > vocab:
        sys.exit(f"the tokenizer of {path} has more than {vocab} tokens")
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = field.contents()
            missing = vocab - len(value) if sub is not None else 0
            if key == "tokenizer.ggml.tokens":
                value += [f"<|filler_{i}|>" for i in range(missing)]
            elif key == "tokenizer.ggml.token_type":
                value += [5] * missing
            elif key == "tokenizer.ggml.scores":
                value += [-1e9] * missing
            writer.add_key_value(key, value, field.types[0], sub_type=sub)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--type", default="q8_0", choices=TYPES)
    parser.add_argument("--embedding-type", choices=TYPES, help="of the embedding and the head (default: as --type)")
    parser.add_argument("--value-type", choices=TYPES, help="of attn_v and ffn_down, which mixtures like Q4_K_M store more exactly (default: as --type)")
    names = ("hidden", "ffn", "layers", "heads", "kv_heads", "head_dim", "vocab")
    for name in names:
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="overrides the shape's value")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="rows of the layers' matrices repeat: seconds instead of minutes for billions of weights")
    parser.add_argument("--tokenizer-from", help="a GGUF to copy the tokenizer from")
    s = parser.parse_args()
    for name, value in zip((*names, "rope_base", "tied"), SHAPES[s.shape]):
        if getattr(s, name, None) is None:
            setattr(s, name, value)
    kind = TYPES[s.type]
    tensors = list(tensor_list(s, kind, TYPES[s.embedding_type or s.type]))

    writer = gguf.GGUFWriter(s.out, architecture(s))
    writer.add_name(f"random {s.shape} {s.type}")
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(0 if is_recurrent(s) else s.heads)
    if is_recurrent(s):
        add_recurrent_keys(writer, s)
    elif is_latent(s):
        add_latent_keys(writer, s)
    else:
        writer.add_head_count_kv(s.kv_heads)
        writer.add_key_length(s.head_dim)
        writer.add_value_length(s.head_dim)
        writer.add_rope_dimension_count(s.head_dim)
    if s.shape in EXPERTS:
        writer.add_expert_count(EXPERTS[s.shape][0])
        writer.add_expert_used_count(EXPERTS[s.shape][1])
        writer.add_expert_feed_forward_length(s.ffn)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s.vocab)
    if s.tokenizer_from:
        copy_tokenizer(writer, s.tokenizer_from, s.vocab)
    else:
        add_made_up_tokenizer(writer, s.vocab)
    for name, t, rows, columns, _ in tensors:
        elements, size = gguf.GGML_QUANT_SIZES[t]
        shape = rows if isinstance(rows, tuple) else (rows,)
        if columns == 0:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(shape) * 4)
        else:
            row_bytes = columns // elements * size
            writer.add_tensor_info(name, (*shape, row_bytes), np.dtype(np.uint8), math.prod(shape) * row_bytes, raw_dtype=t)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(s.seed)
    made = {}
    for name, t, rows, columns, std in tensors:
        count = math.prod(rows) if isinstance(rows, tuple) else rows
        if columns == 0:
            data = np.full(rows, std, np.float32)
        elif s.quick and name.startswith("blk."):  # equal rows of the head would be equal logits
            data = repeating_tensor(made, t, rng, count, columns, std)
        else:
            data = random_tensor(t, rng, count, columns, std)
        writer.write_tensor_data(data)
    writer.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("random_model: stopped")
