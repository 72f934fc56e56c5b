"""Speculation on and off: the same answers to hundreds of mixed requests, bit for bit; the request field, usage, timings, metrics, flags."""
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import tempfile
import unittest
import urllib.request

from serve_test import BINARY, LLAMA, TINY, Serve

COUNT = 520
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yes"]}, "b": {"type": "integer", "minimum": 1, "maximum": 20}},
          "required": ["a", "b"], "additionalProperties": False}
TEXTS = ["the house the", "one two one", "Hello", "a b a b a c a", "x=1; y=2; x="]  # the context is 64 tokens


def mixed_requests(count):
    """Greedy and sampled, penalties, stop strings, log-probabilities, grammars, several choices, shared prefixes, guidance."""
    r = random.Random(3)
    requests = []
    for i in range(count):
        body = {"prompt": " ".join(r.sample(TEXTS, r.randint(1, 2))), "max_tokens": r.randint(1, 34), "seed": i,
                "temperature": r.choice([0, 0, 0.5, 1.0, 1.5]), "return_token_ids": True, "ignore_eos": r.random() < 0.5}
        if r.random() < 0.5:
            body["logprobs"] = r.randint(0, 3)
        for field, chance, value in (("top_k", 0.2, 20), ("top_p", 0.2, 0.9), ("min_p", 0.2, 0.05), ("typical_p", 0.1, 0.8),
                                     ("repetition_penalty", 0.2, 1.2), ("presence_penalty", 0.2, 0.5), ("frequency_penalty", 0.2, 0.3),
                                     ("dry_multiplier", 0.1, 0.8), ("xtc_probability", 0.1, 0.5), ("min_tokens", 0.1, 1), ("n", 0.1, 3),
                                     ("stop", 0.2, ["e", "ab"]), ("logit_bias", 0.1, {"40": 5, "41": 5}), ("guidance_scale", 0.1, 2.0)):
            if r.random() < chance:
                body[field] = value
        if r.random() < 0.15:
            body.update(r.choice([{"guided_json": SCHEMA}, {"guided_regex": "(ab|cd)+e"}, {"guided_choice": ["left", "right", "l"]}]))
            body.pop("stop", None)
        if r.random() < 0.1:
            body["speculative"] = r.choice([False, 0])
        if "guidance_scale" in body and r.random() < 0.5:
            body["negative_prompt"] = "the house"
        requests.append(body)
    return requests


def answers(server, requests):
    def ask(body):
        status, _, data = server.post("/v1/completions", **body)
        return (status, data["choices"]) if status == 200 else (status, data)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return list(pool.map(ask, requests))


def write_template(test, text):
    file = tempfile.NamedTemporaryFile("w", suffix=".jinja")
    test.addCleanup(file.close)
    file.write(text)
    file.flush()
    return file.name


def without_ids(choices):
    """The ids of calls are those of the request."""
    return json.loads(re.sub(r'"call_[0-9a-f]+"', '"call"', json.dumps(choices)))


