"""The OpenAI routes: exact response format, parameters, errors, streams, disconnecting clients."""
import json
import re
import socket
import threading
import time
import unittest

from harness import Server, chat, chunks, encode, events, parse, read_until


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ping_ms=200, leaks=cls.__name__ == "Leaving")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body):
        status, _, data = self.server.request("POST", path, body)
        return status, json.loads(data)

    def complete(self, prompt, **more):
        status, data = self.post("/v1/completions", {"model": "fake", "prompt": prompt, **more})
        self.assertEqual(status, 200, data)
        return data

    def chat(self, text, **more):
        status, data = self.post("/v1/chat/completions", chat(text, **more))
        self.assertEqual(status, 200, data)
        return data

    def stream(self, path, body):
        status, headers, data = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, data)
        self.assertEqual(headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(headers["cache-control"], "no-cache")
        return data


class Whole(Api):
    def test_chat(self):
        data = self.chat("[say Hello!]", temperature=0)
        self.assertRegex(data["id"], r"^chatcmpl-[0-9a-f]{32}$")
        self.assertLess(abs(data["created"] - time.time()), 60)
        usage = {"prompt_tokens": 31, "completion_tokens": 6, "total_tokens": 37, "prompt_tokens_details": {"cached_tokens": 0}}
        del data["id"], data["created"]
        self.assertEqual(data, {
            "object": "chat.completion", "model": "fake", "system_fingerprint": "fp_tokamak_0.1.0",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                         "logprobs": None, "finish_reason": "stop"}],
            "usage": usage})

    def test_completion(self):
        data = self.complete("[say abc]", max_tokens=2)
        self.assertRegex(data["id"], r"^cmpl-[0-9a-f]{32}$")
        self.assertEqual(data["object"], "text_completion")
        self.assertEqual(data["choices"], [{"text": "ab", "index": 0, "logprobs": None, "finish_reason": "length"}])
        self.assertEqual(data["usage"]["completion_tokens"], 2)
        self.assertEqual(self.complete("x")["usage"]["completion_tokens"], 16)  # the default
        self.assertEqual(self.complete("[cached 5]x")["usage"]["prompt_tokens_details"]["cached_tokens"], 5)

    def test_lengths_of_prompts_and_answers(self):
        self.assertEqual(self.complete("x", max_tokens=-1)["usage"]["completion_tokens"], 4095)  # the whole context
        self.assertEqual(self.chat("x", max_tokens=-1, max_completion_tokens=3)["usage"]["completion_tokens"], 3)
        for path, base, bad in (("/v1/completions", {"prompt": "x"}, (-2,)), ("/v1/chat/completions", chat("x"), (-2, 0))):
            for value in bad:
                self.assertEqual(self.post(path, {**base, "max_tokens": value})[1]["error"]["param"], "max_tokens")
            for value in (0, -2, "x"):
                self.assertEqual(self.post(path, {**base, "truncate_prompt_tokens": value})[1]["error"]["param"], "truncate_prompt_tokens")
        data = self.complete("abcdef", truncate_prompt_tokens=2, echo=True, return_token_ids=True, max_tokens=1)["choices"][0]
        self.assertEqual((data["prompt_token_ids"], data["text"][:2]), (list(b"ef"), "ef"))
        self.assertEqual(self.complete("abc", truncate_prompt_tokens=9)["usage"]["prompt_tokens"], 3)
        self.assertEqual(self.complete("abcdef", truncate_prompt_tokens=2, truncation_side="right", return_token_ids=True, max_tokens=1)["choices"][0]["prompt_token_ids"], list(b"ab"))
        self.assertEqual(self.post("/v1/completions", {"prompt": "a", "truncation_side": "up"})[1]["error"]["param"], "truncation_side")
        long = "y" * 5000
        self.assertEqual(self.post("/v1/completions", {"prompt": long})[1]["error"]["code"], "context_length_exceeded")
        self.assertEqual(self.complete(long, truncate_prompt_tokens=-1, max_tokens=96)["usage"]["prompt_tokens"], 4000)
        self.assertEqual(self.chat(long, truncate_prompt_tokens=100, max_tokens=1)["usage"]["prompt_tokens"], 100)

    def test_prompts_of_every_kind(self):
        ids = list(b"[say xy]")
        for prompt, texts in (("[say a]", ["a"]), (["[say a]", "[say b]"], ["a", "b"]), (ids, ["xy"]), ([ids, ids], ["xy", "xy"])):
            data = self.complete(prompt)
            self.assertEqual([c["text"] for c in data["choices"]], texts)
            self.assertEqual([c["index"] for c in data["choices"]], list(range(len(texts))))
        data = self.complete(["[say a]", "[say b]"], n=2)
        self.assertEqual([c["text"] for c in data["choices"]], ["a", "a", "b", "b"])
        self.assertEqual(data["usage"]["prompt_tokens"], 14)
        self.assertEqual(data["usage"]["completion_tokens"], 4)

    def test_n_and_seed(self):
        one = self.chat("hello", n=3, max_tokens=20, seed=7)
        texts = [c["message"]["content"] for c in one["choices"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(one["usage"]["completion_tokens"], 60)
        two = self.chat("hello", n=3, max_tokens=20, seed=7)
        self.assertEqual(texts, [c["message"]["content"] for c in two["choices"]])
        self.assertNotEqual(texts, [c["message"]["content"] for c in self.chat("hello", n=3, max_tokens=20)["choices"]])

    def test_stop_strings(self):
        before = self.server.engine()["stopped"]
        for stop, text, n in (("lo", "hel", 5), (["zz", "l"], "he", 3), ("o wor", "hell", 9), ("nope", "hello world", 11)):
            data = self.complete("[say hello world]", stop=stop)
            self.assertEqual(data["choices"][0]["text"], text)
            self.assertEqual(data["choices"][0]["finish_reason"], "stop")
            self.assertEqual(data["usage"]["completion_tokens"], n)
        self.assertEqual(self.server.wait_engine(lambda e: e["stopped"] == before + 3)["stopped"], before + 3)
        data = self.complete("[say hello world]", stop="lo", include_stop_str_in_output=True)
        self.assertEqual(data["choices"][0]["text"], "hello")
        # Overshoot inside one delta is discarded and not billed.
        data = self.complete("[say hello world][burst 11]", stop="l", return_token_ids=True)
        self.assertEqual((data["choices"][0]["text"], data["usage"]["completion_tokens"]), ("he", 3))
        self.assertEqual(data["choices"][0]["token_ids"], list(b"hel"))
        data = self.complete("[say hello world]", stop="l", min_tokens=4, max_tokens=20)
        self.assertEqual(data["choices"][0]["text"], "hello wor")

    def test_stop_ids_and_ignore_eos(self):
        data = self.complete("[say abc]", stop_token_ids=[ord("b")])
        self.assertEqual((data["choices"][0]["text"], data["choices"][0]["finish_reason"]), ("a", "stop"))
        data = self.complete("[say abc]", ignore_eos=True, max_tokens=6)
        self.assertEqual((data["choices"][0]["text"], data["usage"]["completion_tokens"]), ("abc", 6))
        data = self.complete("[say abc]", ignore_eos=True, max_tokens=5, skip_special_tokens=False)
        self.assertEqual(data["choices"][0]["text"], "abc<|im_end|><|im_end|>")

    def test_chat_logprobs(self):
        data = self.chat("[say hé]", logprobs=True, top_logprobs=2)
        content = data["choices"][0]["logprobs"]["content"]
        self.assertEqual(content[0], {"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]}, {"token": "i", "logprob": -1.5, "bytes": [105]}]})
        self.assertEqual([c["bytes"] for c in content], [[104], [0xc3], [0xa9]])
        self.assertEqual(bytes(b for c in content for b in c["bytes"]).decode(), data["choices"][0]["message"]["content"])
        data = self.chat("[say hello]", logprobs=True, stop="ll")
        self.assertEqual([c["token"] for c in data["choices"][0]["logprobs"]["content"]], ["h", "e"])
        self.assertEqual(data["choices"][0]["logprobs"]["content"][0]["top_logprobs"], [])
        data = self.chat("[say a][nan]", logprobs=True)
        self.assertEqual(data["choices"][0]["logprobs"]["content"][0]["logprob"], -9999.0)

    def test_completion_logprobs_and_echo(self):
        logprobs = self.complete("[say hé]", logprobs=2)["choices"][0]["logprobs"]
        self.assertEqual(logprobs["tokens"], ["h", "bytes:\\xc3", "bytes:\\xa9"])
        self.assertEqual(logprobs["token_logprobs"], [-0.5] * 3)
        self.assertEqual(logprobs["text_offset"], [0, 1, 1])
        self.assertEqual(logprobs["top_logprobs"][0], {"h": -0.5, "i": -1.5})
        data = self.complete("[say ok]", echo=True, logprobs=0)["choices"][0]
        self.assertEqual(data["text"], "[say ok]ok")
        self.assertEqual(data["logprobs"]["token_logprobs"], [None] + [-1.5] * 7 + [-0.5] * 2)
        self.assertEqual([t and list(t.values()) for t in data["logprobs"]["top_logprobs"]], [None] + [[-1.5]] * 7 + [[-0.5]] * 2)
        self.assertEqual(data["logprobs"]["text_offset"], list(range(10)))
        data = self.complete("abc", echo=True, logprobs=1, max_tokens=0)
        self.assertEqual(data["choices"][0]["text"], "abc")
        self.assertEqual(data["choices"][0]["logprobs"]["tokens"], ["a", "b", "c"])
        self.assertEqual(data["usage"]["completion_tokens"], 0)

    def test_text_that_is_not_utf8(self):
        data = self.complete(list(b"[say a\xff\xc3b]"))
        self.assertEqual(data["choices"][0]["text"], "a\ufffd\ufffdb")

    def test_content_parts_tools_and_roles(self):
        def ids(messages, **more):
            return bytes(i for i in self.post("/tokenize", {"messages": messages, **more})[1]["tokens"] if i < 256).decode()
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        self.assertEqual(ids([{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]),
                         "system\nbe brief\nuser\none\ntwo\nassistant\n")
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        self.assertIn('"name": "f"', ids([{"role": "user", "content": "x"}], tools=tools))
        self.assertNotIn('"name"', ids([{"role": "user", "content": "x"}], tools=tools, tool_choice="none"))
        for choice in ("none", "auto"):  # as without tools
            self.assertEqual(ids([{"role": "user", "content": "x"}], tools=[], tool_choice=choice), ids([{"role": "user", "content": "x"}]))
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
        self.assertIn("tool\n42", ids([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
                                       {"role": "tool", "tool_call_id": "c1", "content": "42"}]))

    def test_tool_calls(self):
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        text = 'Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> <tool_call>{"name": "add"}</tool_call>'
        choice = self.chat(f"[say {text}]", tools=tools)["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", "Sure."))
        calls = choice["message"]["tool_calls"]
        self.assertEqual([c["function"] for c in calls], [{"name": "add", "arguments": '{"a": 1}'}, {"name": "add", "arguments": "{}"}])
        self.assertEqual(len({c["id"] for c in calls}), 2)
        self.assertEqual({c["type"] for c in calls}, {"function"})
        data = chunks(self.server.request("POST", "/v1/chat/completions", chat(f"[say {text}]", tools=tools, stream=True))[2])
        deltas = [c["choices"][0]["delta"] for c in data]
        self.assertEqual("".join(d.get("content") or "" for d in deltas), "Sure.")
        parts = [c for d in deltas for c in d.get("tool_calls", [])]
        self.assertEqual([(c["index"], c["function"]["name"]) for c in parts if "id" in c], [(0, "add"), (1, "add")])
        self.assertEqual({c["type"] for c in parts}, {"function"})
        for call in (0, 1):
            streamed = "".join(c["function"]["arguments"] for c in parts if c["index"] == call)
            self.assertEqual(streamed, calls[call]["function"]["arguments"])
        self.assertGreater(len([c for c in parts if c["index"] == 0]), 5)  # the arguments arrive token by token
        self.assertEqual(data[-1]["choices"][0]["finish_reason"], "tool_calls")
        self.assertEqual(self.chat(f"[say {text}]")["choices"][0]["message"]["content"], text)  # no tools offered: text

    def test_return_token_ids(self):
        data = self.chat("[say abc]", return_token_ids=True)
        self.assertEqual(data["choices"][0]["token_ids"], list(b"abc"))
        self.assertEqual(len(data["prompt_token_ids"]), data["usage"]["prompt_tokens"])
        data = self.complete("[say abc]", return_token_ids=True)
        self.assertEqual(data["choices"][0]["prompt_token_ids"], list(b"[say abc]"))
        stream = chunks(self.server.request("POST", "/v1/chat/completions", chat("[say abc]", return_token_ids=True, stream=True))[2])
        self.assertEqual([len(c.get("prompt_token_ids", [])) for c in stream], [self.chat("[say abc]")["usage"]["prompt_tokens"]] + [0] * 4)
        self.assertEqual([i for c in stream[1:] for i in c["choices"][0]["token_ids"]], list(b"abc"))

    def test_tokens_named_by_id(self):
        data = self.complete("[say hé]", logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        self.assertEqual(data["tokens"], ["token_id:104", "token_id:195", "token_id:169"])
        self.assertEqual(data["top_logprobs"][0], {"token_id:104": -0.5})
        data = self.chat("[say h]", logprobs=True, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"]
        self.assertEqual((data[0]["token"], data[0]["bytes"]), ("token_id:104", [104]))

    def test_stop_reason(self):
        self.assertEqual(self.complete("[say hello]", stop=["x", "ll"])["choices"][0]["stop_reason"], "ll")
        self.assertEqual(self.chat("[say hello]", stop_token_ids=[108])["choices"][0]["stop_reason"], 108)
        self.assertNotIn("stop_reason", self.chat("[say hello]")["choices"][0])  # the model ended it
        last = chunks(self.server.request("POST", "/v1/chat/completions", chat("[say hello]", stop="ll", stream=True))[2])[-1]
        self.assertEqual((last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]), ("stop", "ll"))

    def test_last_message_continued(self):
        def prompt(content, **more):
            messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
            return self.post("/apply-template", {"messages": messages, "continue_final_message": True, **more})
        start = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
        for content in ("Sure,", "Sure, ", "x", "<", "end", "|>", [{"type": "text", "text": "Sure,"}]):
            text = content if isinstance(content, str) else "Sure,"
            self.assertEqual(prompt(content)[1]["prompt"], start + text)
        self.assertEqual(prompt("Sure,", add_generation_prompt=True)[1]["error"]["param"], "continue_final_message")
        self.assertEqual(prompt(" ")[1]["error"]["param"], "continue_final_message")
        status, data = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "[say abc"}],
                                                          "continue_final_message": True, "return_token_ids": True})
        self.assertEqual((status, bytes(i for i in data["prompt_token_ids"] if i < 256)), (200, b"user\n[say abc"))

    def test_other_routes(self):
        card = {"id": "fake", "object": "model", "created": 1700000000, "owned_by": "tokamak", "root": "fake",
                "parent": None, "max_model_len": 4096,
                "meta": {"n_vocab": 259, "n_ctx": 4096, "n_embd": 576, "n_params": 134515008, "size": 1000}}
        self.assertEqual(self.server.json("GET", "/v1/models"), (200, {"object": "list", "data": [card]}))
        for name in ("fake", "fake/alias", "fake%2Falias"):
            self.assertEqual(self.server.json("GET", f"/v1/models/{name}"), (200, card))
        status, data = self.server.json("GET", "/v1/models/none")
        self.assertEqual((status, data["error"]["code"]), (404, "model_not_found"))
        self.assertEqual(self.server.json("GET", "/version"), (200, {"version": "0.1.0"}))
        status, data = self.post("/tokenize", {"prompt": "hé<|im_end|>", "return_token_strs": True})
        self.assertEqual((data["tokens"], data["count"]), ([104, 0xc3, 0xa9, 257], 4))
        self.assertEqual((data["token_strs"][0], data["token_strs"][3]), ("h", "<|im_end|>"))
        self.assertIsNone(self.post("/tokenize", {"prompt": "h"})[1]["token_strs"])
        self.assertEqual(self.post("/tokenize", {"content": "hé", "with_pieces": True})[1]["tokens"],
                         [{"id": 104, "piece": "h"}, {"id": 0xc3, "piece": [0xc3]}, {"id": 0xa9, "piece": [0xa9]}])
        for path in ("/models", "/v1/models/", "//v1/models", "/v1//models//", "/models/fake/"):  # common forms of base addresses
            self.assertEqual(self.server.request("GET", path)[0], 200, path)
        self.assertEqual(self.post("/chat/completions", chat("[say x]"))[0], 200)
        status, data = self.post("/detokenize", {"tokens": [104, 0xc3, 0xa9]})
        self.assertEqual(data["prompt"], "hé")
        self.assertEqual(self.post("/detokenize", {"tokens": [259]})[1]["error"]["param"], "tokens[0]")
        status, data = self.post("/apply-template", chat("x"))
        self.assertEqual(data["prompt"], "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")
        status, headers, page = self.server.request("GET", "/")
        self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
        for link in re.findall(rb'(?:href|src)="(/[^"]+)"', page):
            self.assertEqual(self.server.request("GET", link.decode())[0], 200, link)
        self.assertNotIn(b"http", page)  # works offline


class Streams(Api):
    def test_chat_stream_to_the_byte(self):
        body = self.stream("/v1/chat/completions", chat("[say Hi\"\n☃]", stream_options={"include_usage": True}))
        lines = events(body)
        head = re.match(rb'\{"id":"chatcmpl-[0-9a-f]{32}","object":"chat.completion.chunk","created":\d+,"model":"fake",'
                        rb'"system_fingerprint":"fp_tokamak_0.1.0","choices":\[', lines[0]).group()
        deltas = [b'{"role":"assistant","content":""}', b'{"content":"H"}', b'{"content":"i"}', b'{"content":"\\""}',
                  b'{"content":"\\n"}', '{"content":"☃"}'.encode()]
        expected = [head + b'{"index":0,"delta":' + d + b',"logprobs":null,"finish_reason":null}],"usage":null}' for d in deltas]
        expected.append(head + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}')
        expected.append(head + b'],"usage":{"prompt_tokens":32,"completion_tokens":7,"total_tokens":39,'
                               b'"prompt_tokens_details":{"cached_tokens":0}}}')
        expected.append(b"[DONE]")
        self.assertEqual(lines, expected)

    def test_completion_stream(self):
        data = chunks(self.stream("/v1/completions", {"prompt": "[say abc]", "max_tokens": 2}))
        self.assertEqual([c["choices"][0]["text"] for c in data], ["a", "b"])
        self.assertEqual([c["choices"][0]["finish_reason"] for c in data], [None, "length"])
        self.assertTrue(all("usage" not in c for c in data))
        data = chunks(self.stream("/v1/completions", {"prompt": "[say abc]", "echo": True, "return_token_ids": True}))
        self.assertEqual("".join(c["choices"][0]["text"] for c in data), "[say abc]abc")
        self.assertEqual([i for c in data for i in c["choices"][0]["token_ids"]], list(b"abc"))

    def test_stream_equals_whole(self):
        """With all options, the concatenated stream equals the answer without streaming."""
        cases = [{"n": n, "stop": stop, "logprobs": logprobs, "max_tokens": 30, "seed": 3, "prompt": prompt}
                 for n in (1, 3) for stop in (None, ["e", "o w"]) for logprobs in (None, 0, 3)
                 for prompt in ("hash letters", "[say héllo wörld ☃☃ end]", "[say héllo ☃][burst 4]", ["[say a]", "[say bce]"])]
        for case in cases:
            with self.subTest(**case):
                status, whole = self.post("/v1/completions", case)
                self.assertEqual(status, 200, whole)
                data = chunks(self.stream("/v1/completions", {**case, "stream_options": {"include_usage": True}}))
                self.assertEqual(data[-1]["usage"], whole["usage"])
                for choice in whole["choices"]:
                    mine = [c["choices"][0] for c in data[:-1] if c["choices"][0]["index"] == choice["index"]]
                    self.assertEqual("".join(c["text"] for c in mine), choice["text"])
                    self.assertEqual([c["finish_reason"] for c in mine], [None] * (len(mine) - 1) + [choice["finish_reason"]])
                    if choice["logprobs"]:
                        for key in ("tokens", "token_logprobs", "text_offset"):
                            joined = [x for c in mine if c["logprobs"] for x in c["logprobs"][key]]
                            self.assertEqual(joined, choice["logprobs"][key], key)

    def test_several_choices(self):
        data = chunks(self.stream("/v1/chat/completions", chat("[say ab]", n=3)))
        for index in range(3):
            mine = [c["choices"][0] for c in data if c["choices"][0]["index"] == index]
            self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual("".join(c["delta"].get("content", "") for c in mine), "ab")
            self.assertEqual(mine[-1]["finish_reason"], "stop")

    def test_usage_on_every_chunk(self):
        options = {"continuous_usage_stats": True, "include_usage": True}
        data = chunks(self.stream("/v1/completions", {"prompt": "[say abc]", "stream_options": options}))
        self.assertEqual([c["usage"]["completion_tokens"] for c in data], [1, 2, 3, 3, 3])
        data = chunks(self.stream("/v1/chat/completions", chat("[say ab]", stream_options=options)))
        self.assertEqual([c["usage"]["completion_tokens"] for c in data], [0, 1, 2, 2, 2])
        self.assertEqual({c["usage"]["prompt_tokens"] for c in data}, {data[-1]["usage"]["prompt_tokens"]})
        options["include_usage"] = False
        data = chunks(self.stream("/v1/completions", {"prompt": "[say abc]", "stream_options": options}))
        self.assertTrue(all("usage" not in c for c in data))

    def test_error_inside_a_stream(self):
        lines = events(self.stream("/v1/chat/completions", chat("[error]")))
        self.assertEqual(json.loads(lines[-2])["error"], {"message": "the fake engine was told to fail", "type": "server_error",
                                                         "param": None, "code": None})
        self.assertEqual(lines[-1], b"[DONE]")
        status, data = self.post("/v1/chat/completions", chat("[error]"))
        self.assertEqual((status, data["error"]["type"]), (500, "server_error"))

    def test_pings_while_nothing_comes(self):
        with self.server.connect() as s:
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[hold]", "stream": True}))
            self.assertIn(b": ping\n\n", read_until(s, b": ping\n\n"))

    def test_many_at_once(self):
        """With 40 concurrent clients each stream equals what the client gets alone."""
        bodies = [{"prompt": f"client {i}", "max_tokens": 50, "seed": i, "stream": True} for i in range(40)]
        alone = [b"".join(json.loads(e)["choices"][0]["text"].encode() for e in events(
            self.server.request("POST", "/v1/completions", b)[2])[:-1]) for b in bodies]
        got = [None] * len(bodies)

        def ask(i):
            for _ in range(3):
                data = self.server.request("POST", "/v1/completions", bodies[i], timeout=60)[2]
                got[i] = b"".join(json.loads(e)["choices"][0]["text"].encode() for e in events(data)[:-1])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, alone)


