#!/usr/bin/env python3
"""The compiler's tools from outside: debug opt, check, rule, bisect, passes."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from tokamak import FAMILIES, SOURCE, TINY, run, run_json

OPT = SOURCE / "tests" / "golden" / "graph" / "opt"
GRAPHS = SOURCE / "tests" / "golden" / "graph"

# What is stored in the state is read by no result.
STATE_GRAPH = """module m format 1
symbol T in 1..8
symbol B in 1..3
group full window 0 block 16
state kv.0 in full per_token {k: f32[kvh=2, hd=16], v: f32[kvh=2, hd=16]}
func step {
  %0 = input x : f32[t=T, h=2, hd=16]
  %1 = input pos : i32[t=T]
  %2 = input seq : i32[t=T]
  %3 = input slot : i32[t=T]
  %4 = input q_start : i32[b=B + 1]
  %5 = input kv_len : i32[b=B]
  %6 = input view.full : view<full>
  %7 = input kv.0 : state<kv.0>
  %8 = tanh(%0)
  %9 = append(%7, %6, %2, %3, %0, %8)
  %10 = silu(%0)
  return y = %10
  return kv.0 = %9
}
"""


class Debug(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(text)
        return path

    def test_wrong_input_is_not_an_answer(self):
        empty, table = self.file("empty.tkg", ""), self.file("table.csv", "id,lower,upper,size\n1,5,2,9\n")
        missing = pathlib.Path(self.folder.name) / "missing"
        for args in (("opt", missing), ("check", empty), ("bisect", missing), ("rule", missing), ("rule", empty),
                     ("pack", missing), ("pack", table, "--capacity", "1"), ("pack", table, "--time-limit", "nan")):
            done = run("debug", *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")

    def test_check_on_the_cpu_runs_loops_and_rotations(self):
        graph = self.file("loops.tkg", """module m format 1
symbol T in 1..6
constant one : f32[] = [1]
constant freq : f32[n=2] = [1, 0.5]
func loops {
  %0 = input x : f32[t=T, d=8]
  %1 = exp(%0)
  %2 = reduce_sum(%1) {axis=1, keep=1}
  %3 = add(%2, $one)
  %4 = div(%1, %3)
  return y = %4
}
func turn {
  %0 = input q : f32[t=T, h=2, d=4]
  %1 = input pos : i32[t=T]
  %2 = rope(%0, %1, $freq)
  return y = %2
}
""")
        done = run("debug", "check", graph, "--backend", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_help(self):
        for tool in ("opt", "check", "bisect", "rule", "passes"):
            done = run("debug", tool, "--help")
            self.assertEqual(done.returncode, 0, tool)
            self.assertIn("Example", done.stdout, tool)

    def test_opt_prints_the_golden_text_and_reads_its_own_output(self):
        first = run("debug", "opt", OPT / "block.tkg")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, (OPT / "block.out").read_text())
        again = run("debug", "opt", self.file("again.tkg", first.stdout))
        self.assertEqual(again.stdout, first.stdout)

    def test_opt_json_counts(self):
        done = run("debug", "opt", OPT / "block.tkg", "--json", "--shape", "T=4,B=2")
        whole = json.loads(done.stdout)
        out = whole["functions"]["step"]
        self.assertEqual(whole["after"]["nodes"], out["after"]["nodes"])
        self.assertEqual(whole["rules_fired"], out["rules_fired"])
        self.assertLess(out["after"]["nodes"], out["before"]["nodes"] // 2)
        self.assertLess(out["after"]["kernels"], out["before"]["kernels"])
        self.assertLess(out["after"]["activation_bytes"], out["before"]["activation_bytes"])
        self.assertIn("silu", out["rules_fired"])
        self.assertEqual([p["name"] for p in out["passes"]][-1], "fuse")

    def test_passes_are_chosen_and_left_out(self):
        whole = run("debug", "opt", OPT / "block.tkg").stdout
        without = run("debug", "opt", OPT / "block.tkg", "--disable-pass", "recognize").stdout
        self.assertIn("silu", whole)
        self.assertNotIn("silu", without)
        one = run("debug", "opt", OPT / "block.tkg", "--passes", "dead-code", "--dump-after", "dead-code")
        self.assertIn("dropout", one.stdout)
        self.assertIn("after dead-code", one.stderr)
        unknown = run("debug", "opt", OPT / "block.tkg", "--passes", "magic")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("canonicalize", unknown.stderr)

    def test_check_sees_small_changes(self):
        """One attribute a little off, on both backends; what follows the changed op hides most of it."""
        graph = self.file("small.tkg", """module m format 1
