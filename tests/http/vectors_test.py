"""Embeddings, rerank, score and classify over HTTP, with tiny encoders next to a chat model; `tokamak embed` and bundles."""
import base64
import concurrent.futures
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from tokamak import BINARY, SOURCE, TINY, run  # noqa: E402

MODELS = ["bert", "bert_cls", "bert_cross", "roberta", "distilbert", "qwen3"]
TEXTS = ["the cat is in the sun", "a dog", "the moon and the sun", "x", "singing, singing!"]


def golden(name):
    return json.loads((SOURCE / "tests" / "golden" / "encoders" / f"{name}.json").read_text())


def unit(v):
    length = sum(x * x for x in v) ** 0.5
    return [x / length for x in v]


def cosine(a, b):
    return sum(x * y for x, y in zip(unit(a), unit(b)))


class Served(unittest.TestCase):
    """A server with some models."""
    models, flags = [], []

    @classmethod
    def setUpClass(cls):
        paths = [str(TINY / name) for name in cls.models]
        cls.process = subprocess.Popen([BINARY, "serve", *paths, "--port", "0", "--threads", "2", *cls.flags],
                                       stdout=subprocess.PIPE, text=True)
        output = ""
        while "ready at" not in output:
            line = cls.process.stdout.readline()
            assert line, output
            output += line
        cls.url = re.search(r"http://\S+", output).group()

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        assert cls.process.wait(timeout=60) == 0
        cls.process.stdout.close()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)


