"""`tokamak bench serve` against servers with tiny models."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from serve_test import BINARY, LLAMA, Serve


class Bench(unittest.TestCase):
    def bench(self, *args, code=0):
        done = subprocess.run([BINARY, "bench", "serve", *map(str, args)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout) if "--json" in args else done.stdout + done.stderr

    def check(self, r, requests):
        self.assertEqual((r["completed"], r["failed"], r["completion_tokens"]), (requests, 0, requests * 8), r)
        self.assertGreaterEqual(r["prompt_tokens"], requests)
        for kind in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            self.assertLessEqual(0, r[kind]["p50"])
            self.assertTrue(r[kind]["p50"] <= r[kind]["p90"] <= r[kind]["p99"] <= r[kind]["max"], r[kind])
        self.assertGreater(r["ttft_ms"]["p50"], 0)
        self.assertLessEqual(r["ttft_ms"]["p50"], r["e2e_ms"]["p50"])
        self.assertAlmostEqual(r["output_tokens_per_second"], r["completion_tokens"] / r["seconds"], places=3)

    def test_against_a_server(self):
        size = ("--prompt", 4, "--output", 8, "--json")
        with Serve(LLAMA) as s:
            self.check(self.bench("--url", s.url, "--requests", 12, "--concurrency", 4, *size), 12)
            r = self.bench("--url", s.url + "/v1", "--requests", 10, "--rate", 50, "--slo-ttft", 1e6, *size)
            self.check(r, 10)
            self.assertEqual(r["goodput_share"], 1)
            r = self.bench("--url", s.url, "--requests", 4, "--slo-e2e", 0.0001, *size)
            self.assertEqual((r["completed"], r["goodput_share"]), (4, 0))
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
                trace.write("TIMESTAMP,ContextTokens,GeneratedTokens\n" +
                            "".join(f"2023-11-16 18:15:0{i}.0000000,4,8\n" for i in range(3)))
                trace.flush()
                self.check(self.bench("--url", s.url, "--trace", trace.name, "--speed", 20, *size), 3)
            self.assertIn("tokens/s", self.bench("--url", s.url, "--requests", 2, "--prompt", 4, "--output", 8))
            self.assertIn("404", self.bench("--url", s.url, "--model-name", "none", "--requests", 2, code=1))

    def test_datasets(self):
        def turns(*texts):
            return {"id": "x", "conversations": [{"from": ("human", "gpt")[i % 2], "value": t} for i, t in enumerate(texts)]}
        with Serve(LLAMA) as s, tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            count = lambda text: len(s.post("/tokenize", prompt=text)[2]["tokens"])
            good = [("one two three", "a b c d e f"), ("the house", "one two one two")]
            entries = [turns(*g, "more", "text") for g in good] + [turns("no answer"), turns("one two three", "a"), turns("x", "one two one two"),
                       {"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "one two three"}]}]
            (folder / "share.json").write_text(json.dumps(entries))
            r = self.bench("--url", s.url, "--dataset", folder / "share.json", "--prompt", 4, "--json")
            self.assertEqual((r["requests"], r["completed"], r["completion_tokens"]), (2, 2, sum(count(a) for _, a in good)), r)
            self.assertEqual(r["prompt_tokens"], sum(count(p) for p, _ in good))
            r = self.bench("--url", s.url, "--dataset", folder / "share.json", "--requests", 1, "--prompt", 4, "--output", 5, "--json")
            self.assertEqual((r["completed"], r["completion_tokens"]), (1, 5))
            (folder / "own.jsonl").write_text('{"prompt": "one two", "output_tokens": 3}\n\n{"prompt": "a b", "output_tokens": 2}\n')
            r = self.bench("--url", s.url, "--dataset", folder / "own.jsonl", "--prompt", 4, "--rate", 100, "--json")
            self.assertEqual((r["completed"], r["completion_tokens"]), (2, 5))
            (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "a"}\n')
            self.assertIn("bad.jsonl, line 2 has no prompt", self.bench("--url", s.url, "--dataset", folder / "bad.jsonl", "--prompt", 4, code=1))
            self.assertIn("a dataset is a .json", self.bench("--url", s.url, "--dataset", folder, "--prompt", 4, code=2))

    def test_with_its_own_server(self):
        self.check(self.bench(LLAMA, "--requests", 6, "--concurrency", 2, "--prompt", 4, "--output", 8, "--json"), 6)

    def test_wrong_flags(self):
        self.assertIn("either MODEL or --url", self.bench(code=2))
        self.assertIn("http://", self.bench("--url", "https://x", code=2))
        self.assertIn("cannot connect", self.bench("--url", "http://127.0.0.1:1", code=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