class Leaving(Api):
    """A request ends when its client disconnects."""

    def check_cancelled(self, leave):
        before = self.server.wait_engine(lambda e: e["running"] == 0)
        leave()
        after = self.server.wait_engine(
            lambda e: e["cancelled"] == before["cancelled"] + 1 and e["generations"] == 0 and e["running"] == 0)
        self.assertEqual(after["cancelled"], before["cancelled"] + 1)
        self.assertEqual((after["running"], after["generations"]), (0, 0))
        self.assertEqual(self.server.wait_engine(lambda e: e["connections"] == 1)["connections"], 1)

    def ask(self, body, how, prompts=1, path="/v1/completions"):
        s = self.server.connect()
        submitted = self.server.engine()["submitted"]
        s.sendall(encode("POST", path, body))
        self.server.wait_engine(lambda e: e["submitted"] >= submitted + prompts)
        if body.get("stream"):
            read_until(s, b"\r\n\r\n")
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()

    def test_leaving(self):
        for stream in (True, False):
            for how in ("close", "reset"):
                for prompt in ("[hold]", "[slow 10]"):
                    for path, body in (("/v1/completions", {"prompt": prompt, "max_tokens": 4000}),
                                       ("/api/chat", chat(prompt, options={"num_predict": 4000}))):  # a stream without pings
                        with self.subTest(stream=stream, how=how, prompt=prompt, path=path):
                            self.check_cancelled(lambda: self.ask({**body, "stream": stream}, how, path=path))

    def test_leaving_with_a_pipelined_request(self):
        def leave():
            s = self.server.connect()
            submitted = self.server.engine()["submitted"]
            s.sendall(encode("POST", "/v1/completions", {"prompt": "[hold]"}) + encode("GET", "/health"))
            self.server.wait_engine(lambda e: e["submitted"] > submitted)
            s.close()
        self.check_cancelled(leave)

    def test_several_prompts_are_all_cancelled(self):
        before = self.server.engine()["cancelled"]
        self.ask({"prompt": ["[hold]", "[hold]", "[hold]"], "n": 2}, "close", prompts=3)
        self.assertEqual(self.server.wait_engine(lambda e: e["cancelled"] == before + 3)["cancelled"], before + 3)

    def test_queue_full_in_the_middle(self):
        before = self.server.engine()
        status, headers, body = self.server.request("POST", "/v1/completions", {"prompt": ["[hold]", "[full]"]})
        self.assertEqual((status, headers["retry-after"]), (429, "1"))
        self.assertEqual(json.loads(body)["error"]["type"], "rate_limit_error")
        after = self.server.wait_engine(lambda e: e["cancelled"] == before["cancelled"] + 1)
        self.assertEqual(after["cancelled"], before["cancelled"] + 1)


