#!/usr/bin/env python3
"""`tokamak bench kernels` and `tokamak bench vs` from outside."""
import json
import pathlib
import stat
import sys
import tempfile
import unittest

from tokamak import FAMILIES, TINY, run, run_json

LLAMA = TINY / "llama.gguf"

# Prints what llama-bench prints: prefill 100 tokens/s on the first call, decode 50 on the second, twice that on the third and fourth and so
# on. Its arguments go to a log.
FAKE = """#!{python}
import json, pathlib, sys
log = pathlib.Path(__file__).with_suffix(".log")
lines = log.read_text().splitlines() if log.exists() else []
log.write_text("\\n".join(lines + [" ".join(sys.argv[1:])]) + "\\n")
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt, gen = int(flags["-p"]), int(flags["-n"])
assert (prompt == 0) != (gen == 0)
print(json.dumps([{{"build_commit": "abc1234", "n_prompt": prompt, "n_gen": gen, "avg_ts": (50.0 if gen else 100.0) * (len(lines) // 2 + 1)}}]))
"""


class Latency(unittest.TestCase):
    def test_weights_read_by_a_step(self):
        """Of a mixture only the experts that are used: 2 of 4 for one token, at most all for many."""
        whole, embedding, experts = 756992, 128 * 64 * 4, 2 * 4 * 3 * 96 * 64 * 4
        for batch, share in ((1, 1 / 2), (2, 3 / 4), (8, 255 / 256)):
            row = run_json("bench", "latency", FAMILIES / "mixtral.gguf", "--prompt", "4", "--gen", "2", "--repeat", "1", "--batch", str(batch),
                           "--json")[0]
            self.assertAlmostEqual(row["decode_weight_bytes"], whole - embedding - (1 - share) * experts, delta=1000)


class Kernels(unittest.TestCase):
    FLAGS = ("--seconds", "0", "--columns", "64", "--inner", "256", "--threads", "2")

    def test_every_kind_of_matrix_has_a_speed(self):
        out = run_json("bench", "kernels", *self.FLAGS, "--filter", "m=64", "--json")
        self.assertEqual(out["threads"], 2)
        self.assertGreater(out["peaks"]["read_gb_per_second"], 0)
        kernels = [k["kernel"] for k in out["kernels"]]
        for dtype in ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_k", "q6_k"):
            self.assertIn(f"linear {dtype}", kernels)
        for k in out["kernels"]:
            self.assertAlmostEqual(k["gop_per_second"] * k["seconds"] * 1e9, 2 * 64 * 64 * 256, delta=1)
            self.assertGreater(k["gb_per_second"], 0)
            self.assertGreater(k["read_share"], 0)

    def test_attention_and_rows(self):
        for text, count in (("attend i8", 4), ("silu", 2), ("rms_norm", 2), ("quantize 512", 1)):
            out = run_json("bench", "kernels", *self.FLAGS, "--filter", text, "--json")
            self.assertEqual(len(out["kernels"]), count, text)
            self.assertTrue(all(k["gop_per_second"] > 0 for k in out["kernels"]), text)

    def test_table(self):
        done = run("bench", "kernels", *self.FLAGS, "--filter", "linear q8_0 m=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"Peaks: read [\d.]+ GB/s")
        self.assertRegex(done.stdout, r"linear q8_0 +m=4 n=64 k=256 +[\d.]+ +[\d.]+ +\d+% ")

    def test_errors(self):
        for flags, text in ((("--filter", "nothing such"), "no kernel matches"), (("--inner", "300"), "k of 256")):
            done = run("bench", "kernels", *flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)


class Vs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.peer = pathlib.Path(folder.name) / "llama-bench"
        self.peer.write_text(FAKE.format(python=sys.executable))
        self.peer.chmod(self.peer.stat().st_mode | stat.S_IXUSR)

    def vs(self, *flags):
        return run("bench", "vs", LLAMA, "--llama-bench", self.peer, "--prompt", "8", "--gen", "4", *flags)

    def test_medians_and_ratios(self):
        done = self.vs("--repeat", "3", "--threads", "2", "--commit", "deadbeef", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        out = json.loads(done.stdout)
        self.assertEqual(out["llamacpp"], "abc1234")
        self.assertIn("deadbeef", out["tokamak"])
        self.assertGreater(out["cores"], 0)
        (row,) = out["rows"]
        self.assertEqual((row["model"], row["threads"]), ("llama.gguf", 2))
        for test, median in (("prefill", 200), ("decode", 100)):
            theirs, ours = row[test]["llamacpp"], row[test]["tokamak"]
            self.assertEqual(theirs["runs"], [median / 2, median, median * 1.5])
            self.assertEqual(theirs["median"], median)
            self.assertEqual(ours["median"], sorted(ours["runs"])[1])
            self.assertAlmostEqual(row[test]["ratio"], ours["median"] / median)
        calls = self.peer.with_suffix(".log").read_text().splitlines()
        self.assertEqual(len(calls), 6)
        for call, flags in ((calls[0], ("-p 8", "-n 0")), (calls[1], ("-p 0", "-n 4", "-d 8"))):  # decode with the prompt in the cache
            for flag in (f"-m {LLAMA}", "-t 2", "-r 1", *flags):
                self.assertIn(flag, call)
        self.assertNotIn("-d", calls[0].split())

    def test_report(self):
        report = self.peer.parent / "report.md"
        done = self.vs("--repeat", "2", "--threads", "1,2", "--depth", "16", "-o", report)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report.read_text(), done.stdout)
        # The peer ran with 1, 2, 1 and 2 threads.
        self.assertRegex(done.stdout, r"\| llama.gguf \| 1 \| [\d.]+ \| 200.0 \| [\d.]+ \| [\d.]+ \| 100.0 \|")
        self.assertRegex(done.stdout, r"\| llama.gguf \| 2 \| [\d.]+ \| 300.0 \| [\d.]+ \| [\d.]+ \| 150.0 \|")
        calls = self.peer.with_suffix(".log").read_text().splitlines()
        self.assertIn("-d 16", calls[0])
        self.assertIn("-d 24", calls[1])

    def test_errors(self):
        done = run("bench", "vs", LLAMA, "--llama-bench", "no-such-program", "--prompt", "8", "--gen", "4")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cannot start no-such-program", done.stderr)
        done = self.vs("--repeat", "1", "-o", "/nowhere/report.md")  # the measurement is not lost
        self.assertEqual((done.returncode, done.stderr), (2, "error: cannot write /nowhere/report.md: No such file or directory\n"))
        self.assertIn("| llama.gguf |", done.stdout)
        self.peer.write_text("#!/bin/sh\nexit 3\n")
        done = self.vs()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("failed", done.stderr)


if __name__ == "__main__":
    unittest.main()
