"""The encoders among the tiny models (tiny_models.py writes them): BERT and its relatives, with random weights.

Each becomes FOLDER/NAME/ with config.json, model.safetensors, tokenizer.json and, for some, the files of sentence-transformers;
BERT, Nomic and EmbeddingGemma also FOLDER/NAME.gguf. tools/make_encoder_goldens.py computes the expected vectors.
"""
import json
import pathlib
import sys

import gguf
from safetensors.numpy import save_file

CONTEXT = 64
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
WORDS = ["the", "and", "ing", "cat", "dog", "sun", "moon", "is", "of", "in"]
TOKENS = SPECIAL + list("0123456789.,!?'-") + LETTERS + ["##" + c for c in LETTERS] + WORDS + \
    ["##ing", "##er", "##en"]
VOCAB = len(TOKENS)
CLS, SEP = 2, 3


def bert(**changes):
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCAB, "hidden_size": 48,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0,
        "position_embedding_type": "absolute", "torch_dtype": "float32",
    }
    config.update(changes)
    return config


def labelled(names):
    return {"id2label": {str(i): n for i, n in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


ENCODERS = {
    "bert": bert(),
    "bert_cls": bert(architectures=["BertForSequenceClassification"], num_attention_heads=4,
                     **labelled(["sad", "neutral", "happy"])),
    "bert_cross": bert(architectures=["BertForSequenceClassification"], hidden_act="gelu_new", **labelled(["LABEL_0"])),
    "roberta": bert(architectures=["RobertaModel"], model_type="roberta", type_vocab_size=1, pad_token_id=1,
                    max_position_embeddings=CONTEXT + 2, layer_norm_eps=1e-5),
    "roberta_cls": bert(architectures=["RobertaForSequenceClassification"], model_type="xlm-roberta", type_vocab_size=1,
                        pad_token_id=1, max_position_embeddings=CONTEXT + 2, layer_norm_eps=1e-5,
                        **labelled(["no", "yes"])),
    "distilbert": {
        "architectures": ["DistilBertModel"], "model_type": "distilbert", "vocab_size": VOCAB, "dim": 48, "hidden_dim": 80,
        "n_layers": 2, "n_heads": 4, "max_position_embeddings": CONTEXT, "activation": "gelu", "pad_token_id": 0,
        "sinusoidal_pos_embds": False, "torch_dtype": "float32"},
    "modernbert": {
        "architectures": ["ModernBertModel"], "model_type": "modernbert", "vocab_size": VOCAB, "hidden_size": 48,
        "intermediate_size": 72, "num_hidden_layers": 4, "num_attention_heads": 3, "max_position_embeddings": CONTEXT,
        "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False, "hidden_activation": "gelu",
        "global_attn_every_n_layers": 3, "local_attention": 8, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
        "pad_token_id": 0, "cls_token_id": CLS, "sep_token_id": SEP, "bos_token_id": CLS, "eos_token_id": SEP,
        "torch_dtype": "float32"},
    "nomic": {
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": VOCAB, "n_embd": 48, "n_inner": 64,
        "n_layer": 2, "n_head": 3, "n_positions": CONTEXT, "type_vocab_size": 2, "layer_norm_epsilon": 1e-12,
        "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "prenorm": False,
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "torch_dtype": "float32"},
    "embeddinggemma": {
        "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "vocab_size": VOCAB, "hidden_size": 48, "head_dim": 16,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT, "query_pre_attn_scalar": 16, "sliding_window": 9, "use_bidirectional_attention": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "pad_token_id": 0, "torch_dtype": "float32"},
}
AS_GGUF = {"bert": "bert", "nomic": "nomic-bert", "embeddinggemma": "gemma-embedding"}
# sentence-transformers files: pooling, normalisation, longest text, prompts.
SENTENCE = {
    "bert": {"pooling": "mean", "normalize": True, "max_seq_length": 32},
    "roberta": {"pooling": "cls", "normalize": False, "max_seq_length": None},
    "distilbert": {"pooling": "mean", "normalize": False, "max_seq_length": 48,
                   "prompts": {"query": "query: ", "document": ""}},
    "embeddinggemma": {"pooling": "mean", "normalize": True, "max_seq_length": 48, "dense": [80, 48],
                       "prompts": {"query": "query: ", "document": "title: none "}},
}


def pooling_of(name):
    if name.endswith(("_cls", "_cross")):
        return "cls"
    return SENTENCE.get(name, {}).get("pooling", "mean")


def layer_norm(w, name, size, bias=True):
    w.vector(name + ".weight", size, mean=1.0)
    if bias:
        w.vector(name + ".bias", size, 0.1)


def dense(w, name, rows, columns, gain=1.0, bias=True):
    w.matrix(name + ".weight", rows, columns, gain=gain)
    if bias:
        w.vector(name + ".bias", rows, 0.2)


def bert_weights(w, c):
    hidden, ffn, kind = c["hidden_size"], c["intermediate_size"], c["model_type"]
    classifier = c["architectures"][0].endswith("Classification")
    top = ("bert." if kind == "bert" else "roberta.") if classifier else ""
    w.table(top + "embeddings.word_embeddings.weight", VOCAB, hidden)
    w.table(top + "embeddings.position_embeddings.weight", c["max_position_embeddings"], hidden)
    w.table(top + "embeddings.token_type_embeddings.weight", c["type_vocab_size"], hidden)
    layer_norm(w, top + "embeddings.LayerNorm", hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"{top}encoder.layer.{i}."
        for part in ("query", "key", "value"):
            dense(w, at + f"attention.self.{part}", hidden, hidden, gain=1.5)
        dense(w, at + "attention.output.dense", hidden, hidden)
        layer_norm(w, at + "attention.output.LayerNorm", hidden)
        dense(w, at + "intermediate.dense", ffn, hidden)
        dense(w, at + "output.dense", hidden, ffn, gain=1.5)
        layer_norm(w, at + "output.LayerNorm", hidden)
    if not classifier:
        return
    labels = len(c["id2label"])
    if kind == "bert":
        dense(w, "bert.pooler.dense", hidden, hidden)
        dense(w, "classifier", labels, hidden, gain=2.0)
    else:
        dense(w, "classifier.dense", hidden, hidden)
        dense(w, "classifier.out_proj", labels, hidden, gain=2.0)


def distilbert_weights(w, c):
    hidden, ffn = c["dim"], c["hidden_dim"]
    w.table("embeddings.word_embeddings.weight", VOCAB, hidden)
    w.table("embeddings.position_embeddings.weight", c["max_position_embeddings"], hidden)
    layer_norm(w, "embeddings.LayerNorm", hidden)
    for i in range(c["n_layers"]):
        at = f"transformer.layer.{i}."
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            dense(w, at + f"attention.{part}", hidden, hidden, gain=1.4)
        layer_norm(w, at + "sa_layer_norm", hidden)
        dense(w, at + "ffn.lin1", ffn, hidden)
        dense(w, at + "ffn.lin2", hidden, ffn, gain=1.5)
        layer_norm(w, at + "output_layer_norm", hidden)


def modernbert_weights(w, c):
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    w.table("embeddings.tok_embeddings.weight", VOCAB, hidden)
    layer_norm(w, "embeddings.norm", hidden, bias=False)
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}."
        if i > 0:
            layer_norm(w, at + "attn_norm", hidden, bias=False)
        dense(w, at + "attn.Wqkv", 3 * hidden, hidden, gain=1.5, bias=False)
        dense(w, at + "attn.Wo", hidden, hidden, bias=False)
        layer_norm(w, at + "mlp_norm", hidden, bias=False)
        dense(w, at + "mlp.Wi", 2 * ffn, hidden, bias=False)
        dense(w, at + "mlp.Wo", hidden, ffn, gain=1.5, bias=False)
    layer_norm(w, "final_norm", hidden, bias=False)


def nomic_weights(w, c):
    hidden, ffn = c["n_embd"], c["n_inner"]
    w.table("embeddings.word_embeddings.weight", VOCAB, hidden)
    w.table("embeddings.token_type_embeddings.weight", c["type_vocab_size"], hidden)
    layer_norm(w, "emb_ln", hidden)
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}."
        dense(w, at + "attn.Wqkv", 3 * hidden, hidden, gain=1.5, bias=False)
        dense(w, at + "attn.out_proj", hidden, hidden, bias=False)
        layer_norm(w, at + "norm1", hidden)
        for part in ("fc11", "fc12"):
            dense(w, at + f"mlp.{part}", ffn, hidden, bias=False)
        dense(w, at + "mlp.fc2", hidden, ffn, gain=2.0, bias=False)
        layer_norm(w, at + "norm2", hidden)


def gemma_weights(w, c):
    """Norms are stored minus one. The layers after the pooling have folders of their own."""
    hidden, ffn, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    w.table("embed_tokens.weight", VOCAB, hidden)
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}."
        for part, heads in (("q", c["num_attention_heads"]), ("k", 1), ("v", 1)):
            dense(w, f"{at}self_attn.{part}_proj", heads * head, hidden, gain=1.5, bias=False)
        dense(w, at + "self_attn.o_proj", hidden, c["num_attention_heads"] * head, bias=False)
        for part in "qk":
            w.vector(f"{at}self_attn.{part}_norm.weight", head, 0.2)
        for part in ("gate", "up"):
            dense(w, f"{at}mlp.{part}_proj", ffn, hidden, bias=False)
        dense(w, at + "mlp.down_proj", hidden, ffn, gain=1.5, bias=False)
        for part in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            w.vector(f"{at}{part}_layernorm.weight", hidden, 0.2)
    w.vector("norm.weight", hidden, 0.2)
    columns = hidden
    for i, rows in enumerate(SENTENCE["embeddinggemma"]["dense"]):
        dense(w, f"{i + 2}_Dense/linear", rows, columns, bias=False)
        columns = rows


WEIGHTS = {"gemma3_text": gemma_weights, "bert": bert_weights, "roberta": bert_weights, "xlm-roberta": bert_weights, "distilbert": distilbert_weights,
           "modernbert": modernbert_weights, "nomic_bert": nomic_weights}


def weights_of(name, weights_class):
    w = weights_class(name)
    WEIGHTS[ENCODERS[name]["model_type"]](w, ENCODERS[name])
    return w.tensors


def tokenizer_json():
    def special(name, type_id):
        return {"SpecialToken": {"id": name, "type_id": type_id}}

    def text(which, type_id):
        return {"Sequence": {"id": which, "type_id": type_id}}
    single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, t in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": single + [text("B", 1), special("[SEP]", 1)],
            "special_tokens": {t: {"id": t, "ids": [TOKENS.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(TOKENS)}},
    }


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_sentence_files(folder, spec):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [(f"{i + 2}_Dense", "Dense") for i in range(len(spec.get("dense", [])))]
    modules += [(f"{len(modules)}_Normalize", "Normalize")] if spec["normalize"] else []
    for i, rows in enumerate(spec.get("dense", [])):
        write_json(folder / f"{i + 2}_Dense" / "config.json", {
            "in_features": 48 if i == 0 else spec["dense"][i - 1], "out_features": rows, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity"})
    write_json(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)])
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": 48, "pooling_mode_cls_token": spec["pooling"] == "cls",
        "pooling_mode_mean_tokens": spec["pooling"] == "mean", "pooling_mode_max_tokens": False})
    if spec["max_seq_length"]:
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": spec["max_seq_length"], "do_lower_case": False})
    if "prompts" in spec:
        write_json(folder / "config_sentence_transformers.json", {"prompts": spec["prompts"], "default_prompt_name": None})


GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm", "emb_ln": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
}


GGUF_NAMES |= {
    "embed_tokens": "token_embd", "norm": "output_norm", "2_Dense/linear": "dense_2", "3_Dense/linear": "dense_3",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "self_attn.o_proj": "attn_output",
    **{f"self_attn.{p}_proj": f"attn_{p}" for p in "qkv"}, **{f"self_attn.{p}_norm": f"attn_{p}_norm" for p in "qk"},
    **{f"mlp.{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")},
}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    for top in ("encoder.layer.", "encoder.layers.", "layers."):
        if stem.startswith(top):
            number, rest = stem[len(top):].split(".", 1)
            return f"blk.{number}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def write_gguf(path, name, tensors):
    c = ENCODERS[name]
    w = gguf.GGUFWriter(path, AS_GGUF[name])
    w.add_name("tiny encoder")
    w.add_block_count(c.get("num_hidden_layers") or c["n_layer"])
    w.add_context_length(CONTEXT)
    w.add_embedding_length(48)
    w.add_feed_forward_length(c.get("intermediate_size") or c["n_inner"])
    w.add_head_count(3)
    gemma = name == "embeddinggemma"
    if gemma:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_head_count_kv(1)
        w.add_key_length(16)
        w.add_value_length(16)
        w.add_rope_freq_base(c["rope_theta"])
        w.add_sliding_window(c["sliding_window"])
        w.add_array("gemma-embedding.attention.sliding_window_pattern", [x == "sliding_attention" for x in c["layer_types"]])
        for i, (rows, columns) in enumerate(((80, 48), (48, 80))):
            w.add_dense_features_dims(f"dense_{i + 2}", columns, rows)
    else:
        w.add_layer_norm_eps(1e-12)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    if name == "nomic":
        w.add_rope_freq_base(c["rotary_emb_base"])
    w.add_token_type_count(2)
    w.add_tokenizer_model("bert")
    # As the converter writes them: words begin with U+2581, continuations lose their "##".
    w.add_token_list([t if t in SPECIAL else t[2:] if t.startswith("##") else "\u2581" + t for t in TOKENS])
    w.add_token_types([3 if t in SPECIAL else 1 for t in TOKENS])
    w.add_bos_token_id(CLS)
    w.add_eos_token_id(SEP)
    w.add_sep_token_id(SEP)
    w.add_unk_token_id(1)
    for tensor, x in tensors.items():
        w.add_tensor(gguf_name(tensor), x + 1 if gemma and x.ndim == 1 else x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_model(name, out, tensors):
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", ENCODERS[name])
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]",
                                                  "sep_token": "[SEP]", "model_max_length": CONTEXT})
    if name in SENTENCE:
        write_sentence_files(folder, SENTENCE[name])
    for part in {t.rpartition("/")[0] for t in tensors}:  # "": the model itself
        own = {t.rpartition("/")[2]: x for t, x in tensors.items() if t.rpartition("/")[0] == part}
        save_file(own, folder / part / "model.safetensors", metadata={"format": "pt"})
    if name in AS_GGUF:
        write_gguf(out / f"{name}.gguf", name, tensors)


def check_golden(name, fingerprint):
    golden = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "encoders" / f"{name}.json"
    if golden.exists() and json.loads(golden.read_text())["weights_sha256"] != fingerprint:
        sys.exit(f"tiny_encoders: the weights of {name} differ from those used for its golden; "
                 "run tools/make_encoder_goldens.py")
