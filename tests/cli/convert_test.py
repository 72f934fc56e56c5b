"""Black-box tests of `tokamak convert`: against gguf, safetensors and the tiny models, which exist in both formats."""
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from types import SimpleNamespace

import gguf
import numpy as np
import tokenizers
from gguf import GGMLQuantizationType as T, GGUFReader, quants
from safetensors.numpy import load_file, save_file

from tokamak import BINARY, FAMILIES, TINY, run, run_json

# Fine-tunes of one family and quantised checkpoints have the layout of their base.
MODELS = [TINY / n for n in ("llama", "llama_bias", "llama_linear", "llama_llama3", "llama_yarn", "mistral", "qwen2", "qwen3",
                             "gemma2", "gemma3", "gemma3_types", "phi3", "phi3_longrope", "gpt2", "smollm2")]
MODELS += [FAMILIES / n for n in ("olmo2", "exaone", "exaone4", "granite", "cohere", "cohere2", "glm4", "smollm3", "starcoder2", "phi2",
                                  "internlm2", "mixtral", "qwen2moe", "qwen3moe", "olmoe", "glm4moe", "deepseek2",
                                  "deepseek3", "gpt_oss", "gpt_oss_mxfp4", "llama4", "gemma3n")]
# These are written as GGUF, but not yet as a folder.
TO_GGUF = [FAMILIES / n for n in ("ernie4_5", "seed_oss", "olmo3", "ministral3", "qwen2_vl", "stablelm", "gpt_neox", "granitemoe", "dots1",
                                  "ernie4_5_moe", "minimax_m2", "qwen3_vl", "glm47_flash", "arcee", "nemotron", "apertus", "hunyuan", "hunyuan_moe",
                                  "olmo", "falcon", "starcoder", "minicpm", "qwen", "chatglm", "command_r_plus", "qwen3_vl_moe", "granite4",
                                  "nemotron_h", "lfm2", "lfm2moe", "gemma4", "gemma4_moe", "falcon_h1", "falcon_h1_norm", "qwen35", "qwen35moe", "mamba",
                                  "falcon_mamba", "jamba", "afmoe", "bloom", "dbrx", "exaone_moe", "ling", "llama4_long", "mamba2", "minicpm3",
                                  "mpt", "phimoe", "qwen3next", "qwen3next_even", "youtu")]
# Types that gguf quantises as well, and bounds of the error of the others on normally distributed weights.
EXACT = {"q8_0": T.Q8_0, "q4_0": T.Q4_0, "q4_1": T.Q4_1, "q5_0": T.Q5_0, "q5_1": T.Q5_1, "mxfp4": T.MXFP4, "f16": T.F16,
         "bf16": T.BF16, "iq4_nl": None}
TEXT = "Hello world, this is 1 test of 23 words!\n\n  def f(x): return x\tÄöü"


def gguf_tensors(path):
    return {t.name: t for t in GGUFReader(path).tensors}


def folder_tensors(folder):
    return load_file(folder / "model.safetensors")