symbol T in 1..8
constant f : f32[r=4] = [1.0, 0.5, 0.25, 0.125]
weight w : f32[n=16] from w
weight p : f32[n=16, k=16] from p
weight b : f32[n=16] from b
func step {
  %0 = input x : f32[t=T, d=16]
  %1 = input pos : i32[t=T]
  %2 = rms_norm(%0, @w) {eps=1e-05}
  %3 = linear(%2, @p, @b)
  %4 = reshape(%3) {dims=["T", 2, 8], axes=["t", "h", "d"]}
  %5 = rope(%4, %1, $f) {scale=1.0}
  %6 = reshape(%5) {dims=["T", 16], axes=["t", "d"]}
  %7 = scale(%6) {value=2.0}
  %8 = silu(%7)
  %9 = gelu(%3) {approximate="tanh"}
  %10 = softcap(%9) {cap=30.0}
  %11 = layer_norm(%10, @w, @b) {eps=1e-05}
  %12 = add(%8, %11)
  %13 = softmax(%12)
  %14 = sdpa(%12, %13, %2) {scale=0.25}
  %15 = add(%14, %0)
  return y = %15
}
""")
        rules = ["x: f32[*s, n] w: f32[n] rms_norm(x, w){eps=1e-05} => rms_norm(x, w){eps=1e-03}",
                 "x: f32[*s, n] w: f32[n] rms_norm(x, w){eps=1e-05} => rms_norm(x, w){eps=3e-05}",
                 "layer_norm(x, w, b){eps=1e-05} => layer_norm(x, w, b){eps=1e-03}",
                 "scale(x){value=2.0} => scale(x){value=2.001}",
                 "scale(x){value=2.0} => scale(x){value=2.00002}",
                 "rope(x, p, f){scale=1.0} => rope(x, p, f){scale=1.00003}",
                 "silu(x) => mul(x, sigmoid(scale(x){value=1.001}))",
                 'gelu(x){approximate="tanh"} => gelu(x){approximate="none"}',
                 "softcap(x){cap=30.0} => softcap(x){cap=30.1}",
                 "sdpa(q, k, v){scale=0.25} => sdpa(q, k, v){scale=0.25003}",
                 "x: f32 y: f32 add(x, y) => add(add(x, y), 0.0001)"]
        for rule in rules:
            wrong = self.file("small.rules", f"rule a real: {rule}\n")
            for backend in ("ref", "cpu"):
                checked = run("debug", "check", graph, "--rules", wrong, "--unverified", "--passes", "user-rules",
                              "--backend", backend)
                self.assertEqual(checked.returncode, 1, rule + checked.stdout + checked.stderr)
                self.assertIn("DIFFERENT", checked.stdout)
                self.assertNotIn("largest error 0 ", checked.stdout)
        for backend in ("ref", "cpu"):
            self.assertEqual(run("debug", "check", graph, "--backend", backend).returncode, 0)

    def test_check_says_same(self):
        for graph in (OPT / "block.tkg", OPT / "dead_read.tkg", GRAPHS / "decoder.tkg"):
            done = run("debug", "check", graph, "--seed", "5")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("same", done.stdout)
        exact = run("debug", "check", OPT / "block.tkg", "--passes", "canonicalize,fold-constants,dead-code", "--json")
        self.assertTrue(json.loads(exact.stdout)[0]["bit_equal"], exact.stdout)

    def test_check_on_the_cpu_backend(self):
        for graph in (GRAPHS / "decoder.tkg", *sorted(OPT.glob("*.tkg"))):
            done = run("debug", "check", graph, "--backend", "cpu", "--runs", "2")
            self.assertEqual(done.returncode, 0, f"{graph.name}: {done.stdout}{done.stderr}")

    def test_check_of_encoders_and_recurrent_models(self):
        models = [TINY / name for name in ("bert.gguf", "nomic.gguf", "modernbert", "roberta_cls")]
        models += [FAMILIES / name for name in ("mamba2.gguf", "nemotron_h.gguf", "qwen3next.gguf", "lfm2.gguf")]
        for model in models:
            done = run("debug", "check", model, "--backend", "cpu", "--seed", "3")
            self.assertEqual(done.returncode, 0, f"{model.name}: {done.stdout}{done.stderr}")
        wrong = self.file("planted.rules", "rule planted real: x: f32 silu(x) => sigmoid(x)\n"
                          'rule gelu real: gelu(x){approximate="none"} => gelu(x){approximate="tanh"}\n')
        for model in (TINY / "bert.gguf", FAMILIES / "mamba2.gguf"):
            done = run("debug", "check", model, "--backend", "cpu", "--rules", wrong, "--unverified", "--passes", "user-rules")
            self.assertEqual(done.returncode, 1, f"{model.name}: {done.stdout}{done.stderr}")

    def test_a_wrong_rule_is_refused_found_and_named(self):
        wrong = self.file("wrong.rule", "rule planted real: x: f32 silu(x) => sigmoid(x)")
        done = run("debug", "rule", wrong)
        self.assertEqual(done.returncode, 1)
        self.assertIn("planted: refused: element", done.stdout)
        self.assertEqual(run("debug", "opt", OPT / "block.tkg", "--rules", wrong).returncode, 2)
        graph = self.file("g.tkg", "module m format 1\nsymbol T in 1..8\n\nfunc f {\n  %0 = input x : f32[t=T]\n"
                          "  %1 = silu(%0)\n  %2 = exp(%1)\n  return y = %2\n}\n")
        checked = run("debug", "check", graph, "--rules", wrong, "--unverified")
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn("DIFFERENT", checked.stdout)
        found = run("debug", "bisect", graph, "--rules", wrong, "--unverified")
        self.assertEqual(found.returncode, 1)
        self.assertIn("pass user-rules, rule planted at %1 (silu)", found.stdout)
        self.assertEqual(run("debug", "bisect", graph).returncode, 0)

    def test_a_wrong_state_is_found_on_every_backend(self):
        wrong = self.file("state.rule", "rule planted real: x: f32 tanh(x) => sigmoid(x)")
        graph = self.file("state.tkg", STATE_GRAPH)
        for backend in ("ref", "cpu"):
            chosen = ("--backend", backend, "--passes", "user-rules")
            right = run("debug", "check", graph, *chosen)
            self.assertEqual(right.returncode, 0, right.stdout + right.stderr)
            checked = run("debug", "check", graph, *chosen, "--rules", wrong, "--unverified", "--json")
            self.assertEqual(checked.returncode, 1, checked.stdout + checked.stderr)
            report = json.loads(checked.stdout)[0]
            self.assertFalse(report["same"])
            self.assertIn("kv.0", report["message"], backend)

    def test_a_right_rule_is_accepted(self):
        done = run("debug", "rule", self.file("right.rule", "rule r exact: x: f32 abs(neg(neg(x))) => abs(x)"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("r: accepted (exact", done.stdout)
        broken = run("debug", "rule", self.file("broken.rule", "rule r exact: abs(x => x"))
        self.assertEqual(broken.returncode, 2)
        self.assertIn("line 1", broken.stderr)

    def test_lists(self):
        passes = json.loads(run("debug", "passes", "--json").stdout)
        self.assertEqual(sorted(passes[0]), ["class", "name", "on", "what"])
        rules = json.loads(run("debug", "rule", "--list", "--json").stdout)
        self.assertGreater(len(rules), 100)

    def test_fusion(self):
        graph = OPT / "fuse_llama.tkg"
        chosen = ("--passes", "dead-code,fuse")
        with unittest.mock.patch.dict(os.environ, {"TOKAMAK_LOGS": "fusion"}):
            done = run("debug", "opt", graph, *chosen, "--json")
        out = json.loads(done.stdout)
        self.assertLessEqual(out["after"]["kernels"], 10)
        self.assertIn("apart", done.stderr)
        self.assertIn("fused", done.stderr)
        again = run("debug", "opt", self.file("again.tkg", out["text"]), "--passes", "fuse")
        self.assertEqual(again.stdout, out["text"], "what is fused stays as it is")
        for backend in ("cpu", "ref"):
            check = run("debug", "check", graph, *chosen, "--backend", backend, "--json")
            self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        exact = run("debug", "check", graph, "--passes", "fuse", "--json")
        self.assertTrue(json.loads(exact.stdout)[0]["bit_equal"], exact.stdout)
        self.assertEqual(run("debug", "bisect", graph, *chosen).returncode, 0)
        machine = self.file("machine.json", '{"call_seconds": -1}')
        self.assertEqual(run("debug", "opt", graph, *chosen, "--machine", machine).returncode, 2)

    def test_calibrate(self):
        path = pathlib.Path(self.folder.name) / "this.json"
        done = run("calibrate", "-o", path, "--seconds", "0.1", "--threads", "1", "--name", "this")
        self.assertEqual(done.returncode, 0, done.stderr)
        machine = json.loads(path.read_text())
        self.assertEqual(machine["name"], "this")
        for field in ("flops", "bandwidth", "i8_ops", "f32_flops", "vector_ops"):
            self.assertGreater(machine[field], 1e6, field)
        self.assertEqual(machine["levels"][-1]["name"], "memory")
        done = run("debug", "opt", OPT / "fuse_llama.tkg", "--machine", path)
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(hasattr(os, "sched_setaffinity"), "needs sched_setaffinity")
    def test_calibrate_warns_of_load(self):
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})  # what is started from here shares one core
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            with unittest.mock.patch.dict(os.environ, TOKAMAK_CACHE=self.folder.name):
                done = run("calibrate", "--seconds", "0.3", "--threads", "1")
        finally:
            os.sched_setaffinity(0, cores)
            for other in others:
                other.kill()
                other.wait()
        self.assertEqual(done.returncode, 0, done.stderr)
        used = re.search(r"other programs used (\d+) %", done.stderr)
        self.assertTrue(used, done.stderr)
        self.assertGreater(int(used[1]), 40)
        self.assertFalse((pathlib.Path(self.folder.name) / "machine-cpu.json").exists())
        json.loads(done.stdout)

    def test_norms_are_folded_or_there_is_a_reason(self):
        graph = OPT / "fold_norms.tkg"
        out = run_json("debug", "opt", graph, "--passes", "fold-norms", "--json")
        folded = out["functions"]["step"]["passes"][0]
        self.assertEqual(folded["fired"], 2)
        reasons = sorted(folded["refused"])
        self.assertEqual(sum(folded["refused"].values()), 4, reasons)
        for word, reason in zip(("a matrix after the norm is also used elsewhere", "f16 matrices", "q8_0 matrices",
                                 "the norm is a result"), reasons):
            self.assertIn(word, reason)
        done = run("debug", "check", graph, "--passes", "fold-norms")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_model_and_its_flags(self):
        log = run("run", TINY / "llama.gguf", "hello", "--max-tokens", "2", "--dump-after", "dead-code",
                  "--disable-pass", "recognize,fold-scales,fold-norms")
        self.assertEqual(log.returncode, 0, log.stderr)
        self.assertIn("func step", log.stderr)
        self.assertEqual(run("run", TINY / "llama.gguf", "x", "--disable-pass", "nothing").returncode, 2)


if __name__ == "__main__":
    unittest.main()
