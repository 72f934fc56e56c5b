"""The APIs of other servers: Anthropic's Messages, OpenAI's Responses, Ollama, llama.cpp, KServe. Exact format, streams equal to whole
answers, errors in each API's own form. The official clients are in sdk_test.py."""
import json
import struct
import random
import unittest

from harness import Server, chat

TOOL_TEXT = 'Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> <tool_call>{"name": "add", "arguments": {}}</tool_call>'


def named_events(body):
    """(name, data) of a stream whose events have names; every name must be the type of the data."""
    assert body.endswith(b"\n\n"), body[-40:]
    out = []
    for block in body[:-2].split(b"\n\n"):
        if block.startswith(b":"):
            continue
        first, second = block.split(b"\n")
        assert first.startswith(b"event: ") and second.startswith(b"data: "), block
        data = json.loads(second[6:])
        assert data["type"] == first[7:].decode(), block
        out.append(data)
    return out


class Compat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ping_ms=100000)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body, status=200):
        got, _, data = self.server.request("POST", path, body)
        self.assertEqual(got, status, data)
        return json.loads(data)

    def stream(self, path, body):
        status, headers, data = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual(status, 200, data)
        return headers, data


class Anthropic(Compat):
    PATH = "/v1/messages"
    TOOLS = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]

    def ask(self, text, **more):
        return {"model": "fake", "max_tokens": 300, "messages": [{"role": "user", "content": text}], **more}

    def test_whole(self):
        data = self.post(self.PATH, self.ask("[say Hello][cached 5]"))
        self.assertRegex(data.pop("id"), r"^msg_[0-9a-f]{32}$")
        self.assertEqual(data, {
            "type": "message", "role": "assistant", "model": "fake", "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 35, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": 5}})
        data = self.post(self.PATH, self.ask("[say Hello]", stop_sequences=["lo"]))
        self.assertEqual((data["content"][0]["text"], data["stop_reason"], data["stop_sequence"]), ("Hel", "stop_sequence", "lo"))
        data = self.post(self.PATH, self.ask("[say Hello]", max_tokens=2))
        self.assertEqual((data["content"][0]["text"], data["stop_reason"]), ("He", "max_tokens"))
        self.post(self.PATH, self.ask("x", max_tokens=100000, stop_sequences=["e"]))  # as long as the context allows

    def test_tools(self):
        served = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]  # left out beside own tools
        data = self.post(self.PATH, self.ask(f"[say {TOOL_TEXT}]", tools=served + self.TOOLS, tool_choice={"type": "auto"}))
        self.assertEqual(data["stop_reason"], "tool_use")
        self.assertEqual([b["type"] for b in data["content"]], ["text", "tool_use", "tool_use"])
        self.assertEqual([b["input"] for b in data["content"][1:]], [{"a": 1}, {}])
        # Results go back as messages of their own, before the text of the same message.
        body = self.ask("go", tools=self.TOOLS, system=[{"type": "text", "text": "be [say done]"}])
        body["messages"] += [{"role": "assistant", "content": data["content"]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": data["content"][1]["id"], "content": "41"},
                                                          {"type": "tool_result", "tool_use_id": data["content"][2]["id"],
                                                           "content": [{"type": "text", "text": "42"}]},
                                                          {"type": "text", "text": "and?"}]}]
        self.assertEqual(self.post(self.PATH, body)["content"][0]["text"], "done")

    def test_stream(self):
        for text, more in (("[say Hello]", {}), (f"[say {TOOL_TEXT}]", {"tools": self.TOOLS}), ("[say <think>a</think>b]", {}),
                           ("[say Hello]", {"max_tokens": 2})):
            whole = self.post(self.PATH, self.ask(text, **more))
            headers, data = self.stream(self.PATH, self.ask(text, **more))
            self.assertEqual(headers["content-type"], "text/event-stream; charset=utf-8")
            got = named_events(data)
            self.assertEqual((got[0]["type"], got[-2]["type"], got[-1]), ("message_start", "message_delta", {"type": "message_stop"}))
            self.assertEqual(got[0]["message"]["content"], [])
            blocks, at = [], None
            for event in got[1:-2]:
                if event["type"] == "content_block_start":
                    self.assertIsNone(at)
                    at = event["index"]
                    self.assertEqual(at, len(blocks))
                    blocks.append({**event["content_block"], "json": ""})
                elif event["type"] == "content_block_stop":
                    self.assertEqual(event["index"], at)
                    at = None
                else:
                    self.assertEqual(event["index"], at)
                    delta = event["delta"]
                    if delta["type"] == "input_json_delta":
                        blocks[-1]["json"] += delta["partial_json"]
                    else:
                        field = delta["type"].removesuffix("_delta")
                        blocks[-1][field] += delta[field]
            self.assertIsNone(at)
            for block in blocks:
                text = block.pop("json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text)
                    block["id"] = None
            for block in whole["content"]:
                if block["type"] == "tool_use":
                    block["id"] = None
            self.assertEqual(blocks, whole["content"])
            self.assertEqual(got[-2]["delta"]["stop_reason"], whole["stop_reason"])
            self.assertEqual(got[-2]["usage"], whole["usage"])

    def test_prefill_and_count(self):
        body = self.ask("x")
        body["messages"].append({"role": "assistant", "content": "The answer is [say 42]"})
        self.assertEqual(self.post(self.PATH, body)["content"][0]["text"], "42")
        count = self.post(self.PATH + "/count_tokens", {"model": "fake", "messages": body["messages"][:1]})
        self.assertEqual(count, {"input_tokens": self.post(self.PATH, self.ask("x", max_tokens=1))["usage"]["input_tokens"]})

    def test_errors(self):
        for more, word in (({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
                           ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
                           ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
                           ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
                           ({"tools": [{"name": "f"}]}, "input_schema"), ({"thinking": {"type": "x"}}, "thinking.type"),
                           ({"stop_sequences": "x"}, "stop_sequences"), ({"temperature": 9}, "temperature"), ({"system": 3}, "system")):
            data = self.post(self.PATH, self.ask("x", **more), status=400)
            self.assertEqual((data["type"], data["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(word, data["error"]["message"])
        self.assertEqual(self.post(self.PATH, {**self.ask("x"), "model": "no"}, status=404)["error"]["type"], "not_found_error")
        self.assertEqual(self.post(self.PATH, self.ask("[full]"), status=429)["error"]["type"], "rate_limit_error")
        self.assertEqual(named_events(self.stream(self.PATH, self.ask("[error]"))[1])[-1]["type"], "error")


class Responses(Compat):
    PATH = "/v1/responses"
    TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None}]

    def test_whole(self):
        data = self.post(self.PATH, {"model": "fake", "input": "[say Hello]", "instructions": "be short", "metadata": {"k": "v"}})
        self.assertRegex(data["id"], r"^resp_[0-9a-f]{32}$")
        self.assertEqual((data["object"], data["status"], data["error"], data["metadata"], data["store"]),
                         ("response", "completed", None, {"k": "v"}, True))
        item = data["output"][0]
        self.assertEqual((item["type"], item["role"], item["status"]), ("message", "assistant", "completed"))
        self.assertEqual(item["content"], [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}])
        usage = data["usage"]
        self.assertEqual((usage["output_tokens"], usage["total_tokens"]), (5, usage["input_tokens"] + 5))
        data = self.post(self.PATH, {"input": "[say Hello]", "max_output_tokens": 2})
        self.assertEqual((data["status"], data["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))

    def test_conversation(self):
        first = self.post(self.PATH, {"input": "my word is [say one]"})
        second = self.post(self.PATH, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "again"}]}],
                                       "previous_response_id": first["id"]})
        self.assertEqual(second["output"][0]["content"][0]["text"], "one")  # the command is in the first message
        self.assertGreater(second["usage"]["input_tokens"], first["usage"]["input_tokens"])
        self.assertEqual(self.server.json("GET", f"{self.PATH}/{first['id']}")[1], first)
        status, refused = self.server.json("POST", f"{self.PATH}/{first['id']}/cancel")  # it has ended
        self.assertEqual((status, refused["error"]["param"]), (400, "id"))
        self.assertEqual(self.server.json("DELETE", f"{self.PATH}/{first['id']}")[1]["deleted"], True)
        self.assertEqual(self.server.json("POST", f"{self.PATH}/{first['id']}/cancel")[0], 404)
        self.assertEqual(self.server.json("GET", f"{self.PATH}/{first['id']}")[0], 404)
        bad = self.post(self.PATH, {"input": "x", "previous_response_id": first["id"]}, status=400)
        self.assertEqual(bad["error"]["code"], "previous_response_not_found")
        third = self.post(self.PATH, {"input": "[say x]", "store": False})
        self.assertEqual(self.server.json("GET", f"{self.PATH}/{third['id']}")[0], 404)

    def test_input_items(self):
        def items(id, query="", status=200):
            got, page = self.server.json("GET", f"{self.PATH}/{id}/input_items{query}")
            self.assertEqual(got, status, page)
            return page
        def texts(page):
            return [item["content"][0]["text"] for item in page["data"]]
        first = self.post(self.PATH, {"input": "my word is [say one]"})
        page = items(first["id"])
        self.assertEqual((page["object"], page["has_more"], page["first_id"]), ("list", False, page["data"][0]["id"]))
        item = page["data"][0]
        self.assertEqual((item["type"], item["role"], item["content"]),
                         ("message", "user", [{"type": "input_text", "text": "my word is [say one]"}]))
        second = self.post(self.PATH, {"input": [{"role": "user", "content": "a", "id": "msg_a"}, {"role": "user", "content": "b"}],
                                       "previous_response_id": first["id"]})
        self.assertEqual(texts(items(second["id"])), ["b", "a", "one", "my word is [say one]"])
        self.assertEqual(items(second["id"], "?order=asc")["data"][:2], [item, first["output"][0]])
        page = items(second["id"], "?order=asc&limit=2")
        self.assertEqual((texts(page), page["has_more"]), (["my word is [say one]", "one"], True))
        page = items(second["id"], f"?order=asc&limit=2&after={page['last_id']}")
        self.assertEqual((texts(page), page["has_more"]), (["a", "b"], False))
        self.assertEqual(texts(items(second["id"], "?after=msg_a")), ["one", "my word is [say one]"])
        for query in ("?limit=0", "?limit=x", "?limit=101", "?order=up", "?after=msg_c"):
            items(second["id"], query, status=400)
        items("resp_unknown", status=404)
        third = self.post(self.PATH, {"input": "[say x]", "store": False})
        items(third["id"], status=404)

    def test_the_store_is_bounded(self):
        first = self.post(self.PATH, {"input": "[say x]"})["id"]
        for _ in range(1000):
            self.post(self.PATH, {"input": "[say x]"})
        self.assertEqual(self.server.json("GET", f"{self.PATH}/{first}")[0], 404)

    def test_tools_and_stream(self):
        for text, more in (("[say Hello]", {}), (f"[say {TOOL_TEXT}]", {"tools": self.TOOLS}), ("[say <think>a</think>b]", {}),
                           ("[say Hello]", {"max_output_tokens": 2}),
                           ("[say Hi]", {"include": ["message.output_text.logprobs"], "top_logprobs": 2})):
            whole = self.post(self.PATH, {"input": text, **more})
            got = named_events(self.stream(self.PATH, {"input": text, **more})[1])
            self.assertEqual([e["sequence_number"] for e in got], list(range(len(got))))
            self.assertEqual([e["type"] for e in got[:2]], ["response.created", "response.in_progress"])
            final = got[-1]["response"]
            self.assertEqual(got[-1]["type"], "response.completed" if whole["status"] == "completed" else "response.incomplete")

            def plain(response):
                items = json.loads(json.dumps(response["output"]))
                for item in items:
                    item["id"] = item["call_id"] = None
                return items, response["status"], response["usage"]
            self.assertEqual(plain(final), plain(whole))
            done = [e["item"] for e in got if e["type"] == "response.output_item.done"]
            self.assertEqual(done, final["output"])
            for kind in ("output_text", "function_call_arguments", "reasoning_text"):
                parts = {}
                for event in got:
                    if event["type"] == f"response.{kind}.delta":
                        parts[event["item_id"]] = parts.get(event["item_id"], "") + event["delta"]
                    elif event["type"] == f"response.{kind}.done":
                        self.assertEqual(parts.pop(event["item_id"], ""), event.get("text", event.get("arguments")))
                self.assertEqual(parts, {})
        # An agent sends tools that the server would have to run beside its functions: the response lists what the model has.
        hosted = [{"type": "web_search", "external_web_access": True}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}]
        data = self.post(self.PATH, {"input": "[say x]", "tools": [*self.TOOLS, *hosted], "tool_choice": "auto"})
        self.assertEqual(data["tools"], self.TOOLS)
        # A call and its result as input.
        items = [{"role": "user", "content": "[say sum]"}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                 {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "c1", "output": "3"}]
        data = self.post(self.PATH, {"input": items, "tools": self.TOOLS})
        self.assertEqual(data["output"][0]["content"][0]["text"], "sum")
        listed = self.server.json("GET", f"{self.PATH}/{data['id']}/input_items?order=asc")[1]["data"]
        self.assertEqual([item["id"].split("_")[0] for item in listed], ["msg", "rs", "fc", "fco"])

    def test_errors(self):
        for body, param in (({}, "input"), ({"input": 3}, "input"), ({"input": []}, "input"), ({"input": [{"type": "computer_call"}]}, "input[0].type"),
                            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
                            ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"), ({"input": "x", "background": 1}, "background"),
                            ({"input": "x", "conversation": "c"}, "conversation"), ({"input": "x", "max_output_tokens": 0}, "max_output_tokens")):
            self.assertEqual(self.post(self.PATH, body, status=400)["error"]["param"], param)
        got = named_events(self.stream(self.PATH, {"input": "[error]"})[1])
        self.assertEqual((got[-1]["type"], got[-1]["response"]["status"]), ("response.failed", "failed"))


