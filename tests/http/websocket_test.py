"""WebSockets: the client library `websockets`, unchanged, against the server; then raw frames, also broken ones."""
import contextlib
import json
import os
import random
import struct
import threading
import time
import unittest

from harness import Server, encode, read_all, read_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

HANDSHAKE = {"Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
CHAT = "/v1/chat/completions"


def chat(text, **more):
    return json.dumps({"model": "fake", "messages": [{"role": "user", "content": text}], **more})


def frame(opcode, payload=b"", final=True, mask=b"\x01\x02\x03\x04", bits=0):
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack(">H", size) if size < 65536 else bytes([0x80 | 127]) + struct.pack(">Q", size)
    return bytes([(0x80 if final else 0) | bits | opcode]) + length + mask + bytes(b ^ mask[i & 3] for i, b in enumerate(payload))


def frames(data):
    """[(opcode, payload)] of what the server sent; its frames are whole and not masked."""
    out = []
    while data:
        assert data[0] & 0xf0 == 0x80 and data[1] < 128, data[:2]
        size, at = data[1], 2
        if size == 126:
            size, at = struct.unpack(">H", data[2:4])[0], 4
        elif size == 127:
            size, at = struct.unpack(">Q", data[2:10])[0], 10
        assert len(data) >= at + size, data
        out.append((data[0] & 15, data[at:at + size]))
        data = data[at + size:]
    return out


class WebSocket(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(ping_ms=100000, max_body=1 << 20)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def connect(self, path=CHAT, **more):
        return connect(f"ws://127.0.0.1:{self.server.port}{path}", **more)

    def open(self, path=CHAT):
        """A raw connection after the handshake."""
        s = self.server.connect()
        s.sendall(encode("GET", path, headers=HANDSHAKE))
        head = read_until(s, b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n"), head)
        self.assertIn(b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", head)  # the example of RFC 6455
        return s

    def exchange(self, data, path=CHAT):
        """All frames until the server closes."""
        with contextlib.closing(self.open(path)) as s:
            s.sendall(data)
            return frames(read_all(s))

    def test_answers(self):
        with self.connect() as ws:
            for text in ("Hello", "two"):  # one connection, several requests
                ws.send(chat(f"[say {text}]"))
                self.assertEqual(json.loads(ws.recv())["choices"][0]["message"]["content"], text)
            ws.send(chat("[say Hello]", stream=True))
            pieces = []
            while (message := ws.recv()) != "[DONE]":
                pieces.append(json.loads(message)["choices"][0]["delta"].get("content") or "")
            self.assertEqual("".join(pieces), "Hello")
            self.assertGreater(len([p for p in pieces if p]), 1)
            for bad in ("{", "[]", chat("[full]"), chat("x", temperature="hot")):  # an error is an answer
                ws.send(bad)
                self.assertIn("message", json.loads(ws.recv())["error"])
            ws.send(["{\"messages\": [{\"role\": \"user\", ", "\"content\": \"[say parts]\"}]}"])  # fragments
            self.assertEqual(json.loads(ws.recv())["choices"][0]["message"]["content"], "parts")
            self.assertTrue(ws.ping().wait(5))

    def test_other_apis(self):
        with self.connect("/api/chat") as ws:  # lines of JSON
            ws.send(json.dumps({"model": "fake", "messages": [{"role": "user", "content": "[say Hello]"}]}))
            text, done = "", False
            while not done:
                data = json.loads(ws.recv())
                text, done = text + data["message"]["content"], data["done"]
            self.assertEqual(text, "Hello")
        with self.connect("/v1/messages") as ws:  # events with names
            ws.send(json.dumps({"model": "fake", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "[say Hi]"}]}))
            types = []
            while types[-1:] != ["message_stop"]:
                types.append(json.loads(ws.recv())["type"])
            self.assertEqual(types[0], "message_start")
        with self.connect("/tokenize") as ws:
            ws.send('{"prompt": "abc"}')
            self.assertEqual(json.loads(ws.recv())["count"], 3)

    def test_messages_during_an_answer(self):
        with self.connect() as ws:
            for text in ("one", "two", "three"):
                ws.send(chat(f"[say {text}][slow 20]"))
            self.assertEqual([json.loads(ws.recv())["choices"][0]["message"]["content"] for _ in range(3)], ["one", "two", "three"])

    def test_closing_cancels(self):
        for close in ("frame", "socket"):
            with self.subTest(close):
                with self.connect() as ws:
                    ws.send(chat("[hold]", stream=True))
                    state = self.server.wait_engine(lambda e: e["running"] == 1)
                    self.assertEqual(state["running"], 1)
                    if close == "frame":
                        ws.close(1000)
                        self.assertEqual(ws.close_code, 1000)
                    else:
                        ws.socket.shutdown(2)
                    self.assertEqual(self.server.wait_engine(lambda e: e["running"] == 0)["running"], 0)

    def test_ping_while_answering(self):
        with self.connect() as ws:
            ws.send(chat("[hold]", stream=True))
            self.server.wait_engine(lambda e: e["running"] == 1)
            self.assertTrue(ws.ping(b"abc").wait(5))

    def test_handshake(self):
        for change, status in (({"Sec-WebSocket-Version": "8"}, 426), ({"Sec-WebSocket-Key": "short"}, 400)):
            got, headers, _ = self.server.request("GET", CHAT, headers={**HANDSHAKE, **change, "Connection": "Upgrade"})
            self.assertEqual(got, status)
            self.assertEqual(headers.get("sec-websocket-version"), "13" if status == 426 else None)
        for path in ("/nope", "/health"):
            with self.assertRaises(InvalidStatus) as caught:
                self.connect(path)
            self.assertEqual(caught.exception.response.status_code, 404)
        with self.assertRaises(InvalidStatus) as caught:
            self.connect(origin="https://elsewhere.example")
        self.assertEqual(caught.exception.response.status_code, 403)
        got, _, _ = self.server.request("GET", CHAT)  # no WebSocket
        self.assertEqual(got, 405)

    def close_code(self, data):
        received = self.exchange(data)
        self.assertEqual(received[-1][0], 8, received)
        return struct.unpack(">H", received[-1][1])[0]

    def test_broken_frames(self):
        text = b'{"prompt": "x"}'
        self.assertEqual(self.close_code(frame(8, struct.pack(">H", 1000) + b"bye")), 1000)
        self.assertEqual(self.close_code(frame(8)), 1000)
        for name, data in {
            "not masked": bytes([0x81, len(text)]) + text,
            "extension bits": frame(1, text, bits=0x40),
            "unknown opcode": frame(3, text),
            "continuation of nothing": frame(0, text),
            "text inside a message": frame(1, text, final=False) + frame(1, text),
            "ping in parts": frame(9, b"", final=False),
            "long ping": frame(9, b"x" * 126),
            "close of one byte": frame(8, b"x"),
            "reserved close code": frame(8, struct.pack(">H", 1005)),
            "length beyond 2^63": bytes([0x81, 0xff]) + b"\xff" * 8 + b"\0\0\0\0",
        }.items():
            with self.subTest(name):
                self.assertEqual(self.close_code(data), 1002)
        self.assertEqual(self.close_code(frame(2, text)), 1003)
        for name, data in {"not UTF-8": frame(1, b'{"prompt": "\xff"}'), "surrogate": frame(1, b'{"prompt": "\xed\xa0\x80"}'),
                           "cut character": frame(1, b'{"prompt": "\xe2\x82', final=False) + frame(0, b'"}'),
                           "reason of a close": frame(8, struct.pack(">H", 1000) + b"\xc0\xaf")}.items():
            with self.subTest(name):
                self.assertEqual(self.close_code(data), 1007)
        self.assertEqual(self.close_code(bytes([0x81, 0xff]) + struct.pack(">Q", 1 << 40) + b"\0\0\0\0"), 1009)
        self.assertEqual(self.close_code(frame(1, b"x" * 700_000, final=False) + frame(0, b"x" * 700_000)), 1009)

    def test_cut_anywhere(self):
        data = frame(9, b"hey") + frame(1, b'{"prompt": ', final=False) + frame(9, b"in between") + frame(0, b'"abc"}')
        rng = random.Random(1)
        for _ in range(20):
            with contextlib.closing(self.open("/tokenize")) as s:
                at = sorted(rng.sample(range(1, len(data)), 3))
                for a, b in zip([0] + at, at + [len(data)]):
                    s.sendall(data[a:b])
                    time.sleep(0.002)
                answer = read_until(s, b'"count":3')  # closing before it comes would cancel it
                s.sendall(frame(8))
                got = frames(answer + read_all(s))
            self.assertEqual([opcode for opcode, _ in got], [10, 10, 1, 8])
            self.assertEqual([payload for _, payload in got[:2]], [b"hey", b"in between"])

    def test_noise(self):
        rng = random.Random(2)
        for _ in range(100):
            with contextlib.closing(self.open()) as s:
                with contextlib.suppress(OSError):
                    s.sendall(rng.randbytes(rng.randrange(1, 400)))
                    s.shutdown(1)
                read_all(s)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_flood_of_pings(self):
        with contextlib.closing(self.open()) as s:
            s.settimeout(2)
            with contextlib.suppress(OSError):
                for _ in range(2000):
                    s.sendall(frame(9, b"x" * 125) * 100)  # never reads the answers
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


class Stop(unittest.TestCase):
    def test_idle_and_busy(self):
        server = Server(ping_ms=50)
        url = f"ws://127.0.0.1:{server.port}{CHAT}"
        with connect(url) as idle, connect(url) as busy:
            self.check(server, idle, busy)

    def check(self, server, idle, busy):
        busy.send(chat("[say finished][slow 50]", stream=True))
        server.wait_engine(lambda e: e["running"] == 1)
        code = []
        stopper = threading.Thread(target=lambda: code.append(server.stop()))
        stopper.start()
        messages = []
        with self.assertRaises(ConnectionClosed):
            while True:
                messages.append(busy.recv(timeout=20))
        self.assertEqual(messages[-1], "[DONE]")
        self.assertEqual(busy.close_code, 1001)
        with self.assertRaises(ConnectionClosed):
            idle.recv(timeout=20)
        self.assertEqual(idle.close_code, 1001)
        stopper.join()
        self.assertEqual(code, [""])


if __name__ == "__main__":
    os.environ.pop("http_proxy", None)
    unittest.main(verbosity=2)
