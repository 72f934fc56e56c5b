#!/usr/bin/env python3
"""Bundles, the compile cache, eager mode and shapes from outside."""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from tokamak import BINARY, TINY, run, run_json

LLAMA = TINY / "llama.gguf"
ASK = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos", "--json")


def run_in(env, *args, preexec=None, timeout=120):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=timeout, preexec_fn=preexec,
                          restore_signals=False, env={**os.environ, **{k: str(v) for k, v in env.items()}})


class Folder(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.holder.name)
        self.cache = self.folder / "cache"
        os.environ["TOKAMAK_CACHE"] = str(self.cache)

    def tearDown(self):
        del os.environ["TOKAMAK_CACHE"]
        self.holder.cleanup()

    def compile(self, model, *flags, name="model.tkm"):
        out = self.folder / name
        report = run_json("compile", model, "-o", out, *flags, "--json")
        self.assertEqual(report["file_bytes"], out.stat().st_size)
        return out

    def refused(self, *args, code=1):
        done = run(*args)
        self.assertEqual(done.returncode, code, (args, done.stderr))
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z", args)
        return done.stderr


class Bundles(Folder):
    def test_every_architecture_says_the_same_from_a_bundle(self):
        for model in (LLAMA, TINY / "gemma3.gguf", TINY / "qwen3", TINY / "phi3", TINY / "gpt2"):
            bundle = self.compile(model)
            want = run_json("run", model, "hello there", *ASK)
            got = run_json("run", bundle, "hello there", *ASK)
            self.assertEqual((got["ids"], got["text"]), (want["ids"], want["text"]), model)

    def test_no_model_source_and_no_compiler(self):
        bundle = self.compile(LLAMA)
        self.assertFalse(self.cache.exists())  # compile neither reads nor fills the cache
        done = run_in({"TOKAMAK_LOGS": "recompiles"}, "run", bundle, "hello", *ASK)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("compiled", done.stderr)
        self.assertFalse(self.cache.exists())

    def test_every_verb_takes_a_bundle(self):
        bundle = self.compile(LLAMA)
        text = self.folder / "text.txt"
        text.write_text("hello world " * 40)
        want = run_json("eval", "perplexity", LLAMA, text, "--window", "16", "--json")
        self.assertEqual(run_json("eval", "perplexity", bundle, text, "--window", "16", "--json")["nll"], want["nll"])
        self.assertGreater(run_json("bench", "latency", bundle, "--prompt", "8", "--gen", "2", "--repeat", "1", "--json")[0]
                           ["decode_tokens_per_second"], 0)
        self.assertEqual(run("tokenize", bundle, "hello").stdout, run("tokenize", LLAMA, "hello").stdout)
        info = run_json("inspect", bundle, "--json")
        self.assertEqual([s["name"] for s in info["sections"]],
                         ["weights", "index", "plans", "tokenizer", "graph", "meta"])
        self.assertIn("limits", run("inspect", bundle).stdout)
        self.assertIn("step", run("inspect", bundle, "--graph").stdout)
        self.assertIn("plan decode", run("inspect", bundle, "--plan").stdout)
        self.assertIn("tensors of a bundle cannot be listed", run("inspect", bundle, "--tensors").stderr)

    def test_limits_are_named(self):
        bundle = self.compile(LLAMA, "--max-len", "32", "--max-batch", "2")
        self.assertIn("--max-len 32", self.refused("run", bundle, "x " * 60, *ASK))
        self.assertIn("limit of 32", self.refused("run", bundle, "x", "--context", "33", *ASK))
        self.assertIn("limit of 2", self.refused("bench", "latency", bundle, "--prompt", "4", "--gen", "2", "--batch", "3"))
        self.assertEqual(len(run_json("run", bundle, "x", *ASK[:2], "--max-tokens", "999", "--ignore-eos", "--json")["ids"]
                             + run_json("run", bundle, "x", *ASK)["prompt_ids"]), 32)
        self.assertIn("kv-dtype was fixed", self.refused("run", bundle, "x", "--kv-dtype", "f32", code=2))
        self.assertIn("mode was fixed", self.refused("run", bundle, "x", "--mode", "eager", code=2))
        self.assertIn("--backend cpu", self.refused("run", bundle, "x", "--backend", "ref"))

    def test_serve_from_a_bundle(self):
        bundle = self.compile(LLAMA, "--max-len", "256", "--shapes", "buckets")
        server = subprocess.Popen([BINARY, "serve", str(bundle), "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            url = ""
            while not url:
                line = server.stdout.readline()
                self.assertTrue(line)
                url = line.split("ready at ")[1].split()[0] if "ready at" in line else ""

            def ask(tokens, n):
                body = json.dumps({"model": "model", "prompt": [rng.randint(3, 90) for _ in range(tokens)], "max_tokens": n, "ignore_eos": True}).encode()
                request = urllib.request.Request(url + "/v1/completions", body, {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as r:
                    return json.load(r)

            def metrics():
                text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
                value = {}
                for line in text.splitlines():
                    if line and line[0] != "#":
                        name = line.rsplit(" ", 1)[0] if "tokamak_plan_steps_total" in line else re.split("[{ ]", line)[0]
                        value[name] = float(line.rsplit(" ", 1)[1])
                return value

            rng = random.Random(3)
            ask(3, 2)
            warm = metrics()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:  # shapes of every kind
                list(pool.map(lambda _: ask(rng.randint(1, 200), rng.randint(1, 8)), range(24)))
            with self.assertRaises(urllib.error.HTTPError) as refused:
                ask(257, 1)
            self.assertEqual(refused.exception.code, 400)
            with refused.exception:
                self.assertIn("256", refused.exception.read().decode())
            value = metrics()
            self.assertEqual(value["tokamak_compiles_total"] - warm["tokamak_compiles_total"], 0)
            self.assertEqual(value["tokamak_compiles_total"], 0)
            self.assertEqual(value["tokamak_plan_fallbacks_total"], 0)
            self.assertGreater(value["tokamak_plan_padded_rows_total"], 0)
            rows = value["tokamak_plan_rows_total"] - warm["tokamak_plan_rows_total"]
            self.assertGreater(rows, 24)
            steps = {name: n for name, n in value.items() if name.startswith("tokamak_plan_steps_total")}
            for plan in ("decode B=1 padded to 1", "step T=65..512 padded to multiples of 64"):
                self.assertGreater(sum(n for name, n in steps.items() if plan in name), 0, (plan, steps))
            self.assertGreater(sum(n > 0 for n in steps.values()), 4, steps)
            self.assertGreater(value["tokamak_memory_mapped_bytes"], 0)
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(timeout=30), 0)
            server.stdout.close()

    def test_damage_is_one_clear_line(self):
        bundle = self.compile(LLAMA)
        whole = bundle.read_bytes()
        rng = random.Random(5)
        damaged = self.folder / "damaged.tkm"
        found = 0
        for i in range(60):
            data = bytearray(whole)
            if i % 3 == 0:
                data = data[:rng.randrange(len(data))]
            else:
                data[rng.randrange(len(data) if i % 3 == 1 else 1100)] ^= 1 << rng.randrange(8)
            damaged.write_bytes(data)
            done = run("run", damaged, "hello", "--max-tokens", "1")
            self.assertIn(done.returncode, (0, 1), done.stderr)  # 0: a zero between two sections
            if done.returncode:
                found += 1
                self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        self.assertGreater(found, 40)
        data = bytearray(whole)
        for version in (1, 9):  # of an older program, of a newer one
            data[8] = version
            damaged.write_bytes(data)
            self.assertRegex(self.refused("run", damaged, "hello"),
                             rf"\Aerror: \S+ is a bundle of version {version}, this program reads version \d+: compile the model again\n\Z")

    def test_a_lesser_machine_runs_it_and_says_so(self):
        bundle = self.compile(LLAMA)
        want = run_in({"TOKAMAK_ISA": "scalar"}, "run", LLAMA, "hello", *ASK)
        got = run_in({"TOKAMAK_ISA": "scalar"}, "run", bundle, "hello", *ASK)
        self.assertEqual(json.loads(got.stdout)["ids"], json.loads(want.stdout)["ids"])
        self.assertIn("compiling it again from the graph inside", got.stderr)
        again = self.folder / "again.tkm"
        done = run_in({"TOKAMAK_ISA": "scalar"}, "compile", bundle, "-o", again)
        self.assertEqual(done.returncode, 0, done.stderr)
        quiet = run_in({"TOKAMAK_ISA": "scalar"}, "run", again, "hello", *ASK)
        self.assertEqual((quiet.stderr, json.loads(quiet.stdout)["ids"]), ("", json.loads(want.stdout)["ids"]))

    def test_a_failed_write_leaves_the_old_file(self):
        bundle = self.compile(LLAMA)
        before = bundle.read_bytes()
        done = run_in({}, "compile", TINY / "qwen2.gguf", "-o", bundle,
                      preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: cannot write [^\n]+\n\Z")
        self.assertEqual(bundle.read_bytes(), before)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["model.tkm"])
        self.refused("compile", LLAMA, "-o", "/nowhere/model.tkm")
        self.refused("compile", LLAMA, "-o", LLAMA, code=2)

    def test_a_file_that_is_cut_short_in_use(self):
        """Its pages are gone; the first answer, or its end of line, says that it had been loaded."""
        bundle = self.compile(LLAMA)
        process = subprocess.Popen([BINARY, "chat", bundle, "--max-tokens", "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdin.write("hello\n")
        process.stdin.flush()
        process.stdout.read(1)
        os.truncate(bundle, 4096)
        _, errors = process.communicate("again\n", timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        self.assertTrue(errors.endswith("error: a file that is in use was cut short or is no longer readable\n"), errors)

    def test_nothing_but_a_file_is_replaced(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.refused("compile", LLAMA, "-o", pipe, code=2)
        self.assertTrue(pipe.is_fifo())

    def test_dump_dir_has_every_stage(self):
        stages = self.folder / "stages"
        self.compile(LLAMA, "--dump-dir", stages)
        names = sorted(p.name for p in stages.iterdir())
        self.assertEqual(names[0], "000-captured.tkg")
        self.assertTrue(any("step-canonicalize" in n for n in names), names)
        self.assertTrue(any("decode-use-facts" in n for n in names), names)
        self.assertEqual([n[4:] for n in names if n[4:] in ("fused.tkg", "planned.txt")], ["fused.tkg", "planned.txt"])
        self.assertEqual([int(n[:3]) for n in names], list(range(len(names))))
        self.assertIn("symbol", (stages / "000-captured.tkg").read_text())

    def test_generation_defaults_travel(self):
        model = TINY / "llama"
        folder = self.folder / "model"
        folder.mkdir()
        for file in model.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / "generation_config.json").write_text('{"temperature": 0, "top_k": 7}')
        bundle = self.compile(folder)
        self.assertEqual(run_json("inspect", bundle, "--json")["generation_config"], {"temperature": 0, "top_k": 7})
        flags = ("--max-tokens", "16", "--ignore-eos", "--json")
        for path in (folder, bundle):  # run uses them: without noise, seeds make no difference
            ids = [run_json("run", path, "hello", "--seed", seed, *flags)["ids"] for seed in (1, 2)]
            self.assertEqual(ids[0], ids[1])
            noisy = run_json("run", path, "hello", "--temperature", "1", "--top-k", "0", "--seed", "1", *flags)["ids"]
            self.assertNotEqual(noisy, ids[0])


class Cache(Folder):
    def run_model(self, *flags, env=None, preexec=None):
        done = run_in({"TOKAMAK_LOGS": "recompiles", **(env or {})}, "run", LLAMA, "hello", *ASK, *flags, preexec=preexec)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["ids"], done.stderr

    def test_compiles_once(self):
        ids, first = self.run_model()
        self.assertIn("compiled", first)
        again, second = self.run_model()
        self.assertEqual(ids, again)
        self.assertIn("come from the compile cache", second)
        self.assertNotIn("compiled", second)
        self.assertEqual(len(run_json("cache", "ls", "--json")["entries"]), 1)
        self.run_model("--context", "100")  # other plans
        self.assertEqual(len(run_json("cache", "ls", "--json")["entries"]), 2)
        _, off = self.run_model("--no-compile-cache")
        self.assertIn("compiled", off)
        self.assertIn("2 entries, 0 damaged", run("cache", "verify").stdout)
        self.assertEqual(run_json("cache", "clear", "--json")["removed"], 2)
        self.assertEqual(run_json("cache", "ls", "--json")["entries"], [])

    def test_measured_choices_are_kept(self):
        ids, _ = self.run_model()
        tuned, first = self.run_model("--mode", "max-autotune")
        self.assertEqual(ids, tuned)
        self.assertRegex(first, r"max-autotune: measured \d+ alternatives of \d+ plans")
        tuned, second = self.run_model("--mode", "max-autotune")
        self.assertEqual(ids, tuned)
        self.assertIn("come from the compile cache", second)
        self.assertNotIn("max-autotune", second)
        bundle = self.compile(LLAMA, "--mode", "max-autotune")
        self.assertEqual(run_json("run", bundle, "hello", *ASK, "--mode", "max-autotune")["ids"], ids)
        refused = run("run", LLAMA, "hello", "--backend", "ref", "--mode", "max-autotune")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("max-autotune measures on the backend cpu only", refused.stderr)

    def test_a_calibration_is_used_from_then_on(self):
        done = run("calibrate", "--seconds", "0.2", "--threads", "1", "--name", "kept")
        self.assertEqual(done.returncode, 0, done.stderr)
        if "other programs used" in done.stderr:
            self.assertFalse((self.cache / "machine-cpu.json").exists())
            self.skipTest("the machine is too busy to be measured")
        self.assertIn("machine-cpu.json", done.stderr)
        name = lambda *flags: run_json("explain", LLAMA, "--json", *flags)["machine"]["name"]
        self.assertEqual(name("--threads", "1"), "kept")
        self.assertEqual(name("--threads", "2"), "built-in cpu")  # measured with other threads
        (self.cache / "machine-cpu.json").write_text("{")
        broken = run("explain", LLAMA, "--threads", "1")
        self.assertEqual(broken.returncode, 0, broken.stderr)
        self.assertIn("using the built-in description", broken.stderr)

    def test_damage_is_found_and_repaired(self):
        ids, _ = self.run_model()
        entry, = self.cache.glob("*.plans")
        data = bytearray(entry.read_bytes())
        data[len(data) - 100] ^= 4
        entry.write_bytes(data)
        listed = run_json("cache", "ls", "--json")
        self.assertIn("damaged", listed["entries"][0]["error"])
        done = run("cache", "verify")
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 entries, 1 damaged", done.stdout)
        again, said = self.run_model()
        self.assertEqual(ids, again)
        self.assertIn("compiling the model again", said)
        self.assertEqual(run("cache", "verify").returncode, 0)

    def test_entries_of_another_version_are_not_damaged(self):
        ids, _ = self.run_model()
        entry, = self.cache.glob("*.plans")
        data = bytearray(entry.read_bytes())
        data[8] -= 1  # the version in the header
        entry.write_bytes(data)
        self.assertIn("  of another version\n", run("cache", "ls").stdout)
        done = run("cache", "verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is of another version of this program\n1 entries, 0 damaged, 1 of another version\n", done.stdout)
        verified = run_json("cache", "verify", "--json")
        self.assertEqual((verified["damaged"], verified["other_versions"], verified["entries"][0]["other_version"]), (0, 1, True))
        again, said = self.run_model()
        self.assertEqual(ids, again)
        self.assertIn("is of another version of this program; compiling the model again", said)

    def test_a_disk_that_does_not_take_it(self):
        ids, _ = self.run_model("--no-compile-cache")
        full = {"preexec": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))}
        for case in ({"env": {"TOKAMAK_CACHE": "/proc/none"}}, {"env": {"TOKAMAK_CACHE": LLAMA}}, full):
            got, said = self.run_model(**case)
            self.assertEqual(got, ids)
            self.assertIn("compile cache: cannot", said)
        self.assertEqual(list(self.cache.glob("*")) if self.cache.exists() else [], [self.cache / "lock"])

    def test_killed_and_side_by_side(self):
        ids, _ = self.run_model("--no-compile-cache")
        rng = random.Random(1)
        for _ in range(8):
            child = subprocess.Popen([BINARY, "run", str(LLAMA), "hello", *ASK], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(rng.random() * 0.2)
            child.kill()
            child.wait()
        self.assertEqual(run("cache", "verify").returncode, 0)
        children = [subprocess.Popen([BINARY, "run", str(LLAMA), "hello", *ASK], stdout=subprocess.PIPE, text=True)
                    for _ in range(4)]
        for child in children:
            out, _ = child.communicate(timeout=120)
            self.assertEqual((child.returncode, json.loads(out)["ids"]), (0, ids))
        self.assertEqual(run("cache", "verify").returncode, 0)

    def test_limit(self):
        bad = run_in({"TOKAMAK_CACHE_LIMIT": "much"}, "cache", "ls")
        self.assertEqual(bad.returncode, 2)
        for context in (50, 60, 70, 80):
            self.run_model("--context", context, env={"TOKAMAK_CACHE_LIMIT": "1K"})
        self.assertEqual(len(list(self.cache.glob("*.plans"))), 1)


class Shapes(Folder):
    def test_eager_and_every_choice_of_shapes_agree(self):
        want = run_json("run", LLAMA, "the quick brown fox", *ASK)["ids"]
        for flags in (("--mode", "eager"), ("--mode", "max-autotune"), ("--shapes", "dynamic"), ("--shapes", "buckets"),
                      ("--shapes", "buckets", "--buckets", "4,32")):
            self.assertEqual(run_json("run", LLAMA, "the quick brown fox", *ASK, *flags)["ids"], want, flags)

    def bench(self, *flags):
        return run_json("bench", "latency", LLAMA, "--gen", "4", "--repeat", "1", "--json", *flags)[0]

    def test_bench_counts_padding(self):
        row = self.bench("--prompt", "10", "--shapes", "buckets", "--buckets", "1,16,32")
        d = row["dispatch"]
        self.assertEqual((d["padded_rows"], d["rows"], d["fallbacks"], d["compiles"]), (2 * 6, 2 * 14, 0, 0))
        self.assertEqual(d["steps"]["step T=2..16 padded to 16 B<=2 R=1"], 2)
        self.assertEqual(self.bench("--prompt", "10")["dispatch"]["padded_rows"], 0)
        d = self.bench("--prompt", "40", "--shapes", "buckets", "--buckets", "16,32")["dispatch"]
        self.assertEqual(d["fallbacks"], 2)  # 40 rows fit no bucket

    def test_bench_eager_has_no_arena(self):
        row = self.bench("--prompt", "10", "--mode", "eager")
        self.assertEqual((row["mode"], row["arena_bytes"]), ("eager", 0))
        self.assertGreater(self.bench("--prompt", "10")["arena_bytes"], 0)

    def test_guards_are_logged(self):
        done = run_in({"TOKAMAK_LOGS": "guards"}, "run", LLAMA, "hello", *ASK)
        self.assertIn("[guards] plan 0: step T<=64", done.stderr)
        self.assertRegex(done.stderr, r"\[guards\] decode with T=1 B=1 R=1: plan \d")

    def test_bench_startup(self):
        bundle = self.compile(LLAMA)
        rows = run_json("bench", "startup", LLAMA, bundle, "--repeat", "1", "--prompt", "hello", "--json")
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.assertGreater(row["first_token_seconds"], 0)
            self.assertGreater(row["first_token_seconds"], row["ready_seconds"])
            self.assertGreater(row["cpu_seconds"], 0)


class Help(unittest.TestCase):
    def test_every_verb_has_help_with_an_example(self):
        for verb in (["compile"], ["cache", "ls"], ["cache", "verify"], ["cache", "clear"], ["bench", "startup"]):
            done = run(*verb, "--help")
            self.assertEqual(done.returncode, 0, verb)
            self.assertIn("Example", done.stdout, verb)
            self.assertIn("tokamak " + " ".join(verb), done.stdout, verb)


if __name__ == "__main__":
    unittest.main(verbosity=2)