class Vectors(Served):
    models = MODELS

    def embed(self, text, model="bert", **more):
        status, answer = self.post("/v1/embeddings", {"model": model, "input": text, **more})
        self.assertEqual(status, 200, answer)
        self.assertEqual([d["index"] for d in answer["data"]], list(range(len(answer["data"]))))
        return [d["embedding"] for d in answer["data"]]

    def test_equals_transformers(self):
        for name in ("bert", "distilbert", "roberta"):
            texts = [s for s in golden(name)["sequences"] if s["second"] == 0 and len(s["ids"]) <= 32]
            vectors = self.embed([s["ids"] for s in texts], name, normalize=False)
            for s, v in zip(texts, vectors):
                self.assertGreater(cosine(s["vector"], v), 1 - 1e-6)
                self.assertLess(max(abs(a - b) for a, b in zip(s["vector"], v)), 1e-3)
        # bert's folder asks for unit vectors, roberta's does not
        self.assertAlmostEqual(sum(x * x for x in self.embed("a", "bert")[0]), 1, places=5)
        self.assertNotAlmostEqual(sum(x * x for x in self.embed("a", "roberta")[0]), 1, places=1)

    def test_batches_and_formats(self):
        together = self.embed(TEXTS)
        for text, vector in zip(TEXTS, together):
            self.assertEqual(self.embed(text)[0], vector)
        for text, vector in zip(self.embed(TEXTS, encoding_format="base64"), together):
            raw = base64.b64decode(text, validate=True)
            self.assertEqual([struct.unpack("<f", struct.pack("<f", x))[0] for x in vector],
                             list(struct.unpack(f"<{len(raw) // 4}f", raw)))
        short = self.embed(TEXTS[0], dimensions=8)[0]
        for a, b in zip(short, unit(together[0][:8])):
            self.assertAlmostEqual(a, b, places=5)

    def test_text_is_tokenised_as_by_tokenizers(self):
        try:
            import tokenizers
        except ImportError:
            self.skipTest("tokenizers is not installed")
        reference = tokenizers.Tokenizer.from_file(str(TINY / "bert" / "tokenizer.json"))
        for text in TEXTS + ["Über  CATS\u2026 \u4e2d\u6587", ""]:
            ids = reference.encode(text).ids
            status, answer = self.post("/v1/embeddings", {"model": "bert", "input": text})
            self.assertEqual((status, answer["usage"]), (200, {"prompt_tokens": len(ids), "total_tokens": len(ids)}))
            self.assertEqual(answer["data"][0]["embedding"], self.embed(ids)[0])

    def test_prompts_and_long_texts(self):
        self.assertEqual(self.embed("a dog", "distilbert", prompt_name="query"), self.embed("query: a dog", "distilbert"))
        self.assertEqual(self.embed("a dog", "distilbert", input_type="query"), self.embed("query: a dog", "distilbert"))
        ids = self.post("/tokenize", {"model": "bert", "prompt": "dog", "add_special_tokens": False})[1]["tokens"]
        self.assertEqual(self.embed([3, "dog", 4]), self.embed([3, *ids, 4]))  # ids and texts are one input
        long = "the cat " * 30
        status, answer = self.post("/v1/embeddings", {"model": "bert", "input": ["a", long]})
        self.assertEqual((status, answer["error"]["param"], answer["error"]["code"]), (400, "input[1]", "context_length_exceeded"))
        ids = self.post("/tokenize", {"model": "bert", "prompt": long})[1]["tokens"]
        cut = self.embed(long, truncate_prompt_tokens=-1)
        self.assertEqual(cut, self.embed(ids[:31] + ids[-1:]))  # the separator stays

    def test_what_is_refused(self):
        def refused(path, body, param, text=""):
            status, answer = self.post(path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn(text, answer["error"]["message"])
        for body, param in [({}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": [1.5]}, "input[0]"),
                            ({"input": [-1]}, "input[0]"), ({"input": [100000]}, "input[0]"), ({"input": ["a", True]}, "input[1]"),
                            ({"input": ["a"] * 2049}, "input"), ({"input": "a", "dimensions": 0}, "dimensions"),
                            ({"input": "a", "dimensions": 49}, "dimensions"), ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
                            ({"input": "a", "prompt_name": "no"}, "prompt_name"), ({"input": [[]]}, "input[0]"),
                            ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens")]:
            refused("/v1/embeddings", {"model": "bert", **body}, param)
        self.assertEqual(self.post("/v1/embeddings", {"model": "none", "input": "a"})[0], 404)
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        refused("/v1/embeddings", {"model": "qwen3", "input": "a"}, "model", "--pooling last")
        refused("/v1/embeddings", {"model": "bert_cls", "input": "a"}, "model", "classifier")
        refused("/v1/chat/completions", {"model": "bert", **chat}, "model", "/v1/embeddings")
        refused("/v1/completions", {"model": "bert_cls", "prompt": "a"}, "model", "/v1/classify")
        refused("/v1/classify", {"model": "bert", "input": "a"}, "model", "classifier")
        refused("/v1/rerank", {"model": "bert_cls", "query": "a", "documents": ["b"]}, "model", "3 labels")
        refused("/v1/rerank", {"model": "bert", "query": "a"}, "documents")
        refused("/v1/rerank", {"model": "bert", "query": 1, "documents": ["b"]}, "query")
        refused("/v1/rerank", {"model": "bert", "query": "a", "documents": ["b", 1]}, "documents[1]")
        refused("/v1/score", {"model": "bert", "text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1")
        status, answer = self.post("/v1/completions", {"model": "qwen3", "prompt": "the", "max_tokens": 3, "ignore_eos": True})
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 3))

    def test_rerank_and_score(self):
        query, documents = TEXTS[0], TEXTS[1:]
        vectors = self.embed(TEXTS)
        wanted = [cosine(vectors[0], v) for v in vectors[1:]]
        status, answer = self.post("/v1/rerank", {"model": "bert", "query": query, "documents": documents})
        self.assertEqual(status, 200, answer)
        scores = [r["relevance_score"] for r in answer["results"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        for r in answer["results"]:
            self.assertAlmostEqual(r["relevance_score"], wanted[r["index"]], places=5)
            self.assertEqual(r["document"]["text"], documents[r["index"]])
        status, top = self.post("/v1/rerank", {"model": "bert", "query": query, "top_n": 2, "return_documents": False,
                                               "documents": [{"text": d} for d in documents]})
        self.assertEqual([(r["index"], "document" in r) for r in top["results"]],
                         [(r["index"], False) for r in answer["results"][:2]])
        for path in ("/reranking", "/v2/rerank"):  # llama.cpp's and Cohere's names
            self.assertEqual(self.post(path, {"model": "bert", "query": query, "documents": documents})[1]["results"], answer["results"], path)
        # text-embeddings-inference: a list, best first.
        status, plain = self.post("/rerank", {"model": "bert", "query": query, "texts": documents})
        self.assertEqual([(r["index"], r["score"], sorted(r)) for r in plain],
                         [(r["index"], r["relevance_score"], ["index", "score"]) for r in answer["results"]])
        status, plain = self.post("/rerank", {"model": "bert", "query": query, "texts": documents, "return_text": True, "top_n": 1})
        self.assertEqual([r["text"] for r in plain], [documents[plain[0]["index"]]])
        self.assertEqual(self.post("/rerank", {"model": "bert", "query": query, "texts": ["a", 1]})[1]["error"]["param"], "texts[1]")
        status, pairs = self.post("/v1/score", {"model": "bert", "text_1": query, "text_2": documents})
        for d, s in zip(pairs["data"], wanted):
            self.assertAlmostEqual(d["score"], s, places=5)

    def test_cross_encoder(self):
        """The pair as one text: [CLS] query [SEP] document [SEP], with segments."""
        documents = TEXTS[1:]
        status, answer = self.post("/v1/score", {"model": "bert_cross", "text_1": TEXTS[0], "text_2": documents})
        self.assertEqual(status, 200, answer)
        scores = [d["score"] for d in answer["data"]]
        self.assertTrue(all(0 < s < 1 for s in scores) and len(set(scores)) == len(scores), scores)
        status, ranked = self.post("/v1/rerank", {"model": "bert_cross", "query": TEXTS[0], "documents": documents})
        for r in ranked["results"]:
            self.assertAlmostEqual(r["relevance_score"], scores[r["index"]], places=6)
        try:
            import tokenizers
        except ImportError:
            self.skipTest("tokenizers is not installed")
        reference = tokenizers.Tokenizer.from_file(str(TINY / "bert_cross" / "tokenizer.json"))
        tokens = sum(len(reference.encode(TEXTS[0], d).ids) for d in documents)
        self.assertEqual(answer["usage"]["prompt_tokens"], tokens)

    def test_classify(self):
        status, answer = self.post("/v1/classify", {"model": "bert_cls", "input": TEXTS})
        self.assertEqual(status, 200, answer)
        for d in answer["data"]:
            self.assertAlmostEqual(sum(d["probs"]), 1, places=6)
            self.assertEqual(d["label"], ["sad", "neutral", "happy"][d["probs"].index(max(d["probs"]))])
            self.assertEqual(d["num_classes"], 3)

    def test_openai_client(self):
        try:
            import openai
        except ImportError:
            self.skipTest("openai is not installed")
        with openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model="bert", input=TEXTS)  # it asks for base64
            for vector, d in zip(self.embed(TEXTS), answer.data):
                self.assertGreater(cosine(vector, d.embedding), 1 - 1e-9)
            self.assertEqual(answer.usage.prompt_tokens, answer.usage.total_tokens)
            with self.assertRaises(openai.BadRequestError) as caught:
                client.embeddings.create(model="qwen3", input="a")
            self.assertEqual(caught.exception.param, "model")

    def test_ollama_client(self):
        try:
            import ollama
        except ImportError:
            self.skipTest("ollama is not installed")
        client = ollama.Client(host=self.url)
        self.assertEqual([client.show(m).capabilities[0] for m in ("bert", "qwen3")], ["embedding", "completion"])
        answer = client.embed(model="bert:latest", input=TEXTS, keep_alive="5m", options={"num_ctx": 128})
        for vector, other in zip(self.embed(TEXTS), answer.embeddings, strict=True):
            self.assertGreater(cosine(vector, other), 1 - 1e-9)
        self.assertGreater(answer.prompt_eval_count, len(TEXTS))
        self.assertGreater(cosine(client.embeddings(model="bert", prompt=TEXTS[0]).embedding, answer.embeddings[0]), 1 - 1e-9)
        self.assertEqual(len(client.embed(model="bert", input="a " * 5000).embeddings), 1)  # truncated unless told not to
        for more in ({"input": "a " * 5000, "truncate": False}, {"input": []}, {"input": "x", "model": "qwen3"}):
            with self.assertRaises(ollama.ResponseError) as caught:
                client.embed(**{"model": "bert", **more})
            self.assertEqual(caught.exception.status_code, 400)
            self.assertIsInstance(caught.exception.error, str)


class Beside(Served):
    """A decoder embeds and generates in the same steps."""
    models, flags = ["qwen3"], ["--pooling", "last", "--max-num-batched-tokens", "64"]

    def test_neither_changes_the_other(self):
        ask = {"prompt": "the sun", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        texts = TEXTS + ["hello " * 8, TEXTS[0] + " again"]

        def generate(_):
            return self.post("/v1/completions", ask)[1]["choices"][0]["text"]

        def embed(_):
            return [d["embedding"] for d in self.post("/v1/embeddings", {"input": texts})[1]["data"]]
        answer, vectors = generate(0), embed(0)
        self.assertEqual(len({tuple(v) for v in vectors}), len(texts))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers, batches = pool.map(generate, range(12)), pool.map(embed, range(12))
            self.assertEqual(set(answers), {answer})
            for batch in batches:
                self.assertEqual(batch, vectors)


class Command(unittest.TestCase):
    def vectors(self, *args, **more):
        done = run("embed", *args, "--json", **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line)["embedding"] for line in done.stdout.splitlines()]

    def test_texts_files_and_bundles(self):
        wanted = self.vectors(TINY / "bert", *TEXTS)
        self.assertEqual(self.vectors(TINY / "bert", "--file", "-", stdin="\n".join(TEXTS) + "\n"), wanted)
        self.assertEqual(self.vectors(TINY / "bert.gguf", *TEXTS), wanted)
        with tempfile.TemporaryDirectory() as folder:
            bundle = os.path.join(folder, "bert.tkm")
            done = run("compile", TINY / "bert", "-o", bundle)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.vectors(bundle, *TEXTS), wanted)
        table = run("embed", TINY / "bert", "a dog", "a dog", "x", "--similarity").stdout.split()
        self.assertEqual((len(table), table[1]), (9, "1.0000"))

    def test_a_decoder_gives_its_last_state(self):
        one = self.vectors(TINY / "qwen3", "the sun", "--pooling", "last")[0]
        self.assertEqual(len(one), 64)
        self.assertAlmostEqual(sum(x * x for x in one), 1, places=5)
        many = self.vectors(TINY / "qwen3", "a", "the sun", "--pooling", "last")
        self.assertEqual(many[1], one)

    def test_errors_are_one_line(self):
        for args, text in [(["qwen3", "a"], "no embeddings"), (["qwen3", "a", "--pooling", "mean"], "use last"),
                           (["bert_cls", "a"], "classifier"), (["bert", "the cat " * 40], "truncate"), (["bert"], "no texts"),
                           (["bert", "a", "--dimensions", "100"], "dimensions"), (["bert", "a", "--prompt-name", "x"], "no prompt")]:
            done = run("embed", TINY / args[0], *args[1:])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = run("run", TINY / "bert", "hello")
        self.assertIn("encoder", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
