"""Extensions of the OpenAI API: separate reasoning, prompt log-probabilities, traces and the request log."""
import json
import pathlib
import tempfile
import unittest

from harness import Server, chat, chunks, encode


class Extras(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = pathlib.Path(cls.folder.name) / "requests.jsonl"
        cls.server = Server(env={"FAKE_REQUEST_LOG": str(cls.log)})

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def both(self, text, **more):
        """(reasoning, content, finish) of the whole answer; the stream must give the same."""
        status, whole = self.server.json("POST", "/v1/chat/completions", chat(text, **more))
        self.assertEqual(status, 200, whole)
        message = whole["choices"][0]["message"]
        got = message.get("reasoning_content", ""), message["content"], whole["choices"][0]["finish_reason"]
        data = chunks(self.server.request("POST", "/v1/chat/completions",
                                          chat(text, stream=True, stream_options={"include_usage": True}, **more))[2])
        deltas = [c["choices"][0]["delta"] for c in data if c["choices"]]
        self.assertEqual("".join(d.get("reasoning_content", "") for d in deltas), got[0])
        self.assertEqual("".join(d.get("content") or "" for d in deltas), got[1] or "")
        self.assertTrue(all(d.get("reasoning_content") != "" for d in deltas))
        self.assertEqual(data[-1]["usage"], whole["usage"])
        return got, whole["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0)

    def test_thoughts_and_answers(self):
        opened = {"chat_template_kwargs": {"think": True}}
        for text, more, expected in (
                ("<think>\nhm, a < b\n</think>\n\nYes.", {}, ("hm, a < b", "Yes.", "stop")),
                (" \n<think>a</think>b", {}, ("a", "b", "stop")),
                ("<think></think>b", {}, ("", "b", "stop")),
                ("<think>never ends </thin", {}, ("never ends </thin", "", "stop")),
                ("<thought>no", {}, ("", "<thought>no", "stop")),
                ("<thi", {}, ("", "<thi", "stop")),
                ("plain <think>text</think>", {}, ("", "plain <think>text</think>", "stop")),
                ("deep\n\nthoughts\n</think>\n\nAnswer </think> x", opened, ("deep\n\nthoughts", "Answer </think> x", "stop")),
                ("no end", opened, ("no end", "", "stop")),
                ("<think>hidden</think>shown", {"include_reasoning": False}, ("", "shown", "stop")),
                ("<think>cut</think>shown STOP rest", {"stop": "STOP"}, ("cut", "shown ", "stop"))):
            for burst in ("", "[burst 3]", "[burst 100]"):
                with self.subTest(text=text, burst=burst):
                    self.assertEqual(self.both(f"[say {text}]{burst}", **more)[0], expected)
        self.assertEqual(self.both("[say <think>abc</think>de]")[1], 12)  # from the token that completes <think> to the one that completes </think>

    def test_thoughts_end_after_their_budget(self):
        opened = {"chat_template_kwargs": {"think": True}}
        for text, more, expected, thoughts in (
                ("abcdefghijklmnopqr", {**opened, "reasoning_budget": 4}, ("abcd", "mnopqr"), 12),  # </think> takes the place of e to l
                ("<think>abcdefghijklmnop", {"thinking_budget": 3}, ("abc", "lmnop"), 12),
                ("<think>abc</think>de", {"thinking_token_budget": 3}, ("abc", "de"), 12),
                ("<think>abc</think>de", {"reasoning_budget": 100}, ("abc", "de"), 12),
                ("<think>abc</think>de", {"reasoning_budget": -1}, ("abc", "de"), 12),
                ("no thoughts <think>abc", {"reasoning_budget": 1}, ("", "no thoughts <think>abc"), 0),
                ("ab\u00e9cdefghijkl", {**opened, "reasoning_budget": 3}, ("ab\u00e9", "kl"), 12),  # a character is not cut
                ("ab</thijklmnop", {**opened, "reasoning_budget": 6}, ("ab", "mnop"), 10),  # a mark that has begun is completed
                ("abc", {**opened, "reasoning_budget": 0}, ("", "abc"), 0)):
            for burst in ("", "[burst 3]", "[burst 100]"):
                with self.subTest(text=text, more=more, burst=burst):
                    got, counted = self.both(f"[obey][say {text}]{burst}", **more)
                    self.assertEqual((got[:2], counted), (expected, thoughts))
        _, _, body = self.server.request("POST", "/v1/messages", {"model": "fake", "max_tokens": 100, "messages": [{"role": "user", "content": "[obey][say <think>abcdefghijklmn]"}],
                                                                  "thinking": {"type": "enabled", "budget_tokens": 2}})
        self.assertEqual([block.get("thinking") or block["text"] for block in json.loads(body)["content"]], ["ab", "klmn"])
        for wrong in ({"reasoning_budget": -2}, {"reasoning_budget": "x"}, {"reasoning_budget": 1, "thinking_budget": 1}):
            self.assertEqual(self.server.json("POST", "/v1/chat/completions", chat("x", **wrong))[0], 400)

    def test_the_analysis_channel_has_a_budget_too(self):
        """Harmony: the forced text ends the message and opens the final channel; a second analysis message goes on counting."""
        template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant{# <|channel|> #}"
        think, final = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
        rest = "".join(chr(ord("a") + i % 26) for i in range(90))
        for text, budget, expected in (
                (think + "abcd" + rest, 4, ("abcd", rest[len(final):])),  # the end takes the place of what the model would write
                (think + "abc" + final + "de", 50, ("abc", "de")),
                (think + "abc" + final + "de", -1, ("abc", "de")),
                (think + "abc<|end|><|start|>assistant" + think + "defgh" + rest, 14, ("abc\ndefgh", rest[len(final):])),
                ("<|channel|>final<|message|>de", 0, ("", "de"))):
            for burst in ("", "[burst 3]", "[burst 100]"):
                with self.subTest(text=text, budget=budget, burst=burst):
                    self.assertEqual(self.both(f"[obey][say {text}]{burst}", chat_template=template, reasoning_budget=budget)[0][:2], expected)

    def test_harmony_messages_are_constrained(self):
        """A forced call, and an answer that follows a schema: thoughts first, then the message that must follow."""
        template = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant{# <|channel|> tools #}"
        think = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        for before, thoughts in (("", ""), (think, "hm")):
            text = before + "<|channel|>final<|message|>no, not JSON"
            got = self.both(f"[obey][say {text}]", chat_template=template, max_tokens=300, guided_choice=["yes", "no"])[0]
            self.assertEqual(got, (thoughts, "no", "stop"))

    def test_thoughts_stay_in_the_text_on_request(self):
        self.assertEqual(self.both("[say <think>a</think>b]", reasoning_format="none")[0], ("", "<think>a</think>b", "stop"))
        self.assertEqual(self.both("[say <think>a</think>b]", reasoning_format="auto")[0], ("a", "b", "stop"))
        self.assertEqual(self.server.json("POST", "/v1/chat/completions", chat("x", reasoning_format="x"))[0], 400)

    def test_thoughts_that_the_template_begins_are_switched_off(self):
        ask = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"think": True}}
        for more, end in (({}, "<think>\n"), ({"reasoning_budget": 0}, "<think>\n</think>"), ({"reasoning_effort": "none"}, "<think>\n</think>"),
                          ({"reasoning_budget": 5}, "<think>\n")):
            self.assertTrue(self.server.json("POST", "/apply-template", {**ask, **more})[1]["prompt"].endswith(end), more)

    def test_thoughts_before_a_tool_call(self):
        tools = [{"type": "function", "function": {"name": "add"}}]
        text = '<think>use a tool</think><tool_call>{"name": "add", "arguments": {}}</tool_call>'
        self.assertEqual(self.both(f"[say {text}]", tools=tools)[0], ("use a tool", None, "tool_calls"))

    def test_prompt_logprobs(self):
        status, data = self.server.json("POST", "/v1/completions", {"prompt": "[say x]", "prompt_logprobs": 1})
        scores = data["choices"][0]["prompt_logprobs"]
        self.assertEqual((status, len(scores), scores[0]), (200, 7, None))
        self.assertEqual(scores[1], {"115": {"logprob": -1.5, "rank": None, "decoded_token": "s"},
                                     "97": {"logprob": -1.0, "rank": 1, "decoded_token": "a"}})
        self.assertIsNone(data["choices"][0]["logprobs"])  # not requested
        data = self.server.json("POST", "/v1/completions", {"prompt": "[say x]", "prompt_logprobs": 0, "logprobs": 2})[1]
        self.assertEqual(len(data["choices"][0]["logprobs"]["top_logprobs"][0]), 2)
        self.assertEqual(list(data["choices"][0]["prompt_logprobs"][1]), ["115"])
        data = self.server.json("POST", "/v1/chat/completions", chat("[say x]", prompt_logprobs=0))[1]
        self.assertEqual(len(data["prompt_logprobs"]), data["usage"]["prompt_tokens"])
        status, data = self.server.json("POST", "/v1/completions", {"prompt": "x", "prompt_logprobs": 1, "stream": True})
        self.assertEqual((status, data["error"]["param"]), (400, "prompt_logprobs"))

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def test_trace_and_log(self):
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        given = {"traceparent": f"00-{trace}-{parent}-01"}
        for body, expected in (({"prompt": "[cached 3][say abc]"}, 200), ({"prompt": "[say abc]", "stream": True}, 200),
                               ({"prompt": "x", "n": "many"}, 400), ({"prompt": "[full]"}, 429), ({"prompt": "[error]"}, 500)):
            before = len(self.lines())
            status, headers, _ = self.server.request("POST", "/v1/completions", body, given)
            self.assertEqual(status, expected)
            version, id_, span, flags = headers["traceparent"].split("-")
            self.assertEqual((version, id_, flags), ("00", trace, "01"))
            self.assertNotEqual(span, parent)
            line = self.lines()[before]
            self.assertEqual((line["trace_id"], line["parent_id"], line["status"], line["route"]), (trace, parent, expected, "/v1/completions"))
            self.assertGreaterEqual(line["duration_ms"], 0)
            if expected == 200:
                self.assertEqual((line["completion_tokens"], line["model"], line["stream"]), (3, "fake", "stream" in body))
                self.assertGreater(line["ttft_ms"], 0)
                self.assertEqual(line["id"], headers["x-request-id"])
            else:
                self.assertTrue(line["error"])
        for bad in ("", "00-xyz", f"00-{'0' * 32}-{parent}-01", f"ff-{trace}-{parent}-01", f"00-{trace.upper()}-{parent}-01", "x" * 500):
            headers = self.server.request("POST", "/v1/completions", {"prompt": "[say x]"}, {"traceparent": bad})[1]
            self.assertNotIn(trace, headers["traceparent"])
            self.assertRegex(headers["traceparent"], r"^00-[0-9a-f]{32}-[0-9a-f]{16}-00$")

    def test_request_ids(self):
        ask = lambda body, **headers: self.server.request("POST", "/v1/completions", body, {k.replace("_", "-"): v for k, v in headers.items()})
        for body in ({"prompt": "[say x]"}, {"prompt": "[say x]", "stream": True}, {"prompt": "[error]"}, {"prompt": ""}, {"prompt": "[full]"}):
            self.assertEqual(ask(body, X_Request_Id="mine-1")[1]["x-request-id"], "mine-1", body)
        self.assertEqual(ask({"prompt": "[say x]", "request_id": "other"}, X_Request_Id="mine-2")[1]["x-request-id"], "mine-2")
        self.assertEqual(self.lines()[-1]["request_id"], "mine-2")
        self.assertEqual(ask({"prompt": "[say x]", "request_id": "in the body".replace(" ", "-")})[1]["x-request-id"], "in-the-body")
        self.assertEqual(self.lines()[-1]["request_id"], "in-the-body")
        self.assertEqual(self.server.request("GET", "/health", headers={"X-Request-Id": "probe"})[1]["x-request-id"], "probe")
        for bad in ("x" * 129, "two words", "caf\xe9"):
            self.assertRegex(ask({"prompt": "[say x]"}, X_Request_Id=bad)[1]["x-request-id"], "^cmpl-")
        for bad in ("x" * 129, "two words", "\u2603", 7):
            status, _, body = ask({"prompt": "[say x]", "request_id": bad})
            self.assertEqual((status, json.loads(body)["error"]["param"]), (400, "request_id"))

    def test_transfer_fields_are_refused(self):
        for field, value in (("kv_transfer_params", {"do_remote_decode": True}), ("bootstrap_room", 5), ("bootstrap_host", "x"),
                             ("ec_transfer_params", {"a": 1}), ("disaggregated_params", {"a": 1})):
            status, data = self.server.json("POST", "/v1/completions", {"prompt": "[say x]", field: value})
            self.assertEqual((status, data["error"]["param"], data["error"]["code"]), (400, field, "unsupported_parameter"))
            self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "[say x]", field: None})[0], 200)

    def test_a_client_that_leaves_is_logged(self):
        before = len(self.lines())
        with self.server.connect() as s:
            body = json.dumps({"prompt": "[hold]"}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.server.wait_engine(lambda e: e["running"] == 1)
        self.server.wait_engine(lambda e: e["running"] == 0 and e["generations"] == 0)
        self.assertEqual([line["status"] for line in self.lines()[before:]], [499])
        self.assertEqual([self.lines()[-1][k] for k in ("prompt_tokens", "completion_tokens", "cached_tokens")], [6, 0, 0])

    def test_what_a_client_got_before_it_left_is_logged(self):
        for stream in (True, False):
            before = len(self.lines())
            with self.server.connect() as s:
                body = {"prompt": "[slow 20][cached 3]", "max_tokens": 4000, "stream": stream}
                tokens = self.server.engine()["tokens"]
                s.sendall(encode("POST", "/v1/completions", body))
                self.server.wait_engine(lambda e: e["tokens"] >= tokens + 3)
            self.server.wait_engine(lambda e: e["generations"] == 0)
            line, = self.lines()[before:]
            self.assertEqual((line["status"], line["prompt_tokens"], line["cached_tokens"]), (499, len("[slow 20][cached 3]"), 3))
            self.assertGreaterEqual(line["completion_tokens"], 2)
            self.assertGreater(line["ttft_ms"], 0)

    def test_what_clients_send_back(self):
        """An answer without text, as it was: cut off in its thoughts."""
        for answer in ({"content": None}, {"content": None, "reasoning_content": "Hm", "tool_calls": None, "refusal": None}, {"reasoning": "Hm"}):
            messages = [{"role": "user", "content": "x"}, {"role": "assistant", **answer}, {"role": "user", "content": "[say y]"}]
            status, data = self.server.json("POST", "/v1/chat/completions", {"messages": messages})
            self.assertEqual((status, data["choices"][0]["message"]["content"]), (200, "y"), data)
        for message in ({"role": "assistant"}, {"role": "user", "content": None}):
            self.assertEqual(self.server.json("POST", "/v1/chat/completions", {"messages": [message]})[1]["error"]["param"], "messages[0].content")

    def test_half_an_emoji(self):
        """JavaScript writes half of a character as an escape, if a text is cut there."""
        for sent, text in ((r"a\ud83d", "a\ufffd"), (r"\ude00b", "\ufffdb"), (r"\ud83d\ude00", "\U0001f600"), (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
                           (r"\\ud83d \ud83d", "\\ud83d \ufffd"), (r"\ud83dx\ude00", "\ufffdx\ufffd")):
            status, _, data = self.server.request("POST", "/v1/completions", b'{"prompt": "[say ' + sent.encode() + b']"}', {"Content-Type": "application/json"})
            self.assertEqual((status, json.loads(data)["choices"][0]["text"]), (200, text), sent)
        for wrong in (b'{"prompt": "\\ud83d', b'{"prompt": "\\ud8"}', b'{"prompt": \\ud83d}', b'{"prompt": "\\ud83d", }'):
            self.assertEqual(self.server.request("POST", "/v1/completions", wrong, {"Content-Type": "application/json"})[0], 400, wrong)


class OwnTemplate(unittest.TestCase):
    def test_the_request_brings_its_template(self):
        server = Server()
        try:
            body = chat("hello", chat_template="{{ messages[0].content | upper }} {{ mood }}", chat_template_kwargs={"mood": "[say ok]"})
            self.assertEqual(server.json("POST", "/apply-template", body)[1]["prompt"], "HELLO [say ok]")
            self.assertEqual(server.json("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"], "ok")
            for bad, code in (("{% if %}", "invalid_value"), ("x" * 300000, "string_above_max_length"), ("{{ raise_exception('no') }}", "chat_template_error"),
                              ("{% for i in range(100000000) %}x{% endfor %}", "chat_template_error")):
                status, data = server.json("POST", "/v1/chat/completions", chat("x", chat_template=bad))
                self.assertEqual((status, data["error"]["code"]), (400, code), bad[:40])
        finally:
            server.stop()


class ToolFormats(unittest.TestCase):
    """Formats other than the default one, over HTTP; tests/text has all of them in detail."""
    CASES = {
        "qwen3_coder": "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>",
        "glm45": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "kimi_k2": '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
        "harmony": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
        "gemma": "<start_function_call>call:add{a:1}<end_function_call>",
        "gemma4": "<|tool_call>call:add{a:1}<tool_call|>",
        "glm4": 'add\n{"a": 1}',
    }

    def test_unknown_fields_hide_no_other_notices(self):
        server = Server(env={"TOKAMAK_LOG": "info"})
        try:
            for more in ({f"odd{i}": 1 for i in range(400)}, {"guided_json": {"type": "string", "format": "shoe-size"}}):
                status, data = server.json("POST", "/v1/completions", {"prompt": "[say x]", "max_tokens": 1, **more})
                self.assertEqual(status, 200, data)
        finally:
            log = server.stop()
        self.assertEqual(log.count("unknown request field"), 256)
        self.assertIn("'shoe-size' is not known", log)

    def test_calls(self):
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}]
        for name, text in self.CASES.items():
            server = Server(env={"FAKE_TOOLS": name})
            try:
                with self.subTest(name):
                    choice = server.json("POST", "/v1/chat/completions", chat(f"[say {text}]", tools=tools))[1]["choices"][0]
                    self.assertEqual(choice["finish_reason"], "tool_calls")
                    function = choice["message"]["tool_calls"][0]["function"]
                    self.assertEqual((function["name"], json.loads(function["arguments"])), ("add", {"a": 1}))
                    data = chunks(server.request("POST", "/v1/chat/completions", chat(f"[say {text}]", tools=tools, stream=True))[2])
                    parts = [c["function"] for d in data for c in d["choices"][0]["delta"].get("tool_calls", [])]
                    self.assertEqual("".join(p["arguments"] for p in parts), function["arguments"])
                    strict = [{**t, "function": {**t["function"], "strict": True}} for t in tools]
                    headers = server.request("POST", "/v1/chat/completions", chat("[say x]", tools=strict))[1]
                    self.assertNotIn("x-tokamak-warning", headers)
                    if name != "harmony":  # whatever the model would write
                        strict[0]["function"]["parameters"] = {"properties": {"a": {"enum": [7]}}, "required": ["a"]}
                        choice = server.json("POST", "/v1/chat/completions", chat(f"[obey][say {text}]", tools=strict, max_tokens=300))[1]["choices"][0]
                        self.assertEqual(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), {"a": 7}, choice)
                    if name != "harmony":  # test_structured has the others
                        continue
                    forced = server.json("POST", "/v1/chat/completions", chat(f"[obey][say {text}]", tools=tools, tool_choice="required", max_tokens=300))[1]["choices"][0]
                    self.assertEqual((forced["finish_reason"], forced["message"]["tool_calls"][0]["function"]["name"]), ("tool_calls", "add"), forced)
                    # A tool has two spellings with the same grammar, whose warning is sent once: request() rejects a second header.
                    odd = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "string", "format": "color"}}}}}]
                    status, headers, _ = server.request("POST", "/v1/chat/completions", chat("[say x]", tools=odd, tool_choice="required", max_tokens=2))
                    self.assertEqual((status, "'color' is not known" in headers["x-tokamak-warning"]), (200, True), headers)
            finally:
                server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
