"""Constrained answers of a server with a tiny random-weight model: every complete answer is valid, whatever the model prefers."""
import json
import math
import re
import unittest
import urllib.request

from serve_test import LLAMA, Serve

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yes"]}, "b": {"type": "integer", "minimum": 1, "maximum": 20}},
          "required": ["a", "b"], "additionalProperties": False}


def is_valid(text):
    data = json.loads(text)
    return set(data) == {"a", "b"} and data["a"] in ("x", "yes") and isinstance(data["b"], int) and 1 <= data["b"] <= 20


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve(LLAMA, "--dola")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, param, code, path="/v1/completions", **fields):
        status, _, data = self.server.post(path, prompt="x", **fields)
        self.assertEqual((status, data["error"]["param"], data["error"]["code"]), (400, param, code), data)

    def choices(self, **fields):
        status, _, data = self.server.post("/v1/completions", **{"prompt": "Hello", "max_tokens": 56, "temperature": 1.5, "n": 4, **fields})
        self.assertEqual(status, 200, data)
        return data["choices"]

    def test_every_way_to_ask_for_a_schema(self):
        ended = 0
        for fields in ({"guided_json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}},
                       {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": SCHEMA}}}):
            for choice in self.choices(seed=5, **fields):
                self.assertIn(choice["finish_reason"], ("stop", "length"))
                if choice["finish_reason"] == "stop":
                    ended += 1
                    self.assertTrue(is_valid(choice["text"]), choice["text"])
        self.assertGreaterEqual(ended, 12)

    def test_calls_have_the_format_of_the_requests_template(self):
        parameters = {"properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required",
                "max_tokens": 200, "temperature": 0}
        with Serve(LLAMA, "--context", 512) as s:  # the model's template shows no tools
            for shows in ("Write <tool_call>{'name': ..., 'arguments': ...}</tool_call>", "in a format of its own"):
                status, _, answer = s.post("/v1/chat/completions", **body, chat_template="{{ tools | tojson }} " + shows)
                self.assertEqual(status, 200, answer)
                call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
                self.assertEqual((call["name"], json.loads(call["arguments"])), ("f", {"a": 7}), shows)

    def test_unknown_formats(self):
        schema = {"type": "object", "properties": {"a\n\u00e9": {"type": "string", "format": "shoe-size", "maxLength": 4}}, "required": ["a\n\u00e9"]}
        form = lambda **strict: {"type": "json_schema", "json_schema": {"name": "t", "schema": schema, **strict}}
        for fields in ({"guided_json": schema}, {"response_format": form()}, {"response_format": form(strict=False)}):
            status, headers, _ = self.server.post("/v1/completions", prompt="x", max_tokens=2, **fields)
            self.assertEqual(status, 200)
            self.assertEqual(headers["x-tokamak-warning"], "the JSON schema, #/properties/a???/format: 'shoe-size' is not known and has no effect")
        body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True, "guided_json": schema}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.server.url + "/v1/completions", body, {"content-type": "application/json"}), timeout=60) as r:
            self.assertIn("'shoe-size' is not known", r.headers["x-tokamak-warning"])
        self.assertNotIn("x-tokamak-warning", self.server.post("/v1/completions", prompt="x", max_tokens=1, guided_json=SCHEMA)[1])
        self.refused("response_format.json_schema.schema", "invalid_value", response_format=form(strict=True))
        many = {"type": "object", "properties": {f"p{i}": {"type": "string", "format": f"odd-{i}"} for i in range(12)}}
        headers = self.server.post("/v1/completions", prompt="x", max_tokens=1, guided_json=many)[1]
        self.assertEqual(len(set(headers.get_all("x-tokamak-warning"))), len(headers.get_all("x-tokamak-warning")))
        self.assertEqual(len(headers.get_all("x-tokamak-warning")), 8)

    def test_anthropics_way_to_ask_for_a_schema(self):
        ended, form = 0, {"type": "json_schema", "schema": SCHEMA}
        for fields in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}) * 4:
            status, _, data = self.server.post("/v1/messages", messages=[{"role": "user", "content": "x"}], max_tokens=48, temperature=1, **fields)
            self.assertEqual(status, 200, data)
            if data["stop_reason"] == "end_turn":
                ended += 1
                self.assertTrue(is_valid(data["content"][0]["text"]), data)
        self.assertGreater(ended, 0)
        for fields in ({"output_format": {"type": "text"}}, {"output_config": {"format": {"type": "json_schema"}}}):
            self.assertEqual(self.server.post("/v1/messages", messages=[{"role": "user", "content": "x"}], max_tokens=4, **fields)[0], 400)

    def test_a_seed_gives_the_same_answers_again(self):
        one, two = self.choices(seed=7, guided_json=SCHEMA), self.choices(seed=7, guided_json=SCHEMA)
        self.assertEqual([c["text"] for c in one], [c["text"] for c in two])

    def test_regex_choice_and_grammar(self):
        ended = 0
        for fields, pattern in (({"guided_regex": "[a-f]{2,5}-\\d"}, "[a-f]{2,5}-\\d"), ({"guided_choice": ["left", "right", "l"]}, "left|right|l"),
                                ({"grammar": 'root ::= ("ab" | "cd"){1,3} "."'}, "(ab|cd){1,3}\\."), ({"structured_outputs": {"regex": "a+b"}}, "a+b")):
            for choice in self.choices(**fields):
                if choice["finish_reason"] == "stop":
                    ended += 1
                    self.assertRegex(choice["text"], f"^({pattern})$")
        self.assertGreaterEqual(ended, 8)
        self.assertEqual({c["finish_reason"] for c in self.choices(guided_choice=["left", "right"])}, {"stop"})

    def test_other_fields(self):
        # min_tokens and ignore_eos cannot keep a finished grammar from ending.
        for fields in {"min_tokens": 50}, {"ignore_eos": True}:
            for choice in self.choices(guided_choice=["one", "two"], **fields):
                self.assertEqual((choice["finish_reason"], choice["text"] in ("one", "two")), ("stop", True))
        for choice in self.choices(guided_regex="a{30}", max_tokens=5):
            self.assertEqual(choice["finish_reason"], "length")
        for choice in self.choices(guided_regex="ab{0,90}c", stop=["b"]):
            self.assertIn(choice["text"], ("a", "ac"))
        for choice in self.choices(guided_choice=["xyz"], logprobs=2):
            self.assertEqual("".join(choice["logprobs"]["tokens"]), "xyz")

    def test_allowed_tokens_and_bad_words(self):
        allowed = [65, 66, 67, 70]
        for choice in self.choices(allowed_token_ids=allowed, return_token_ids=True, max_tokens=20):
            self.assertEqual(len(choice["token_ids"]), 20)
            self.assertLessEqual(set(choice["token_ids"]), set(allowed))
        free = self.choices(seed=3, temperature=0, max_tokens=30, n=1)[0]["text"]
        word = free.split()[0] if free.split() else free[:2]
        for choice in self.choices(seed=3, temperature=0, max_tokens=30, n=1, bad_words=[word]):
            self.assertNotEqual(choice["text"], free)
        constrained = self.choices(guided_choice=["left", "right"], bad_words=["l", "le", "lef", "left"])
        self.assertEqual({c["text"] for c in constrained}, {"right"})
        for lists in ({"bad_words": ["l", "le", "lef", "left"]}, {"allowed_token_ids": [3]}):  # the format takes precedence
            self.assertEqual({c["text"] for c in self.choices(guided_choice=["left"], **lists)}, {"left"})

    def test_best_of_returns_the_likeliest(self):
        fields = {"seed": 11, "max_tokens": 12, "logprobs": 0, "ignore_eos": True}
        mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
        everything = sorted(self.choices(n=6, **fields), key=mean, reverse=True)
        best = self.choices(n=2, best_of=6, **fields)
        self.assertEqual([c["text"] for c in best], [c["text"] for c in everything[:2]])
        self.assertEqual([c["index"] for c in best], [0, 1])
        self.assertEqual([c["text"] for c in self.choices(n=2, best_of=6, **{**fields, "logprobs": None})], [c["text"] for c in best])

    def test_samplers(self):
        greedy = self.choices(temperature=0, n=1)[0]["text"]
        self.assertEqual(self.choices(top_n_sigma=1e-6, n=1)[0]["text"], greedy)
        self.assertNotEqual(self.choices(top_n_sigma=50, n=1, seed=1)[0]["text"], greedy)
        self.assertNotEqual(self.choices(dynatemp_range=0.5, n=1, seed=1)[0]["text"], self.choices(n=1, seed=1)[0]["text"])
        for version in 1, 2:
            self.assertEqual(self.choices(mirostat=version, mirostat_tau=0, mirostat_eta=0, n=1)[0]["text"], greedy)
            calm, wild = (self.choices(mirostat=version, mirostat_tau=tau, n=1, seed=1, max_tokens=20)[0]["text"] for tau in (1, 9))
            self.assertNotEqual(calm, wild)

    def test_dola(self):
        fields = {"temperature": 0, "n": 1, "max_tokens": 16, "ignore_eos": True}
        text = lambda **more: self.choices(**{**fields, **more})[0]["text"]
        self.assertNotEqual(text(dola_layers=[0]), text())
        self.assertEqual(text(dola_layers="high"), text(dola_layers=[1]))  # of two layers
        self.assertEqual(text(dola_layers="low"), text(dola_layers=[0]))
        for choice in self.choices(dola_layers="low", guided_choice=["one", "two"]):
            self.assertIn(choice["text"], ("one", "two"))
        self.assertEqual(len({c["text"] for c in self.choices(dola_layers="high", n=4, max_tokens=16, seed=1, ignore_eos=True)}), 4)
        no = "unsupported_parameter"
        self.refused("dola_layers", "invalid_value", dola_layers="all")
        self.refused("dola_layers", "invalid_value", dola_layers=[])
        self.refused("dola_layers[0]", "integer_above_max_value", dola_layers=[2])
        self.refused("dola_layers", "invalid_type", dola_layers=3)
        self.refused("dola_layers", no, dola_layers=[0], guidance_scale=2)
        self.refused("dola_layers", no, dola_layers=[0], use_beam_search=True, n=2)
        with Serve(LLAMA, "--speculate", "ngram") as plain:
            status, _, data = plain.post("/v1/completions", prompt="x", dola_layers="low")
            self.assertEqual((status, data["error"]["param"], data["error"]["code"]), (400, "dola_layers", no))

    def test_contrastive_search(self):
        fields = {"temperature": 0, "n": 1, "max_tokens": 24, "ignore_eos": True}
        greedy = self.choices(**fields)[0]["text"]
        search = {**fields, "penalty_alpha": 0.6, "top_k": 4}
        answer = self.choices(**search, logprobs=0)[0]
        self.assertEqual((len(answer["logprobs"]["token_logprobs"]), answer["finish_reason"]), (24, "length"))
        self.assertNotEqual(answer["text"], greedy)
        self.assertEqual(self.choices(**{**search, "temperature": 1.5, "seed": 4})[0]["text"], answer["text"])  # it does not sample
        self.assertEqual(self.choices(**{**search, "penalty_alpha": 0})[0]["text"], greedy)
        self.assertEqual(self.choices(**{**search, "penalty_alpha": 1e-6})[0]["text"], greedy)
        no = "unsupported_parameter"
        for bad in ({"n": 2}, {"use_beam_search": True}, {"guidance_scale": 2}, {"dola_layers": [0]}, {"repetition_penalty": 1.2},
                    {"min_tokens": 3}, {"stop": "x"}, {"prompt_logprobs": 0}, {"guided_choice": ["a", "b"]}):
            self.refused("penalty_alpha", no, penalty_alpha=0.6, top_k=4, **bad)
        self.refused("top_k", "invalid_value", penalty_alpha=0.6)
        self.refused("penalty_alpha", "decimal_above_max_value", penalty_alpha=2, top_k=4)

    def test_penalties_count_the_last_tokens(self):
        fields = {"temperature": 0, "n": 1, "max_tokens": 24, "ignore_eos": True}
        text = lambda **more: self.choices(**{**fields, **more})[0]["text"]
        strong = {"repetition_penalty": 5}
        whole = text(**strong)
        self.assertNotEqual(whole, text())
        self.assertEqual(text(**strong, repeat_last_n=-1), whole)
        self.assertEqual(text(**strong, repeat_last_n=1000), whole)
        self.assertEqual(text(**strong, repeat_last_n=0), text())
        self.assertNotEqual(text(**strong, repeat_last_n=2), whole)
        long = self.enterContext(Serve(LLAMA, "--context", "256"))
        def native(**more):
            status, _, data = long.post("/completion", prompt="abcdefghijklmnopqrstuvwxyz the of and to in is" + " Hello" * 20, n_predict=40, temperature=0, ignore_eos=True, repeat_penalty=5, **more)
            self.assertEqual(status, 200, data)
            return data["content"]
        self.assertEqual(native(), native(repeat_last_n=64))  # llama.cpp's default
        self.assertNotEqual(native(), native(repeat_last_n=-1))
        self.assertEqual(native(dry_multiplier=0.01), native(dry_multiplier=0.01, repeat_last_n=-1))
        no = "unsupported_parameter"
        self.refused("repeat_last_n", no, repeat_last_n=8, dry_multiplier=1, repetition_penalty=2)
        self.refused("post_sampling_probs", no, path="/completion", min_keep=3, post_sampling_probs=True)

    def test_probabilities_after_sampling(self):
        """They show what penalties do: on llama.cpp's route they count the prompt, on OpenAI's the answer only."""
        prompt = [7] * 10

        def ratio(path, **more):  # of the probabilities of a token in the prompt and one that is not, and how many are left
            base = {"prompt": prompt, "max_tokens": 1, "temperature": 1, "seed": 1, "post_sampling_probs": True, "logit_bias": {"7": 12, "8": 12}, **more}
            status, _, data = self.server.post(path, **base, **({"n_probs": 20} if path == "/completion" else {"logprobs": 20, "return_tokens_as_token_ids": True}))
            self.assertEqual(status, 200, data)
            if path == "/completion":
                top = {t["id"]: t["prob"] for t in data["completion_probabilities"][0]["top_probs"]}
                self.assertAlmostEqual(top[data["completion_probabilities"][0]["id"]], data["completion_probabilities"][0]["prob"])
            else:
                top = {int(t.removeprefix("token_id:")): math.exp(p) for t, p in data["choices"][0]["logprobs"]["top_logprobs"][0].items()}
            return top[7] / top[8], len(top), sum(top.values())
        for path, counts in (("/completion", 1), ("/v1/completions", 0)):
            plain, left, total = ratio(path)
            self.assertGreaterEqual(left, 20)
            self.assertAlmostEqual(ratio(path, presence_penalty=2)[0] / plain, math.exp(-2 * counts), delta=1e-4)
            self.assertAlmostEqual(ratio(path, frequency_penalty=0.1)[0] / plain, math.exp(-1 * counts), delta=1e-4)
            self.assertAlmostEqual(ratio(path, temperature=0.5)[0], plain ** 2, delta=1e-3 * plain ** 2)
            only, left, total = ratio(path, top_k=2)
            self.assertAlmostEqual(only, plain, delta=1e-4 * plain)
            self.assertEqual(left, 2)
            self.assertAlmostEqual(total, 1, delta=1e-5)

    def test_usage_counts_negative_prompts(self):
        body = {"prompt": "Hello", "max_tokens": 2, "guidance_scale": 2, "ignore_eos": True}
        count = lambda text: len(self.server.post("/tokenize", prompt=text)[2]["tokens"])
        usage = self.server.post("/v1/completions", **body, negative_prompt="the house")[2]["usage"]
        self.assertEqual(usage["prompt_tokens"], count("Hello") + count("the house"))
        self.assertEqual(usage["prompt_tokens_details"]["negative_prompt_tokens"], count("the house"))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 2)
        self.assertEqual(self.server.post("/v1/completions", **body)[2]["usage"]["prompt_tokens"], count("Hello"))

    def test_guidance(self):
        fields = {"temperature": 0, "n": 1, "max_tokens": 16, "ignore_eos": True}
        text = lambda **more: self.choices(**{**fields, **more})[0]["text"]
        plain = text()
        prompt = self.server.post("/tokenize", prompt="Hello")[2]["tokens"]
        self.assertEqual(text(guidance_scale=1), plain)
        self.assertEqual(text(guidance_scale=4, negative_prompt="Hello"), plain)  # away from nothing
        guided = text(guidance_scale=4, negative_prompt="the")
        self.assertNotEqual(guided, plain)
        the = self.server.post("/tokenize", prompt="the")[2]["tokens"]
        for same in ({"cfg_scale": 4, "cfg_negative_prompt": "the"}, {"guidance_scale": 4, "negative_prompt_ids": the},
                     {"guidance_scale": 4, "negative_prompt": the}):
            self.assertEqual(text(**same), guided)
        self.assertEqual(text(guidance_scale=4), text(guidance_scale=4, negative_prompt=prompt[-1:]))  # as in transformers
        for choice in self.choices(guidance_scale=2, negative_prompt="the", guided_choice=["one", "two"]):
            self.assertIn(choice["text"], ("one", "two"))
        for param, code, bad in (("negative_prompt", "invalid_value", {"negative_prompt": "x"}),
                                 ("guidance_scale", "unsupported_parameter", {"guidance_scale": 2, "use_beam_search": True, "n": 2}),
                                 ("guidance_scale", "decimal_above_max_value", {"guidance_scale": 1000}),
                                 ("negative_prompt", "context_length_exceeded", {"guidance_scale": 2, "negative_prompt": "word " * 5000}),
                                 ("negative_prompt[0]", "integer_above_max_value", {"guidance_scale": 2, "negative_prompt": [10**6]})):
            status, _, data = self.server.post("/v1/completions", prompt="x", **bad)
            self.assertEqual((status, data["error"]["param"], data["error"]["code"]), (400, param, code), data)

    def test_jump_forward(self):
        def forced():
            return self.server.metric("tokamak_jump_forward_tokens_total")

        saved = 0
        for fields in {"guided_json": SCHEMA}, {"guided_choice": ["left turn", "left over"]}, {"guided_regex": "the thing (is|was) [a-f] in the end"}:
            for extra in {}, {"temperature": 0, "n": 1}:
                before = forced()
                plain = self.choices(seed=3, jump_forward=False, return_token_ids=True, **fields, **extra)
                self.assertEqual(forced(), before)
                jumped = self.choices(seed=3, jump_forward=True, return_token_ids=True, **fields, **extra)
                saved += forced() - before
                self.assertEqual(jumped, self.choices(seed=3, jump_forward=True, return_token_ids=True, **fields, **extra))
                if fields == {"guided_json": SCHEMA} and not extra:
                    for choice in jumped:
                        self.assertTrue(choice["finish_reason"] == "length" or is_valid(choice["text"]), choice["text"])
                for choice in plain + jumped:
                    if choice["finish_reason"] == "stop" and "guided_regex" in fields:
                        self.assertRegex(choice["text"], f"^({fields['guided_regex']})$")
        self.assertGreater(saved, 50)
        # Log-probabilities are those of tokens that the model has chosen.
        before = forced()
        self.choices(guided_json=SCHEMA, jump_forward=True, logprobs=0)
        self.assertEqual(forced(), before)
        # Forced text is split as the tokenizer splits it.
        choice = self.choices(guided_regex="the thing was in the end and (on|in) the stand", jump_forward=True, n=1, return_token_ids=True)[0]
        status, _, data = self.server.post("/tokenize", content=choice["text"], prompt=choice["text"], add_special_tokens=False, add_special=False)
        self.assertEqual(status, 200)
        self.assertEqual(choice["token_ids"][:8], data["tokens"][:8])
        self.assertEqual(self.choices(guided_choice=["left turn", "left over"], jump_forward=True, stop=["ft"], n=1)[0]["text"], "le")

    def test_beams(self):
        fields = {"temperature": 0, "use_beam_search": True, "stop_token_ids": list(range(20, 60)), "max_tokens": 20}
        one = self.choices(n=2, best_of=4, **fields)
        self.assertEqual([c["text"] for c in one], [c["text"] for c in self.choices(n=2, beam_width=4, **fields)])
        for value in True, False, "never":
            self.choices(n=2, beam_width=4, early_stopping=value, **fields)
        for bad, param in (({"early_stopping": "x"}, "early_stopping"), ({"beam_width": 4, "best_of": 3}, "beam_width"), ({"beam_width": 1}, "beam_width")):
            status, _, data = self.server.post("/v1/completions", prompt="x", n=2, use_beam_search=True, **bad)
            self.assertEqual((status, data["error"]["param"]), (400, param), data)

    def test_errors_name_the_field(self):
        for fields, param, words in (({"structured_outputs": {"jsn": {}}}, "structured_outputs", "it has none of json"),
                                     ({"guided_json": {"type": "null"}, "guided_whitespace_pattern": "x"}, "guided_json", "also matches other characters"),
                                     ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "is about JSON"),
                                     ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "#/uniqueItems"),
                                     ({"regex": "("}, "regex", "is expected"), ({"grammar": "root ::= x"}, "grammar", "does not define"),
                                     ({"guided_choice": []}, "guided_choice", "empty"), ({"regex": "a", "grammar": "b"}, "grammar", "cannot be combined"),
                                     ({"regex": "a", "use_beam_search": True, "n": 2}, "use_beam_search", "Beam search"),
                                     ({"allowed_token_ids": []}, "allowed_token_ids", "empty"), ({"bad_words": ["x", " "]}, "bad_words[1]", "empty"),
                                     ({"allowed_token_ids": [10 ** 6]}, "allowed_token_ids[0]", ""),
                                     ({"bad_words": ["x"], "use_beam_search": True, "n": 2}, "bad_words", "beam search")):
            status, _, data = self.server.post("/v1/completions", prompt="x", **fields)
            self.assertEqual((status, data["error"]["param"]), (400, param), data)
            self.assertTrue(re.search(re.escape(words), data["error"]["message"]), data)


if __name__ == "__main__":
    unittest.main()
