#!/usr/bin/env python3
"""all-MiniLM-L6-v2, a real embedding model, against vectors of sentence-transformers (tests/golden/minilm.json), and a question about texts."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tokamak import SOURCE, run, run_json


def fetch():
    done = subprocess.run([sys.executable, SOURCE / "tools" / "get_model.py", "--model", "all-minilm-l6-v2"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else None


MODEL = fetch()


@unittest.skipUnless(MODEL, "the model cannot be downloaded")
class MiniLM(unittest.TestCase):
    def least_cosine(self, *flags):
        """With the vectors of sentence-transformers; None where this CPU has no such products."""
        golden = json.loads((SOURCE / "tests" / "golden" / "minilm.json").read_text())
        done = run("embed", MODEL, "--truncate", "--json", *flags, "--", *golden["texts"])
        if "has no kernel that multiplies" in done.stderr:
            return None
        self.assertEqual(done.returncode, 0, done.stderr)
        vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines()]
        self.assertEqual(len(vectors), len(golden["texts"]))
        return min(sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
                   for a, b in zip(golden["vectors"], vectors))

    def test_equals_sentence_transformers(self):
        self.assertGreater(self.least_cosine(), 0.999999)

    def test_bf16_products_are_near_sentence_transformers(self):
        cosine = self.least_cosine("--activations", "bf16")
        if cosine is None:
            self.skipTest("no bf16 products on this CPU")
        self.assertGreater(cosine, 0.9999)
        self.assertLess(cosine, 0.9999999)  # matrices and activations were rounded

    def test_int16_products_are_near_sentence_transformers(self):
        cosine = self.least_cosine("--activations", "i16")
        if cosine is None:
            self.skipTest("no int16 products on this CPU")
        self.assertGreater(cosine, 0.999999)
        self.assertLess(cosine, 0.999999999)  # likewise

    def test_questions_about_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "plasma.md").write_text("# Fusion\n\nA tokamak confines hot plasma with magnetic fields.\n\n"
                                            "Its walls are cooled with water.\n")
            (root / "deep").mkdir()
            (root / "deep" / "kitchen.txt").write_text("An egg is boiled for eight minutes.\n\nBread is baked from flour and water.\n")
            (root / "ignored.bin").write_bytes(b"\x00\x01")
            done = run("rag", "index", root, "-m", MODEL, "--passage", "64")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("4 passages of 2 files", done.stdout)
            for question, file, line in [("How long does it take to cook an egg?", "deep/kitchen.txt", 1),
                                         ("What holds the plasma together?", "plasma.md", 1)]:
                answer = run_json("rag", "ask", root, question, "-m", MODEL, "--top", "2", "--json")
                best = answer["sources"][0]
                self.assertEqual((best["file"], best["line"]), (file, line), answer)
                self.assertGreater(best["score"], answer["sources"][1]["score"])
            index = root / ".tokamak-index"
            data = bytearray(index.read_bytes())
            data[200] ^= 1
            index.write_bytes(data)
            done = run("rag", "ask", root, "egg", "-m", MODEL)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("checksum", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
