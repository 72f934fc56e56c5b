"""Adapters while serving: chosen by name, batched, cached apart, loaded and unloaded under load, by the administrator only."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from serve_test import BINARY, TINY, Serve

MODEL = TINY / "llama"
ADAPTERS = TINY / "adapters"
PROMPT = "the house and the water in the"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def admin(server, path, key="secret", **body):
    return send(server, path, key, body)


def set_scales(server, scales, key=""):
    return send(server, "/lora-adapters", key, scales)


def send(server, path, key, body):
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


def answer(server, model=None, **changes):
    body = {**GREEDY, **changes, **({"model": model} if model else {})}
    status, _, data = server.post("/v1/completions", **body)
    return data["choices"][0]["text"] if status == 200 else status


def run(*args):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=60)


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.lora_dir = cls.folder / "loras"
        cls.lora_dir.mkdir()
        for name in ("llama_qv", "llama_all", "llama_patterns", "llama_dora", "qwen2_mlp"):
            shutil.copytree(ADAPTERS / name, cls.lora_dir / name)
        shutil.copytree(ADAPTERS / "llama_all", cls.folder / "outside")
        os.symlink(cls.folder / "outside", cls.lora_dir / "link")
        (cls.lora_dir / "file_link").mkdir()
        shutil.copy(ADAPTERS / "llama_all" / "adapter_config.json", cls.lora_dir / "file_link")
        os.symlink(cls.folder / "outside" / "adapter_model.safetensors", cls.lora_dir / "file_link" / "adapter_model.safetensors")
        cls.log = cls.folder / "requests.jsonl"
        cls.server = Serve(MODEL, "--lora-modules", f"qv={ADAPTERS / 'llama_qv'}", f"all={ADAPTERS / 'llama_all'}",
                           f"patterns={ADAPTERS / 'llama_patterns'}", "--max-loras", "2", "--lora-dir", cls.lora_dir, "--admin-key",
                           "secret", "--metrics-compat", "vllm", "--request-log", cls.log)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        shutil.rmtree(cls.folder)

    def test_listed_and_chosen_by_name(self):
        cards = {m["id"]: m for m in json.loads(self.server.get("/v1/models"))["data"]}
        self.assertEqual(cards["llama"]["parent"], None)
        for name in ("qv", "all", "patterns"):
            self.assertEqual(cards[name]["parent"], "llama")
        texts = {name: answer(self.server, name) for name in ("llama", "qv", "all", "patterns")}
        self.assertEqual(len(set(texts.values())), 4, texts)
        self.assertEqual(answer(self.server), texts["llama"])
        self.assertEqual(answer(self.server, "unknown"), 404)
        self.assertIn("cpu.lora", self.server.get("/plan/decode"))
        # The chat route, and the model that the answer names.
        _, _, chat = self.server.post("/v1/chat/completions", model="all", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        self.assertEqual(chat["model"], "all")
        self.assertIn("all", [json.loads(line).get("model") for line in self.log.read_text().splitlines()])

    def test_same_answers_as_merged_and_on_the_command_line(self):
        for name, folder in (("qv", "llama_qv"), ("all", "llama_all")):
            text = answer(self.server, name)
            for flag in ("--lora", "--merge-adapter"):
                done = run("run", MODEL, PROMPT, "--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--json", flag, ADAPTERS / folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["text"], text, (name, flag))
        plain = run("run", MODEL, PROMPT, "--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--json")
        self.assertEqual(json.loads(plain.stdout)["text"], answer(self.server))

    def test_more_adapters_than_slots_at_once(self):
        names = ["llama", "qv", "all", "patterns"]
        alone = {name: answer(self.server, name) for name in names}
        work = names * 12
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda name: answer(self.server, name), work))
        for name, text in zip(work, texts):
            self.assertEqual(text, alone[name], name)
        self.assertGreater(self.server.metric("tokamak_adapter_loads_total"), 2)
        self.assertEqual(self.server.metric("tokamak_adapter_slots"), 2)
        self.assertIn('vllm:lora_requests_info{max_lora="2"', self.server.get("/metrics"))

    def test_with_speculation(self):
        names = ["llama", "qv", "all"]
        texts = {name: answer(self.server, name, max_tokens=40) for name in names}
        with Serve(MODEL, "--lora-modules", f"qv={ADAPTERS / 'llama_qv'}", f"all={ADAPTERS / 'llama_all'}", "--speculative-config",
                   '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false, "prompt_lookup_min": 1}') as server:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                for name, text in zip(names * 4, pool.map(lambda name: answer(server, name, max_tokens=40), names * 4)):
                    self.assertEqual(text, texts[name], name)
            self.assertGreater(server.metric("tokamak_draft_tokens_total"), 0)

    def test_caches_are_apart(self):
        prompt = "one two three four five six seven eight nine ten one two"
        cached = []
        for model in ("llama", "qv", "all", "llama", "qv", "all"):
            _, _, data = self.server.post("/v1/completions", **{**GREEDY, "prompt": prompt, "max_tokens": 2, "model": model})
            cached.append(data["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0))
        self.assertEqual(cached[:3], [0, 0, 0])
        for tokens in cached[3:]:
            self.assertGreaterEqual(tokens, 16)

    def test_only_the_administrator_loads(self):
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            for key in ("", "wrong"):
                status, data = admin(self.server, path, key, lora_name="qv", lora_path="llama_qv")
                self.assertEqual(status, 401, data)

    def test_paths_stay_inside_the_folder(self):
        for path in ("../outside", str(self.folder / "outside"), "/etc", "llama_qv/../../outside", "link", "file_link", "..", ""):
            status, data = admin(self.server, "/v1/load_lora_adapter", lora_name="x", lora_path=path)
            self.assertEqual(status, 400, (path, data))
        self.assertEqual(admin(self.server, "/v1/load_lora_adapter", lora_name="x", lora_path="missing")[0], 404)
        self.assertEqual(answer(self.server, "x"), 404)

    def test_wrong_adapters_say_why(self):
        for path, words in (("llama_dora", "--merge-adapter"), ("qwen2_mlp", "")):
            status, data = admin(self.server, "/v1/load_lora_adapter", lora_name="x", lora_path=path)
            if words:
                self.assertEqual(status, 400)
                self.assertIn(words, data["error"]["message"])
        admin(self.server, "/v1/unload_lora_adapter", lora_name="x")
        for body, status in (({"lora_name": "qv", "lora_path": "llama_qv"}, 400), ({"lora_name": "llama", "lora_path": "llama_qv"}, 400),
                             ({"lora_name": 3, "lora_path": "llama_qv"}, 400), ({"lora_path": "llama_qv"}, 400)):
            self.assertEqual(admin(self.server, "/v1/load_lora_adapter", **body)[0], status, body)
        self.assertEqual(admin(self.server, "/v1/unload_lora_adapter", lora_name="unknown")[0], 404)

    def test_replaced_under_load(self):
        """A name whose adapter changes all the time: every answer is that of one of the two, never a mixture."""
        right = {answer(self.server, "qv"), answer(self.server, "all"), 404}
        stop, seen = threading.Event(), []

        def ask():
            while not stop.is_set():
                seen.append(answer(self.server, "busy"))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for _ in range(6):
                pool.submit(ask)
            for i in range(30):
                path = ("llama_qv", "llama_all")[i % 2]
                self.assertEqual(admin(self.server, "/v1/load_lora_adapter", lora_name="busy", lora_path=path, load_inplace=i % 3 == 0)[0], 200)
                answer(self.server, "busy")
                if (i + 1) % 3 != 0:
                    self.assertEqual(admin(self.server, "/v1/unload_lora_adapter", lora_name="busy")[0], 200)
            stop.set()
        self.assertTrue(set(seen) <= right, set(seen) - right)
        self.assertGreaterEqual(len(set(seen) - {404}), 2)
        self.assertEqual(admin(self.server, "/v1/unload_lora_adapter", lora_name="busy")[0], 200)
        self.assertEqual(answer(self.server, "busy"), 404)


class Scales(unittest.TestCase):
    """llama.cpp's way: GET and POST /lora-adapters, and "lora" in a request."""

    def test_sums_and_scales(self):
        modules = [f"qv={ADAPTERS / 'llama_qv'}", f"all={ADAPTERS / 'llama_all'}"]
        with Serve(MODEL, "--lora-modules", *modules, "--max-lora-rank", "16") as server:
            plain, qv, both = answer(server, "llama"), answer(server, "qv"), None

            def scaled(*scales, **more):
                return answer(server, lora=[{"id": i, "scale": s} for i, s in enumerate(scales)], **more)
            self.assertEqual((scaled(0, 0), scaled(1, 0), scaled(1)), (plain, qv, qv))
            both = scaled(1, 1)
            weak, strong = scaled(0.001), scaled(3)
            self.assertEqual(weak, plain)  # so little changes no token
            self.assertEqual(len({plain, qv, both, strong, scaled(-3)}), 5)
            with concurrent.futures.ThreadPoolExecutor(12) as pool:  # more sums than slots at once
                asked = [(1, 1), (3,), (0.001,), (0, 1), (1,), (-3,)] * 4
                texts = list(pool.map(lambda s: scaled(*s), asked))
            self.assertEqual(texts[:6] * 3, texts[6:])
            self.assertEqual((texts[0], texts[1], texts[3]), (both, strong, answer(server, "all")))

            self.assertEqual([(a["id"], a["path"], a["scale"]) for a in json.loads(server.get("/lora-adapters"))], [(0, "qv", 0), (1, "all", 0)])
            self.assertEqual(set_scales(server, [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])[0], 200)
            self.assertEqual((answer(server), answer(server, "qv"), scaled(0)), (both, qv, plain))
            _, _, whole = server.post("/completion", prompt=PROMPT, n_predict=12, temperature=0, ignore_eos=True, repeat_last_n=-1)
            self.assertEqual(whole["content"], both)
            self.assertEqual([a["scale"] for a in json.loads(server.get("/lora-adapters"))], [1, 1])
            self.assertEqual(set_scales(server, [])[0], 200)
            self.assertEqual(answer(server), plain)

    def test_sums_are_those_of_the_merged_weights(self):
        args = (PROMPT, "--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--json")
        merged = json.loads(run("run", MODEL, *args, "--merge-adapter", ADAPTERS / "llama_qv", "--merge-adapter", ADAPTERS / "llama_all").stdout)["text"]
        with Serve(MODEL, "--lora-modules", f"qv={ADAPTERS / 'llama_qv'}", f"all={ADAPTERS / 'llama_all'}", "--max-lora-rank", "16") as server:
            self.assertEqual(answer(server, lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]), merged)

    def test_wrong_requests(self):
        with Serve(MODEL, "--lora-modules", f"all={ADAPTERS / 'llama_all'}", f"qv={ADAPTERS / 'llama_qv'}", "--max-lora-rank", "8", "--admin-key", "secret") as server:
            one = {"id": 0, "scale": 1}
            for lora, param in (([{"id": 2, "scale": 1}], "lora.id"), ([{"id": -1, "scale": 1}], "lora.id"), ([{"id": "0", "scale": 1}], "lora.id"),
                                ([{"id": 0}], "lora.scale"), ([{"id": 0, "scale": "1"}], "lora.scale"), ([{"scale": 1}], "lora.id"), ({"id": 0}, "lora"),
                                ([0], "lora"), ("x", "lora"), ([one, {"id": 1, "scale": 1}], "lora")):  # ranks 8 and 4 in slots of rank 8
                status, _, data = server.post("/v1/completions", **GREEDY, lora=lora)
                self.assertEqual((status, data["error"]["param"]), (400, param), lora)
            self.assertEqual(answer(server, "all", lora=[one]), 400)
            self.assertEqual(set_scales(server, [one])[0], 401)
            self.assertEqual(set_scales(server, [one, {"id": 1, "scale": 1}], "secret")[0], 400)
            for body in ({"id": 0, "scale": 1}, 3, None, [[]]):
                self.assertEqual(set_scales(server, body, "secret")[0], 400, body)
            self.assertEqual([a["scale"] for a in json.loads(server.get("/lora-adapters"))], [0, 0])
            self.assertEqual(set_scales(server, [one], "secret")[0], 200)
            self.assertEqual(answer(server), answer(server, "all"))
            self.assertEqual(admin(server, "/v1/unload_lora_adapter", lora_name="all")[0], 200)
            self.assertEqual(answer(server), answer(server, "llama"))
        with Serve(MODEL) as server:
            self.assertEqual(json.loads(server.get("/lora-adapters")), [])
            self.assertEqual(answer(server, lora=[{"id": 0, "scale": 1}]), 400)
            self.assertEqual(answer(server, lora=[]), answer(server))