class Equality(unittest.TestCase):
    def test_hundreds_of_mixed_requests(self):
        requests = mixed_requests(COUNT)
        with Serve(LLAMA, "--kv-blocks", "256") as server:
            want = answers(server, requests)
            self.assertEqual(server.metric("tokamak_draft_tokens_total"), 0)
        self.assertGreater(sum(status == 200 for status, _ in want), COUNT * 0.95, [w for w in want if w[0] != 200][:2])
        for flags, blocks in ((["--speculate", "ngram"], 24),  # few blocks: all requests; many: some
                              (["--speculative-config", '{"method": "suffix", "num_speculative_tokens": 6, "adaptive": false}'], 24),
                              (["--draft-model", str(LLAMA)], 24), (["--draft-model", str(TINY / "llama_linear.gguf")], 256),
                              (["--speculative-config", '{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, "adaptive": false}'], 256)):
            with self.subTest(flags=flags), Serve(LLAMA, "--kv-blocks", str(blocks), *flags) as server:
                have = answers(server, requests if blocks == 24 else requests[:120])
                for body, a, b in zip(requests, want, have):
                    self.assertEqual(a, b, body)
                self.assertGreater(server.metric("tokamak_draft_accepted_tokens_total"), 0)  # how many depends on which requests meet in a step
                self.assertGreater(server.metric("tokamak_prefix_hit_tokens_total"), 0)
                if blocks == 24:
                    self.assertGreater(server.metric("tokamak_preemptions_total"), 0)
                self.assertEqual(server.metric("tokamak_kv_blocks_used"), 0)

    def test_strict_tools(self):
        """Calls begin with a brace in this format; a bias makes the model write one."""
        template = "{% if tools %}{{ tools[0].function.name }} {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}{# <|python_tag|> #}"
        parameters = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
        tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]
        r, requests = random.Random(5), []
        for i in range(48):
            body = {"messages": [{"role": "user", "content": r.choice(["a b a", '{"a": 1'])}], "tools": tools, "seed": i,
                    "max_tokens": r.randint(20, 50), "temperature": r.choice([0, 0, 0.7, 1.5]), "return_token_ids": True}
            for field, value in (("logprobs", True), ("repetition_penalty", 1.3), ("presence_penalty", 0.5), ("top_p", 0.9), ("n", 2), ("tool_choice", "required")):
                if r.random() < 0.3:
                    body[field] = value
            requests.append(body)

        def ask(server):
            brace = server.post("/tokenize", content="a{", add_special=False)[2]["tokens"][-1]
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda body: server.post("/v1/chat/completions", **body, logit_bias={str(brace): 30})[2], requests))
            self.assertEqual([a for a in answers if "choices" not in a], [])
            return [a["choices"] for a in answers]
        with Serve(LLAMA, "--kv-blocks", "256", "--chat-template", write_template(self, template)) as server:
            want = ask(server)
        calls = [c["message"].get("tool_calls") for choices in want for c in choices]
        self.assertGreater(sum(bool(c) for c in calls), 8)  # the others are cut off before the name, in white space
        for flags in (["--speculative-config", '{"method": "ngram", "prompt_lookup_min": 1, "adaptive": false}'], ["--draft-model", str(LLAMA)],
                      ["--speculative-config", '{"method": "suffix", "max_branches": 3, "num_speculative_tokens": 8, "adaptive": false}']):
            with self.subTest(flags=flags), Serve(LLAMA, "--kv-blocks", "64", "--chat-template", write_template(self, template), *flags) as server:
                for body, a, b in zip(requests, want, ask(server)):
                    self.assertEqual(without_ids(a), without_ids(b), body)
                self.assertGreater(server.metric("tokamak_draft_accepted_tokens_total"), 0)

    def test_trees(self):
        requests = mixed_requests(160)
        with Serve(LLAMA, "--kv-blocks", "256") as server:
            want = answers(server, requests)
        for settings, blocks in (({"method": "ngram", "prompt_lookup_min": 1}, 24), ({"method": "suffix"}, 24), ({"method": "lookahead"}, 256), ({"model": str(LLAMA)}, 256)):
            flags = json.dumps({**settings, "max_branches": 3, "num_speculative_tokens": 8, "adaptive": False})
            with self.subTest(flags=flags), Serve(LLAMA, "--kv-blocks", str(blocks), "--speculative-config", flags) as server:
                for body, a, b in zip(requests, want, answers(server, requests)):
                    self.assertEqual(a, b, body)
                self.assertGreater(server.metric("tokamak_draft_accepted_tokens_total"), 0)
                self.assertEqual(server.metric("tokamak_kv_blocks_used"), 0)


class Interface(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve(LLAMA, "--metrics-compat", "vllm", "--speculative-config",
                           '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1, "adaptive": false}')

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ask(self, **fields):
        body = {"prompt": "a b a b a b a", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "timings_per_token": True, **fields}
        status, _, data = self.server.post("/v1/completions", **body)
        self.assertEqual(status, 200, data)
        return data

    def test_fields_and_counts(self):
        names = ["vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
                 "vllm:spec_decode_num_accepted_tokens_per_pos_total"]
        before = [self.server.metric(n) for n in names]
        on = self.ask()
        drafts, tokens, accepted, positions = (self.server.metric(n) - b for n, b in zip(names, before))
        self.assertGreater(drafts, 0)
        self.assertTrue(drafts <= tokens <= 4 * drafts and 0 < accepted <= tokens, (drafts, tokens, accepted))
        self.assertEqual(positions, accepted)
        self.assertIn('position="3"', self.server.get("/metrics"))
        details = on["usage"]["completion_tokens_details"]
        self.assertEqual((details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]), (accepted, tokens - accepted))
        self.assertEqual((on["timings"]["draft_n"], on["timings"]["draft_n_accepted"]), (tokens, accepted))

        for off in (False, 0, {"num_speculative_tokens": 0}):
            data = self.ask(speculative=off)
            self.assertNotIn("draft_n", data["timings"])
            self.assertNotIn("completion_tokens_details", data["usage"])
            self.assertEqual(data["choices"], on["choices"])
        for few in (1, {"num_speculative_tokens": 1}):
            before = [self.server.metric(n) for n in names[:2]]
            self.assertEqual(self.ask(speculative=few)["choices"], on["choices"])
            drafts, tokens = (self.server.metric(n) - b for n, b in zip(names, before))
            self.assertEqual(drafts, tokens)
        self.assertIn("draft_n", self.ask(speculative=True)["timings"])
        for rule in ("strict", "probabilistic", "standard"):  # greedy answers are the same
            self.assertEqual(self.ask(speculative={"rejection_sample_method": rule})["choices"], on["choices"])
        self.assertNotIn("draft_n", self.ask(**{"speculative.n_max": 0})["timings"])

    def test_prediction(self):
        on = self.ask(prompt="Hello", speculative=0)
        for content in (on["choices"][0]["text"], [{"type": "text", "text": on["choices"][0]["text"]}], "something else"):
            data = self.ask(prompt="Hello", prediction={"type": "content", "content": content})
            self.assertEqual(data["choices"], on["choices"])
            if content != "something else":  # the text of random tokens need not be tokenized the same way
                self.assertGreater(data["timings"]["draft_n_accepted"], 0)
        for bad, param in ((1, "prediction"), ({"type": "x", "content": "a"}, "prediction.type"), ({"type": "content"}, "prediction.content"),
                           ({"type": "content", "content": 5}, "prediction.content")):
            status, _, data = self.server.post("/v1/completions", prompt="x", prediction=bad)
            self.assertEqual((status, data["error"]["param"]), (400, param))

    def test_errors(self):
        for bad in ("yes", -1, 1.5, [1], 5000, {"num_speculative_tokens": -1}, {"max_branches": 0}, {"rejection_sample_method": "typical"}):
            status, _, data = self.server.post("/v1/completions", prompt="x", speculative=bad)
            self.assertEqual(status, 400, bad)
            self.assertTrue(data["error"]["param"].startswith("speculative"), data)
        status, _, data = self.server.post("/v1/completions", prompt="x", speculative=2, use_beam_search=True, n=2)
        self.assertEqual((status, data["error"]["param"]), (400, "speculative"))
        # Beams are not drafted for.
        self.assertEqual(self.server.post("/v1/completions", prompt="x", use_beam_search=True, n=2, max_tokens=4)[0], 200)
        status, _, data = self.server.post("/v1/completions", prompt="x", speculative=2, guidance_scale=2)
        self.assertEqual((status, data["error"]["param"]), (400, "speculative"))
        with Serve(LLAMA) as plain:
            status, _, data = plain.post("/v1/completions", prompt="x", speculative=True)
            self.assertEqual((status, data["error"]["param"]), (400, "speculative"))
            self.assertIn("--speculate", data["error"]["message"])
            self.assertEqual(plain.post("/v1/completions", prompt="x", max_tokens=2, speculative=False)[0], 200)

    def test_streams(self):
        whole = self.ask(n=2)["choices"]
        request = {"prompt": "a b a b a b a", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "n": 2, "stream": True}
        texts = ["", ""]
        with urllib.request.urlopen(urllib.request.Request(self.server.url + "/v1/completions", json.dumps(request).encode(),
                                                           {"content-type": "application/json"}), timeout=60) as r:
            for line in r.read().decode().splitlines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        texts[choice["index"]] += choice["text"]
        self.assertEqual(texts, [c["text"] for c in whole])


