"""Runs every worked example; each fails by itself when it no longer shows what it says."""
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tokamak import BINARY, SOURCE

EXAMPLES = pathlib.Path(SOURCE) / "examples"


def run_script(path, *args, binary=BINARY):
    done = subprocess.run([sys.executable, str(path), *map(str, args)], text=True, capture_output=True, timeout=250,
                          env={**os.environ, "TOKAMAK_BINARY": str(binary)})
    return done.returncode, done.stdout, done.stderr


class Examples(unittest.TestCase):
    def show(self, name, *args):
        code, out, err = run_script(EXAMPLES / name, *args)
        self.assertEqual((code, err), (0, ""), out)
        return out

    def test_mlp_fusion(self):
        self.assertIn("fused", self.show("mlp_fusion.py"))

    def test_simplify(self):
        self.assertIn("same bits", self.show("simplify.py"))

    def test_kv_write(self):
        self.assertIn("does not return its last version", self.show("kv_write.py"))

    def test_limit(self):
        self.assertIn("4097 tokens: error: the prompt has 4097 tokens", self.show("limit.py", "--layers", 1, "--vocab", 512))

    def test_buckets(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, "tiny.gguf")
            code, _, err = run_script(pathlib.Path(SOURCE) / "tools/random_model.py", model, "--shape", "tiny", "--type", "f16",
                                      "--context", 8192)
            self.assertEqual(code, 0, err)
            self.assertIn("compiled while running: 0", self.show("buckets.py", model))

    def test_what_is_missing_is_named(self):
        code, out, err = run_script(EXAMPLES / "simplify.py", binary="/nowhere/tokamak")
        self.assertEqual((code, out, err.count("\n")), (1, "", 1))
        self.assertIn("/nowhere/tokamak (No such file or directory): build it with make build", err)
        code, _, err = run_script(EXAMPLES / "buckets.py", "/nowhere/model.gguf")
        self.assertEqual((code, err.count("\n")), (1, 1))
        self.assertIn("/nowhere/model.gguf", err)
        for script in EXAMPLES.glob("*.py"):
            if script.name != "common.py":
                self.assertEqual(self.show(script.name, "--help"), script.read_text().split('"""')[1].strip() + "\n")

    def test_a_terminal_shows_progress_and_an_interrupt_ends_it(self):
        with tempfile.TemporaryDirectory() as folder:
            screen, terminal = pty.openpty()
            example = subprocess.Popen([sys.executable, EXAMPLES / "limit.py", "--layers", "4"], stdout=terminal, stderr=terminal,
                                       env={**os.environ, "TOKAMAK_BINARY": str(BINARY), "TMPDIR": folder}, start_new_session=True)
            self.addCleanup(example.kill)
            os.close(terminal)
            shown = b""
            while b"\n" not in shown:
                shown += os.read(screen, 1000)
            self.assertIn(b"... writing random weights", shown)
            while not any(f.stat().st_size for f in pathlib.Path(folder).rglob("*.gguf")):
                self.assertIsNone(example.poll())
                time.sleep(0.01)
            os.killpg(example.pid, signal.SIGINT)
            self.assertEqual(example.wait(60), -signal.SIGINT)
            self.assertEqual(os.read(screen, 1000), b"random_model: stopped\r\n")  # and no traceback
            os.close(screen)
            self.assertEqual(os.listdir(folder), [])

    def test_the_list_is_complete(self):
        listed = (EXAMPLES / "README.md").read_text()
        for script in EXAMPLES.glob("*.py"):
            self.assertTrue(script.name == "common.py" or f"]({script.name})" in listed, script.name)
            self.assertTrue(script.name == "common.py" or hasattr(self, "test_" + script.stem), script.name)


if __name__ == "__main__":
    unittest.main()