class Flags(unittest.TestCase):
    def test_refused_in_one_line(self):
        qv = ADAPTERS / "llama_qv"
        for flags, words in ((["--lora-modules", "qv"], "NAME=PATH"), (["--lora-modules", f"a={qv}", f"a={qv}"], "loaded already"),
                             (["--lora-modules", "a=/nowhere"], "no such file"), (["--lora-dir", str(ADAPTERS)], "--admin-key"),
                             (["--lora-modules", f"a={ADAPTERS / 'llama_all'}", "--max-lora-rank", "4"], "--max-lora-rank 8"),
                             (["--lora-modules", f"a={ADAPTERS / 'gpt2_conv'}"], "another model"), (["--merge-adapter", "/nowhere"], "no such file")):
            done = run("serve", MODEL, "--port", "0", *flags)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertIn(words, done.stderr, flags)

    def test_without_flags_nothing_loads(self):
        with Serve(MODEL) as server:
            status, data = admin(server, "/v1/load_lora_adapter", lora_name="a", lora_path="b")
            self.assertEqual(status, 403, data)

    def test_merged_bundle(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle = pathlib.Path(folder) / "merged.tkm"
            done = run("compile", MODEL, "-o", bundle, "--merge-adapter", ADAPTERS / "llama_dora")
            self.assertEqual(done.returncode, 0, done.stderr)
            args = (PROMPT, "--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--json")
            texts = [json.loads(run("run", model, *args, *more).stdout)["text"]
                     for model, more in ((bundle, ()), (MODEL, ("--merge-adapter", ADAPTERS / "llama_dora")), (MODEL, ()))]
            self.assertEqual(texts[0], texts[1])
            self.assertNotEqual(texts[0], texts[2])
            self.assertIn("bundle", run("run", bundle, "hi", "--lora", ADAPTERS / "llama_qv").stderr)


if __name__ == "__main__":
    unittest.main()