class Kserve(Compat):
    MODEL = "/v2/models/fake"

    def infer(self, *tensors, status=200, **more):
        names = [{"name": n, "datatype": t, "shape": [len(d)], "data": d} for n, t, d in tensors]
        return self.post(f"{self.MODEL}/infer", {"inputs": names, **more}, status)

    def test_metadata(self):
        def get(path, status=200):
            got, _, data = self.server.request("GET", path)
            self.assertEqual(got, status, data)
            return json.loads(data)
        self.assertEqual((get("/v2")["name"], get("/v2/health/live"), get("/v2/health/ready")), ("tokamak", {"live": True}, {"ready": True}))
        self.assertEqual((get(self.MODEL)["name"], get(self.MODEL)["versions"]), ("fake", ["1"]))
        self.assertEqual(get(f"{self.MODEL}/versions/1/ready"), {"ready": True})
        self.assertIn("does not exist", get("/v2/models/nope", 404)["error"])
        self.assertIn("version", get(f"{self.MODEL}/versions/2", 404)["error"])

    def test_generate(self):
        data = self.post(f"{self.MODEL}/generate", {"id": "7", "text_input": "[say Hello]"})
        self.assertEqual(data, {"id": "7", "model_name": "fake", "model_version": "1", "text_output": "Hello", "finish_reason": "stop"})
        for parameters in ({"parameters": {"max_new_tokens": 3}}, {"max_tokens": 3}):
            data = self.post(f"{self.MODEL}/versions/1/generate", {"text_input": "[say Hello]", **parameters})
            self.assertEqual((data["text_output"], data["finish_reason"]), ("Hel", "length"))
        status, headers, body = self.server.request("POST", f"{self.MODEL}/generate_stream", {"text_input": "[say Hello]", "stream": False})
        self.assertEqual((status, headers["content-type"]), (200, "text/event-stream; charset=utf-8"))
        pieces = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
        self.assertEqual("".join(p["text_output"] for p in pieces), "Hello")
        self.assertEqual([p.get("finish_reason") for p in pieces], [None] * (len(pieces) - 1) + ["stop"])

    def test_infer(self):
        data = self.infer(("text_input", "BYTES", ["[say One]", "[say Two]"]), ("max_tokens", "INT32", [2]), id="x")
        self.assertEqual((data["id"], data["model_name"]), ("x", "fake"))
        self.assertEqual(data["outputs"], [{"name": "text_output", "datatype": "BYTES", "shape": [2], "data": ["On", "Tw"]},
                                           {"name": "finish_reason", "datatype": "BYTES", "shape": [2], "data": ["length", "length"]}])
        nested = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [["[say One]"]]}],
                  "outputs": [{"name": "text_output"}]}
        self.assertEqual([o["data"] for o in self.post(f"{self.MODEL}/infer", nested)["outputs"]], [["One"]])

    def binary(self, tensors, data, status=200, **headers):
        """infer with tensors that follow the JSON, as Triton's clients send them."""
        inputs = [{"name": n, "datatype": t, "shape": shape, "parameters": {"binary_data_size": size}} for n, t, shape, size in tensors]
        head = json.dumps({"inputs": inputs}).encode()
        headers = {"Inference-Header-Content-Length": len(head), "Content-Type": "application/octet-stream", **headers}
        got, _, answer = self.server.request("POST", f"{self.MODEL}/infer", head + data, headers)
        self.assertEqual(got, status, answer)
        return json.loads(answer)

    def test_binary_tensors(self):
        texts = b"".join(struct.pack("<I", len(t)) + t for t in (b"[say One]", "[say Zw\u00f6lf]".encode()))
        tensors = [("text_input", "BYTES", [2], len(texts)), ("max_tokens", "INT32", [1], 4), ("temperature", "FP32", [1], 4),
                   ("ignore_eos", "BOOL", [1], 1)]
        data = self.binary(tensors, texts + struct.pack("<if?", 5, 0.5, False))
        self.assertEqual(data["outputs"][0]["data"], ["One", "Zw\u00f6lf"[:4]])  # a token of the test model is a byte
        for tensor, bytes_ in ((("text_input", "BYTES", [1], 9), struct.pack("<I", 6) + b"hello"),  # longer than the data
                               (("text_input", "BYTES", [1], 900), b"abcd"), (("text_input", "BYTES", [1], 3), b"abc"),
                               (("text_input", "BYTES", [1], 5), struct.pack("<I", 1) + b"\xff"), (("x", "INT32", [1], 3), b"abc"),
                               (("x", "FP16", [1], 2), b"ab"), (("x", "INT32", [3], 4), b"abcd"), (("x", "INT32", [1], -4), b"abcd")):
            self.assertIn("inputs[0]", self.binary([tensor], bytes_, 400)["error"])
        for size in ("-1", "x", "99999999999999999999"):
            self.assertIn("JSON", self.binary([("text_input", "BYTES", [1], 4)], b"\x01\x00\x00\x00", 400,
                                              **{"Inference-Header-Content-Length": size, "Content-Type": "application/json"})["error"])

    def test_errors(self):
        text = ("text_input", "BYTES", ["[say One]"])
        self.assertIn("text_input", self.infer(("max_tokens", "INT32", [2]), status=400)["error"])
        self.assertIn("one value", self.infer(text, ("top_k", "INT32", [2, 3]), status=400)["error"])
        self.assertIn("outputs", self.infer(text, outputs=[{"name": "logits"}], status=400)["error"])
        self.assertIn("BYTES", self.infer(("text_input", "INT32", [1]), status=400)["error"])
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2**40, 2**40], "data": ["a"]}
        for change in ({}, {"shape": [2]}, {"shape": ["x"]}, {"data": None}, {"shape": None}, {"name": 3}):
            self.assertIn("inputs[0]", self.post(f"{self.MODEL}/infer", {"inputs": [{**tensor, **change}]}, 400)["error"])
        self.assertIn("text_input", self.post(f"{self.MODEL}/generate", {}, 400)["error"])
        self.assertIn("parameters", self.post(f"{self.MODEL}/generate", {"text_input": "a", "parameters": 3}, 400)["error"])
        self.assertIn("does not exist", self.post("/v2/models/nope/generate", {"text_input": "a"}, 404)["error"])


