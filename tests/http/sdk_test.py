"""OpenAI's Python client, unchanged, against the server."""
import asyncio
import sys
import unittest

try:
    import openai
except ImportError:
    print("openai is not installed: nothing to test")
    sys.exit(0)

from harness import Server


class Sdk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    @staticmethod
    def ask(text):
        return {"model": "fake", "messages": [{"role": "user", "content": text}]}

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["fake"])
        self.assertEqual(self.client.models.retrieve("fake/alias").id, "fake")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("none")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_chat(self):
        answer = self.client.chat.completions.create(**self.ask("[say Hello]"), n=2, logprobs=True, top_logprobs=3, seed=1, stop=["lo"])
        self.assertEqual([c.message.content for c in answer.choices], ["Hel", "Hel"])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual([t.token for t in answer.choices[0].logprobs.content], ["H", "e", "l"])
        self.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 3)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_chat_stream(self):
        stream = self.client.chat.completions.create(**self.ask("[say Hello]"), stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "Hello")
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-1].usage.completion_tokens, 5)
        with self.client.chat.completions.stream(**self.ask("[say Hello]")) as events:
            kinds = [e.type for e in events]
            self.assertEqual(events.get_final_completion().choices[0].message.content, "Hello")
        self.assertIn("content.done", kinds)

    def test_completions(self):
        answer = self.client.completions.create(model="fake", prompt=["[say a]", "[say b]"], logprobs=2, echo=True)
        self.assertEqual([c.text for c in answer.choices], ["[say a]a", "[say b]b"])
        text = "".join(c.choices[0].text for c in self.client.completions.create(model="fake", prompt="[say abc]", stream=True))
        self.assertEqual(text, "abc")
        answer = self.client.completions.create(model="fake", prompt="[say abc]", extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True},
                                                max_tokens=7)
        self.assertEqual(answer.usage.completion_tokens, 7)

    def test_responses(self):
        first = self.client.responses.create(model="fake", input="my word is [say one]", instructions="be short")
        self.assertEqual((first.output_text, first.status, first.usage.output_tokens), ("one", "completed", 3))
        second = self.client.responses.create(model="fake", input="again", previous_response_id=first.id)
        self.assertEqual(second.output_text, "one")
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, "one")
        listed = [item.content[0].text for item in self.client.responses.input_items.list(second.id, limit=1)]  # page by page
        self.assertEqual(listed, ["again", "one", "my word is [say one]"])
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}]
        text = '[say <think>hm</think>Ok. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>]'
        with self.client.responses.stream(model="fake", input=text, tools=tools) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual([item.type for item in final.output], ["reasoning", "message", "function_call"])
        self.assertEqual((final.output[2].name, final.output[2].arguments), ("add", '{"a": 1}'))
        for kind in ("response.created", "response.reasoning_text.delta", "response.output_text.done", "response.function_call_arguments.done",
                     "response.completed"):
            self.assertIn(kind, kinds)

    def test_background(self):
        answer = self.client.responses.create(model="fake", input="[say one]", background=True)
        self.assertEqual((answer.status, answer.background), ("queued", True))
        while answer.status in ("queued", "in_progress"):
            answer = self.client.responses.retrieve(answer.id)
        self.assertEqual((answer.status, answer.output_text), ("completed", "one"))
        held = self.client.responses.create(model="fake", input="[hold]", background=True)
        self.assertEqual(self.client.responses.cancel(held.id).status, "cancelled")
        stream = self.client.responses.create(model="fake", input="[slow 10][say one two]", background=True, stream=True)
        first = next(iter(stream))
        stream.close()
        rest = list(self.client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
        self.assertEqual(rest[0].sequence_number, 1)
        self.assertEqual(rest[-1].response.output_text, "one two")
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.create(model="fake", input="x", background=True, store=False)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**self.ask("x"), temperature=3)
        self.assertEqual((caught.exception.param, caught.exception.type), ("temperature", "invalid_request_error"))
        with self.assertRaises(openai.RateLimitError):
            self.client.chat.completions.create(**self.ask("[full]"))
        with self.assertRaises(openai.InternalServerError):
            self.client.chat.completions.create(**self.ask("[error]"))
        with self.assertRaises(openai.APIError):
            list(self.client.chat.completions.create(**self.ask("[error]"), stream=True))

    def test_async(self):
        async def main():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none") as client:
                async def one(i):
                    stream = await client.chat.completions.create(**self.ask(f"[say answer {i}]"), stream=True)
                    return "".join([c.choices[0].delta.content or "" async for c in stream])
                return await asyncio.gather(*[one(i) for i in range(30)])
        self.assertEqual(asyncio.run(main()), [f"answer {i}" for i in range(30)])

    def test_closing_a_stream_cancels(self):
        before = self.server.engine()["cancelled"]
        stream = self.client.chat.completions.create(**self.ask("[slow 20]"), stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.server.wait_engine(lambda e: e["cancelled"] > before)["cancelled"], before + 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