class SlowReaders(unittest.TestCase):
    def big(self, s):
        """A stream of about 12 MB, generated within seconds, that the client does not read."""
        s.sendall(encode("POST", "/v1/completions", {"prompt": "[slow 2][burst 4]", "max_tokens": 4000, "logprobs": 20, "stream": True, "n": 2}))

    def test_a_client_that_does_not_read_is_dropped_and_disturbs_nobody(self):
        server = Server(write_ms=700, send_buffer=8192)
        try:
            with server.connect(receive_buffer=4096) as s:
                self.big(s)
                for _ in range(5):  # other clients are served meanwhile
                    self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "[say hi]"})[0], 200)
                state = server.wait_engine(lambda e: e["connections"] == 1 and e["generations"] == 0, 30)
                self.assertEqual((state["connections"], state["generations"]), (1, 0))
        finally:
            server.stop()

    def test_a_client_that_lags_too_far_behind_is_dropped(self):
        server = Server(max_unsent=200_000, send_buffer=8192)
        try:
            with server.connect(receive_buffer=4096) as s:
                self.big(s)
                state = server.wait_engine(lambda e: e["cancelled"] == 1 and e["generations"] == 0, 30)
                self.assertEqual((state["cancelled"], state["connections"]), (1, 1))
        finally:
            server.stop()

    def test_a_slow_client_gets_everything(self):
        server = Server(write_ms=5000, send_buffer=8192)
        try:
            with server.connect(receive_buffer=4096) as s:
                s.sendall(encode("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2000, "stream": True},
                                 {"Connection": "close"}))
                data = b""
                while True:
                    more = s.recv(4096)
                    if not more:
                        break
                    data += more
                    if len(data) < 100_000:
                        time.sleep(0.01)
            status, _, body = parse(data)
            self.assertEqual(len(chunks(body)), 2000)
        finally:
            server.stop()


class Keys(unittest.TestCase):
    def test_every_route_but_health_asks_for_the_key(self):
        server = Server(env={"FAKE_API_KEY": "secret"})
        try:
            self.assertEqual(server.request("GET", "/health")[0], 200)
            for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/fake"), ("GET", "/version"), ("POST", "/v1/completions"),
                                 ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
                                 ("POST", "/apply-template")):
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret2"},
                                {"Authorization": "Bearer secre"}, {"Authorization": "Basic secret"}):
                    status, data = server.json(method, path, {} if method == "POST" else None, headers)
                    self.assertEqual((status, data["error"]["type"], data["error"]["code"]),
                                     (401, "authentication_error", "invalid_api_key"), (path, headers))
            good = {"Authorization": "Bearer secret"}
            self.assertEqual(server.request("GET", "/v1/models", headers=good)[0], 200)
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "[say x]"}, good)[0], 200)
        finally:
            server.stop()


del Api  # a base, not a test


if __name__ == "__main__":
    unittest.main(verbosity=2)