class Ollama(Compat):
    TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    def lines(self, path, body):
        status, headers, data = self.server.request("POST", path, body)
        self.assertEqual((status, headers["content-type"]), (200, "application/x-ndjson"))
        return [json.loads(line) for line in data.splitlines()]

    def ask(self, text, **more):
        return {"model": "fake:latest", "messages": [{"role": "user", "content": text}], **more}

    def test_chat(self):
        data = self.post("/api/chat", self.ask("[say Hello]", stream=False, options={"num_predict": 3, "num_ctx": 64}))
        self.assertEqual((data["model"], data["message"], data["done"], data["done_reason"]),
                         ("fake:latest", {"role": "assistant", "content": "Hel"}, True, "length"))
        self.assertRegex(data["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((data["prompt_eval_count"], data["eval_count"]), (30, 3))
        self.assertGreater(data["total_duration"], 0)
        lines = self.lines("/api/chat", self.ask("[say Hello]"))  # a stream is the default
        self.assertEqual("".join(line["message"]["content"] for line in lines), "Hello")
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        data = self.post("/api/chat", self.ask("[say <think>a</think>b]", stream=False, think=True))
        self.assertEqual((data["message"]["thinking"], data["message"]["content"]), ("a", "b"))
        self.assertEqual(self.post("/api/chat", {"model": "fake"})["done_reason"], "load")

    def test_tools(self):
        data = self.post("/api/chat", self.ask(f"[say {TOOL_TEXT}]", stream=False, tools=self.TOOLS))
        calls = [c["function"] for c in data["message"]["tool_calls"]]
        self.assertEqual([(c["name"], c["arguments"]) for c in calls], [("add", {"a": 1}), ("add", {})])
        lines = self.lines("/api/chat", self.ask(f"[say {TOOL_TEXT}]", tools=self.TOOLS))
        self.assertEqual([c["function"] for line in lines for c in line["message"].get("tool_calls", [])], calls)
        body = self.ask("[say ok]", stream=False, tools=self.TOOLS)
        body["messages"] += [data["message"], {"role": "tool", "tool_name": "add", "content": "3"}]
        self.assertEqual(self.post("/api/chat", body)["message"]["content"], "ok")

    def test_generate(self):
        data = self.post("/api/generate", {"model": "fake", "prompt": "[say Hello]", "system": "s", "stream": False})
        self.assertEqual((data["response"], data["done_reason"]), ("Hello", "stop"))
        lines = self.lines("/api/generate", {"model": "fake", "prompt": "[say Hello]", "raw": True})
        self.assertEqual("".join(line["response"] for line in lines), "Hello")
        self.assertEqual(lines[-1]["prompt_eval_count"], 11)  # no template

    def test_models(self):
        tags = self.server.json("GET", "/api/tags")[1]["models"]
        self.assertEqual([m["name"] for m in tags], ["fake:latest"])
        self.assertEqual([m["name"] for m in self.server.json("GET", "/api/ps")[1]["models"]], ["fake:latest"])
        details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "134.52M",
                   "quantization_level": "Q4_0"}
        self.assertEqual(tags[0]["details"], details)
        self.assertRegex(tags[0]["digest"], r"^[0-9a-f]{64}$")
        show = self.post("/api/show", {"model": "fake"})
        self.assertEqual(show["details"], details)
        info = show["model_info"]
        self.assertEqual([info["general.architecture"], info["general.parameter_count"], info["llama.context_length"],
                          info["llama.embedding_length"], info["llama.block_count"]], ["llama", 134515008, 4096, 576, 30])
        self.assertIn("messages", show["template"])
        self.assertEqual(show["capabilities"], ["completion", "tools", "thinking"])
        version = self.server.json("GET", "/api/version")[1]["version"]
        self.assertGreaterEqual([int(part) for part in version.split(".")], [0, 6, 4])  # what an editor asks for at least
        self.assertEqual([line["status"] for line in self.lines("/api/pull", {"model": "fake"})], ["pulling manifest", "success"])
        self.assertEqual(self.post("/api/pull", {"name": "fake:latest", "stream": False}), {"status": "success"})
        self.assertIn("downloads none", self.post("/api/pull", {"model": "llama3.2"}, status=404)["error"])
        for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):  # tests/http/vectors_test.py has a model for it
            self.assertIn("no embeddings", self.post(path, {"model": "fake:latest", field: "x"}, status=400)["error"])

    def test_errors(self):
        for path, body, word in (("/api/chat", {}, "model"), ("/api/chat", self.ask("x", format="yaml"), "format"),
                                 ("/api/chat", self.ask("x", options={"temperature": "hot"}), "temperature"),
                                 ("/api/generate", {"model": "fake", "prompt": "x", "images": ["a"]}, "images"),
                                 ("/api/generate", {"model": "fake", "prompt": "x", "suffix": "y"}, "fill in")):
            self.assertIn(word, self.post(path, body, status=400)["error"])
        self.assertIn("does not exist", self.post("/api/chat", {**self.ask("x"), "model": "no"}, status=404)["error"])
        self.assertIn("error", self.lines("/api/chat", self.ask("[error]"))[-1])


