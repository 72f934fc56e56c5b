#!/usr/bin/env python3
"""Writes tiny models with random weights, one per architecture and variant, for tests that need a whole model.

    tools/tiny_models.py --out FOLDER [--only llama,gemma3] [--families]

Each model NAME becomes FOLDER/NAME/ (config.json, model.safetensors in float32, tokenizer.json, tokenizer_config.json: what
transformers would save) and FOLDER/NAME.gguf (float32, in the layout of llama.cpp's converter; tiny_gguf.py).
Weights depend only on the names of model and tensor and the tensor's shape: numpy's legacy generator is frozen, and only
its uniform doubles are used (integer arithmetic and one multiplication), so every machine writes the same bytes.
Needs numpy, safetensors, gguf. tools/make_goldens.py computes the expected logits.
"""
import argparse
import hashlib
import json
import math
import pathlib
import sys
import zlib

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tiny_adapters  # noqa: E402
import tiny_encoders  # noqa: E402
import tiny_gguf  # noqa: E402
import tiny_quantized  # noqa: E402

CONTEXT = 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
EOS, BOS = 0, 3
# Pairs in merge order; byte-level BPE encodes space and newline as "Ġ" and "Ċ".
MERGES = ("Ġ t|h e|Ġ a|i n|r e|Ġt he|o n|e r|Ġ s|a t|e n|Ġ w|i t|o r|e s|Ġ o|a n|i s|Ġ c|in g|o u|Ġa n|e d|a l|Ġt o|l l|"
          "Ġ b|Ġan d").split("|")
TOKENS = SPECIAL + [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"] + [m.replace(" ", "") for m in MERGES]
VOCAB = len(TOKENS)
CHAT_TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
                 "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def llama_config(**changes):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32",
        "bos_token_id": BOS, "eos_token_id": EOS,
    }
    config.update(changes)
    return {k: v for k, v in config.items() if v is not DROP}


DROP = object()
NO_LLAMA_BIAS_KEYS = {"attention_bias": DROP, "mlp_bias": DROP}


def gemma_config(version, **changes):
    base = {
        "architectures": [f"Gemma{version}ForCausalLM"], "model_type": "gemma2" if version == 2 else "gemma3_text",
        "hidden_act": DROP, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "hidden_size": 48, "mlp_bias": DROP,
    }
    return llama_config(**{**base, **changes})


LONG = [1.0, 1.3, 1.9, 2.8, 4.1, 5.9]
SHORT = [1.0, 1.05, 1.1, 1.2, 1.3, 1.4]

# name -> config.json as published by the model's authors
MODELS = {
    "llama": llama_config(),
    "llama_linear": llama_config(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama_llama3": llama_config(rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}),
    "llama_yarn": llama_config(rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    "llama_bias": llama_config(attention_bias=True, mlp_bias=True, head_dim=24),
    "smollm2": llama_config(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
                            rope_theta=100000.0, num_hidden_layers=3),
    "mistral": llama_config(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=8,
                            **NO_LLAMA_BIAS_KEYS),
    "qwen2": llama_config(architectures=["Qwen2ForCausalLM"], model_type="qwen2", rms_norm_eps=1e-6, rope_theta=1000000.0,
                          tie_word_embeddings=True, use_sliding_window=False, sliding_window=8, max_window_layers=2,
                          **NO_LLAMA_BIAS_KEYS),
    "qwen3": llama_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1000000.0,
                          head_dim=24, sliding_window=None, mlp_bias=DROP),
    # Other Qwen3 options: windows from a given layer on, biases, all of yarn's fields, an odd MLP size.
    "qwen3_window": llama_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", num_hidden_layers=3, head_dim=24,
                                 intermediate_size=33, attention_bias=True, use_sliding_window=True, sliding_window=6,
                                 max_window_layers=1, mlp_bias=DROP, rope_scaling={
                                     "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4,
                                     "beta_slow": 0.5, "attention_factor": 0.8, "truncate": False}),
    "gemma2": gemma_config(2, num_hidden_layers=4, attn_logit_softcapping=3.0, final_logit_softcapping=3.0),
    # Like the 27B: the score scale is not derived from the head size. A GGUF shows this by its layer count only.
    "gemma2_scalar": gemma_config(2, num_hidden_layers=2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
                                  query_pre_attn_scalar=12),
    "gemma3": gemma_config(3, num_hidden_layers=6, sliding_window_pattern=6, rope_theta=1000000.0,
                           rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
                           attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3_types": gemma_config(3, num_hidden_layers=3, sliding_window=6, num_key_value_heads=1,
                                 layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                 rope_theta=1000000.0, rope_local_base_freq=5000.0,
                                 attn_logit_softcapping=None, final_logit_softcapping=None),
    "phi3": llama_config(architectures=["Phi3ForCausalLM"], model_type="phi3", sliding_window=12, num_key_value_heads=4,
                         original_max_position_embeddings=CONTEXT, rope_scaling=None, mlp_bias=DROP, pad_token_id=EOS),
    "phi3_longrope": llama_config(architectures=["Phi3ForCausalLM"], model_type="phi3", sliding_window=None,
                                  original_max_position_embeddings=16, partial_rotary_factor=0.75,
                                  rope_scaling={"type": "longrope", "long_factor": LONG, "short_factor": SHORT},
                                  tie_word_embeddings=True, mlp_bias=DROP, pad_token_id=EOS),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 48, "n_head": 4,
        "n_layer": 2, "n_ctx": CONTEXT, "n_positions": CONTEXT, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "bos_token_id": EOS, "eos_token_id": EOS, "torch_dtype": "float32",
    },
    "gpt2_scaled": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 36, "n_head": 3,
        "n_layer": 3, "n_inner": 50, "n_positions": CONTEXT, "layer_norm_epsilon": 1e-5, "activation_function": "gelu",
        "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False,
        "bos_token_id": EOS, "eos_token_id": EOS, "torch_dtype": "float32",
    },
}
# GGUF cannot express these features.
NOT_AS_GGUF = {"gemma2_scalar", "qwen3_window", "gpt2_scaled"}


