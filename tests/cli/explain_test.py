#!/usr/bin/env python3
"""tokamak explain from outside: text, JSON, page and trace, for every family; the page in a browser where there is one."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from tokamak import BINARY, TINY, run, run_json

CHROMIUM = os.environ.get("TOKAMAK_CHROMIUM") or shutil.which("chromium") or ""
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


class Explain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.page = pathlib.Path(cls.folder.name) / "report.html"
        cls.trace = pathlib.Path(cls.folder.name) / "trace.json"
        done = run("explain", TINY / "llama.gguf", "--shape", "B=2,S=64", "--run", "--steps", "3", "--json", "--html",
                   cls.page, "--trace", cls.trace)
        assert done.returncode == 0, done.stderr
        cls.report = json.loads(done.stdout)

    def test_help_and_text(self):
        self.assertIn("Examples", run("explain", "--help").stdout)
        done = run("explain", TINY / "llama.gguf", "--shape", "B=2,S=64", "--run")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("PASSES", "KERNELS", "MEMORY", "gap", "arena", "measured"):
            self.assertIn(part, done.stdout)
        self.assertRegex(done.stdout, r"counted (\d+) bytes, predicted \1: equal")
        # Layers are folded: none is printed by its number.
        self.assertNotRegex(done.stdout, r"blk\.\d")

    def test_nothing_is_left_of_a_page_that_cannot_be_written(self):
        page = pathlib.Path(self.folder.name) / "cut.html"
        limited = "trap '' XFSZ; ulimit -f 8; exec \"$@\""  # files of at most 8 KiB, as on a disk that is full
        done = subprocess.run(["bash", "-c", limited, "bash", BINARY, "explain", TINY / "llama.gguf", "--no-compile-cache", "--html", page],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cut.html: File too large", done.stderr)
        self.assertFalse(page.exists())

    def test_report(self):
        r = self.report
        self.assertEqual((r["format"], r["version"]), ("tokamak-explain", 1))
        self.assertEqual(r["shape"], {"B": 2, "T": 2, "S": 64, "R": 2})
        totals = r["totals"]
        self.assertTrue(totals["counted_equal"])
        self.assertEqual(sum(k["calls"] for k in r["kernels"]), totals["calls"])
        self.assertEqual(len(r["calls"]), totals["calls"])
        for k in r["kernels"]:
            self.assertEqual(k["counted_bytes"], k["bytes"], k["name"])
            self.assertIn(k["bound"], ("memory", "compute"))
            self.assertGreater(k["measured_us"], 0, k["name"])
            self.assertTrue(k["ops"] and k["why"], k["name"])
        self.assertAlmostEqual(sum(k["calls"] * k["measured_us"] for k in r["kernels"]), totals["measured_us"], delta=1)
        memory = r["memory"]
        self.assertGreaterEqual(memory["peak"], memory["lower_bound"])
        self.assertTrue(memory["method"])
        self.assert_apart(memory["values"])
        names = [p["name"] for p in r["passes"]]
        self.assertIn("canonicalize", names)
        self.assertIn("dead-code", names)
        self.assertEqual(r["graphs"][0]["stage"], "captured")
        for g in r["graphs"]:  # the two layers are equal in every stage
            self.assertEqual([s["count"] for s in g["segments"]], [1, 2, 1], g["stage"])
        self.assertTrue(all(n["reason"] and n["count"] > 0 for n in r["not_fused"]))

    def assert_apart(self, values):
        """Values that live at the same time do not overlap; one written in place begins where the other ends."""
        for i, a in enumerate(values):
            for b in values[:i]:
                in_time = a["first"] < b["last"] and b["first"] < a["last"]
                in_space = a["offset"] < b["offset"] + b["bytes"] and b["offset"] < a["offset"] + a["bytes"]
                self.assertFalse(in_time and in_space, (a, b))

    def test_trace(self):
        events = json.loads(self.trace.read_text())["traceEvents"]
        threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(sorted(threads.values()), ["compiler passes", "cpu calls", "decode steps"])
        slices = [e for e in events if e["ph"] == "X"]
        self.assertTrue(all(e["tid"] in threads and e["dur"] >= 0 for e in slices))
        calls = [e for e in slices if threads[e["tid"]] == "cpu calls"]
        self.assertEqual(len(calls), 3 * self.report["totals"]["calls"])
        steps = [e for e in slices if threads[e["tid"]] == "decode steps"]
        self.assertEqual(len(steps), 3)
        for call in calls:  # slices nest
            self.assertTrue(any(s["ts"] - 1e-6 <= call["ts"] and call["ts"] + call["dur"] <= s["ts"] + s["dur"] + 1e-2
                                for s in steps))

    def test_page_needs_nothing_else(self):
        text = self.page.read_text()
        self.assertNotRegex(text, r'(src|href)="(https?:)?//')
        self.assertNotIn("/*DATA*/", text)
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1)
        self.assertEqual(json.loads(data)["totals"]["calls"], self.report["totals"]["calls"])

    def test_every_family_and_backend(self):
        for path in sorted(TINY.glob("*.gguf")):
            r = run_json("explain", path, "--json")
            self.assertEqual(r["function"], "step" if path.stem in ("bert", "nomic", "embeddinggemma") else "decode", path.name)
            self.assertGreater(r["totals"]["bytes"], 0, path.name)
            self.assertLess(r["totals"]["kinds"], r["totals"]["calls"], path.name)
        for backend in ("ref", "null"):
            r = run_json("explain", TINY / "llama", "--backend", backend, "--fn", "step", "--shape", "T=9,B=2,S=20", "--json")
            self.assertEqual(r["backend"], backend)
        r = run_json("explain", TINY / "gemma3", "--backend", "ref", "--run", "--shape", "S=40", "--json")
        self.assertTrue(r["totals"]["counted_equal"])
        self.assertIn("measured_us", r["totals"])
        r = run_json("explain", TINY / "bert", "--run", "--shape", "T=24,B=2", "--json")
        self.assertIn("measured_us", r["totals"])
        r = run_json("explain", TINY / "llama.gguf", "--fn", "verify2", "--shape", "B=2,S=30", "--json")
        self.assertEqual(r["shape"]["T"], 6)

    def test_eager_moves_more(self):
        eager = run_json("explain", TINY / "llama.gguf", "--shape", "B=2,S=64", "--mode", "eager", "--run", "--json")
        self.assertTrue(eager["totals"]["counted_equal"])
        self.assertGreaterEqual(eager["totals"]["calls"], self.report["totals"]["calls"])
        self.assertGreaterEqual(eager["totals"]["bytes"], self.report["totals"]["bytes"])
        self.assertGreaterEqual(eager["memory"]["peak"], self.report["memory"]["peak"])

    def test_bundle(self):
        bundle = pathlib.Path(self.folder.name) / "model.tkm"
        done = run("compile", TINY / "llama.gguf", "-o", bundle)
        self.assertEqual(done.returncode, 0, done.stderr)
        r = run_json("explain", bundle, "--shape", "B=2,S=64", "--run", "--json")
        self.assertEqual(r["totals"]["bytes"], self.report["totals"]["bytes"])
        self.assertTrue(r["totals"]["counted_equal"])
        self.assertEqual(r["passes"], [])

    def test_machine(self):
        machine = pathlib.Path(self.folder.name) / "machine.json"
        machine.write_text('{"name": "fast", "bandwidth": 1e15, "levels": [{"name": "m", "bandwidth": 1e15}]}')
        r = run_json("explain", TINY / "llama.gguf", "--machine", machine, "--json")
        self.assertEqual(r["machine"]["name"], "fast")
        self.assertEqual(r["warnings"], [])
        self.assertIn("not measured", self.report["warnings"][0])
        self.assertIn(self.report["warnings"][0], self.page.read_text())
        self.assertTrue(all(k["bound"] == "compute" for k in r["kernels"] if k["flops"] > 0))

    def test_errors_are_one_line(self):
        model = TINY / "llama.gguf"
        for args, words in ((["--fn", "prefill"], "step, decode or verify"), (["--shape", "X=3"], "B and S"),
                            (["--shape", "B=zero"], "a number"), (["--fn", "step", "--shape", "T=4,B=9"], "9 sequences"),
                            (["--trace", "t.json"], "--run"), (["--backend", "null", "--run"], "null"),
                            (["--machine", "/nowhere.json"], "nowhere.json"), (["--kv-dtype", "f12"], "f16, f32, int8"),
                            (["--mode", "fast"], "compiled, eager")):
            done = run("explain", model, *args)
            self.assertNotEqual(done.returncode, 0, args)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)
        done = run("explain", TINY / "gpt2.gguf", "--shape", "S=5000")
        self.assertIn("positions", done.stderr)
        self.assertIn("no-such.gguf", run("explain", "no-such.gguf").stderr)

    @unittest.skipUnless(CHROMIUM and sync_playwright, "needs Chromium (TOKAMAK_CHROMIUM) and playwright")
    def test_page_in_a_browser(self):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            try:
                for width, height in WIDTHS.values():
                    for scheme in ("light", "dark"):
                        self.look_at(browser, width, height, scheme)
            finally:
                browser.close()

    def look_at(self, browser, width, height, scheme):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        errors = []
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("request", lambda r: errors.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(self.page.as_uri())
        r = self.report
        rows = page.locator("#kernel-table tr.row")
        self.assertEqual(rows.count(), len(r["kernels"]))
        self.assertEqual(page.locator("#memory-picture rect").count(), len(r["memory"]["values"]))
        self.assertEqual(page.locator("#roofline-picture circle").count(),
                         sum(k["flops"] > 0 and k["bytes"] > 0 for k in r["kernels"]))
        self.assertEqual(page.locator("#pass-table tbody tr").count(), len(r["passes"]))
        self.assertEqual(page.locator("#edge-table tbody tr").count(), len(r["not_fused"]))
        page.locator("th[data-key=bytes]").click()
        heaviest = max(r["kernels"], key=lambda k: k["bytes"])
        self.assertIn(heaviest["name"], rows.first.inner_text())
        page.fill("#filter", heaviest["kernel"])
        self.assertEqual(rows.count(), sum(heaviest["kernel"] in k["kernel"] for k in r["kernels"]))
        rows.first.click()
        self.assertEqual(page.locator("tr.more").count(), 1)
        stages = page.locator("#stages button")
        self.assertEqual(stages.count(), len(r["graphs"]))
        stages.first.click()
        drawn = sum(len(s["nodes"]) for s in r["graphs"][0]["segments"])
        self.assertEqual(page.locator("#after rect.node").count(), drawn)
        page.locator("#memory-scale").click()
        self.assertEqual(page.locator("#memory-picture rect").count(), len(r["memory"]["values"]))
        page.locator("#memory-picture rect").first.hover()
        self.assertIn("bytes at", page.locator("#tip").inner_text())
        # Nothing but the scrolling parts is wider than the window.
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        self.assertEqual(page.evaluate("document.documentElement.dataset.theme"), scheme)
        page.locator("#theme").click()
        self.assertNotEqual(page.evaluate("document.documentElement.dataset.theme"), scheme)
        self.assertEqual(errors, [])
        context.close()


if __name__ == "__main__":
    unittest.main()
