#!/usr/bin/env python3
"""Odd clients against `tokamak serve`: slow, cut, half-closed, wrongly framed, vanishing; odd JSON, forms and WebSocket frames; batch folders that are
damaged between two starts (odd_batches.py).

    tools/odd_clients.py MODEL [--tokamak build/release/tokamak] [--only NAME]

Each case says what it expects of its own answer. After each one the server must answer others, no sequence may run, no KV block may be in use, and
no answer may have had a status of 5xx. Prints one line per case; exit code 1 if one fails. About two minutes with a small model.
"""
import argparse
import contextlib
import json
import pathlib
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/http")]
import served  # noqa: E402
from sockets import Sockets, read_all  # noqa: E402

CASES = []
LINGER = struct.pack("ii", 1, 0)  # closing resets the connection


def case(function):
    CASES.append(function)
    return function


class Server(served.Server, Sockets):
    def __init__(self, args, folder, *flags):
        self.folder = pathlib.Path(folder)
        self.log = self.folder / "requests.jsonl"
        with open(self.folder / "stderr", "a") as stderr:
            super().__init__(args.tokamak, args.model, "--context", 2048, "--batch-dir", self.folder / "batch", "--request-log", self.log, *flags, stderr=stderr)

    def connect(self, timeout=90, **more):
        """Cases with slow clients, or with many, take longer than the tests for which Sockets was written."""
        return super().connect(timeout, **more)

    def raw(self, *pieces, timeout=90, **more):
        return super().raw(*pieces, timeout=timeout, **more)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)

    def request(self, method, path, body=None, **headers):
        """(status, parsed body). The body must be JSON, if the answer says so."""
        data = self.raw(encode(method, path, body, Connection="close", **headers))
        status, head, content = split(data)
        return status, json.loads(content) if b"application/json" in head else content

    def post(self, path, body, **headers):
        return self.request("POST", path, body, **headers)

    def metric(self, name):
        text = self.request("GET", "/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line))

    def settle(self, seconds=5):
        """What still runs or holds KV blocks after a while."""
        end = time.monotonic() + seconds
        while True:
            left = {n: self.metric(f"tokamak_{n}") for n in ("requests_running", "requests_waiting", "kv_blocks_used")}
            if not any(left.values()) or time.monotonic() > end:
                return {k: v for k, v in left.items() if v}
            time.sleep(0.05)

    def logged(self, request_id, seconds=5):
        """The line of the request log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.log.read_text().splitlines():
                if json.loads(line).get("request_id") == request_id:
                    return json.loads(line)
            time.sleep(0.05)
        return None


def encode(method, path, body=None, **headers):
    body = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    names = {k.replace("_", "-").lower(): v for k, v in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    if body is not None:
        names.setdefault("content-type", "application/json")
        if "transfer-encoding" not in names:
            names.setdefault("content-length", len(body))
    lines += [f"{k}: {v}" for k, v in names.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def split(data):
    head, mark, body = data.partition(b"\r\n\r\n")
    assert mark, f"no complete head in {data[:200]!r}"
    if b"transfer-encoding: chunked" in head.lower():
        out = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            n = int(size, 16)
            out, body = out + body[:n], body[n + 2:]
            if n == 0:
                break
        body = out
    return int(head.split(b" ", 2)[1]), head.lower(), body


def is_in(got, *expected):
    assert got in expected, f"{got}, expected {expected}"


def completion(tokens=8, **more):
    return {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


# --- HTTP

@case
def slow_headers_and_bodies(server):
    """A byte at a time, and a client that stops in the middle."""
    data = encode("POST", "/tokenize", {"prompt": "hello"}, Connection="close")
    is_in(split(server.raw(*[data[i:i + 1] for i in range(len(data))], pause=0.002))[0], 200)
    held = [server.connect() for _ in range(100)]
    for i, s in enumerate(held):
        s.sendall(data[:5 + i])
    start = time.monotonic()
    is_in(server.request("GET", "/health")[0], 200)
    assert time.monotonic() - start < 2, "others wait"
    for s in held:
        s.close()


@case
def half_closed(server):
    for stream in (False, True):
        body = encode("POST", "/v1/completions", completion(stream=stream))
        status, _, content = split(server.raw(body, half_close=True))
        is_in(status, 200)
        assert (b"[DONE]" in content) == stream, content[-100:]
    is_in(server.raw(encode("POST", "/v1/completions", completion())[:-5], half_close=True)[9:12], b"400", b"408", b"")


@case
def chunks_in_odd_pieces(server):
    body = json.dumps(completion(2)).encode()
    head = encode("POST", "/v1/completions", b"", transfer_encoding="chunked", connection="close")
    rng = random.Random(1)
    for _ in range(20):
        at = sorted(rng.sample(range(1, len(body)), 4))
        chunks = b"".join(b"%s%x%s\r\n%s\r\n" % (b"0" * rng.randrange(3), b - a, rng.choice((b"", b";a=b", b' ; x="y"')), body[a:b]) for a, b in zip([0] + at, at + [len(body)]))
        data = head + chunks + b"0\r\n\r\n"
        at = rng.randrange(len(data))
        is_in(split(server.raw(data[:at], data[at:], pause=0.01))[0], 200)
    for wrong in (b"zz\r\n", b"\r\n", b" 5\r\nhello\r\n", b"5 5\r\nhello\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"5\r\nhelloXX0\r\n\r\n", b"5\rhello", b"+5\r\nhello\r\n0\r\n\r\n"):
        is_in(server.raw(head + wrong, half_close=True)[9:12], b"400", b"413")


@case
def expect_continue(server):
    body = json.dumps(completion(2)).encode()
    with contextlib.closing(server.connect()) as s:
        s.sendall(encode("POST", "/v1/completions", None, expect="100-continue", content_length=len(body), content_type="application/json", connection="close"))
        assert s.recv(100).startswith(b"HTTP/1.1 100"), "no 100"
        s.sendall(body)
        is_in(split(read_all(s))[0], 200)
    is_in(server.raw(encode("POST", "/nope", None, expect="100-continue", content_length=5, connection="close") + b"hello").replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")[9:12], b"404")


@case
def pipelined(server):
    """Answers in order, also of many requests at once, of which some are wrong."""
    data = b"".join(encode("POST", "/tokenize", {"prompt": "a " * i}) for i in range(50)) + encode("POST", "/v1/completions", completion(3)) + encode("GET", "/nope", connection="close")
    answer = server.raw(data)
    counts = [int(n) for n in re.findall(rb'"count":(\d+)', answer)]
    assert counts == sorted(counts) and len(counts) == 50, counts
    is_in(answer.count(b"HTTP/1.1 200"), 51)
    is_in(answer.count(b"HTTP/1.1 404"), 1)


@case
def http_1_0(server):
    body = json.dumps(completion(3)).encode()
    one = b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    answer = server.raw(one + b"GET /health HTTP/1.0\r\n\r\n")
    is_in(answer.count(b"200 OK"), 2)
    assert b"chunked" not in answer


@case
def framing(server):
    wrong = [b"Content-Length: 2\r\nContent-Length: 3", b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 2",
             b"Content-Length: 2,3", b"Content-Length: 2;", b"content-length: 99999999999999999999", b"Transfer-Encoding: gzip", b"X: " + b"y" * 70000, b"\r\n".join(b"X%d: y" % i for i in range(9000))]
    for headers in wrong:
        answer = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers + b"\r\n\r\n{}GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", half_close=True)
        is_in(answer[9:12], b"400", b"413", b"431", b"501")
        is_in(answer.count(b"HTTP/1.1"), 1)


@case
def one_byte_per_second(server):
    """A client that reads a stream slowly does not hold the engine back: its answer is computed, and others go on."""
    with contextlib.closing(server.connect(receive_buffer=2048)) as s:
        s.sendall(encode("POST", "/v1/completions", completion(400, stream=True, logprobs=5)))
        end, slow = time.monotonic() + 8, 0
        while time.monotonic() < end:
            slow += len(s.recv(1))
            time.sleep(0.25)
        assert slow > 10
        start = time.monotonic()
        is_in(server.post("/v1/completions", completion(400))[0], 200)
        left = server.settle(5 + time.monotonic() - start)
        assert not left, left


@case
def reset_in_a_stream(server):
    for n in range(5):
        s = server.connect()
        s.sendall(encode("POST", "/v1/completions", completion(1500, stream=True), x_request_id=f"reset-{n}"))
        data = b""
        while data.count(b"data: ") < 3 + n:
            data += s.recv(65536)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        s.close()
    left = server.settle(3)
    assert not left, left
    for n in range(5):
        line = server.logged(f"reset-{n}")
        assert line and line["status"] == 499, line
        tokens = line.get("completion_tokens") or line.get("output_tokens") or 0
        assert 3 + n <= tokens < 1500, line


@case
def vanishing_crowd(server):
    """300 clients at once, which leave by a reset or by closing, in all phases of a request."""
    rng = random.Random(3)
    sockets = []
    for n in range(300):
        s = server.connect()
        data = encode("POST", "/v1/completions", completion(500, stream=n % 2 == 0))
        s.sendall(data[:rng.choice((len(data), len(data), len(data) - 10, 30))])
        if n % 3 == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        sockets.append(s)
    time.sleep(0.5)
    for s in sockets:
        s.close()
    start = time.monotonic()
    left = server.settle(20)
    assert not left, left
    return f"KV back after {time.monotonic() - start:.2f} s"


# --- JSON

@case
def odd_json(server):
    bodies = [b'{"prompt":"\xff","max_tokens":1}', b'{"prompt":"\xe2\x82","max_tokens":1}', b'{"prompt":"\xed\xa0\x80","max_tokens":1}', b'{"prompt":"\\ud800","max_tokens":1}', b'{"prompt":"\\udc00\\ud800","max_tokens":1}',
              b'{"prompt":"a","max_tokens":1e999}', b'{"prompt":"a","max_tokens":-1e999}', b'{"prompt":"a","max_tokens":NaN}', b'{"prompt":"a","seed":1e999}', b'{"prompt":"a","seed":99999999999999999999}',
              b'{"prompt":"a","logit_bias":{"1":1e999}}', b'{"prompt":"a","temperature":1e-999,"max_tokens":1}', b"[" * 100000, b'{"a":' * 100000, b'\xef\xbb\xbf{"prompt":"a","max_tokens":1}', b"{}{}", b'{"prompt":"a"', b"", b" ", b"null", b'"x"', b"1",
              b'{"prompt":"a",}', b'{"prompt":"a","max_tokens":1}x', b'{"prompt":"a\x00b","max_tokens":1}', b'{"prompt":"a\\u0000b","max_tokens":1}', b"{'prompt':'a'}", b'{"prompt":"a","max_tokens":01}', b'{"prompt":"a","max_tokens":+1}', b'{"prompt":"a","max_tokens":0x1}',
              b'{"prompt":"a","max_tokens":1.0}', b'{"prompt":"a","max_tokens":1e0}', b'{"prompt":"a","max_tokens":1.5}', b'{"prompt":"a","max_tokens":true}', b'{"prompt":"a","max_tokens":"1"}', b'{"prompt":"b","prompt":"a","max_tokens":1,"max_tokens":2}', b'{"prompt":"\\x41"}', b'{"prompt":[1e999]}', b'{"prompt":[-1]}', b'{"prompt":[99999999999]}', b'{"prompt":[1.5]}']
    out = []
    for body in bodies:
        status, answer = server.post("/v1/completions", body)
        is_in(status, 200, 400)
        assert status == 200 or answer["error"]["message"], answer
        out.append(status)
    return f"{out.count(200)} answered, {out.count(400)} refused"


@case
def empty_everywhere(server):
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    names = ("stop", "tools", "logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "samplers", "response_format", "tool_choice", "stream_options", "chat_template_kwargs", "guided_choice", "guided_json", "guided_regex", "grammar", "json_schema", "structured_outputs",
             "negative_prompt", "prediction", "lora", "chat_template", "model", "user", "seed", "n", "best_of", "logprobs", "top_logprobs", "messages", "functions", "modalities", "metadata", "reasoning", "documents", "cache_salt", "request_id", "truncate_prompt_tokens", "dry_sequence_breakers")
    counts = {}
    for name in names:
        for value in ([], {}, "", None, [[]], [{}], [""], [None], 0, False):
            status, answer = server.post("/v1/chat/completions", {**chat, name: value})
            is_in(status, 200, 400, 404)
            counts[status] = counts.get(status, 0) + 1
    message = [[], [{}], [None], [[]], {}, [{"role": "user"}], [{"role": "user", "content": []}], [{"role": "user", "content": [{}]}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": ""}]}], [{"role": "user", "content": None}],
               [{"role": "", "content": ""}], [{"role": "assistant", "tool_calls": []}], [{"role": "assistant", "content": None, "tool_calls": [{}]}], [{"role": "tool", "content": []}], [{"role": "assistant", "content": "x", "tool_calls": [{"id": "", "type": "function", "function": {}}]}],
               [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!"}}]}], [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "====", "format": "wav"}}]}]]
    for messages in message:
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/apply-template", "/v1/messages/count_tokens", "/tokenize"):
            is_in(server.post(path, {"model": server.request("GET", "/v1/models")[1]["data"][0]["id"], "messages": messages, "max_tokens": 2, "options": {"num_predict": 2}})[0], 200, 400, 404)
    for path, body in (("/v1/embeddings", {"input": []}), ("/v1/embeddings", {"input": [[]]}), ("/v1/embeddings", {"input": "", "encoding_format": "base64"}), ("/v1/responses", {"input": []}), ("/v1/responses", {"input": [[]]}), ("/v1/responses", {"input": [{}], "tools": [{}]}),
                       ("/v1/completions", {"prompt": []}), ("/v1/completions", {"prompt": [[]]}), ("/v1/completions", {"prompt": [[], []]}), ("/v1/completions", {"prompt": ["", ""], "max_tokens": 1}), ("/completion", {"prompt": [], "n_predict": 1}), ("/completion", {"prompt": [[], ["a"]], "n_predict": 1}), ("/infill", {"input_prefix": [], "input_suffix": []}), ("/infill", {"input_prefix": "", "input_suffix": "", "input_extra": [{}]}),
                       ("/v1/rerank", {"query": "", "documents": []}), ("/v1/score", {"text_1": [], "text_2": []}), ("/v1/classify", {"input": []}), ("/detokenize", {"tokens": []}), ("/detokenize", {"tokens": [[]]}), ("/detokenize", {"tokens": [-1]}), ("/api/generate", {"prompt": [], "stream": False}), ("/api/embed", {"input": []}), ("/api/show", {}),
                       ("/v2/models/x/infer", {"inputs": []}), ("/v2/models/x/generate", {}), ("/v1/programs", {}), ("/v1/programs", {"program": []}), ("/v1/batches", {}), ("/v1/batches", []), ("/abort_request", {}), ("/abort_request", {"request_ids": []}), ("/v1/rag/query", {}), ("/models/load", {}), ("/slots/0?action=save", {}), ("/slots/x?action=", {}), ("/lora-adapters", [{}]), ("/lora-adapters", [])):
        is_in(server.post(path, body)[0], 200, 400, 401, 403, 404, 405)
    return " ".join(f"{v}x{k}" for k, v in sorted(counts.items()))


# --- WebSockets

def frame(opcode, payload=b"", final=True, masked=True, bits=0, size=None):
    n = len(payload) if size is None else size
    head = bytes([(0x80 if final else 0) | bits | opcode])
    bit = 0x80 if masked else 0
    head += bytes([bit | n]) if n < 126 else bytes([bit | 126]) + struct.pack(">H", n) if n < 65536 else bytes([bit | 127]) + struct.pack(">Q", n)
    return head + (b"\1\2\3\4" if masked else b"") + (bytes(b ^ (i % 4 + 1) for i, b in enumerate(payload)) if masked else payload)


def open_socket(server, path="/v1/completions"):
    s = server.connect()
    s.sendall(encode("GET", path, upgrade="websocket", connection="Upgrade", sec_websocket_version=13, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ=="))
    data = b""
    while b"\r\n\r\n" not in data:
        data += s.recv(1)
    assert data.startswith(b"HTTP/1.1 101"), data
    return s


def close_code(data):
    at = data.rfind(b"\x88\x02")
    return struct.unpack(">H", data[at + 2:at + 4])[0] if at >= 0 else None


@case
def websocket_frames(server):
    body = json.dumps(completion(2)).encode()
    for data, code in ((frame(1, body, masked=False), 1002), (frame(1, body, bits=0x40), 1002), (frame(5, body), 1002), (frame(0, body), 1002), (frame(9, b"x" * 126), 1002), (frame(9, b"", final=False), 1002), (frame(8, b"\x03"), 1002), (frame(8, struct.pack(">H", 999)), 1002), (frame(8, struct.pack(">H", 1006)), 1002),
                       (frame(8, struct.pack(">H", 3000) + b"bye"), None), (frame(8, struct.pack(">H", 1000) + b"\xff"), 1007), (frame(1, b"\xc3\x28"), 1007), (frame(2, body), 1003), (frame(1, b"", size=1 << 62), 1009), (frame(1, b"", size=(1 << 63) + 5), 1002), (frame(1, b"x" * 100, final=False) + frame(1, b"y"), 1002)):
        with contextlib.closing(open_socket(server)) as s:
            s.sendall(data)
            got = close_code(read_all(s))
        is_in(got, code if code else 3000, 1000 if code is None else code)
    with contextlib.closing(open_socket(server)) as s:  # one byte per frame, pings in between, empty fragments
        s.sendall(frame(1, body[:1], final=False))
        for i in range(1, len(body)):
            s.sendall(frame(0, b"", final=False) + frame(9, b"p%d" % i) + frame(0, body[i:i + 1], final=i == len(body) - 1))
        data = b""
        while b'"choices"' not in data:
            data += s.recv(65536)
        s.sendall(frame(8, struct.pack(">H", 1000)))
        is_in(close_code(read_all(s)), 1000)
    with contextlib.closing(open_socket(server)) as s:  # more empty fragments than anybody needs
        with contextlib.suppress(OSError):
            s.sendall(frame(1, b"{", final=False) + frame(0, b"", final=False) * 200000)
    with contextlib.closing(open_socket(server)) as s:  # gone in the middle of an answer
        s.sendall(frame(1, json.dumps(completion(1500, stream=True)).encode()))
        s.recv(100)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)


def run(name, function, server):
    start = time.monotonic()
    try:
        note = function(server)
        if isinstance(server, Server):
            left = server.settle()
            assert not left, f"left: {left}"
            is_in(server.request("GET", "/health")[0], 200)
            for line in server.log.read_text().splitlines():
                assert json.loads(line)["status"] < 500, line
        ok = True
    except Exception as e:
        ok, note = False, f"{type(e).__name__}: {e}"
    print(f"{'ok  ' if ok else 'FAIL'} {name:24} {time.monotonic() - start:6.1f} s  {note or ''}", flush=True)
    return ok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--only", default="")
    args = p.parse_args()
    good = True
    import odd_batches

    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, folder)
        for function in CASES + odd_batches.CASES:
            if args.only in function.__name__:
                good = run(function.__name__, function, server) and good
        code = server.stop()
        good = good and code == 0
        print(f"exit code {code}; warnings: {len((pathlib.Path(folder) / 'stderr').read_text().splitlines())}")
    if args.only in "damaged_folders":
        good = run("damaged_folders", odd_batches.damaged_folders, args) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.modules["odd_clients"] = sys.modules["__main__"]  # odd_batches uses this module
    sys.exit(main())