def random_tensor(model, name, shape, deviation, mean=0.0):
    """Uniform numbers of the given standard deviation; the same bits everywhere."""
    rng = np.random.RandomState(zlib.crc32(f"{model}/{name}".encode()))
    return (mean + (rng.random_sample(shape) * 2.0 - 1.0) * (math.sqrt(3.0) * deviation)).astype(np.float32)


class Weights:
    """Collects a model's tensors under their names in model.safetensors."""

    def __init__(self, model):
        self.model = model
        self.tensors = {}

    def matrix(self, name, rows, columns, gain=1.0, inputs=None):
        self.tensors[name] = random_tensor(self.model, name, (rows, columns), gain / math.sqrt(inputs or columns))

    def vector(self, name, size, deviation=0.2, mean=0.0):
        self.tensors[name] = random_tensor(self.model, name, (size,), deviation, mean)

    def table(self, name, rows, columns, deviation=0.35):
        self.tensors[name] = random_tensor(self.model, name, (rows, columns), deviation)


def sizes(c):
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return c["hidden_size"], head, c["num_attention_heads"] * head, c["num_key_value_heads"] * head, c["intermediate_size"]


def attention_weights(w, c, at):
    hidden, head, q, kv, _ = sizes(c)
    if c["model_type"] == "phi3":
        w.matrix(at + "qkv_proj.weight", q + 2 * kv, hidden, gain=1.3)
    else:
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            w.matrix(at + f"{part}_proj.weight", rows, hidden, gain=1.3)
            if c.get("attention_bias") or c["model_type"] == "qwen2":
                w.vector(at + f"{part}_proj.bias", rows, 0.4)
    w.matrix(at + "o_proj.weight", hidden, q)
    if c.get("attention_bias"):
        w.vector(at + "o_proj.bias", hidden, 0.2)
    if c["model_type"] in ("qwen3", "gemma3_text"):
        mean = 1.0 if c["model_type"] == "qwen3" else 0.0
        w.vector(at + "q_norm.weight", head, mean=mean)
        w.vector(at + "k_norm.weight", head, mean=mean)


def decoder_weights(w, c):
    """Everything but GPT-2. Gemma's norm weights are stored around zero, the others' around one."""
    hidden, _, _, _, ffn = sizes(c)
    gemma = c["model_type"].startswith("gemma")
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    # Gemma multiplies embeddings by sqrt(hidden); small ones keep the layers' contribution visible.
    w.table("model.embed_tokens.weight", VOCAB, hidden, 0.1 if gemma else 0.35)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        attention_weights(w, c, at + "self_attn.")
        if c["model_type"] == "phi3":
            w.matrix(at + "mlp.gate_up_proj.weight", 2 * ffn, hidden)
        else:
            w.matrix(at + "mlp.gate_proj.weight", ffn, hidden)
            w.matrix(at + "mlp.up_proj.weight", ffn, hidden)
        w.matrix(at + "mlp.down_proj.weight", hidden, ffn, gain=2.0)
        if c.get("mlp_bias"):
            for part, size in (("gate", ffn), ("up", ffn), ("down", hidden)):
                w.vector(at + f"mlp.{part}_proj.bias", size, 0.2)
        for norm in norms:
            w.vector(at + norm + ".weight", hidden, mean=0.0 if gemma else 1.0)
    w.vector("model.norm.weight", hidden, mean=0.0 if gemma else 1.0)
    if not c["tie_word_embeddings"]:
        w.matrix("lm_head.weight", VOCAB, hidden, gain=2.0)


