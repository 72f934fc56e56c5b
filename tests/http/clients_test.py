"""Third-party clients against the server: the official clients of Anthropic and Ollama, LangChain's ChatOpenAI, and Schemathesis,
which generates requests from /openapi.json (minutes; only if the package schemathesis is installed)."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest

from harness import Server


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


@unittest.skipIf(importlib.util.find_spec("schemathesis") is None, "schemathesis is not installed")
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
