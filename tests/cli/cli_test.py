#!/usr/bin/env python3
"""The command line from outside: what scripts rely on, and what happens when input is wrong."""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from tokamak import BINARY, FAMILIES, SOURCE, TINY, run, run_json

LLAMA = TINY / "llama.gguf"


class Help(unittest.TestCase):
    def test_every_verb_has_help_with_an_example(self):
        verbs = [[]]
        for verb in verbs:
            done = run(*verb, "--help")
            self.assertEqual(done.returncode, 0, verb)
            self.assertIn("Example", done.stdout, verb)
            self.assertIn("tokamak " + " ".join(verb), done.stdout.split("Example")[1], verb)
            _, _, rows = done.stdout.partition("Subcommands:\n")
            verbs += [verb + [row.split()[0]] for row in rows.split("\n\n")[0].splitlines() if row.startswith("  ") and row[2] != " "]
        self.assertIn(["eval", "perplexity"], verbs)
        self.assertIn(["rag", "ask"], verbs)

    def test_what_is_not_known_is_named(self):
        for args, line in ((["srve"], "tokamak has no verb srve (did you mean serve?); see tokamak --help"),
                           (["help", "run"], "tokamak has no verb help; see tokamak --help"),
                           (["bench", "latncy", "x"], "tokamak bench has no verb latncy (did you mean latency?); see tokamak bench --help"),
                           (["run", LLAMA, "x", "--max-token", "5"],
                            "tokamak run has no flag --max-token (did you mean --max-tokens?); see tokamak run --help"),
                           (["run", "--temprature=0"], "tokamak run has no flag --temprature (did you mean --temperature?); see tokamak run --help"),
                           (["run", LLAMA, "x", "-q"], "tokamak run has no flag -q; see tokamak run --help"),
                           (["run", LLAMA, "two", "words"], "tokamak run has no argument words; see tokamak run --help"),
                           (["run", LLAMA], "PROMPT is required; see tokamak run --help")):
            done = run(*args)
            self.assertEqual((done.returncode, done.stderr), (2, f"error: {line}\n"), args)

    def test_usage_errors(self):
        for args in ([], ["fly"], ["run"], ["run", LLAMA], ["run", LLAMA, "x", "--temperature", "hot"],
                     ["run", LLAMA, "x", "--backend", "abacus"], ["bench"], ["rag", "ask", TINY, "x", "-m", LLAMA, "--max-tokens", "5"]):
            self.expect_usage_error(*args)
        self.assertIn("--help is not a value", run("compile", LLAMA, "-o", "--help").stderr)

    def test_bad_numbers(self):
        for flag, values in (("--max-tokens", ("-1", "1e3", "99999999999999")), ("--temperature", ("nan", "-1", "inf", "2.5")),
                             ("--top-p", ("1.5", "-1")), ("--top-k", ("-2", "x")), ("--repetition-penalty", ("0", "11")),
                             ("--presence-penalty", ("3",)), ("--typical-p", ("2",)), ("--top-n-sigma", ("-2",)),
                             ("--xtc-probability", ("1.5",)), ("--xtc-threshold", ("-1",)), ("--dynatemp-range", ("6",)),
                             ("--dynatemp-exponent", ("-1",)), ("--min-tokens", ("-1",)), ("--repeat-last-n", ("-2",)),
                             ("--threads", ("-1", "x")), ("--context", ("-5", "99999999999")), ("--frob", ("1",))):
            for value in values:
                self.expect_usage_error("run", LLAMA, "x", flag, value)
        self.expect_usage_error("run", TINY / "gpt2.gguf", "x", "--context", "1000")  # learned positions end

    def test_ranges_are_named(self):
        self.assertIn("temperature is 2.5, but must be from 0 to 2", run("run", LLAMA, "x", "--temperature", "2.5").stderr)
        # One check for CLI and API, so that both say the same (src/api/api_test.cc).
        for flag, value, line in (("--threads", "-1", "threads is -1, but must be from 0 to 1024"),
                                  ("--context", "-5", "context is -5, but must be from 0 to 16777216"),
                                  ("--shapes", "round", 'shapes "round" is unknown; use auto, dynamic, buckets, fixed'),
                                  ("--kv-dtype", "f12", 'kv_dtype "f12" is unknown; use f16, f32, int8'),
                                  ("--buckets", "0,8", "a bucket is 0, but must be from 1 to 1048576"),
                                  ("--buckets", "8", "buckets have no effect without shapes buckets or fixed"),
                                  ("--system", "Be brief.", "--system requires --chat"),
                                  ("--chat-template", __file__, "--chat-template requires --chat"),
                                  ("--gpu-memory-utilization", "2", "gpu_memory_utilization is 2, but must be from 0 to 1"),
                                  ("--seed", "18446744073709551616", "18446744073709551616: a seed is a whole number from 0 to 18446744073709551615"),
                                  ("--seed", "-1", "-1: a seed is a whole number from 0 to 18446744073709551615"),
                                  ("--speculate", "magic", 'the method "magic" is unknown')):
            done = run("run", LLAMA, "x", flag, value)
            self.assertEqual(done.returncode, 2)
            self.assertIn(line, done.stderr)

    def test_samplers_that_leave_one_token(self):
        def ids(*flags):
            return run_json("run", LLAMA, "the quick", "--max-tokens", "8", "--ignore-eos", "--json", *flags)["ids"]
        greedy = ids("--temperature", "0")
        self.assertNotEqual(ids("--seed", "5"), greedy)
        self.assertEqual(ids("--seed", "5", "--top-n-sigma", "0.001"), greedy)
        self.assertEqual(ids("--seed", "5", "--top-k", "1", "--dynatemp-range", "0.5", "--typical-p", "0.9"), greedy)
        self.assertNotEqual(ids("--temperature", "0.01", "--xtc-probability", "1", "--xtc-threshold", "0.0001"), greedy)
        penalty = ("--temperature", "0", "--repetition-penalty", "9")
        self.assertNotEqual(ids(*penalty), ids(*penalty, "--repeat-last-n", "1"))

    def expect_usage_error(self, *args):
        done = run(*args)
        self.assertEqual(done.returncode, 2, args)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z", args)