class Hostile(Compat):
    """Anything in any field is answered or refused, never a failure of the server."""
    FIELDS = {
        "/v1/messages": ["model", "messages", "max_tokens", "system", "tools", "tool_choice", "thinking", "stop_sequences", "stream", "metadata", "top_k"],
        "/v1/messages/count_tokens": ["messages", "system", "tools", "thinking"],
        "/v1/responses": ["input", "instructions", "tools", "tool_choice", "text", "reasoning", "previous_response_id", "include", "top_logprobs",
                          "store", "stream", "max_output_tokens", "chat_template_kwargs"],
        "/api/chat": ["model", "messages", "tools", "options", "format", "think", "stream", "logprobs", "top_logprobs"],
        "/api/generate": ["model", "prompt", "suffix", "system", "raw", "options", "format", "think", "context", "logprobs"],
        "/api/show": ["model", "name"],
        "/completion": ["prompt", "n_predict", "logit_bias", "n_probs", "cache_prompt", "stop", "seed", "repeat_penalty", "stream"],
        "/infill": ["input_prefix", "input_suffix", "input_extra", "prompt"],
    }
    BASE = {
        "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": "x"}]},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x", "max_output_tokens": 4},
        "/api/chat": {"model": "fake", "messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 4}},
        "/api/generate": {"model": "fake", "prompt": "x", "options": {"num_predict": 4}},
        "/api/show": {"model": "fake"},
        "/completion": {"prompt": "x", "n_predict": 4},
        "/infill": {"input_prefix": "a"},
    }
    VALUES = [None, True, False, 0, 1, -1, 2**40, 0.5, -1e308, "", "x", "\u0000", [], [[]], [None], [1, "a"], [{}], {}, {"a": 1}, {"type": "x"},
              [{"type": "text"}], [{"type": "tool_result"}], [{"type": "function_call"}], [{"role": "user"}], [{"role": "user", "content": []}],
              [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}],
              [{"role": "assistant", "content": "x", "tool_calls": [{}]}], {"format": {"type": "json_schema"}}, {"effort": 3}, "auto"]

    def test_every_field_with_every_value(self):
        count = 0
        for path, fields in self.FIELDS.items():
            for field in fields:
                for value in self.VALUES:
                    status, _, data = self.server.request("POST", path, {**self.BASE[path], field: value})
                    self.assertIn(status, (200, 400, 404), (path, field, value, data))
                    count += 1
        self.assertGreater(count, 1500)

    def test_random_nesting(self):
        rng = random.Random(3)

        def value(depth):
            kind = rng.randrange(8 if depth else 5)
            if kind < 5:
                return rng.choice(self.VALUES)
            if kind < 7:
                keys = ["type", "role", "content", "text", "name", "input", "id", "tool_use_id", "function", "arguments", "parameters", "output"]
                return {rng.choice(keys): value(depth - 1) for _ in range(rng.randrange(5))}
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        for _ in range(1500):
            path = rng.choice(list(self.FIELDS))
            body = dict(self.BASE[path])
            for _ in range(rng.randint(1, 3)):
                body[rng.choice(self.FIELDS[path])] = value(4)
            status, _, data = self.server.request("POST", path, body)
            self.assertIn(status, (200, 400, 404), (path, body, data))


if __name__ == "__main__":
    unittest.main(verbosity=2)