def gpt2_weights(w, c):
    """Names as in the published file: without the prefix `transformer.`; Conv1D keeps [in, out]."""
    n, inner = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
    w.table("wte.weight", VOCAB, n)
    w.table("wpe.weight", c["n_positions"], n)
    for i in range(c["n_layer"]):
        for name, ins, outs in (("attn.c_attn", n, 3 * n), ("attn.c_proj", n, n), ("mlp.c_fc", n, inner),
                                ("mlp.c_proj", inner, n)):
            w.matrix(f"h.{i}.{name}.weight", ins, outs, gain=1.3, inputs=ins)
            w.vector(f"h.{i}.{name}.bias", outs, 0.1)
        for norm in ("ln_1", "ln_2"):
            w.vector(f"h.{i}.{norm}.weight", n, mean=1.0)
            w.vector(f"h.{i}.{norm}.bias", n, 0.1)
    w.vector("ln_f.weight", n, mean=1.0)
    w.vector("ln_f.bias", n, 0.1)
    if not c.get("tie_word_embeddings", True):
        w.matrix("lm_head.weight", VOCAB, n, gain=2.0)


def weights_of(name):
    w = Weights(name)
    (gpt2_weights if MODELS[name]["model_type"] == "gpt2" else decoder_weights)(w, MODELS[name])
    return w.tensors


def fingerprint(tensors):
    """SHA-256 of names and bytes; the goldens carry it, to distinguish wrong weights from wrong maths."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].shape}".encode())
        x = tensors[name]
        digest.update((x.astype("<f4") if x.dtype.kind == "f" else x).tobytes())
    return digest.hexdigest()


def write_golden(path, golden):
    """One row of logits per line: small, and a changed number shows as a changed line."""
    text = json.dumps({k: v for k, v in golden.items() if k != "sequences"})[:-1] + ', "sequences": ['
    parts = []
    for s in golden["sequences"]:
        rows = ",\n  ".join(json.dumps(r, separators=(",", ":")) for r in s["logits"])
        rest = json.dumps({k: v for k, v in s.items() if k != "logits"}, separators=(",", ":"))[1:]
        parts.append('\n {"logits": [\n  ' + rows + "],\n  " + rest)
    path.write_text(text + ",".join(parts) + "]}\n")
    assert json.loads(path.read_text()) == golden


def check_golden(name, tensors, kind):
    golden = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / kind / f"{name}.json"
    if golden.exists() and json.loads(golden.read_text())["weights_sha256"] != fingerprint(tensors):
        sys.exit(f"tiny_models: the weights of {name} differ from those used for its golden; run tools/make_goldens.py")


def tokenizer_json():
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, t in enumerate(SPECIAL)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(TOKENS)}, "merges": MERGES},
    }


def tokenizer_config():
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS],
            "add_bos_token": False, "model_max_length": CONTEXT, "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_folder(folder, config, tensors, types=None):
    """types: names of safetensors types that numpy does not have, for bits of other types."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    if types:
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        for tensor, kind in types.items():
            header[tensor]["dtype"] = kind
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size:])


def vocabulary():
    return tiny_gguf.Vocabulary(TOKENS, len(SPECIAL), MERGES, BOS, EOS, CHAT_TEMPLATE)


def write_model(name, out):
    config, tensors = MODELS[name], weights_of(name)
    write_folder(out / name, config, tensors)
    if name not in NOT_AS_GGUF:
        tiny_gguf.write(out / f"{name}.gguf", config, tensors, vocabulary())


def write_family(name, out):
    """A model of tiny_families.py; gives its tensors."""
    import tiny_families
    t = tiny_families.tensors_of(name)
    config = tiny_families.MODELS[name]
    write_folder(out / name, config, t.hf, t.types)
    if name in tiny_quantized.QUANTIZED:  # what the folder stands for
        plain = {k: v for k, v in config.items() if k != "quantization_config"}
        write_folder(out / f"{name}.decoded", plain, t.reference)
    if name not in tiny_families.NOT_AS_GGUF:
        tiny_families.write_gguf(out / f"{name}.gguf", t, vocabulary())
    return t


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="comma-separated names; default: all")
    parser.add_argument("--families", action="store_true", help="the models of tiny_families.py instead")
    parser.add_argument("--no-check", action="store_true", help="do not compare the weights with the goldens' fingerprints")
    args = parser.parse_args()
    sys.modules["tiny_models"] = sys.modules["__main__"]  # which tiny_families imports
    import tiny_families
    known = tiny_families.MODELS if args.families else MODELS
    names = args.only.split(",") if args.only else list(known)
    for name in names:
        if name not in known:
            sys.exit(f"tiny_models: no model '{name}'; available: {', '.join(known)}")
        if args.families:
            tensors = write_family(name, args.out).hf
        else:
            write_model(name, args.out)
            tensors = weights_of(name)
        if not args.no_check:
            check_golden(name, tensors, "families" if args.families else "numerics")
    if not args.only and not args.families:
        tiny_adapters.write_all(args.out, random_tensor, weights_of, MODELS)
    encoders = [] if args.only or args.families else tiny_encoders.ENCODERS
    for name in encoders:
        tensors = tiny_encoders.weights_of(name, Weights)
        tiny_encoders.write_model(name, args.out, tensors)
        if not args.no_check:
            tiny_encoders.check_golden(name, fingerprint(tensors))
    print(f"tiny_models: {len(names) + len(encoders)} models in {args.out}")


if __name__ == "__main__":
    main()
