"""Third-party clients against the server: the official clients of Anthropic, Ollama and Triton, LangChain's ChatOpenAI, OpenTelemetry's
own decoder of spans, and Schemathesis, which generates requests from /openapi.json (minutes; only if the package schemathesis is installed)."""
import base64
import importlib.util
import subprocess
import sys
import tempfile
import unittest

from harness import Server


def missing(package):
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        return True


TOOL_TEXT = 'Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import anthropic
        cls.server = Server(env={"FAKE_API_KEY": "secret"})
        cls.package = anthropic
        cls.client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{cls.server.port}", api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    TOOLS = [{"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]

    @staticmethod
    def ask(text, **more):
        return {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}

    def test_create(self):
        answer = self.client.messages.create(**self.ask(
            "[say Hello]", system="be short", stop_sequences=["lo"], extra_body={"temperature": 0.5, "top_k": 5}))
        self.assertEqual((answer.content[0].text, answer.stop_reason, answer.stop_sequence), ("Hel", "stop_sequence", "lo"))
        self.assertEqual(answer.usage.output_tokens, 5)
        count = self.client.messages.count_tokens(model="fake", messages=[{"role": "user", "content": "[say Hello]"}])
        self.assertGreater(count.input_tokens, 11)

    def test_stream(self):
        with self.client.messages.stream(**self.ask("[say Hello]")) as stream:
            self.assertEqual("".join(stream.text_stream), "Hello")
            self.assertEqual(stream.get_final_message().stop_reason, "end_turn")

    def test_tools(self):
        answer = self.client.messages.create(**self.ask(f"[say {TOOL_TEXT}]", tools=self.TOOLS))
        self.assertEqual((answer.stop_reason, answer.content[1].name, answer.content[1].input), ("tool_use", "add", {"a": 1}))
        with self.client.messages.stream(**self.ask(f"[say {TOOL_TEXT}]", tools=self.TOOLS)) as stream:
            self.assertEqual(stream.get_final_message().content[1].input, {"a": 1})
        messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": answer.content},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "[say 2]"}]}]
        self.assertEqual(self.client.messages.create(model="fake", max_tokens=9, messages=messages, tools=self.TOOLS).content[0].text, "2")

    def test_errors(self):
        with self.assertRaises(self.package.NotFoundError):
            self.client.messages.create(**{**self.ask("x"), "model": "none"})
        with self.assertRaises(self.package.RateLimitError):
            self.client.messages.create(**self.ask("[full]"))
        with self.assertRaises(self.package.AuthenticationError):
            self.client.with_options(api_key="wrong").messages.create(**self.ask("x"))
        with self.assertRaises(self.package.APIStatusError), self.client.messages.stream(**self.ask("[error]")) as stream:
            stream.get_final_message()


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import ollama
        cls.server = Server()
        cls.package = ollama
        cls.client = ollama.Client(host=f"http://127.0.0.1:{cls.server.port}")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_models(self):
        self.assertEqual([m.model for m in self.client.list().models], ["fake:latest"])
        self.assertEqual(len(self.client.ps().models), 1)
        self.assertIn("tools", self.client.show("fake").capabilities)

    def test_chat(self):
        messages = [{"role": "user", "content": "[say Hello]"}]
        answer = self.client.chat("fake", messages=messages, options={"num_predict": 3, "temperature": 0})
        self.assertEqual((answer.message.content, answer.done_reason, answer.eval_count), ("Hel", "length", 3))
        self.assertEqual("".join(part.message.content for part in self.client.chat("fake", messages=messages, stream=True)), "Hello")
        thought = self.client.chat("fake", messages=[{"role": "user", "content": "[say <think>a</think>b]"}], think=True)
        self.assertEqual((thought.message.thinking, thought.message.content), ("a", "b"))

    def test_tools(self):
        def add(a: int) -> int:
            """Adds.

            Args:
              a: a number
            """
            return a + 1
        messages = [{"role": "user", "content": f"[say {TOOL_TEXT}]"}]
        answer = self.client.chat("fake", messages=messages, tools=[add])
        call = answer.message.tool_calls[0].function
        self.assertEqual((call.name, call.arguments), ("add", {"a": 1}))
        messages += [answer.message, {"role": "tool", "tool_name": "add", "content": "[say 2]"}]
        self.assertEqual(self.client.chat("fake", messages=messages, tools=[add]).message.content, "2")

    def test_generate(self):
        self.assertEqual(self.client.generate("fake", "[say Hello]").response, "Hello")
        self.assertEqual("".join(p.response for p in self.client.generate("fake", "[say Hello]", raw=True, stream=True)), "Hello")

    def test_errors(self):
        with self.assertRaises(self.package.ResponseError) as caught:
            self.client.chat("none", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.status_code, 404)
        with self.assertRaises(self.package.ResponseError):
            list(self.client.chat("fake", messages=[{"role": "user", "content": "[error]"}], stream=True))


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from langchain_openai import ChatOpenAI
        cls.server = Server()
        cls.model = ChatOpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", model="fake", max_retries=0,
                               stream_usage=True)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_invoke(self):
        answer = self.model.invoke([("system", "be short"), ("human", "[say Hello]")])
        self.assertEqual(answer.content, "Hello")
        self.assertEqual(answer.usage_metadata["output_tokens"], 5)
        self.assertEqual(answer.response_metadata["finish_reason"], "stop")
        self.assertEqual([a.content for a in self.model.batch(["[say a]", "[say b]"])], ["a", "b"])

    def test_stream(self):
        chunks = list(self.model.stream("[say Hello, world]"))
        self.assertEqual("".join(c.content for c in chunks), "Hello, world")
        self.assertGreater(len(chunks), 3)
        self.assertEqual(sum((c.usage_metadata or {}).get("output_tokens", 0) for c in chunks), 12)

    def test_tools(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool

        @tool
        def weather(city: str) -> str:
            """Weather of a city."""
            return f"rain in {city}"

        bound = self.model.bind_tools([weather])
        ask = HumanMessage('[say <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>]')
        for answer in (bound.invoke([ask]), sum(list(bound.stream([ask]))[1:], start=next(iter(bound.stream([ask]))))):
            self.assertEqual([(c["name"], c["args"]) for c in answer.tool_calls], [("weather", {"city": "Ulm"})])
        call = bound.invoke([ask]).tool_calls[0]
        result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
        self.assertEqual(bound.invoke([ask, bound.invoke([ask]), result, HumanMessage("[say done]")]).content, "done")

    def test_logprobs_and_structured_calls(self):
        answer = self.model.bind(logprobs=True, top_logprobs=2).invoke("[say hi]")
        self.assertEqual([c["token"] for c in answer.response_metadata["logprobs"]["content"]], ["h", "i"])


@unittest.skipIf(missing("tritonclient.http"), "tritonclient is not installed")
class Triton(unittest.TestCase):
    """Triton's HTTP client, with its defaults: tensors are sent in binary form."""
    @classmethod
    def setUpClass(cls):
        import tritonclient.http
        cls.package, cls.server = tritonclient.http, Server()
        cls.client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{cls.server.port}")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def infer(self, texts, binary, outputs=None, **parameters):
        import numpy
        tensors = [("text_input", "BYTES", numpy.array([t.encode() for t in texts], dtype=numpy.object_)),
                   *((name, kind, numpy.array([value], dtype)) for name, (kind, dtype, value) in parameters.items())]
        inputs = []
        for name, kind, array in tensors:
            inputs.append(self.package.InferInput(name, array.shape, kind))
            inputs[-1].set_data_from_numpy(array, binary_data=binary)
        return self.client.infer("fake", inputs, outputs=outputs, request_id="7")

    def test_state(self):
        self.assertTrue(self.client.is_server_live() and self.client.is_server_ready() and self.client.is_model_ready("fake"))
        self.assertFalse(self.client.is_model_ready("nope"))
        self.assertEqual(self.client.get_server_metadata()["name"], "tokamak")
        self.assertEqual([t["name"] for t in self.client.get_model_metadata("fake")["inputs"]], ["text_input"])

    def test_infer(self):
        for binary in (True, False):
            result = self.infer(["[say One]", "[say Zw\u00f6lf]"], binary, max_tokens=("INT32", "int32", 4), temperature=("FP32", "float32", 0.5))
            self.assertEqual([str(t) if isinstance(t, str) else t.decode() for t in result.as_numpy("text_output")], ["One", "Zw\u00f6"])
            self.assertEqual(result.get_response()["id"], "7")
            wanted = [self.package.InferRequestedOutput("finish_reason", binary_data=binary)]
            result = self.infer(["[say One]"], binary, wanted)
            self.assertEqual(result.as_numpy("finish_reason").tolist(), ["stop"])
            self.assertIsNone(result.as_numpy("text_output"))

    def test_errors(self):
        for call in (lambda: self.client.infer("nope", []), lambda: self.infer([], True), lambda: self.infer(["x"], True, top_k=("INT32", "int32", -7))):
            with self.assertRaises(self.package.InferenceServerException if hasattr(self.package, "InferenceServerException") else Exception):
                call()


@unittest.skipIf(missing("opentelemetry.proto"), "opentelemetry-proto is not installed")
class OpenTelemetry(unittest.TestCase):
    def test_spans_are_valid(self):
        """The decoder refuses unknown members and wrong types."""
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
        from traces_test import Collector
        with Collector() as collector:
            server = Server(env={"FAKE_COLLECTOR": collector.url})
            server.request("POST", "/v1/completions", {"prompt": "[say abc]", "stream": True},
                           {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
            server.request("POST", "/v1/completions", {"prompt": "x", "n": "many"})
            collector.wait(2)
            server.stop()
        spans = []
        for body in collector.bodies:
            for span in [s for r in body["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]:
                for name in {"traceId", "spanId", "parentSpanId"} & set(span):  # hexadecimal in OTLP's JSON, base64 in protobuf's
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
            request = json_format.ParseDict(body, ExportTraceServiceRequest())
            for resource in request.resource_spans:
                self.assertIn("service.name", [a.key for a in resource.resource.attributes])
                spans += [s for scope in resource.scope_spans for s in scope.spans]
        good, bad = spans
        self.assertEqual((good.trace_id.hex(), good.parent_span_id.hex()), ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"))
        self.assertEqual([(s.kind, len(s.trace_id), len(s.span_id)) for s in spans], [(Span.SPAN_KIND_SERVER, 16, 8)] * 2)
        self.assertTrue(all(0 < s.start_time_unix_nano <= s.end_time_unix_nano for s in spans))
        self.assertEqual((good.status.code, bad.status.code), (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR))
        numbers = {a.key: a.value.int_value for a in good.attributes if a.value.WhichOneof("value") == "int_value"}
        self.assertEqual((numbers["gen_ai.usage.output_tokens"], numbers["http.response.status_code"]), (3, 200))
        self.assertEqual([e.name for e in good.events], ["first token"])


@unittest.skipIf(missing("schemathesis"), "schemathesis is not installed")
class Schemathesis(unittest.TestCase):
    def test_no_server_error(self):
        server = Server()
        try:
            folder = self.enterContext(tempfile.TemporaryDirectory())  # it writes to its working directory
            done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
                                   "--checks", "not_a_server_error", "--max-examples", "60", "--seed", "1", "--request-timeout", "20",
                                   "--phases", "examples,coverage,fuzzing"], cwd=folder, capture_output=True, text=True, timeout=1200)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertRegex(done.stdout, r"(?i)test cases?|generated")
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
