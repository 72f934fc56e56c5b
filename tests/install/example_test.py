"""The installed tree as another project sees it: find_package(Tokamak), build the example, run it on a real model."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["TOKAMAK_SOURCE_DIR"])
MODEL = os.environ["TOKAMAK_TEST_MODEL"]
FLAGS = None


def call(*args):
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prefix = pathlib.Path(folder.name) / "prefix"
        call("cmake", "--install", FLAGS.build, "--prefix", cls.prefix)
        build = pathlib.Path(folder.name) / "build"
        options = [f"-DCMAKE_CXX_FLAGS=-fsanitize={FLAGS.sanitize}"] if FLAGS.sanitize else []
        call("cmake", "-S", SOURCE / "examples/generate", "-B", build, f"-DCMAKE_PREFIX_PATH={cls.prefix}",
             f"-DCMAKE_CXX_COMPILER={FLAGS.compiler}", *options)
        call("cmake", "--build", build)
        cls.example = build / "generate"

    def test_example_generates(self):
        text = call(self.example, MODEL)
        self.assertTrue(text.startswith("The capital of France is Paris"), text)
        self.assertRegex(text, r"\(\d+ tokens, (stop|length)\)")
        self.assertIn(" three", text)  # the batch continues the first prompt

    def test_example_reports_a_missing_file(self):
        done = subprocess.run([self.example, "/nowhere/model.gguf"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*/nowhere/model.gguf[^\n]*\n\Z")

    def test_headers_stand_alone(self):
        headers = sorted(p.relative_to(self.prefix / "include").as_posix() for p in self.prefix.glob("include/**/*.h"))
        self.assertEqual(headers, ["tokamak/error.h", "tokamak/tokamak.h"])
        for header in headers:
            text = (self.prefix / "include" / header).read_text()
            own = [h for h in re.findall(r'#include [<"]([^>"]+)[>"]', text) if "/" in h]
            self.assertTrue(all(h.startswith("tokamak/") for h in own), own)

    def test_the_program_is_installed(self):
        self.assertRegex(call(self.prefix / "bin/tokamak", "--version"), r"\Atokamak \d+\.\d+\.\d+\n\Z")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("--build", "--compiler", "--sanitize"):
        parser.add_argument(flag, default="")
    FLAGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
