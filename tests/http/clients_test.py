"""Third-party clients against the server: LangChain's ChatOpenAI, and Schemathesis, which generates requests from /openapi.json.
Each runs only if its package is installed:  pip install langchain-openai schemathesis"""
import importlib.util
import subprocess
import sys
import tempfile
import unittest

from harness import Server


def missing(*packages):
    return next((p for p in packages if importlib.util.find_spec(p) is None), None)


@unittest.skipIf(missing("langchain_openai"), "langchain-openai is not installed")
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


@unittest.skipIf(missing("schemathesis"), "schemathesis is not installed")
class Schemathesis(unittest.TestCase):
    def test_no_server_error(self):
        server = Server()
        try:
            folder = self.enterContext(tempfile.TemporaryDirectory())  # it writes to its working directory
            done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
                                   "--checks", "not_a_server_error", "--max-examples", "60", "--seed", "1", "--request-timeout", "20",
                                   "--phases", "examples,coverage,fuzzing"], cwd=folder, capture_output=True, text=True, timeout=280)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertRegex(done.stdout, r"(?i)test cases?|generated")
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
