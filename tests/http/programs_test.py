"""POST /v1/programs and `tokamak program` on a tiny random-weight model: the KV cache is shared, answers repeat, errors have a path."""
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from serve_test import BINARY, LLAMA, Serve

PREFIX = "The quick brown fox jumps"
FORKS = {"seed": 5, "program": [
    {"text": PREFIX},
    {"fork": 6, "as": "i", "into": "all", "do": [{"text": " b{{ i }}:"}, {"gen": "g", "max_tokens": 6, "temperature": 1, "score": "s"},
                                                  {"select": "c", "choices": [" yes", " no", " perhaps"], "score": "scores"}]},
    {"return": "all | map(attribute='c') | list"}]}


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve(LLAMA, "--api-key", "k")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def post(self, body, key="k", path="/v1/programs"):
        status, _, text = self.server.send(path, body, authorization="Bearer " + key)
        return status, text

    def test_branches_share_the_cache_and_repeat(self):
        status, text = self.post({**FORKS, "cache_salt": "one"})
        self.assertEqual(status, 200, text)
        first, again = json.loads(text), json.loads(self.post({**FORKS, "cache_salt": "two"})[1])
        self.assertEqual(first["variables"], again["variables"])
        self.assertEqual(len(first["output"]), 6)
        usage = first["usage"]
        self.assertEqual((usage["requests"], usage["branches"]), (6 + 18, 7))
        # All requests but the first find at least the whole blocks of the common text.
        tokens = json.loads(self.post_any("/tokenize", {"prompt": PREFIX}))["count"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 23 * (tokens // 16 * 16))
        self.assertLess(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])

    def post_any(self, path, body):
        status, text = self.post(body, path=path)
        self.assertEqual(status, 200, text)
        return text

    def test_two_generations_are_written_as_one(self):
        """Spaces at the start of a token are kept where a generation goes on from a text."""
        for start in "a", PREFIX, "Two\n", "three ", "4:":
            texts = []
            for parts in [12], [5, 7], [1, 4, 7]:
                program = [{"text": start}] + [{"gen": f"g{i}", "max_tokens": n, "temperature": 0, "ignore_eos": True} for i, n in enumerate(parts)]
                texts.append(json.loads(self.post({"program": program})[1])["text"])
            self.assertEqual(texts, [texts[0]] * 3)

    def test_a_select_is_the_best_mean_log_probability(self):
        choices = [" yes", " no", " perhaps not at all"]
        data = json.loads(self.post({"program": [{"text": PREFIX}, {"select": "c", "choices": choices, "score": "s"}]})[1])
        means = []
        for choice in choices:
            n = json.loads(self.post_any("/tokenize", {"prompt": choice, "add_special_tokens": False}))["count"]
            ids = json.loads(self.post_any("/tokenize", {"prompt": PREFIX}))["tokens"]
            ids += json.loads(self.post_any("/tokenize", {"prompt": choice, "add_special_tokens": False}))["tokens"]
            scored = json.loads(self.post_any("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}))
            means.append(sum(scored["choices"][0]["logprobs"]["token_logprobs"][-n:]) / n)
        for mean, got in zip(means, data["variables"]["s"]):
            self.assertAlmostEqual(mean, got, places=4)
        self.assertEqual(data["variables"]["c"], choices[means.index(max(means))])

    def results(self, program, results, key="k", **fields):
        return self.post({"results": results, **fields}, key, f"/v1/programs/{program}/results")

    def test_calls_are_answered_by_the_client(self):
        body = {"program": [{"text": PREFIX}, {"fork": 2, "as": "i", "into": "all", "do": [
            {"call": "r", "tool": "square", "arguments": "{'n': i + 2}"}, {"text": " {{ r }}"}, {"gen": "g", "max_tokens": 4, "ignore_eos": True}]},
            {"call": "done", "tool": "log"}, {"return": "all | map(attribute='r') | list"}]}
        status, text = self.post(body)
        data = json.loads(text)
        self.assertEqual((status, data["status"]), (200, "requires_action"), text)
        self.assertEqual([(c["id"], c["tool"], c["arguments"]) for c in data["calls"]], [("call-0", "square", {"n": 2}), ("call-1", "square", {"n": 3})])
        program = data["id"]
        for bad, results, key, code in ((program, {"call-9": 1}, "k", 400), (program, {}, "k", 400), ("program-x", {"call-0": 1}, "k", 404),
                                        (program, {"call-0": 1}, "other", 401)):
            self.assertEqual(self.results(bad, results, key)[0], code)
        first = json.loads(self.results(program, {"call-0": 4})[1])  # the other one is still open
        self.assertEqual([c["id"] for c in first["calls"]], ["call-1"])
        second = json.loads(self.results(program, {"call-1": 9})[1])
        self.assertEqual([c["tool"] for c in second["calls"]], ["log"])
        status, text = self.results(program, {second["calls"][0]["id"]: None}, stream=True)
        end = json.loads(text.split("data: ")[-2]) if text.startswith("data:") else json.loads(text)
        self.assertEqual((status, end["status"], end["output"], end["id"]), (200, "completed", [4, 9], program))
        self.assertEqual(end["usage"]["requests"], 2)
        self.assertEqual(self.results(program, {"call-2": 1})[0], 404)

    def test_programs_that_wait_end_with_their_time(self):
        data = json.loads(self.post({"program": [{"call": "x", "tool": "t"}], "limits": {"seconds": 0.2}})[1])
        time.sleep(0.4)
        self.assertEqual(self.results(data["id"], {"call-0": 1})[0], 404)

    def test_running_on_changes_nothing(self):
        def run(**run_on):
            return json.loads(self.post({"sampling": {"temperature": 0}, "program": [
                {"text": PREFIX}, {"gen": "a", "max_tokens": 5, "ignore_eos": True, **run_on}, {"gen": "b", "max_tokens": 5, "ignore_eos": True},
                {"text": " and"}, {"gen": "c", "max_tokens": 5, "ignore_eos": True}]})[1])

        plain, fast = run(), run(run_on=20)
        self.assertEqual(plain["variables"], fast["variables"])
        self.assertEqual((plain["usage"]["requests"], fast["usage"]["requests"]), (3, 2))
        self.assertEqual(fast["usage"]["run_on"], {"tokens": 20, "used_tokens": 5, "saved_requests": 1})

    def test_unknown_models(self):
        status, text = self.post({"program": [{"text": "x"}, {"gen": "a", "model": "nothing"}]})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"))

    def test_stream(self):
        status, text = self.post({**FORKS, "stream": True})
        self.assertEqual(status, 200)
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        pieces = {}
        for event in events[:-1]:
            if event["type"] == "text":
                pieces[event["branch"]] = pieces.get(event["branch"], "") + event["text"]
        result = events[-1]
        self.assertEqual([pieces.get(f"0.{i}", "") for i in range(6)], [b["g"] for b in result["variables"]["all"]])

    def test_constrained_and_messages(self):
        data = json.loads(self.post({"program": [{"text": "x"}, {"gen": "n", "regex": "[0-9]{2}", "parse_json": True, "max_tokens": 9}]})[1])
        self.assertRegex(data["text"], "^x[0-9]{2}$")

    def test_errors(self):
        for body, param, code in (({"program": [{"text": "{{ x }}"}]}, "program[0].text", "invalid_program"),
                                  ({"program": [{"text": "a"}, {"fork": 10 ** 9, "do": []}]}, "program[1].fork", "program_limit_exceeded"),
                                  ({"program": [{"while": "true", "do": []}]}, "program[0].while", "program_limit_exceeded"),
                                  ({"program": [{"text": "a"}, {"gen": "x", "max_tokens": 5}], "limits": {"tokens": 4}}, "program[1].gen",
                                   "program_limit_exceeded"),
                                  ({"program": "x"}, "program", "invalid_program"), ({}, None, "invalid_program")):
            status, text = self.post(body)
            error = json.loads(text)["error"]
            self.assertEqual((status, error["param"], error["code"]), (400, param, code), text)
        self.assertEqual(self.post(FORKS, key="other")[0], 401)
        self.assertEqual(json.loads(self.post({"program": [], "model": "none"})[1])["error"]["code"], "model_not_found")

    def test_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "p.json")
            file.write_text(json.dumps(FORKS))
            done = subprocess.run([BINARY, "program", LLAMA, file, "--json"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            status, text = self.post(FORKS)
            self.assertEqual(json.loads(done.stdout)["variables"], json.loads(text)["variables"])
            file.write_text(json.dumps({"program": [{"text": "{{ missing }}"}]}))
            done = subprocess.run([BINARY, "program", LLAMA, file], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("program[0].text: unknown variable 'missing'", done.stderr)
            done = subprocess.run([BINARY, "program", LLAMA, file, "--var", "missing=Ada"], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, "Ada\n"))
            file.write_text(json.dumps({"program": [{"call": "n", "tool": "count"}, {"call": "s", "tool": "name"}, {"return": "[n + 1, s]"}]}))
            done = subprocess.run([BINARY, "program", LLAMA, file], input="41\nAda L.\n", capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, json.loads(done.stdout)), (0, [42, "Ada L."]), done.stderr)
            self.assertIn('"tool":"count"', done.stderr)


if __name__ == "__main__":
    unittest.main()