class Run(unittest.TestCase):
    def test_json_has_the_promised_fields(self):
        out = run_json("run", LLAMA, "hello", "--temperature", "0", "--max-tokens", "8", "--ignore-eos", "--json")
        self.assertEqual(sorted(out), ["finish_reason", "ids", "prompt_ids", "text", "timings"])
        self.assertEqual(out["finish_reason"], "length")
        self.assertEqual(len(out["ids"]), 8)
        self.assertTrue(all(isinstance(i, int) for i in out["prompt_ids"] + out["ids"]))

    def test_backends_agree(self):
        args = ("run", LLAMA, "the quick brown", "--temperature", "0", "--max-tokens", "12", "--json", "--activations", "f32")
        self.assertEqual(run_json(*args, "--backend", "cpu")["ids"], run_json(*args, "--backend", "ref")["ids"])

    def test_storage_types(self):
        args = ("run", LLAMA, "the quick", "--temperature", "0", "--max-tokens", "4", "--ignore-eos", "--json")
        self.assertEqual(len(run_json(*args, "--backend", "ref", "--storage", "bf16,residual=f32")["ids"]), 4)
        self.assertEqual(run_json(*args, "--storage", "f32")["ids"], run_json(*args)["ids"])
        for flags, message in ((("--storage", "bf16"), "backend cpu has no kernel that stores embed as bf16"),
                               (("--backend", "ref", "--storage", "i8"), "\"i8\" is not a type")):
            done = run(*args, *flags)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
            self.assertIn(message, done.stderr)

    def test_a_seed_repeats_and_threads_do_not_matter(self):
        def ids(seed, threads):
            return run_json("run", LLAMA, "abc", "--seed", seed, "--threads", threads, "--max-tokens", "24", "--ignore-eos", "--json")["ids"]
        self.assertEqual(ids(5, 1), ids(5, 2))
        self.assertNotEqual(ids(5, 1), ids(6, 1))

    def test_dola_and_contrastive_search(self):
        def ids(*args):
            return run_json("run", LLAMA, "the quick brown", "--temperature", "0", "--max-tokens", "12", "--ignore-eos", "--json", *args)["ids"]
        self.assertEqual(len(ids("--dola", "0,1")), 12)
        self.assertEqual(ids("--penalty-alpha", "0.6", "--top-k", "4"), ids("--penalty-alpha", "0.6", "--top-k", "4", "--seed", "7"))
        self.assertIn('dola is \'x\', but must be "low", "high" or numbers of layers', run("run", LLAMA, "x", "--dola", "x").stderr)
        self.assertIn("set a top_k of 2 or more", run("run", LLAMA, "x", "--penalty-alpha", "0.6").stderr)

    def test_text_output_and_standard_input(self):
        plain = run("run", LLAMA, "-", "--temperature", "0", "--max-tokens", "6", stdin="hello")
        self.assertEqual(plain.returncode, 0, plain.stderr)
        text = run_json("run", LLAMA, "hello", "--temperature", "0", "--max-tokens", "6", "--json")["text"]
        self.assertEqual(plain.stdout, text + "\n")

    def test_null_backend_runs_nothing_but_everything_else(self):
        out = run_json("run", LLAMA, "hello", "--backend", "null", "--max-tokens", "5", "--ignore-eos", "--json")
        self.assertEqual(len(out["ids"]), 5)

    def test_every_architecture_runs_from_both_formats(self):
        for golden in sorted((SOURCE / "tests/golden/numerics").glob("*.json")):
            model = json.loads(golden.read_text())
            paths = [TINY / model["model"]] + ([TINY / (model["model"] + ".gguf")] if model["gguf"] else [])
            ids = [run_json("run", p, "hello world", "--temperature", "0", "--max-tokens", "4", "--json")["ids"] for p in paths]
            self.assertTrue(all(i == ids[0] for i in ids), golden.stem)

    def test_recurrent_models(self):
        def ids(*args):
            return run_json("run", *args, "--temperature", "0", "--max-tokens", "12", "--ignore-eos", "--json")["ids"]
        want = ids(FAMILIES / "mamba2", "hello world")
        self.assertEqual(ids(FAMILIES / "mamba2.gguf", "hello world"), want)
        self.assertEqual(ids(FAMILIES / "mamba2", "hello world", "--backend", "ref"), want)
        self.assertEqual(len(ids(FAMILIES / "mamba2", "hello world", "--backend", "null")), 12)
        facts = run_json("inspect", FAMILIES / "mamba2", "--json")
        # 3 layers: 3 rows of 136 channels, and 6 heads of 16 x 20 numbers
        self.assertEqual((facts["kv_bytes_per_token"], facts["state_bytes_per_sequence"]), (0, 3 * 4 * (3 * 136 + 6 * 16 * 20)))
        self.assertEqual(set(facts["kv_bytes_by_context"].values()), {facts["state_bytes_per_sequence"]})
        self.assertIn("states 27.9 kB per sequence", run("inspect", FAMILIES / "mamba2").stdout)
        done = run("serve", FAMILIES / "mamba2", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*without recurrent layers[^\n]*\n\Z")

    def test_devices(self):
        self.assertIsInstance(run_json("inspect", "--devices", "--json")["devices"], list)  # also where there is no GPU

    def test_families(self):
        families = {f["architecture"]: f for f in run_json("inspect", "--families", "--json")}
        self.assertEqual(families["mixtral"]["model_types"], "mixtral")
        self.assertEqual((families["opt"]["gguf"], families["deepseek2"]["gguf"]), (False, True))
        text = run("inspect", "--families").stdout.splitlines()
        self.assertEqual(len(text), len(families) + 1)
        experts = run_json("inspect", FAMILIES / "deepseek3.gguf", "--json")
        self.assertEqual(experts["experts"], {"count": 8, "per_token": 3, "ffn": 32, "shared_ffn": 32, "layers": 1})
        self.assertEqual(experts["kv_bytes_per_token"], 2 * 2 * (24 + 8))  # layers, bytes, latent and rotated part
        for name in ("deepseek2", "gpt_oss_mxfp4.gguf", "mixtral.gguf"):
            out = run_json("run", FAMILIES / name, "hello world", "--max-tokens", "3", "--ignore-eos", "--json")
            self.assertEqual(len(out["ids"]), 3)

    def test_modules_of_sentence_transformers_that_are_not_supported(self):
        decoder = {**json.loads((TINY / "embeddinggemma" / "config.json").read_text()), "use_bidirectional_attention": False}
        cases = (("embeddinggemma", "config.json", decoder, "Dense modules of a decoder are not supported"),
                 ("bert", "1_Pooling/config.json", {"pooling_mode": "max"}, r'1_Pooling/config.json: pooling "max" is not supported'),
                 ("bert", "modules.json", [{"path": "2_Dense", "type": "models.Dense"}], "a Dense module before the pooling is not supported"))
        for name, file, value, message in cases:
            with tempfile.TemporaryDirectory() as folder:
                model = shutil.copytree(TINY / name, pathlib.Path(folder) / name)
                (model / file).write_text(json.dumps(value))
                self.assertRegex(run("embed", model, "hello").stderr, r"\Aerror: [^\n]*" + message + r"[^\n]*\n\Z")

    def test_inspect_says_what_a_file_is_and_what_would_help(self):
        import gguf
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.bin"
            for start, message in ((b"PK\x03\x04", "save_pretrained()"), (b"tjgg\x01", "get the model as GGUF"),
                                   (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
                                   (b"<!DOCTYPE html>", "a web page"), (b"\x1f\x8b\x08", "unpack it first"), (b"xyz", "not a GGUF file")):
                path.write_bytes(start + bytes(100))
                done = run("inspect", path)
                self.assertEqual((done.returncode, message in done.stderr, done.stderr.count("\n")), (1, True, 1), done.stderr)
            for name, needs in (("rwkv7", "recurrent layers"), ("qwen3-moe", "did you mean qwen3_moe"), ("gpt_refact", "a table of tensor names"), ("mistral4", "latent attention"), ("t5", "cross-attention"), ("new", "supported: llama")):
                writer = gguf.GGUFWriter(path, name)
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.close()
                done = run("inspect", path)
                self.assertEqual((done.returncode, needs in done.stderr, done.stderr.count("\n")), (1, True, 1), done.stderr)

    def test_an_answer_ends_with_the_context(self):
        out = run_json("run", LLAMA, "abc", "--max-tokens", "500", "--ignore-eos", "--json")
        self.assertEqual((len(out["prompt_ids"]) + len(out["ids"]), out["finish_reason"]), (64, "length"))
        none = run_json("run", LLAMA, "abc", "--max-tokens", "0", "--json")
        self.assertEqual((none["ids"], none["text"], none["finish_reason"]), ([], "", "length"))

    def test_closed_output_ends_the_answer(self):
        for args in (["run", LLAMA, "abc"], ["run", LLAMA, "abc", "--json"], ["inspect", LLAMA, "--graph"], ["run", "--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BINARY, *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (1, "error: cannot write to standard output\n"))

    def test_a_prompt_beyond_the_context_is_refused(self):
        done = run("run", LLAMA, "a" * 500, "--context", "16", "--max-tokens", "4")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertIn("16", done.stderr)

    def test_rounded_activations_need_kernels(self):
        for kind, why in *((k, r": .* has no kernel[^\n]+; use auto or f32") for k in ("bf16", "i16")), ("mixed", " needs a CPU with AMX; the backend is ref: use auto"):
            done = run("run", LLAMA, "x", "--activations", kind, "--backend", "ref")
            self.assertRegex(f"{done.returncode} {done.stderr}", rf"\A1 error: --activations {kind}{why}\n\Z")


class Evaluate(unittest.TestCase):
    def test_perplexity_agrees_between_backends(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("".join(random.Random(1).choice("abcdefgh ") for _ in range(800)))
            out = {b: run_json("eval", "perplexity", LLAMA, text, "--window", "32", "--tokens", "384", "--json", "--backend", b)
                   for b in ("cpu", "ref")}
        self.assertEqual(sorted(out["cpu"]), ["nll", "ppl", "scored", "tokens_per_second"])
        self.assertEqual(out["cpu"]["scored"], 12 * 15)
        self.assertAlmostEqual(out["cpu"]["nll"], out["ref"]["nll"], places=4)
        self.assertAlmostEqual(math.exp(out["cpu"]["nll"]), out["cpu"]["ppl"], places=6)
        self.assertGreater(out["cpu"]["tokens_per_second"], 0)

    def test_bench_throughput(self):
        r = run_json("bench", "throughput", LLAMA, "--requests", "10", "--prompt", "20", "--prefix", "16", "--output", "5", "--json")
        self.assertEqual((r["requests"], r["prompt_tokens"], r["completion_tokens"], r["preemptions"]), (10, 200, 50, 0))
        self.assertGreater(r["cached_tokens"], 0)
        self.assertAlmostEqual(r["output_tokens_per_second"], 50 / r["seconds"], places=3)
        self.assertGreater(r["sequences_per_step"], 1)

    def test_bench_rows(self):
        rows = run_json("bench", "latency", LLAMA, "--prompt", "16", "--gen", "4", "--threads", "1,2", "--repeat", "2", "--json")
        self.assertEqual([r["threads"] for r in rows], [1, 2])
        long = run_json("bench", "latency", LLAMA, "--backend", "null", "--prompt", "70000", "--gen", "1", "--repeat", "1", "--json")
        self.assertEqual(long[0]["prompt"], 70000)
        for r in rows:
            self.assertGreater(r["prefill_tokens_per_second"], 0)
            self.assertGreaterEqual(r["decode_tokens_per_second_best"], r["decode_tokens_per_second"])


class Inspect(unittest.TestCase):
    def test_numbers(self):
        out = run_json("inspect", LLAMA, "--json")
        self.assertEqual(out["architecture"], "llama")
        self.assertEqual(out["kv_bytes_per_token"], 2 * 2 * out["layers"] * out["kv_heads"] * out["head_dim"])

    def test_tensors(self):
        self.assertEqual([run("inspect", LLAMA, "--json", flag).returncode for flag in ("--fn=step", "--graph", "--plan")], [2] * 3)
        out = run_json("inspect", LLAMA, "--json", "--tensors")
        self.assertEqual(sum(t["bytes"] for t in out["tensors"]), out["weight_bytes"])
        self.assertIn({"name": "output_norm.weight", "type": "f32", "shape": [64], "bytes": 256}, out["tensors"])

    def test_quantized_folders(self):
        out = run_json("inspect", FAMILIES / "gptq", "--json")
        plain = run_json("inspect", FAMILIES / "gptq.decoded", "--json")
        self.assertEqual(out["parameters"], plain["parameters"])
        codes = out["types"]["int4_g128"]
        self.assertEqual((codes["tensors"], codes["bytes"]), (14, codes["parameters"] // 128 * 67))
        self.assertLess(out["weight_bytes"], plain["weight_bytes"] * 0.4)
        for name in ("awq", "gptq_act_order", "fp8_blocks", "bnb_nf4"):
            out = run_json("run", FAMILIES / name, "hello world", "--max-tokens", "3", "--ignore-eos", "--json")
            self.assertEqual(len(out["ids"]), 3)

    def test_graph_text(self):
        whole = run("inspect", LLAMA, "--graph")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertIn("attend(", whole.stdout)
        decode = run("inspect", LLAMA, "--graph", "--fn", "decode").stdout
        self.assertIn("decode", decode)
        self.assertNotIn("t=T", decode)
        with tempfile.TemporaryDirectory() as folder:  # what is printed can be read again
            path = os.path.join(folder, "decode.tkg")
            with open(path, "w") as f:
                f.write(decode)
            again = run("debug", "opt", path)
            self.assertEqual((again.returncode, again.stderr), (0, ""))
            self.assertIn("func decode", again.stdout)

    def test_plan_text(self):
        self.assertIn("decode", run("inspect", LLAMA, "--plan").stdout)


class BadInput(unittest.TestCase):
    def expect_one_clear_line(self, path, *words):
        for verb in (["run", path, "x", "--max-tokens", "1"], ["inspect", path]):
            done = run(*verb)
            self.assertIn(done.returncode, (1, 2), (verb, done.returncode, done.stderr))
            lines = done.stderr.strip().splitlines()
            self.assertEqual(len(lines), 1, done.stderr)
            self.assertTrue(lines[0].startswith("error: "), lines)
            for word in words:
                self.assertIn(word, lines[0])

    def test_wrong_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            self.expect_one_clear_line(pathlib.Path(folder) / "nothing.gguf", "nothing.gguf")
            self.expect_one_clear_line(folder)
            empty = pathlib.Path(folder) / "empty.gguf"
            empty.touch()
            self.expect_one_clear_line(empty)

    def test_what_is_not_a_file(self):
        self.expect_one_clear_line("/dev/zero", "not a regular file")
        with tempfile.TemporaryDirectory() as folder:
            pipe = pathlib.Path(folder) / "pipe.gguf"
            os.mkfifo(pipe)
            self.expect_one_clear_line(pipe, "not a regular file")
            os.mkfifo(pathlib.Path(folder) / "config.json")
            self.expect_one_clear_line(folder)

    def changed_folder(self, folder, **files):
        """A copy of a tiny model with some files replaced; None removes one."""
        copy = pathlib.Path(folder) / "model"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(TINY / "llama", copy)
        for name, text in files.items():
            path = copy / name.replace("__", ".")
            path.unlink() if text is None else path.write_text(text)
        return copy

    def test_folders(self):
        config = json.loads((TINY / "llama" / "config.json").read_text())
        cases = [({"num_hidden_layers": 10**9}, "layers"), ({"num_hidden_layers": -1}, "layers"),
                 ({"vocab_size": 129}, "shape"), ({"hidden_size": "64"}, "hidden_size"), ({"rms_norm_eps": 1e308}, "epsilon"),
                 ({"model_type": "rwkv"}, "needs recurrent layers"), ({"model_type": "Qwen3MoE"}, "did you mean qwen3_moe"), ({"model_type": "xyz"}, "supported: llama"), ({"num_key_value_heads": 3}, "heads"),
                 ({"quantization_config": {"quant_method": "hqq"}}, "hqq are not supported; supported: gptq"),
                 ({"layer_types": [[[]]], "model_type": "qwen3", "use_sliding_window": True}, "layer_types")]
        with tempfile.TemporaryDirectory() as folder:
            for change, word in cases:
                path = self.changed_folder(folder, config__json=json.dumps({**config, **change}))
                self.expect_one_clear_line(path, word)
            self.expect_one_clear_line(self.changed_folder(folder, config__json='{"a":' * 9999 + "1" + "}" * 9999), "nested")
            for place in ("../other.safetensors", "/etc/passwd", "missing.safetensors", "..", "."):
                path = self.changed_folder(folder)
                (path / "model.safetensors").rename(path / "a.safetensors")
                index = {"weight_map": {"model.norm.weight": place}}
                (path / "model.safetensors.index.json").write_text(json.dumps(index))
                self.expect_one_clear_line(path)
            done = run("run", self.changed_folder(folder, tokenizer__json=None), "x", "--max-tokens", "1")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "no tokenizer.json.*save_pretrained")

    def test_damaged_folders(self):
        rng = random.Random(11)
        with tempfile.TemporaryDirectory() as folder:
            for name, reach in (("config.json", 400), ("model.safetensors", 2000)) * 20:
                path = self.changed_folder(folder)
                data = bytearray((path / name).read_bytes())
                for _ in range(rng.randint(1, 3)):
                    at = rng.randrange(min(reach, len(data)))
                    data[at:at + rng.randrange(3)] = rng.choice([b"", b"9", b"-", b"\xff\n", b"[", b"1e99", b"\x00" * 8])
                (path / name).write_bytes(data)
                self.expect_answer_or_one_line(path)

    def expect_answer_or_one_line(self, path):
        done = run("run", path, "x", "--max-tokens", "1")
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        if done.returncode != 0:
            self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")

    def test_truncated_and_damaged_files(self):
        data = LLAMA.read_bytes()
        rng = random.Random(7)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "damaged.gguf"
            for cut in (3, 4, 20, 200, len(data) // 2, len(data) - 1):
                path.write_bytes(data[:cut])
                self.expect_one_clear_line(path)
            for _ in range(40):  # flips in the header: an answer or one line, never a signal
                bad = bytearray(data)
                for _ in range(rng.randint(1, 4)):
                    bad[rng.randrange(4096)] = rng.randrange(256)
                path.write_bytes(bad)
                self.expect_answer_or_one_line(path)

    def test_a_header_that_claims_the_moon(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "moon.gguf"
            path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") + (1 << 61).to_bytes(8, "little"))
            self.expect_one_clear_line(path)


class Tokenize(unittest.TestCase):
    def test_round_trip(self):
        lines = [json.dumps(s) for s in ["hello", "", "the quick brown fox", "two\nlines"]]
        ids = run("tokenize", LLAMA, "--json-lines", "--no-special", stdin="\n".join(lines) + "\n")
        self.assertEqual(ids.returncode, 0, ids.stderr)
        back = run("tokenize", LLAMA, "--decode", stdin=ids.stdout)
        self.assertEqual([json.loads(x) for x in back.stdout.splitlines()], [json.loads(x) for x in lines])

    def test_bad_lines_name_the_line(self):
        done = run("tokenize", LLAMA, "--json-lines", stdin='"fine"\n{"not": "a string"}\n')
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 2", done.stderr)
        done = run("tokenize", LLAMA, "--decode", stdin="[1]\n[2, 128]\n")
        self.assertEqual((done.returncode, done.stderr), (2, "error: line 2: 128 is not a token id: this vocabulary has 128\n"))

    def test_an_empty_text_is_not_standard_input(self):
        self.assertEqual(run("tokenize", LLAMA, "", stdin="hello").stdout, run("tokenize", LLAMA, stdin="").stdout)
        self.assertEqual(run("tokenize", LLAMA, "--decode", "[75, 76]").stdout, run("tokenize", LLAMA, "--decode", stdin="[75, 76]").stdout)


class Template(unittest.TestCase):
    def render(self, source, context):
        with tempfile.TemporaryDirectory() as folder:
            template, ctx = pathlib.Path(folder) / "t.jinja", pathlib.Path(folder) / "c.json"
            template.write_text(source)
            ctx.write_text(json.dumps(context))
            return run("template", template, "--context", ctx, "--now", "2026-11-15T12:30:45")

    def test_renders_and_nothing_else(self):
        done = self.render("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ strftime_now('%Y-%m-%d') }}",
                           {"messages": [{"role": "user", "content": "hi"}]})
        self.assertEqual((done.returncode, done.stdout), (0, "[user] hi\n2026-11-15"), done.stderr)

    def test_a_raising_template_exits_with_1_and_its_line(self):
        done = self.render("one\n{{ raise_exception('no system role') }}", {})
        self.assertEqual(done.returncode, 1)
        self.assertIn("no system role", done.stderr)
        self.assertIn("line 2", done.stderr)

    def test_a_folder_with_named_templates(self):
        def picked(context, *flags):
            with tempfile.TemporaryDirectory() as folder:
                model, ctx = pathlib.Path(folder), pathlib.Path(folder) / "c.json"
                (model / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
                (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": [
                    {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T{{ tools|length }}"},
                    {"name": "rag", "template": "R"}]}))
                ctx.write_text(json.dumps({"messages": [], **context}))
                done = run("template", model, "--context", ctx, *flags)
                return done.stdout if done.returncode == 0 else done.stderr
        self.assertEqual(picked({}), "D")
        self.assertEqual(picked({"tools": [{}]}), "T1")
        self.assertEqual(picked({"tools": [{}]}, "--template-name", "rag"), "R")
        self.assertEqual(picked({"tools": [{}]}, "--name", "default"), "D")
        self.assertIn("available: default tool_use rag", picked({}, "--template-name", "x"))


class Serve(unittest.TestCase):
    def test_ready_line_health_and_sigterm(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen([BINARY, "serve", LLAMA, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        try:
            deadline, seen = time.time() + 60, ""
            while f"http://127.0.0.1:{port}" not in seen and time.time() < deadline:
                seen += server.stdout.readline()
            self.assertIn(f"http://127.0.0.1:{port}", seen)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as r:
                self.assertEqual(r.status, 200)
            models = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10))
            body = json.dumps({"model": models["data"][0]["id"], "prompt": "hello", "max_tokens": 4, "temperature": 0,
                               "ignore_eos": True}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
            out = json.load(urllib.request.urlopen(request, timeout=30))
            self.assertEqual(out["usage"]["completion_tokens"], 4)
            expected = run_json("run", LLAMA, "hello", "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--json")
            self.assertEqual(out["choices"][0]["text"], expected["text"])
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(timeout=20), 0)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