class Convert(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def convert(self, *args):
        return run_json("convert", *args, "--json")

    def check_same_text(self, a, b):
        """The same tokens of a text, the same chat prompt, and the same greedy continuation."""
        for args in (["tokenize"], ["run", "--max-tokens", "8", "--temperature", "0", "--activations", "f32"]):
            one, two = (run(args[0], model, TEXT, *args[1:]) for model in (a, b))
            self.assertEqual(one.returncode, 0, one.stderr)
            self.assertEqual((one.stdout, two.returncode), (two.stdout, 0), f"{args} {two.stderr}")

    def test_layer_embeddings_of_some_tokens(self):
        """Gemma 3n: tokens without embeddings of layers have those of token 0, which GGUF repeats."""
        model, out = self.folder / "gemma3n", self.folder / "gemma3n.gguf"
        shutil.copytree(FAMILIES / "gemma3n", model)
        tensors = folder_tensors(model)
        table = tensors["model.embed_tokens_per_layer.weight"] = tensors["model.embed_tokens_per_layer.weight"][:90].copy()
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "vocab_size_per_layer_input": 90}))
        self.convert(model, out)
        got = gguf_tensors(out)["per_layer_token_embd.weight"].data
        np.testing.assert_array_equal(got[:90], table)
        np.testing.assert_array_equal(got[90:], np.repeat(table[:1], len(got) - 90, 0))
        self.check_same_text(model, out)

    def test_names_the_output_that_cannot_express_a_model(self):
        """Falcon with one part after the other: GGUF has no norm between them."""
        model, out = self.folder / "falcon", self.folder / "falcon.gguf"
        shutil.copytree(FAMILIES / "falcon", model)
        old = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**old, "new_decoder_architecture": False, "parallel_attn": False, "multi_query": False,
                                                       "num_hidden_layers": 1}))
        width, vocab = old["hidden_size"], old["vocab_size"]
        shapes = {"word_embeddings": (vocab, width), "h.0.self_attention.query_key_value": (3 * width, width), "h.0.self_attention.dense": (width, width),
                  "h.0.mlp.dense_h_to_4h": (4 * width, width), "h.0.mlp.dense_4h_to_h": (width, 4 * width)}
        tensors = {f"transformer.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
        for norm in ("h.0.input_layernorm", "h.0.post_attention_layernorm", "ln_f"):
            tensors.update({f"transformer.{norm}.{kind}": np.ones(width, np.float32) for kind in ("weight", "bias")})
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        done = run("convert", model, out)
        self.assertIn(f"error: what was written cannot be read as a falcon model: {out}", done.stderr)
        self.assertNotIn("/proc/", done.stderr)
        self.assertFalse(out.exists())

    def test_folder_to_gguf(self):
        for model in MODELS + TO_GGUF:
            with self.subTest(model.name):
                out = self.folder / f"{model.name}.gguf"
                report = self.convert(model, out)
                want, got = gguf_tensors(f"{model}.gguf"), gguf_tensors(out)
                if model.name in ("deepseek2", "youtu"):  # early files: keys and values in one matrix
                    for name in [n for n in want if "attn_kv_b" in n]:
                        del want[name]
                        del got[name.replace("kv_b", "k_b")], got[name.replace("kv_b", "v_b")]
                for name in [n for n in want if "gate_up_exps" in n]:  # llama.cpp writes and reads one tensor, and also reads two
                    gate, up = (got.pop(name.replace("gate_up", part)) for part in ("gate", "up"))
                    got[name] = SimpleNamespace(tensor_type=gate.tensor_type, shape=[gate.shape[0], 2 * gate.shape[1], gate.shape[2]],
                                                data=np.concatenate([gate.data, up.data], axis=1))
                self.assertEqual(set(got), set(want))
                for name, t in want.items():
                    shape = list(t.shape)[:1] if name.endswith("exp_probs_b.bias") else list(t.shape)  # converters leave a dimension of 1
                    self.assertEqual((name, got[name].tensor_type, list(got[name].shape)), (name, t.tensor_type, shape))
                    computed = name == "rope_freqs.weight" or name.endswith("ssm_a")
                    if computed or model.name.startswith("falcon_h1"):  # products with factors
                        np.testing.assert_allclose(got[name].data, t.data, rtol=1e-6)
                    else:
                        self.assertEqual(got[name].data.tobytes(), t.data.tobytes(), name)
                self.assertEqual(report["bytes_out"], sum(t["bytes_out"] for t in report["tensors"]))
                self.check_same_text(model, out)

    def test_gguf_to_folder_and_back(self):
        for model in MODELS:
            with self.subTest(model.name):
                out, back = self.folder / model.name, self.folder / f"{model.name}.back.gguf"
                self.convert(f"{model}.gguf", out)
                got = {n.removeprefix("transformer."): x for n, x in folder_tensors(out).items()}
                if "mxfp4" not in model.name:
                    want = {n.removeprefix("transformer."): x for n, x in folder_tensors(model).items()}
                    self.assertEqual(set(got), set(want))
                    for name, x in want.items():
                        self.assertEqual(got[name].shape, x.shape, name)
                        # Gemma's norms lose the last bits of w in 1 + w.
                        np.testing.assert_allclose(got[name], x, rtol=0, atol=1e-7 if model.name.startswith("gemma") else 0)
                reference = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
                ids = json.loads(run("tokenize", out, "--json-lines", stdin=json.dumps(TEXT) + "\n").stdout)
                self.assertEqual(reference.encode(TEXT).ids, ids)
                if model.name in ("gemma3", "deepseek3", "gpt_oss_mxfp4"):
                    self.check_same_text(f"{model}.gguf", out)
                self.convert(out, back)
                first, second = gguf_tensors(f"{model}.gguf"), gguf_tensors(back)
                if model.name != "deepseek2":
                    self.assertEqual(set(first), set(second))

    def test_sentencepiece_vocabulary(self):
        """Scores become merges and merges become scores; the package tokenizers reads the result."""
        source, reader = self.folder / "spm.gguf", GGUFReader(f"{TINY / 'llama'}.gguf")
        count = 400
        pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        types, scores = [2, 3, 3] + [6] * 256, [0.0] * 259
        merged = ["▁t", "he", "▁the", "in", "or", "▁w", "wor", "ld", "▁wor", "▁world", "lo", "el", "He", "▁He", "llo", "▁Hello", "es", "test"]
        words = merged + list("▁abcdefghilnorstuwxHT,.!123") + ["▁▁"]
        words += [f"fill{i}" for i in range(count)]
        for i, word in enumerate(words[:count - len(pieces)]):
            pieces.append(word)
            types.append(1)
            scores.append(float(-i))
        writer = gguf.GGUFWriter(source, "llama")
        for key, field in reader.fields.items():
            if key.startswith("llama."):
                writer.add_key_value(key, count if key.endswith("vocab_size") else field.contents(), field.types[0])
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        for t in reader.tensors:
            writer.add_tensor(t.name, np.resize(t.data, (count, 64)) if t.name in ("token_embd.weight", "output.weight") else t.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        folder, back = self.folder / "spm", self.folder / "back.gguf"
        self.convert(source, folder)
        self.convert(folder, back)
        reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text in (TEXT, "Hello world the test", "  two  spaces", "wor ld", "Hell o"):
            line = json.dumps(text) + "\n"
            ids = [json.loads(run("tokenize", m, "--json-lines", stdin=line).stdout) for m in (source, folder, back)]
            self.assertEqual(ids[0], ids[1], text)
            self.assertEqual(ids[0], ids[2], text)
            self.assertEqual(ids[0], reference.encode(text).ids, text)

    def test_types(self):
        source = gguf_tensors(f"{TINY / 'llama'}.gguf")
        for name in [*EXACT, "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0", "tq2_0"]:
            with self.subTest(name):
                out = self.folder / f"{name}.gguf"
                report = self.convert(f"{TINY / 'llama'}.gguf", out, "--type", name, "--output-type", name)
                got = gguf_tensors(out)
                for t in report["tensors"]:
                    x = source[t["name"]].data
                    back = quants.dequantize(got[t["name"]].data, got[t["name"]].tensor_type).reshape(x.shape)
                    nmse = float(np.sum((x.astype(np.float64) - back) ** 2) / np.sum(x.astype(np.float64) ** 2))
                    self.assertAlmostEqual(t["nmse"], nmse, delta=1e-9 + 1e-6 * nmse)
                    self.assertLess(nmse, 0.4 if name[0] == "t" else 0.02)
                    if x.ndim == 1:
                        self.assertEqual(t["to"], "f32")
                    elif EXACT.get(name) and t["to"] == name:
                        want = quants.quantize(x, EXACT[name])
                        self.assertEqual(got[t["name"]].data.tobytes(), want.tobytes(), t["name"])

    def test_quantised_models_run(self):
        for name in ("q8_0", "q4_0", "q6_k"):
            out = self.folder / f"{name}.gguf"
            self.convert(TINY / "llama", out, "--type", name)
            self.assertEqual(run("run", out, TEXT, "--max-tokens", "4").returncode, 0)
            self.assertEqual(run_json("inspect", out, "--json")["parameters"],
                             run_json("inspect", TINY / "llama", "--json")["parameters"])

    def test_quantised_checkpoint_to_gguf(self):
        for name in ("gptq", "gptq_act_order", "gptq_bits", "awq", "compressed_pack", "fp8_blocks", "bnb_nf4"):
            with self.subTest(name):
                out = self.folder / f"{name}.gguf"
                report = self.convert(FAMILIES / name, out, "--type", "f32")
                self.assertTrue(all(t["to"] == "f32" and t["nmse"] == 0 for t in report["tensors"]))
                self.check_same_text(FAMILIES / name, out)

    def test_report_for_people(self):
        done = run("convert", TINY / "llama", self.folder / "a.gguf", "--type", "q4_0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("f32 -> q4_0", done.stdout)
        self.assertIn("largest errors", done.stdout)

    def test_errors(self):
        llama, out = TINY / "llama", self.folder / "out.gguf"
        out.write_text("mine")
        cases = [
            (("convert", llama, out), 2, "exists; remove it or add --force"),
            (("convert", llama, self.folder / "f", "--type", "q4_0"), 2, "write a .gguf file"),
            (("convert", llama, self.folder / "b.txt"), 2, ".txt files are not written; OUT is a file that ends in .gguf, or a folder"),
            (("convert", llama, self.folder / "b.Safetensors"), 2, ".safetensors files are not written"),
            (("convert", llama, self.folder / "b.gguf", "--type", "q9"), 2, "unknown type q9"),
            (("convert", llama, self.folder / "b.gguf", "--type", "iq2_xs"), 1, "can be read but not written"),
            (("convert", FAMILIES / "opt", self.folder / "b.gguf"), 1, "GGUF has no layout"),
            (("convert", self.folder / "none", self.folder / "b.gguf"), 1, "no such file or folder"),
            # GGUF has no key for it.
            (("convert", TINY / "gemma2_scalar", self.folder / "b.gguf"), 1, "the scale of attention scores"),
            (("convert", TINY / "gemma2_scalar", out, "--force"), 1, "the scale of attention scores"),
            (("convert", TINY / "bert.gguf", self.folder / "f"), 1, "encoders can be converted to GGUF"),
            (("convert", TINY / "modernbert", self.folder / "b.gguf"), 1, "GGUF has no layout"),
            (("convert", TINY / "bert_cross", self.folder / "b.gguf"), 1, "cannot express the activation"),
            (("convert", FAMILIES / "mamba2_groups", self.folder / "b.gguf"), 1, "normalises each group separately"),
            (("convert", FAMILIES / "mamba2_grouped.gguf", self.folder / "f"), 1, "cannot be converted to a folder"),
        ]
        for args, code, message in cases:
            done = run(*args)
            self.assertEqual((done.returncode, message in done.stderr), (code, True), f"{args}: {done.stderr}")
            self.assertEqual(done.stderr.count("\n"), 1)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["out.gguf"])
        self.assertEqual(out.read_text(), "mine")
        self.convert(llama, out, "--force")
        self.convert(out, self.folder / "upper.GGUF")
        self.assertEqual((out.read_bytes()[:4], (self.folder / "upper.GGUF").read_bytes()[:4]), (b"GGUF", b"GGUF"))

    def test_force_into_a_folder(self):
        """Other files stay; tensors of another model would be loaded instead of the new ones."""
        folder = self.folder / "f"
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        self.convert(f"{TINY / 'llama'}.gguf", folder, "--force")
        self.assertEqual((folder / "notes.txt").read_text(), "mine")
        self.check_same_text(TINY / "llama", folder)
        (folder / "model.safetensors.index.json").write_text("{}")
        before = (folder / "model.safetensors").read_bytes()
        done = run("convert", f"{TINY / 'qwen2'}.gguf", folder, "--force")
        self.assertEqual((done.returncode, "tensors of another model" in done.stderr), (2, True), done.stderr)
        self.assertEqual((folder / "model.safetensors").read_bytes(), before)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["f"])

    def test_encoders(self):
        """BERT and Nomic as the converter of llama.cpp writes them; the others are BERT too."""
        for name in ("bert", "nomic", "roberta", "distilbert", "bert_cls"):
            with self.subTest(name):
                out = self.folder / f"{name}.gguf"
                self.convert(TINY / name, out)
                if name in ("bert", "nomic"):
                    want, got = gguf_tensors(f"{TINY / name}.gguf"), gguf_tensors(out)
                    self.assertEqual(set(got), set(want))
                    for n, t in want.items():
                        self.assertEqual(got[n].data.tobytes(), t.data.tobytes(), n)
                one, two = (run("tokenize", model, TEXT) for model in (TINY / name, out))
                self.assertEqual((one.stdout, one.returncode), (two.stdout, two.returncode), two.stderr)
                if "_c" in name:
                    continue
                one, two = (json.loads(run("embed", model, "Hello 1", "--json", "--no-normalize").stdout)["embedding"] for model in (TINY / name, out))
                np.testing.assert_allclose(one, two, atol=1e-6)
        rows = [json.loads(line) for line in run("embed", TINY / "bert", "Hello", "1", "--similarity", "--json").stdout.splitlines()]
        self.assertEqual([row["text"] for row in rows], ["Hello", "1"])
        np.testing.assert_allclose([rows[0]["similarity"][0], rows[1]["similarity"][0]], [1, rows[0]["similarity"][1]], atol=1e-5)

    def test_recurrent(self):
        """As llama.cpp's converter writes them: decays instead of their logarithms."""
        for name in ("mamba2", "qwen3next", "qwen3next_even"):
            with self.subTest(name):
                out = self.folder / f"{name}.gguf"
                self.convert(FAMILIES / name, out)
                want, got = gguf_tensors(f"{FAMILIES / name}.gguf"), gguf_tensors(out)
                self.assertEqual(set(got), set(want))
                for n, t in want.items():
                    self.assertEqual((n, got[n].tensor_type, list(got[n].shape)), (n, t.tensor_type, list(t.shape)))
                    np.testing.assert_allclose(got[n].data, t.data, rtol=1e-6 if n.endswith("ssm_a") else 0)
                self.check_same_text(FAMILIES / name, out)
                folder = self.folder / name
                self.convert(f"{FAMILIES / name}.gguf", folder)
                want, got = folder_tensors(FAMILIES / name), folder_tensors(folder)
                self.assertEqual(set(got), set(want))
                for n, x in want.items():  # norms of Qwen3-Next lose the last bits of w in 1 + w
                    self.assertEqual(got[n].shape, x.shape, n)
                    np.testing.assert_allclose(got[n], x, rtol=0, atol=3e-7 if n.endswith(("A_log", "norm.weight")) else 0)
                self.check_same_text(FAMILIES / name, folder)
                small = self.folder / f"{name}.q8_0.gguf"  # what is no matrix stays f32
                self.convert(out, small, "--type", "q8_0")
                for n, t in gguf_tensors(small).items():
                    if any(part in n for part in (".ssm_a", ".ssm_d", ".ssm_conv1d")):
                        self.assertEqual(t.tensor_type, T.F32, n)

    def test_interrupt_leaves_nothing(self):
        """A model with one large tensor; the interrupt comes while it is encoded."""
        big = self.folder / "big.gguf"
        w = gguf.GGUFWriter(big, "llama")
        for i in range(24):
            w.add_tensor(f"blk.{i}.ffn_up.weight", np.random.default_rng(i).normal(size=(512, 2048)).astype(np.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        process = subprocess.Popen([BINARY, "convert", big, self.folder / "small.gguf", "--type", "q2_k", "--threads", "1"],
                                   stderr=subprocess.PIPE, text=True)
        used = 0  # ticks of processor time: it is encoding when it has used some
        while used < 20 and process.poll() is None:
            used = int(pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGINT, errors)
        self.assertIn("nothing was written", errors)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["big.gguf"])


if __name__ == "__main__":
    unittest.main()
