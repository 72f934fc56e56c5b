"""Questions about indexed documents over HTTP: /v1/rag/query with a tiny encoder and a tiny chat model."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from serve_test import Serve  # noqa: E402
from tokamak import TINY, run, run_json  # noqa: E402

TEXTS = {"sun.txt": "the cat is in the sun", "dog.txt": "a dog", "moon.md": "the moon and the sun"}


class Rag(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, text in TEXTS.items():
            (cls.folder / name).write_text(text)
        done = run("rag", "index", cls.folder, "-m", TINY / "bert")
        assert done.returncode == 0, done.stderr
        cls.server = Serve(TINY / "llama", "--threads", 2, "--context", 512, "--rag-index", cls.folder, "--rag-model", TINY / "bert")
        cls.addClassCleanup(cls.server.__exit__)

    def post(self, body, path="/v1/rag/query"):
        status, _, text = self.server.send(path, body)
        return status, text

    def ask(self, **body):
        status, text = self.post(body)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_sources_are_those_of_the_command_line(self):
        for query in ("the cat is in the sun", "a dog", "moon"):
            want = run_json("rag", "ask", self.folder, query, "-m", TINY / "bert", "--top", "2", "--json")["sources"]
            got = self.ask(query=query, top=2, generate=False)
            self.assertEqual((got["object"], got["query"], got["sources"]), ("rag.sources", query, want))
        self.assertEqual(self.ask(query="a dog", top=1, generate=False)["sources"][0]["file"], "dog.txt")

    def test_answer_is_that_of_a_chat_with_the_passages(self):
        body = self.ask(query="a dog", top=2, max_tokens=8, temperature=0)
        self.assertEqual([s["file"] for s in body["sources"]][:1], ["dog.txt"])
        passages = "".join(f"[{i + 1}] {s['text']}\n\n" for i, s in enumerate(body["sources"]))
        prompt = ("Answer the question from these passages alone, and name those you use, like [1].\n\n"
                  f"{passages}Question: a dog")
        chat = json.loads(self.post({"messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "temperature": 0},
                                    "/v1/chat/completions")[1])
        self.assertEqual(body["choices"][0]["message"], chat["choices"][0]["message"])
        self.assertEqual(body["usage"]["prompt_tokens"], chat["usage"]["prompt_tokens"])

    def test_stream_begins_with_sources(self):
        status, text = self.post({"query": "a dog", "top": 2, "max_tokens": 8, "temperature": 0, "stream": True})
        self.assertEqual(status, 200, text)
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(e) for e in events[:-1]]
        self.assertEqual((chunks[0]["choices"], chunks[0]["sources"][0]["file"]), ([], "dog.txt"))
        self.assertTrue(all(c["id"] == chunks[0]["id"] and "sources" not in c for c in chunks[1:]))
        streamed = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[1:] if c["choices"])
        whole = self.ask(query="a dog", top=2, max_tokens=8, temperature=0)["choices"][0]["message"]["content"]
        self.assertEqual(streamed, whole)

    def test_about_and_description(self):
        about = json.loads(self.server.get("/v1/rag"))
        self.assertEqual((about["object"], about["passages"], about["files"]), ("rag.index", 3, 3))
        self.assertIn("/v1/rag/query", json.loads(self.server.get("/openapi.json"))["paths"])

    def test_errors(self):
        for body, param in (({}, "query"), ({"query": 3}, "query"), ({"query": ""}, "query"), ({"query": "x", "top": 0}, "top"),
                            ({"query": "x", "messages": [{"role": "user", "content": "y"}]}, "messages"),
                            ({"query": "x", "temperature": "hot"}, "temperature")):
            status, text = self.post(body)
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param), text)
        self.assertEqual(self.post({"query": "x", "model": "none"})[0], 404)
        # Found before the model is opened and all passages are embedded.
        done = run("rag", "index", self.folder, "-m", "/nowhere/model", "--index", "/nowhere/index")
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*/nowhere/index[^\n]*\n\Z")
        done = run("serve", TINY / "llama", "--rag-index", self.folder)
        self.assertEqual((done.returncode, "--rag-index needs --rag-model" in done.stderr), (2, True), done.stderr)
        done = run("serve", TINY / "llama", "--port", "0", "--rag-index", self.folder, "--rag-model", TINY / "roberta")
        self.assertEqual((done.returncode, "was made with" in done.stderr), (2, True), done.stderr)

    def test_without_an_index(self):
        with Serve(TINY / "llama", "--threads", 1) as server:
            self.assertEqual(json.loads(server.get("/v1/rag"))["passages"], 0)
            status, _, answer = server.post("/v1/rag/query", query="x")
            self.assertEqual((status, answer["error"]["code"]), (404, "no_index"))


if __name__ == "__main__":
    unittest.main()
