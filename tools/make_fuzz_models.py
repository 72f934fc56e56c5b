#!/usr/bin/env python3
"""Writes the seeds of the model-file fuzzers: tests/fuzz/corpus/{gguf,gguf_vocab,safetensors,config_json}.

The seeds are the smallest models the importers accept, one per family of layouts. Needs numpy, gguf, safetensors.
"""
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save

CORPUS = Path(__file__).resolve().parent.parent / "tests/fuzz/corpus"
VOCAB, HIDDEN, FFN, HEADS, KV, HEAD, CONTEXT = 4, 8, 8, 2, 1, 4, 16


def write_gguf(arch):
    path = CORPUS / "gguf" / f"{arch}.gguf"
    w = gguf.GGUFWriter(str(path), arch)
    w.add_block_count(1)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS if arch == "gpt2" else KV)
    w.add_key_length(HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_token_list(["a", "b", "c", "d"])
    w.add_token_scores([0.0, -1.0, -2.0, -3.0])
    if arch == "gemma3":
        w.add_sliding_window(4)
        w.add_array("gemma3.attention.sliding_window_pattern", [True])
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "blk.0.attn_norm.weight": (HIDDEN,),
              "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD), "blk.0.ffn_norm.weight": (HIDDEN,),
              "blk.0.ffn_down.weight": (HIDDEN, FFN)}
    kv = HEADS if arch == "gpt2" else KV
    if arch in ("phi3", "gpt2"):
        shapes["blk.0.attn_qkv.weight"] = ((HEADS + 2 * kv) * HEAD, HIDDEN)
        shapes["blk.0.ffn_up.weight"] = (FFN if arch == "gpt2" else 2 * FFN, HIDDEN)
    else:
        for part, heads in (("q", HEADS), ("k", kv), ("v", kv)):
            shapes[f"blk.0.attn_{part}.weight"] = (heads * HEAD, HIDDEN)
        shapes["blk.0.ffn_up.weight"] = shapes["blk.0.ffn_gate.weight"] = (FFN, HIDDEN)
    if arch == "gemma3":
        shapes |= {f"blk.0.attn_{p}_norm.weight": (HEAD,) for p in "qk"}
        shapes |= {f"blk.0.post_{p}_norm.weight": (HIDDEN,) for p in ("attention", "ffw")}
    if arch == "gpt2":
        shapes["position_embd.weight"] = (CONTEXT, HIDDEN)
        for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            shapes[name + ".bias"] = (HIDDEN,)
    for name, shape in shapes.items():
        w.add_tensor(name, np.zeros(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_vocab(model):
    pieces = {"llama": ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "b", "\u2581a", "ab"],
              "gpt2": ["a", "b", "\u0120", "\u0120a", "ab", "1", "<s>"],
              "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "b", "\u2581,"],
              "t5": ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "\u2581a", "\u2581ab"],
              "rwkv": ["<s>", "\\x00", "\\n", "a", "b", " ", "ab", "\\xe4\\xbd"]}[model]
    kinds = {"<unk>": 2, "[UNK]": 2, "<0x0A>": 6} | {t: 3 for t in ("<s>", "</s>", "<pad>", "[PAD]", "[CLS]", "[SEP]")}
    w = gguf.GGUFWriter(str(CORPUS / "gguf_vocab" / f"{model}.gguf"), "llama")
    w.add_tokenizer_model(model)
    w.add_tokenizer_pre("llama-bpe" if model == "gpt2" else "default")
    w.add_token_list(pieces)
    w.add_token_scores([-float(i) for i in range(len(pieces))])
    w.add_token_types([kinds.get(p, 1) for p in pieces])
    for name, token in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"), ("sep", "[SEP]")):
        if token in pieces:
            getattr(w, f"add_{name}_token_id")(pieces.index(token))
    if model == "gpt2":
        w.add_token_merges(["a b", "\u0120 a"])
    if model == "t5":  # a trie of four empty units and two strings
        w.add_precompiled_charsmap(bytes([16, 0, 0, 0] + [0] * 16) + b"x\0y\0")
        w.add_remove_extra_whitespaces(True)
    w.add_chat_template([{"name": "default", "template": "{{ 1 }}"}, {"name": "tool_use", "template": "{{ 2 }}"}])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def main():
    for folder in ("gguf", "gguf_vocab", "safetensors", "config_json"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for arch in ("llama", "gemma3", "phi3", "gpt2"):
        write_gguf(arch)
    for model in ("llama", "gpt2", "bert", "t5", "rwkv"):
        write_vocab(model)
    tensors = {"f32": np.ones((2, 3), np.float32), "f16": np.ones((4,), np.float16), "i64": np.zeros((1, 1), np.int64),
               "bool": np.array([True, False]), "empty": np.zeros((0, 2), np.float32)}
    (CORPUS / "safetensors/types.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (CORPUS / "safetensors/none.safetensors").write_bytes(save({}))
    llama = {"model_type": "llama", "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
             "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 10000.0}
    yarn = llama | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}
    per_kind = llama | {"model_type": "mistral", "sliding_window": 8, "layer_types": ["sliding_attention"],
                        "rope_parameters": {"full_attention": {"rope_type": "llama3", "factor": 2.0},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}
    nested = {"model_type": "gemma3", "text_config": llama | {"model_type": "gemma3_text"}}
    quantized = llama | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    for name, config in (("llama", llama), ("yarn", yarn), ("per_kind", per_kind), ("nested", nested),
                         ("quantized", quantized)):
        (CORPUS / f"config_json/{name}.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