class Flags(unittest.TestCase):
    def run_model(self, *flags):
        return subprocess.run([BINARY, "run", LLAMA, "a b a b a b a", "--max-tokens", "40", "--temperature", "0", "--ignore-eos", "--json", *flags],
                              capture_output=True, text=True, timeout=60)

    def test_run(self):
        plain = json.loads(self.run_model().stdout)
        self.assertNotIn("draft_n", plain["timings"])
        for method in ("ngram", "suffix", "early_exit", "lookahead", "off"):
            done = json.loads(self.run_model("--speculate", method).stdout)
            self.assertEqual(done["ids"], plain["ids"])
            self.assertEqual("draft_n" in done["timings"], method != "off")

    def test_pattern_library(self):
        plain = json.loads(self.run_model().stdout)
        with tempfile.TemporaryDirectory() as folder:
            corpus, library = pathlib.Path(folder, "corpus"), pathlib.Path(folder, "library")
            corpus.mkdir()
            (corpus / "a.txt").write_text("a b c d " * 20 + plain["text"])
            (corpus / "b.bin").write_bytes(b"\0\1")
            build = [BINARY, "draft", "build", corpus, "--model", LLAMA, "-o", library]
            done = subprocess.run(build, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"\d+ tokens of 1 files")
            settings = {"method": "patterns", "patterns": str(library)}
            done = self.run_model("--speculative-config", json.dumps(settings))
            self.assertEqual(json.loads(done.stdout)["ids"], plain["ids"])
            self.assertGreater(json.loads(done.stdout)["timings"]["draft_n"], 0)
            library.write_bytes(library.read_bytes()[:-4])
            done = self.run_model("--speculative-config", json.dumps(settings))
            self.assertEqual(done.returncode, 1)
            self.assertIn("library", done.stderr)

    def test_errors_say_what_is_wrong(self):
        for flags, words in ((["--speculate", "magic"], "ngram"), (["--speculate", "ngram", "--speculative-config", "{}"], "--speculat"),
                             (["--speculative-config", "{"], "speculation"), (["--speculative-config", "{}"], '"method" is missing'),
                             (["--speculative-config", '{"method": "eagle"}'], "ngram, suffix"),
                             (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 0}'], "num_speculative_tokens"),
                             (["--speculative-config", '{"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}'], "prompt_lookup_min"),
                             (["--speculative-config", '{"method": "ngram", "tokens": 3}'], '"tokens" is unknown')):
            done = self.run_model(*flags)
            self.assertEqual(done.returncode, 2, (flags, done.stderr))
            self.assertIn(words, done.stderr, flags)


if __name__ == "__main__":
    unittest.main()
