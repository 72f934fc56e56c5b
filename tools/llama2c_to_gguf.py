#!/usr/bin/env python3
"""Converts a llama2.c checkpoint (.bin, versions 0 and 1) and its tokenizer to GGUF.

    tools/llama2c_to_gguf.py stories15M.bin tokenizer.bin stories15M.gguf [--type f32|f16|q8_0|q4_0|...]

The tokenizer is llama2.c's tokenizer.bin or the SentencePiece .model it was made from. llama2.c stores q and k in
interleaved rotary pairs, as a Llama GGUF does. Needs numpy and gguf.
"""
import argparse
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def read_header(data):
    """-> (dict of sizes, shared classifier, version, offset of the weights)"""
    names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "context")
    if data[:4] == b"24ka":
        version, *sizes = struct.unpack_from("<8i", data, 4)
        if version != 1:
            sys.exit(f"version {version} of the llama2.c format is not supported (0 and 1 are)")
        return dict(zip(names, sizes)), data[36] != 0, 1, 256
    sizes = dict(zip(names, struct.unpack_from("<7i", data, 0)))
    shared = sizes["vocab"] > 0
    sizes["vocab"] = abs(sizes["vocab"])
    return sizes, shared, 0, 28


def tensor_order(c, shared, version):
    """(name, shape) in file order; a name with {} stands for one tensor per layer, None is skipped."""
    head = c["dim"] // c["heads"]
    q, kv = c["heads"] * head, c["kv_heads"] * head
    embedding = ("token_embd.weight", (c["vocab"], c["dim"]))
    attn_norm, ffn_norm = ("blk.{}.attn_norm.weight", (c["dim"],)), ("blk.{}.ffn_norm.weight", (c["dim"],))
    attention = [("blk.{}.attn_q.weight", (q, c["dim"])), ("blk.{}.attn_k.weight", (kv, c["dim"])),
                 ("blk.{}.attn_v.weight", (kv, c["dim"])), ("blk.{}.attn_output.weight", (c["dim"], q))]
    mlp = [("blk.{}.ffn_gate.weight", (c["hidden"], c["dim"])), ("blk.{}.ffn_down.weight", (c["dim"], c["hidden"])),
           ("blk.{}.ffn_up.weight", (c["hidden"], c["dim"]))]
    final = ("output_norm.weight", (c["dim"],))
    if version == 0:
        angles = (None, (2 * c["context"], head // 2))  # cosines and sines, which readers compute themselves
        order = [embedding, attn_norm, *attention, ffn_norm, *mlp, final, angles]
    else:
        order = [attn_norm, ffn_norm, final, embedding, *attention, *mlp]
    return order if shared else order + [("output.weight", (c["vocab"], c["dim"]))]


def read_tensors(data, c, shared, version, at):
    values = np.frombuffer(data, dtype="<f4", offset=at)
    used = 0
    for name, shape in tensor_order(c, shared, version):
        size = int(np.prod(shape))
        for layer in range(c["layers"] if name and "{}" in name else 1):
            if used + size > values.size:
                sys.exit(f"the checkpoint ends in the middle of {name}")
            if name:
                yield name.format(layer), values[used:used + size].reshape(shape)
            used += size
    if used != values.size:
        sys.exit(f"the checkpoint has {values.size - used} numbers more than its header implies")


def read_tokenizer_bin(data, vocab):
    at, tokens = 4, []  # the file starts with the longest token's length
    for i in range(vocab):
        score, size = struct.unpack_from("<fi", data, at)
        text = data[at + 8:at + 8 + size]
        at += 8 + size
        if i < 3:
            tokens.append(((b"<unk>", b"<s>", b"</s>")[i], score, UNKNOWN if i == 0 else CONTROL))
        elif len(text) == 6 and text.startswith(b"<0x") and text.endswith(b">"):
            tokens.append((text, score, BYTE))
        else:
            tokens.append((text.replace(b" ", "\u2581".encode()), score, NORMAL))
    return tokens


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 2:
            size, at = read_varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def read_sentencepiece(data):
    tokens = []
    for number, piece in fields(data):
        if number == 1:
            entry = dict(fields(piece))
            tokens.append((entry.get(1, b""), struct.unpack("<f", entry[2])[0] if 2 in entry else 0.0, entry.get(3, NORMAL)))
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="f32", help="type of the matrices (default f32)")
    args = parser.parse_args()
    data = args.model.read_bytes()
    c, shared, version, at = read_header(data)
    raw = args.tokenizer.read_bytes()
    tokens = read_sentencepiece(raw) if args.tokenizer.suffix == ".model" else read_tokenizer_bin(raw, c["vocab"])
    if len(tokens) != c["vocab"]:
        sys.exit(f"the model has {c['vocab']} tokens, the tokenizer {len(tokens)}")

    writer = gguf.GGUFWriter(str(args.out), "llama")
    writer.add_name(args.model.stem)
    writer.add_context_length(c["context"])
    writer.add_embedding_length(c["dim"])
    writer.add_block_count(c["layers"])
    writer.add_feed_forward_length(c["hidden"])
    writer.add_head_count(c["heads"])
    writer.add_head_count_kv(c["kv_heads"])
    writer.add_rope_dimension_count(c["dim"] // c["heads"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(c["vocab"])
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([t[0] for t in tokens])
    writer.add_token_scores([t[1] for t in tokens])
    writer.add_token_types([t[2] for t in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    kind = gguf.GGMLQuantizationType[args.type.upper()]
    for name, tensor in read_tensors(data, c, shared, version, at):
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if tensor.ndim == 1 or kind == gguf.GGMLQuantizationType.F32 or tensor.shape[1] % block != 0:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
