"""Clients that mean harm: framing that two readers may understand differently, bodies that cost more than they should, slow and
half-closed connections, WebSocket frames in odd pieces, files and batches, and the file of keys. After each case the server must
answer others at once, and in the end it must stop cleanly."""
import contextlib
import json
import os
import pathlib
import socket
import struct
import tempfile
import unittest

from batch_test import Client, line
from harness import Server, chat, encode, parse, read_all, read_response, read_until

SECOND = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"  # must never be read as a request of its own
BODY = b'{"prompt":"[say x]"}'
CHUNKED = b"Transfer-Encoding: chunked"
PIECE = b"%x\r\n%s\r\n" % (len(BODY), BODY)


def post(headers, body, version=b"1.1"):
    return b"POST /v1/completions HTTP/" + version + b"\r\nHost: x\r\nContent-Type: application/json\r\n" + headers + b"\r\n\r\n" + body


def get(headers, first=b"GET /health HTTP/1.1\r\nHost: x"):
    return first + b"\r\n" + headers + b"\r\n\r\n"


# name, bytes, status of the only answer
FRAMING = [
    ("coding after a tab", post(b"Transfer-Encoding:\tchunked\r\nConnection: close", PIECE + b"0\r\n\r\n"), 200),
    ("coding in capitals", post(b"TRANSFER-ENCODING: CHUNKED\r\nConnection: close", PIECE + b"0\r\n\r\n"), 200),
    ("space before the colon", post(b"Transfer-Encoding : chunked", b"0\r\n\r\n" + SECOND), 400),
    ("coding with a control character", post(b"Transfer-Encoding: \x0bchunked", b"0\r\n\r\n" + SECOND), (400, 501)),
    ("coding with a zero", post(b"Transfer-Encoding: chunked\0", b"0\r\n\r\n" + SECOND), (400, 501)),
    ("quoted coding", post(b'Transfer-Encoding: "chunked"', b"0\r\n\r\n" + SECOND), (400, 501)),
    ("coding in HTTP/1.0", post(CHUNKED, b"0\r\n\r\n" + SECOND, b"1.0"), (400, 501)),
    ("length with a sign", post(b"Content-Length: +20", BODY + SECOND), 400),
    ("length with a space", post(b"Content-Length: 2 0", BODY + SECOND), 400),
    ("length in hexadecimal", post(b"Content-Length: 0x14", BODY + SECOND), 400),
    ("length beyond 64 bits", post(b"Content-Length: 18446744073709551636", BODY + SECOND), (400, 413)),
    ("two lengths in one", post(b"Content-Length: 20, 21", BODY + SECOND), 400),
    ("negative chunk", post(CHUNKED, b"-1\r\nx\r\n0\r\n\r\n" + SECOND), 400),
    ("chunk beyond 64 bits", post(CHUNKED, b"10000000000000014\r\n" + BODY + b"\r\n0\r\n\r\n" + SECOND), (400, 413)),
    ("chunk with a prefix", post(CHUNKED, b"0x14\r\n" + BODY + b"\r\n0\r\n\r\n" + SECOND), 400),
    ("chunk without its end", post(CHUNKED, b"14\r\n" + BODY + b"0\r\n\r\n" + SECOND), 400),
    ("lines that end with LF", post(CHUNKED, b"14\n" + BODY + b"\n0\n\n" + SECOND), 400),
    ("a length among the trailers", post(CHUNKED + b"\r\nConnection: close", PIECE + b"0\r\nContent-Length: 5\r\n\r\n"), 400),
    ("10,000 headers", get(b"".join(b"X%d: y\r\n" % i for i in range(10_000)) + b"Connection: close"), 431),
    ("a header without an end", get(b"X: " + b"y" * 1_000_000), 431),
    ("a bare CR", get(b"X: a\rY: b\r\nConnection: close"), 400),
    ("no method", get(b"X: y", b" /health HTTP/1.1\r\nHost: x") + SECOND, 400),
    ("two spaces", get(b"X: y", b"GET  /health HTTP/1.1\r\nHost: x") + SECOND, 400),
    ("a method in small letters", get(b"Connection: close", b"get /health HTTP/1.1\r\nHost: x"), 405),
    ("CONNECT", get(b"Connection: close", b"CONNECT x:1 HTTP/1.1\r\nHost: x"), (400, 404, 405)),
    ("TRACE", get(b"Connection: close", b"TRACE / HTTP/1.1\r\nHost: x"), 405),
    ("dots in the path", get(b"Connection: close", b"GET /web/../../etc/passwd HTTP/1.1\r\nHost: x"), 404),
    ("dots as %2e", get(b"Connection: close", b"GET /web/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x"), 404),
    ("HTTP/2 without being asked", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("an upgrade to HTTP/2", get(b"Connection: Upgrade, close\r\nUpgrade: h2c"), 200),
    ("Expect twice", post(b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 20\r\nConnection: close", BODY), (200, 400, 417)),
    ("a body that is compressed", post(b"Content-Encoding: gzip\r\nContent-Length: 20\r\nConnection: close", BODY), 415),
    ("a body in UTF-16", post(b"Content-Length: 40\r\nConnection: close", BODY.decode().encode("utf-16-le")), 400),
]

WIDE = {f"k{i}": 0 for i in range(60_000)}
DEEP = b"[" * 200_000
# name, path, body, status: none may take long
COSTLY = [
    ("deep arrays", "/v1/completions", b'{"prompt":' + DEEP + b"]" * 200_000 + b"}", 400),
    ("deep objects without an end", "/v1/completions", b'{"a":' * 100_000, 400),
    ("a wide object", "/v1/completions", {"prompt": "x", **WIDE}, 400),
    ("a wide object and a name of llama.cpp's", "/completion", {"prompt": "x", "n_predict": 1, **WIDE}, 400),
    ("a wide object inside", "/v1/responses", {"input": "x", "metadata": WIDE}, 400),
    ("a wide object in a list", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x", **WIDE}]}, 400),
    ("one key many times", "/v1/completions", b"{" + b'"a":0,' * 100_000 + b'"prompt":"[say x]"}', 200),
    ("many biases", "/completion", {"prompt": "x", "logit_bias": [[1, 1]] * 60_000}, 400),
    ("many fields to answer", "/completion", {"prompt": "[say x]", "response_fields": [f"f{i}" for i in range(60_000)]}, 400),
    ("a long number", "/v1/completions", b'{"prompt":"x","temperature":' + b"1" * 500_000 + b"}", 400),
    ("a large exponent", "/v1/completions", b'{"prompt":"x","temperature":1e999999999}', 400),
    ("half a surrogate", "/v1/completions", b'{"prompt":"\\ud800"}', 200),
    ("many stop strings", "/v1/completions", {"prompt": "x", "stop": ["a"] * 60_000}, 400),
    ("a regular expression that backtracks", "/v1/completions", {"prompt": "[say aaaa]", "guided_regex": "(a+)+$"}, 200),
    ("a regular expression that counts", "/v1/completions", {"prompt": "x", "guided_regex": "(a{1,1000}){1,1000}"}, 400),
    ("a schema that is itself", "/v1/completions", {"prompt": "[say {}]", "guided_json": {"$ref": "#"}}, (200, 400)),
    ("a template that never ends", "/v1/chat/completions", {**chat("x"), "chat_template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"}, 400),
    ("a template that calls itself", "/v1/chat/completions", {**chat("x"), "chat_template": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"}, 400),
    ("a template that writes much", "/v1/chat/completions", {**chat("x"), "chat_template": "{{ 'a' * 1000000000000 }}"}, 400),
]


def frame(payload, opcode=1, final=True):
    head = bytes([(0x80 if final else 0) | opcode])
    n = len(payload)
    head += bytes([0x80 | n]) if n < 126 else bytes([0x80 | 126]) + struct.pack(">H", n)
    return head + b"\1\2\3\4" + bytes(b ^ (i % 4 + 1) for i, b in enumerate(payload))


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        keys = pathlib.Path(cls.folder.name) / "keys"
        keys.write_text("\ufeffone\r\ntwo running=2\r\n")  # as an editor of Windows writes it
        cls.server = Server(env={"FAKE_KEY_FILE": str(keys), "FAKE_BATCH_DIR": os.path.join(cls.folder.name, "data")}, max_body=4_000_000)
        cls.addClassCleanup(cls.server.stop)

    def tearDown(self):
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def only_answer(self, name, data, expected):
        """Sends bytes; what comes back is at most one answer, with an expected status, and the connection ends."""
        expected = expected if isinstance(expected, tuple) else (expected,)
        data = data.replace(b"\r\nHost: x\r\n", b"\r\nHost: x\r\nX-Api-Key: one\r\n", 1)
        with contextlib.closing(self.server.connect()) as s:
            with contextlib.suppress(OSError):
                s.sendall(data)
                if 200 not in expected:
                    s.shutdown(socket.SHUT_WR)
            answer = read_all(s).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        self.assertLessEqual(answer.count(b"HTTP/1."), 1, name)
        if answer or 200 in expected:  # a connection may also just be closed
            self.assertIn(int(answer.split(b" ", 2)[1]), expected, (name, answer[:300]))

    def test_framing(self):
        for name, data, expected in FRAMING:
            with self.subTest(name):
                self.only_answer(name, data, expected)

    def test_costly_bodies(self):
        for name, path, body, expected in COSTLY:
            with self.subTest(name):
                start = self.server.cpu_seconds()
                status, _, data = self.server.request("POST", path, body, {"X-Api-Key": "one"}, timeout=120)
                self.assertIn(status, expected if isinstance(expected, tuple) else (expected,), data[:200])
                self.assertLess(self.server.cpu_seconds() - start, 20, "also with sanitizers")

    def test_slow_and_half_closed_connections(self):
        slow = [self.server.connect() for _ in range(200)]
        for i, s in enumerate(slow):
            s.sendall((b"GET /health HTTP/1.1\r\nX: ", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", b"", b"G")[i % 4])
            if i % 5 == 0:
                s.shutdown(socket.SHUT_WR)
        for _ in range(20):
            self.assertEqual(self.server.request("GET", "/v1/models", headers={"X-Api-Key": "one"})[0], 200)
        for s in slow:
            s.close()

    def test_pipelined_requests_with_a_wrong_one_among_them(self):
        good = encode("GET", "/v1/models", headers={"X-Api-Key": "one"})
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(good * 50 + b"nonsense\r\n\r\n" + good)
            rest = b""
            for _ in range(50):
                status, _, _, rest = read_response(s, rest=rest)
                self.assertEqual(status, 200)
            last = rest + read_all(s)
        self.assertEqual((last.split(b" ", 2)[1], last.count(b"HTTP/1.")), (b"400", 1))

    def test_websocket_pieces(self):
        message = json.dumps({"prompt": "[say pieces]"}).encode()
        with contextlib.closing(self.server.connect()) as s:
            s.sendall(get(b"X-Api-Key: one\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
                          b"GET /v1/completions HTTP/1.1\r\nHost: x"))
            rest = read_until(s, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
            # One byte per frame, empty frames, pings between them.
            data = frame(message[:1], 1, False)
            for i in range(1, len(message)):
                data += frame(message[i:i + 1], 0, False) + (frame(b"p", 9) if i % 7 == 0 else frame(b"", 0, False))
            s.sendall(data + frame(b"", 0, True))
            answer = read_until(s, b"pieces", rest)
            self.assertIn(b"text_completion", answer)
            s.sendall(frame(b"x", 0, True))  # a piece of nothing: 1002
            self.assertIn(struct.pack(">H", 1002), read_all(s))

    def test_files_of_others(self):
        one, two = Client(self.server, "one"), Client(self.server, "two")
        file = one.upload([line(f"r{i}", "[slow 50][say x]") for i in range(20)])["id"]
        batch = one.create(file)[1]["id"]
        for method, path in (("GET", f"/v1/files/{file}"), ("GET", f"/v1/files/{file}/content"), ("DELETE", f"/v1/files/{file}"), ("GET", f"/v1/batches/{batch}"),
                             ("POST", f"/v1/batches/{batch}/cancel")):
            self.assertEqual(two.json(method, path)[0], 404, path)  # even while the batch uses it
        self.assertEqual(two.create(file)[0], 404)
        for url in ("/v1/files", "/v1/batches", "/v1/load_lora_adapter", "/admin/restart", "/abort_request", "//v1/chat/completions", "http://localhost/v1/chat/completions"):
            done = one.wait(one.create(one.upload([line("a", "x", url=url)])["id"])[1]["id"])
            self.assertEqual((done["status"], done["output_file_id"]), ("failed", None), url)
        for name in ("../../../etc/passwd", "/etc/passwd", "a\0b", "\u202egpj.exe", "x" * 100_000):  # a name is only repeated
            status, card = one.json("POST", "/v1/files", *self.upload(name))
            if status == 200:
                self.assertEqual(one.content(card["id"]), b"content")
        kept = {p.name for p in (pathlib.Path(self.folder.name) / "data").rglob("*")}
        self.assertFalse({"passwd", "a"} & kept)
        deep = one.wait(one.create(one.upload([b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":'.decode() + "[" * 100_000])["id"])[1]["id"])
        self.assertEqual(deep["status"], "failed")
        wide = one.upload([line("a", "[say x]", **WIDE)])
        done = one.wait(one.create(wide["id"])[1]["id"])
        self.assertEqual(done["request_counts"], {"total": 1, "completed": 0, "failed": 1})
        self.assertEqual(one.wait(batch)["request_counts"]["completed"], 20)

    def upload(self, name):
        mark = b"--edge"
        body = (mark + b'\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + mark + b'\r\nContent-Disposition: form-data; name="file"; filename="' +
                name.encode() + b'"\r\n\r\ncontent\r\n' + mark + b"--\r\n")
        return body, {"Content-Type": "multipart/form-data; boundary=edge"}

    def test_keys(self):
        for key, status in (("one", 200), ("two", 200), ("\xef\xbb\xbfone", 401), ("one\r", 200), ("ONE", 401), ("on", 401), ("onee", 401), ("", 401), ("one two", 401),
                            ("two running=2", 401), ("x" * 5000, 401)):
            data = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + key.encode("latin-1").rstrip(b"\r") + b"\r\n\r\n"
            self.assertEqual(parse(self.server.raw(data))[0], status, key[:40])
        two_keys = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer wrong\r\nX-Api-Key: one\r\n\r\n"
        self.assertIn(parse(self.server.raw(two_keys))[0], (200, 401))
        path = pathlib.Path(self.folder.name) / "wrong"
        for text in ("a\na running=1\n", "a\nb\n a\n", "\ufeff", "#a\n", "a running=1 running=0", "a running=99999999999999999999", "a unknown=1"):
            path.write_text(text)
            with self.assertRaises(RuntimeError, msg=text):
                Server(env={"FAKE_KEY_FILE": str(path)})


if __name__ == "__main__":
    unittest.main()
