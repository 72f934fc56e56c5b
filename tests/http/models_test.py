"""Several models of one server, loaded on demand: the same answers as from servers of their own, under load too."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import tempfile
import time
import unittest
import urllib.error

from adapters_test import admin, answer
from serve_test import TINY, Serve

NAMES = ["llama", "qwen2", "gpt2"]


def states(server):
    return {m["id"]: m["status"]["value"] for m in json.loads(server.get("/v1/models"))["data"]}


def wait_for(check, seconds=30):
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    return check()


class OneProgram(unittest.TestCase):
    def test_models_take_turns(self):
        ask = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
        with Serve(TINY / "llama", TINY / "gpt2") as server:
            def complete(model, prompt):
                return server.post("/v1/completions", model=model, prompt=prompt, parse_special=False, **ask)[2]["choices"][0]["text"]

            _, _, data = server.post("/v1/programs", model="llama", program=[
                {"text": "Once upon"}, {"gen": "a", **ask}, {"gen": "b", "model": "gpt2", **ask}, {"text": " end"}, {"gen": "c", "model": "gpt2", **ask}])
            got = data["variables"]
            self.assertEqual(got["a"], complete("llama", "Once upon"))
            self.assertEqual(got["b"], complete("gpt2", "Once upon" + got["a"]))
            self.assertEqual(data["text"], "Once upon" + got["a"] + got["b"] + " end" + got["c"])
            self.assertNotEqual(got["b"], complete("llama", "Once upon" + got["a"]))


class OnDemand(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.want = {}
        for name in NAMES:
            with Serve(TINY / name) as alone:
                cls.want[name] = answer(alone)
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        shutil.copytree(TINY / "llama", cls.folder / "damaged")
        weights = next((cls.folder / "damaged").glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:1000])
        cls.server = Serve(TINY / NAMES[0], *(TINY / n for n in NAMES[1:]), cls.folder / "damaged", "--max-loaded-models", "1", "--admin-key", "secret")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        shutil.rmtree(cls.folder)

    def test_one_after_the_other(self):
        for name in NAMES + NAMES[::-1]:
            self.assertEqual(answer(self.server, name), self.want[name])
            self.assertEqual([n for n, state in states(self.server).items() if state == "loaded"], [name])
        self.assertEqual(answer(self.server), self.want["llama"])  # without a name: the first
        self.assertEqual(answer(self.server, "nope"), 404)

    def test_under_load(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [(name, pool.submit(answer, self.server, name)) for _ in range(8) for name in NAMES]
        for name, job in jobs:
            self.assertEqual(job.result(), self.want[name])

    def test_damaged(self):
        status, _, data = self.server.post("/v1/completions", model="damaged", prompt="a")
        self.assertEqual(status, 503)
        self.assertIn("could not be loaded", data["error"]["message"])
        self.assertEqual(answer(self.server, "qwen2"), self.want["qwen2"])

    def test_routes(self):
        self.assertEqual(admin(self.server, "/models/load", model="gpt2"), (200, {"success": True}))
        self.assertEqual(states(self.server)["gpt2"], "loaded")
        self.assertEqual(admin(self.server, "/models/unload", model="gpt2"), (200, {"success": True}))
        self.assertTrue(wait_for(lambda: states(self.server)["gpt2"] == "unloaded"))
        self.assertEqual(admin(self.server, "/v1/models/load", model="nope")[0], 404)
        self.assertEqual(admin(self.server, "/models/load", key="wrong", model="gpt2")[0], 401)
        self.assertEqual(admin(self.server, "/models/load", model=3)[0], 400)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.server.get("/v2/models/gpt2/ready")
        caught.exception.close()
        self.assertEqual(caught.exception.code, 503)
        tags = json.loads(self.server.get("/api/tags"))["models"]
        self.assertEqual([m["name"] for m in tags], [f"{n}:latest" for n in NAMES + ["damaged"]])
        self.assertEqual(answer(self.server, "gpt2"), self.want["gpt2"])
        for m in json.loads(self.server.get("/api/tags"))["models"]:  # also of models that are not loaded
            self.assertRegex(m["digest"], r"^[0-9a-f]{64}$")
        one = self.server.post("/api/show", model="gpt2")[2]
        self.assertEqual((one["details"]["family"], one["model_info"]["general.architecture"]), ("gpt2", "gpt2"))
        self.assertRegex(one["details"]["parameter_size"], r"^[0-9.]+[KM]$")
        self.assertRegex(one["details"]["quantization_level"], r"^(F32|F16|BF16|Q[0-9A-Z_]+)$")
        self.assertEqual(one["capabilities"][0], "completion")


class Recurrent(unittest.TestCase):
    def test_answers_together_and_alone(self):
        folder = pathlib.Path(os.environ["TOKAMAK_TINY_FAMILIES"]) / "mamba2"
        with Serve(folder) as server:
            def ask(prompt):
                return server.post("/v1/completions", prompt=prompt, max_tokens=24, ignore_eos=True, seed=3)[2]["choices"][0]["text"]
            prompts = ["the same start " * 3 + end for end in ("", "a", "bc", "a")]
            alone = [ask(p) for p in prompts]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                self.assertEqual(list(pool.map(ask, prompts * 3)), alone * 3)
            status, _, data = server.post("/v1/completions", prompt="a", use_beam_search=True, n=2, max_tokens=4)
            self.assertEqual(status, 400)
            self.assertIn("without recurrent layers", data["error"]["message"])


class Limits(unittest.TestCase):
    def test_idle(self):
        with Serve(TINY / "llama", TINY / "qwen2", "--unload-idle", "0.3") as server:
            first = answer(server, "qwen2")
            self.assertTrue(wait_for(lambda: set(states(server).values()) == {"unloaded"}))
            self.assertEqual(answer(server, "qwen2"), first)

    def test_memory(self):
        with Serve(TINY / "llama", TINY / "qwen2", "--model-memory", "1M") as server:
            status, _, data = server.post("/v1/completions", model="qwen2", prompt="a")
            self.assertEqual(status, 503)
            self.assertIn("more than the 1 MiB for models", data["error"]["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
