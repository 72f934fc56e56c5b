"""Invalid requests of many kinds: each gets an error in OpenAI's format, and other streams are unaffected."""
import json
import random
import threading
import unittest

from harness import Server, chat, encode, events, read_all

DEEP = 10_000
VALUES = [None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -2**63, 1e308, -1e308, 0.5, "", "x", "\u0000", "\ud83d\udca9", [], [[]],
          [1, "a"], [None], {}, {"a": 1}, "0", "true", [2**40], ["a" * 5000], {"type": "json_schema"}]
CHAT_FIELDS = ["model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed",
               "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "stream",
               "stream_options", "user", "ignore_eos", "min_tokens", "stop_token_ids", "tools", "tool_choice", "response_format",
               "return_token_ids", "priority", "cache_salt", "chat_template_kwargs", "modalities", "audio", "functions",
               "include_stop_str_in_output", "skip_special_tokens", "add_generation_prompt", "continue_final_message",
               "return_tokens_as_token_ids", "something_new"]
COMPLETION_FIELDS = ["prompt", "echo", "best_of", "suffix", "logprobs", "max_tokens", "add_special_tokens"]

# (parameter, body of a chat request, code)
NAMED = [
    ("messages", {}, "missing_required_parameter"),
    ("messages", {"messages": []}, "empty_array"),
    ("messages", {"messages": "hi"}, "invalid_type"),
    ("messages[0]", {"messages": ["hi"]}, "invalid_type"),
    ("messages[0].role", {"messages": [{"content": "x"}]}, "missing_required_parameter"),
    ("messages[0].role", {"messages": [{"role": "king", "content": "x"}]}, "invalid_value"),
    ("messages[0].role", {"messages": [{"role": 7, "content": "x"}]}, "invalid_type"),
    ("messages[0].content", {"messages": [{"role": "user"}]}, "missing_required_parameter"),
    ("messages[0].content", {"messages": [{"role": "user", "content": 7}]}, "invalid_type"),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "unsupported_content_type"),
    ("messages[0].content[1].type", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_audio"}]}]},
     "unsupported_content_type"),
    ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "missing_required_parameter"),
    ("temperature", chat("x", temperature=2.1), "decimal_above_max_value"),
    ("temperature", chat("x", temperature=-0.1), "decimal_below_min_value"),
    ("temperature", chat("x", temperature="hot"), "invalid_type"),
    ("top_p", chat("x", top_p=1.5), "decimal_above_max_value"),
    ("n", chat("x", n=0), "integer_below_min_value"),
    ("n", chat("x", n=100000), "integer_above_max_value"),
    ("n", chat("x", n=1.5), "invalid_type"),
    ("max_tokens", chat("x", max_tokens=0), "integer_below_min_value"),
    ("max_completion_tokens", chat("x", max_completion_tokens=-2), "integer_below_min_value"),
    ("messages", chat("x", max_tokens=5000), "context_length_exceeded"),
    ("messages", chat("x" * 5000), "context_length_exceeded"),
    ("stop", chat("x", stop=["a"] * 65), "array_above_max_length"),
    ("stop[1]", chat("x", stop=["a", 1]), "invalid_type"),
    ("stop", chat("x", stop=5), "invalid_type"),
    ("top_logprobs", chat("x", top_logprobs=2), "invalid_value"),
    ("top_logprobs", chat("x", logprobs=True, top_logprobs=21), "integer_above_max_value"),
    ("logit_bias", chat("x", logit_bias={"a": 1}), "invalid_value"),
    ("logit_bias", chat("x", logit_bias={"5": 101}), "invalid_value"),
    ("logit_bias", chat("x", logit_bias={"259": 1}), "invalid_value"),
    ("stop_token_ids[0]", chat("x", stop_token_ids=[259]), "integer_above_max_value"),
    ("stream_options", chat("x", stream_options={"include_usage": True}), "invalid_value"),
    ("response_format.json_schema.schema", chat("x", response_format={"type": "json_schema", "json_schema": {}}), "missing_required_parameter"),
    ("response_format", chat("x", response_format={"type": "structural_tag"}), "unsupported_parameter"),
    ("modalities", chat("x", modalities=["text", "audio"]), "unsupported_parameter"),
    ("audio", chat("x", audio={"voice": "x"}), "unsupported_parameter"),
    ("functions", chat("x", functions=[{"name": "f"}]), "unsupported_parameter"),
    ("guided_json", chat("x", guided_json={"type": "array", "uniqueItems": True}), "invalid_value"),
    ("regex", chat("x", regex="(?=a)"), "invalid_value"),
    ("grammar", chat("x", grammar="root ::= root"), "invalid_value"),
    ("guided_choice[1]", chat("x", guided_choice=["a", 1]), "invalid_type"),
    ("regex", chat("x", guided_json={"type": "object"}, regex="a"), "invalid_value"),
    ("tool_choice", chat("x", tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required", regex="a"), "invalid_value"),
    ("tools[0].function", chat("x", tools=[{"type": "function"}]), "missing_required_parameter"),
    ("min_tokens", chat("x", min_tokens=50, max_tokens=10), "invalid_value"),
]
NAMED_COMPLETION = [
    ("prompt", {}, "missing_required_parameter"),
    ("prompt", {"prompt": ""}, "invalid_value"),
    ("prompt", {"prompt": []}, "empty_array"),
    ("prompt[1]", {"prompt": [1, "a"]}, "invalid_type"),
    ("prompt[0]", {"prompt": [259]}, "integer_above_max_value"),
    ("prompt[0][1]", {"prompt": [[1, -1]]}, "integer_below_min_value"),
    ("prompt[1]", {"prompt": ["a", 1]}, "invalid_type"),
    ("max_tokens", {"prompt": "x", "max_tokens": 0}, "integer_below_min_value"),
    ("prompt", {"prompt": "x", "max_tokens": 4096}, "context_length_exceeded"),
    ("best_of", {"prompt": "x", "best_of": 3, "stream": True}, "invalid_value"),
    ("suffix", {"prompt": "x", "suffix": "y"}, "unsupported_parameter"),
    ("n", {"prompt": ["x"] * 100, "n": 100}, "invalid_value"),
]


def bad_texts():
    """Bodies that are not JSON objects, or barely."""
    good = json.dumps(chat("x", max_tokens=4)).encode()
    yield from (b"", b" ", b"{", b"}", b"[]", b"null", b"1", b'"x"', b"{]", b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b"\xef\xbb\xbf" + good[:-1],
                b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e99999}', b'{"messages": ' + b"[" * DEEP,
                b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b'{"messages": "\xff\xfe"}', b'{"\xff": 1}',
                b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"prompt": "\\u0000', b"\x00" * 100, b"\xff" * 100,
                good + b"garbage", good + good, good[:-2], b"a=1&b=2", b"<xml/>", b"\x1f\x8b\x08\x00")
    rng = random.Random(1)
    for _ in range(150):  # one to four bytes of a valid body replaced, dropped or duplicated
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            how = rng.randrange(3)
            if how == 0:
                data[at] = rng.randrange(256)
            elif how == 1:
                del data[at]
            else:
                data.insert(at, data[at])
        yield bytes(data)


class Fuzz(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(max_body=1_000_000, leaks=True)
        cls.stop_witness = threading.Event()
        cls.seen, cls.witness_errors = set(), []
        cls.witness = threading.Thread(target=cls.watch)
        cls.witness.start()

    @classmethod
    def watch(cls):
        """A stream that runs throughout and must always be the same."""
        while not cls.stop_witness.is_set():
            try:
                data = cls.server.request("POST", "/v1/completions",
                                          {"prompt": "witness [slow 1]", "max_tokens": 60, "seed": 5, "stream": True}, timeout=60)[2]
                cls.seen.add("".join(json.loads(e)["choices"][0]["text"] for e in events(data)[:-1]))
            except Exception as e:  # noqa: BLE001 - reported by the main thread
                cls.witness_errors.append(e)
                return

    @classmethod
    def tearDownClass(cls):
        cls.stop_witness.set()
        cls.witness.join()
        cls.server.stop()
        assert not cls.witness_errors, cls.witness_errors
        assert len(cls.seen) == 1, cls.seen

    def check(self, status, data, allowed=(200, 400, 404, 413, 415)):
        self.assertIn(status, allowed, data)
        if status != 200:
            error = json.loads(data)["error"]
            self.assertEqual(sorted(error), ["code", "message", "param", "type"])
            self.assertEqual(error["type"], "invalid_request_error")
        elif data.startswith(b"data: "):
            self.assertEqual(events(data)[-1], b"[DONE]")
        else:
            json.loads(data)

    def test_errors_name_the_parameter(self):
        for path, cases in (("/v1/chat/completions", NAMED), ("/v1/completions", NAMED_COMPLETION)):
            for param, body, code in cases:
                with self.subTest(path=path, param=param, code=code):
                    status, data = self.server.json("POST", path, body)
                    self.assertEqual(status, 400, data)
                    self.assertEqual((data["error"]["param"], data["error"]["code"]), (param, code), data)

    def test_unknown_model(self):
        for path, body in (("/v1/chat/completions", chat("x")), ("/v1/completions", {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
            status, data = self.server.json("POST", path, {**body, "model": "gpt-\ud83d\udca9"})
            self.assertEqual((status, data["error"]["code"], data["error"]["param"]), (404, "model_not_found", "model"))
            status, data = self.server.json("POST", path, {**body, "model": "gpt\0rest"})
            self.assertEqual((status, data["error"]["message"].count("gpt\\0rest")), (404, 1))  # not cut at the NUL

    def test_unknown_fields_are_ignored(self):
        self.assertEqual(self.server.json("POST", "/v1/chat/completions", chat("[say x]", brand_new=1, user="me", store=False))[0], 200)

    def test_content_types(self):
        body = json.dumps({"prompt": "[say x]"}).encode()
        for kind, status in (("application/json", 200), ("Application/JSON; charset=utf-8", 200), ("application/vnd.x+json", 200),
                             ("text/plain", 415), ("application/x-www-form-urlencoded", 200), ("multipart/form-data; boundary=x", 415)):
            self.assertEqual(self.server.request("POST", "/v1/completions", body, {"Content-Type": kind})[0], status, kind)
        self.assertEqual(self.server.request("POST", "/v1/completions", body, {"Content-Encoding": "gzip"})[0], 415)
        for page in ({"Sec-Fetch-Site": "cross-site"}, {"Referer": "http://example.com/"}, {"Origin": "http://localhost"}):
            form = {"Content-Type": "application/x-www-form-urlencoded", **page}  # as curl -d, but from a web page
            self.assertEqual(self.server.request("POST", "/v1/completions", body, form)[0], 415, page)

    def test_bodies_that_are_no_json(self):
        for body in bad_texts():
            for path in ("/v1/chat/completions",):
                with self.subTest(body=body[:80]):
                    status, _, data = self.server.request("POST", path, body)
                    self.check(status, data)

    def test_numbers_out_of_range_are_named(self):
        status, _, data = self.server.request("POST", "/v1/chat/completions", b'{"messages": [], "temperature": 1e400}')
        message = json.loads(data)["error"]["message"]
        self.assertEqual((status, "1e400" in message, "exception" in message), (400, True, False), message)

    def test_every_field_with_every_value(self):
        for field in CHAT_FIELDS:
            for value in VALUES:
                with self.subTest(field=field, value=str(value)[:40]):
                    body = chat("[say ok]", max_tokens=4)
                    body[field] = value
                    status, _, data = self.server.request("POST", "/v1/chat/completions", body)
                    self.check(status, data)
        for field in COMPLETION_FIELDS:
            for value in VALUES:
                with self.subTest(field=field, value=str(value)[:40]):
                    status, _, data = self.server.request("POST", "/v1/completions", {"prompt": "[say ok]", "max_tokens": 4, field: value})
                    self.check(status, data)
        for path, field in (("/tokenize", "prompt"), ("/tokenize", "messages"), ("/detokenize", "tokens"), ("/apply-template", "messages")):
            for value in VALUES:
                status, _, data = self.server.request("POST", path, {field: value})
                self.check(status, data)

    def test_wide_objects(self):
        wide = {f"k{i}": i for i in range(20000)}
        for body in (wide, chat("x", max_tokens=2, **wide), chat("x", logit_bias=wide), chat("x", chat_template_kwargs=wide),
                     chat("x", metadata=wide, max_tokens=2)):
            status, _, data = self.server.request("POST", "/v1/chat/completions", body)
            self.check(status, data)

    def test_half_sent_bodies(self):
        whole = encode("POST", "/v1/completions", {"prompt": "[say never]", "max_tokens": 4})
        submitted = self.server.engine()["tokens"]
        for cut in range(1, len(whole), 7):
            with self.server.connect() as s:
                s.sendall(whole[:cut])
        self.assertGreaterEqual(self.server.engine()["tokens"], submitted)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_random_bytes(self):
        rng = random.Random(2)
        whole = encode("POST", "/v1/completions", {"prompt": "[say x]", "max_tokens": 4}, {"Connection": "close"})
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with self.server.connect() as s:
                s.sendall(bytes(data))
                s.settimeout(0.2)  # with a longer Content-Length the server correctly waits
                try:
                    answer = read_all(s)
                except TimeoutError:
                    continue
            self.assertRegex(answer[:13], rb"^HTTP/1\.[01] (200|4\d\d) ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
