"""HTTPS: Python's TLS client against the server, clients that get it wrong, and certificates that cannot be used."""
import contextlib
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import warnings

from harness import Server, chat, encode, events, parse, read_all

FOLDER = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(FOLDER.name, name)


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def setUpModule():
    for name in ("one", "two"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", path(name + ".key"), "-out", path(name + ".crt"))
    openssl("pkey", "-in", path("one.key"), "-aes128", "-passout", "pass:secret", "-out", path("locked.key"))
    with open(path("text"), "w") as f:
        f.write("not a certificate\n")


def tearDownModule():
    FOLDER.cleanup()


def environment(certificate="one.crt", key="one.key"):
    files = {"FAKE_CERTIFICATE": certificate, "FAKE_KEY": key}
    return {name: path(file) for name, file in files.items() if file}


class TlsServer(Server):
    """Requests of the harness go over TLS; a close without notice is an error (a cut answer would go unseen)."""

    def __init__(self, **options):
        super().__init__(env=environment(), **options)
        self.context = ssl.create_default_context(cafile=path("one.crt"))

    def connect(self, timeout=20, receive_buffer=0):
        plain = super().connect(timeout, receive_buffer)
        return self.context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)

    def connect_plain(self, timeout=20):
        return Server.connect(self, timeout)


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = TlsServer(idle_ms=3000)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_requests_and_streams(self):
        self.assertEqual(self.server.json("GET", "/health")[0], 200)
        status, data = self.server.json("POST", "/v1/chat/completions", chat("[say hello]"))
        self.assertEqual((status, data["choices"][0]["message"]["content"]), (200, "hello"))
        status, _, body = self.server.request("POST", "/v1/chat/completions", chat("[say hello]", stream=True))
        self.assertEqual((status, events(body)[-1]), (200, b"[DONE]"))

    def test_one_connection_for_many_requests(self):
        with contextlib.closing(self.server.connect()) as s:
            for i in range(20):
                last = {"Connection": "close"} if i == 19 else {}
                s.sendall(encode("GET", "/v1/models", headers=last))
            self.assertEqual(read_all(s).count(b"HTTP/1.1 200"), 20)

    def test_versions_and_protocols(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=path("one.crt"))
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(["h2", "http/1.1"])
            with context.wrap_socket(self.server.connect_plain(), server_hostname="127.0.0.1") as s:
                self.assertEqual(s.selected_alpn_protocol(), "http/1.1")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings(action="ignore"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with self.assertRaises(ssl.SSLError), old.wrap_socket(self.server.connect_plain()):
            pass

    def test_plain_http_is_told(self):
        with contextlib.closing(self.server.connect_plain()) as s:
            s.sendall(encode("GET", "/health"))
            status, _, body = parse(read_all(s))
        self.assertEqual(status, 400)
        self.assertIn(b"expects HTTPS", body)

    def test_garbage_and_cut_handshakes(self):
        hello = bytes.fromhex("16030100c8010000c403035f")
        for data in (b"\0" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 3000, hello, b"", b"SSH-2.0-x\r\n"):
            with contextlib.closing(self.server.connect_plain()) as s:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    s.recv(1000)
        self.assertEqual(self.server.json("GET", "/health")[0], 200)

    def test_rejected_request_is_answered(self):
        """The answer must arrive although most of the body is still on its way."""
        with contextlib.closing(self.server.connect()) as s:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"
            with contextlib.suppress(OSError):
                s.sendall(head + b"x" * 300000)
            self.assertEqual(parse(read_all(s))[0], 413)

    def test_client_that_vanishes(self):
        before = self.server.engine()["cancelled"]
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(encode("POST", "/v1/chat/completions", chat("[slow 20]", stream=True, max_tokens=2000)))
            s.recv(100)
        state = self.server.wait_engine(lambda state: state["cancelled"] > before)
        self.assertGreater(state["cancelled"], before)

    def test_many_at_once(self):
        results = []

        def ask(i):
            data = self.server.json("POST", "/v1/chat/completions", chat(f"[say word{i}]"))[1]
            results.append(data["choices"][0]["message"]["content"] == f"word{i}")
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(30)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, [True] * 30)


class Certificates(unittest.TestCase):
    def test_files_that_cannot_be_used(self):
        for certificate, key, expected in (("none.crt", "one.key", "--ssl-certfile .*no such file"),
                                           ("one.crt", "none.key", "--ssl-keyfile .*no such file"),
                                           ("text", "one.key", "--ssl-certfile .*not a PEM certificate"),
                                           ("one.crt", "text", "--ssl-keyfile .*not a PEM key"),
                                           ("one.crt", "locked.key", "not a PEM key without a password"),
                                           ("one.crt", "two.key", "not the key of the certificate"),
                                           ("one.crt", None, "--ssl-keyfile is missing"), (None, "one.key", "--ssl-certfile is missing")):
            with self.subTest(expected=expected), self.assertRaisesRegex(RuntimeError, expected):
                Server(env=environment(certificate, key)).stop()


if __name__ == "__main__":
    unittest.main()
