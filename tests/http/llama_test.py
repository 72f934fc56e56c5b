"""llama.cpp's own routes: /completion, /infill, /props, /slots, and its names of fields on the other routes."""
import json
import unittest

from compat_test import Compat
from harness import Server, chat, events
from metrics_test import parse_metrics


class Llama(Compat):
    def test_completion(self):
        data = self.post("/completion", {"prompt": "[say Hello][cached 3]", "n_predict": 4, "return_tokens": True, "cache_prompt": True})
        timings = data.pop("timings")
        self.assertEqual(data.pop("generation_settings")["n_predict"], 4)
        self.assertEqual(data, {"index": 0, "content": "Hell", "tokens": list(b"Hell"), "id_slot": -1, "stop": True, "tokens_predicted": 4,
                                "tokens_evaluated": 21, "model": "fake", "prompt": "[say Hello][cached 3]", "truncated": False,
                                "stop_type": "limit", "stopping_word": "", "has_new_line": False, "tokens_cached": 3})
        self.assertEqual((timings["cache_n"], timings["prompt_n"], timings["predicted_n"]), (3, 18, 4))
        self.assertGreater(timings["prompt_ms"], 0)
        data = self.post("/completion", {"prompt": "[say Hello]", "stop": ["lo"], "repeat_penalty": 1.1, "seed": -1})
        self.assertEqual((data["content"], data["stop_type"], data["stopping_word"]), ("Hel", "word", "lo"))
        self.assertEqual(self.post("/completion", {"prompt": "[say Hello]"})["stop_type"], "eos")
        self.assertEqual(self.post("/completion", {"prompt": "[say Hello]", "n_predict": 0})["content"], "")
        data = self.post("/completion", {"prompt": "[say Hi]", "n_probs": 2})
        self.assertEqual([len(p["top_logprobs"]) for p in data["completion_probabilities"]], [2, 2])
        data = self.post("/completion", {"prompt": "[say Hi]", "response_fields": ["content", "timings/predicted_n", "none", "stop/x"]})
        self.assertEqual(data, {"content": "Hi", "timings/predicted_n": 2})
        for field, value in (("min_keep", -1), ("n_indent", -1), ("t_max_predict_ms", "x"), ("post_sampling_probs", 1), ("response_fields", [1])):
            status, error = self.server.json("POST", "/completion", {"prompt": "x", field: value})
            self.assertEqual((status, error["error"]["param"][:len(field)]), (400, field))
        data = self.post("/completion", {"prompt": ["[say a]", "[say b]"]})
        self.assertEqual([d["content"] for d in data], ["a", "b"])
        self.assertEqual([d["tokens"] for d in data], [[], []])

    def test_limits_of_lines(self):
        """What editors send: a line that is indented less than the first one ends the answer, and a line end after the time does."""
        text = "a b\n    c\n      d\n  e\nf"
        for indent, expected in ((0, text), (2, "a b\n    c\n      d\n  e\n"), (3, "a b\n    c\n      d\n  "), (5, "a b\n    "), (9, "a b\n    ")):
            for burst in (1, 3, 50):
                ask = {"prompt": f"[burst {burst}][say {text}]", "n_indent": indent}
                data = self.post("/completion", ask)
                self.assertEqual((data["content"], data["stop_type"], data["has_new_line"]), (expected, "eos" if indent == 0 else "limit", True), (indent, burst))
                got = [json.loads(e) for e in events(self.stream("/completion", ask)[1])]
                self.assertEqual("".join(e["content"] for e in got), expected)
                self.assertEqual((got[-1]["stop_type"], got[-1]["has_new_line"]), (data["stop_type"], True))
        self.assertEqual(self.post("/completion", {"prompt": "[say a\n\n  b]", "n_indent": 1})["content"], "a\n")
        self.assertEqual(self.post("/completion", {"prompt": "[say   a\tb]", "n_indent": 9})["content"], "  a\tb")  # the first line counts as it is
        data = self.post("/completion", {"prompt": "[slow 10][say one\ntwo\nthree]", "t_max_predict_ms": 25})
        self.assertIn(data["content"], ("one\n", "one\ntwo\n"))  # the second on a busy machine
        self.assertEqual(data["stop_type"], "limit")
        self.assertEqual(self.post("/completion", {"prompt": "[slow 2][say one two]", "t_max_predict_ms": 1})["content"], "one two")
        data = self.post("/v1/completions", {"prompt": "[say a\n  b\nc]", "n_indent": 1, "logprobs": 1})["choices"][0]
        self.assertEqual((data["text"], data["finish_reason"], len(data["logprobs"]["tokens"])), ("a\n  b\n", "length", 6))
        self.server.wait_engine(lambda e: e["running"] == 0)
        self.assertEqual(self.server.engine()["running"], 0)

    def test_what_an_editor_plugin_sends(self):
        """The request of llama.vim, apart from what needs a model that fills in text."""
        data = self.post("/completion", {"prompt": "[say   x = 1\n  y]", "n_predict": 256, "n_indent": 2, "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
                                         "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1500, "response_fields": ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached"]})
        self.assertEqual((data["content"], set(data)), ("  x = 1\n  y", {"content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached"}))
        self.assertEqual(self.post("/completion", {"prompt": "x", "n_predict": 0, "temperature": 0.0, "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}), {})

    def test_probabilities_after_sampling_have_their_names(self):
        data = self.post("/completion", {"prompt": "[say Hi]", "n_probs": 2, "post_sampling_probs": True})
        self.assertTrue(data["generation_settings"]["post_sampling_probs"])
        for token in data["completion_probabilities"]:
            self.assertEqual(set(token), {"id", "token", "prob", "bytes", "top_probs"})
            self.assertTrue(0 < token["prob"] <= 1)
            self.assertEqual([set(t) for t in token["top_probs"]], [{"id", "token", "prob", "bytes"}] * 2)

    def test_slots_are_not_saved(self):
        for action in ("save", "restore", "erase"):
            error = self.post(f"/slots/0?action={action}", {"filename": "x"}, status=400)["error"]
            self.assertIn("there are no slots" if action == "erase" else "--slot-save-path", error["message"])

    def test_the_last_chunk_repeats_the_settings(self):
        ask = {"prompt": "[say Hi]", "n_predict": 5, "seed": 9, "temperature": 0.5, "stop": ["x"], "ignore_eos": True, "logit_bias": [[65, 1.5]]}
        _, _, body = self.server.request("POST", "/completion", {**ask, "stream": True})
        for data in (self.post("/completion", ask), json.loads(events(body)[-1])):
            got = data["generation_settings"]
            self.assertEqual((got["n_predict"], got["seed"], got["temperature"], got["stop"]), (5, 9, 0.5, ["x"]))
            self.assertEqual(got["logit_bias"], [{"token": 65, "bias": 1.5}, {"token": 257, "bias": None}])

    def test_progress_of_a_prompt(self):
        ask = {"stream": True, "return_progress": True, "timings_per_token": True}
        for path, body in (("/completion", {"prompt": "[cached 4][say Hi]"}), ("/v1/chat/completions", chat("[cached 4][say Hi]")),
                           ("/v1/completions", {"model": "fake", "prompt": "[cached 4][say Hi]"}), ("/v1/responses", {"model": "fake", "input": "[cached 4][say Hi]"})):
            with self.subTest(path=path):
                _, _, data = self.server.request("POST", path, {**body, **ask})
                chunks = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
                told = [c for c in chunks if "prompt_progress" in c]
                progress = [c["prompt_progress"] for c in told]
                total = progress[0]["total"]
                self.assertEqual([(p["cache"], p["processed"], p["total"]) for p in progress], [(4, 4, total), (4, total, total)])
                self.assertEqual(told[0]["timings"]["prompt_n"], 0)
        self.assertNotIn("prompt_progress", self.post("/completion", {"prompt": "[say Hi]", "return_progress": True}))

    def test_tokens_of_a_chat(self):
        ask = {"messages": [{"role": "user", "content": "Hi"}]}
        for base in ("", "/v1"):
            counted = self.post(base + "/chat/completions/input_tokens", ask)
            self.assertEqual(counted, {"input_tokens": self.post("/v1/chat/completions", ask)["usage"]["prompt_tokens"]})
            self.assertEqual(self.post(base + "/responses/input_tokens", {"input": "Hi"}), {"object": "response.input_tokens", **counted})

    def test_prompts_and_biases_of_every_kind(self):
        ids = list(b"[say a]")
        for prompt in ({"prompt_string": "[say a]"}, ids, [*ids[:3], "y ", *ids[5:]], ["[say", *ids[4:]]):
            self.assertEqual(self.post("/completion", {"prompt": prompt})["content"], "a", prompt)
        data = self.post("/completion", {"prompt": [ids, "[say b]", {"prompt_string": "[say c]"}, ["[say", *list(b" d]")]]})
        self.assertEqual([d["content"] for d in data], ["a", "b", "c", "d"])
        for prompt in ({}, {"prompt_string": 1}, [{"prompt_string": None}], [1, None, "a"], {"prompt_string": "x", "multimodal_data": ["y"]}):
            self.post("/completion", {"prompt": prompt}, status=400)
        for bias in ({"ab": -3}, [["ab", -3]], {str(ord("a")): -3, str(ord("b")): -3}, [[ord("a"), -3], [ord("b"), -3]]):
            self.post("/completion", {"prompt": "[say x]", "logit_bias": bias})
        self.post("/completion", {"prompt": "[say x]", "logit_bias": {"ab": "x"}}, status=400)

    def test_stream(self):
        got = [json.loads(e) for e in events(self.stream("/completion", {"prompt": "[say Hello]"})[1])]
        self.assertEqual([i for e in got for i in e["tokens"]], list(b"Hello"))
        self.assertEqual("".join(e["content"] for e in got), "Hello")
        self.assertEqual([e["stop"] for e in got], [False] * (len(got) - 1) + [True])
        self.assertEqual(got[-1]["tokens_predicted"], 5)

    def test_names_on_the_other_routes(self):
        data = self.post("/v1/completions", {"prompt": "[say Hello]", "n_predict": 2, "timings_per_token": True})
        self.assertEqual((data["choices"][0]["text"], data["timings"]["predicted_n"]), ("He", 2))
        self.post("/v1/completions", {"prompt": "x", "cache_prompt": False})
        self.assertRegex(self.server.engine()["cache_salt"], "^[0-9a-f]{32}$")
        self.post("/v1/completions", {"prompt": "x", "cache_prompt": True})
        self.assertEqual(self.server.engine()["cache_salt"], "")
        data = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "[say Hi]"}], "n_probs": 2})
        self.assertEqual(len(data["choices"][0]["logprobs"]["content"][0]["top_logprobs"]), 2)

    def test_state(self):
        props = self.server.json("GET", "/props")[1]
        self.assertEqual((props["default_generation_settings"]["n_ctx"], props["total_slots"]), (4096, 4))
        self.assertIn("messages", props["chat_template"])
        self.assertIs(props["has_sampling_defaults"], False)
        self.assertEqual([s["is_processing"] for s in self.server.json("GET", "/slots")[1]], [False] * 4)

    def test_names_of_llama_cpp(self):
        server = Server(vllm=1)
        try:
            for _ in range(2):
                server.json("POST", "/v1/completions", {"prompt": "[cached 4][say abcde]"})
            text = server.request("GET", "/metrics")[2].decode()
            families = parse_metrics(text)
            of = lambda name: families["llamacpp:" + name]
            self.assertEqual((of("tokens_predicted_total")[0], of("tokens_predicted_total")[1][0][2]), ("counter", 10))
            self.assertEqual((of("requests_processing")[0], of("requests_processing")[1][0][2]), ("gauge", 0))
            self.assertEqual(of("prompt_tokens_cached_total")[1][0][2], 8)
            for name in ("prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_seconds_total", "n_decode_total", "prompt_tokens_seconds", "predicted_tokens_seconds",
                         "requests_deferred", "n_busy_slots_per_decode", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"):
                self.assertEqual(len(of(name)[1]), 1, name)
        finally:
            server.stop()

    def test_infill_needs_a_model_for_it(self):
        for path, body in (("/infill", {"input_prefix": "a", "input_suffix": "b"}), ("/v1/completions", {"prompt": "a", "suffix": "b"})):
            self.assertEqual(self.post(path, body, status=400)["error"]["param"], "suffix")


if __name__ == "__main__":
    unittest.main(verbosity=2)
