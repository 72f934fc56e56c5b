"""Starts the server under test and speaks HTTP over raw sockets, so that tests see every byte."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import time

from sockets import Sockets, read_all  # noqa: F401 (tests use read_all from here)

BINARY = os.environ["TOKAMAK_FAKE_SERVER"]


class Server(Sockets):
    """The fake server as a process; options become --name=value. leaks: a build with AddressSanitizer checks for leaks when
    the server exits, which can take many seconds."""

    def __init__(self, env=None, leaks=False, **options):
        args = [BINARY] + [f"--{k.replace('_', '-')}={v}" for k, v in options.items()]
        asan = os.environ.get("ASAN_OPTIONS", "") + f":detect_leaks={int(leaks)}"
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "TOKAMAK_LOG": "error", "ASAN_OPTIONS": asan, **(env or {})})
        line = self.process.stdout.readline().split()
        if line[:1] != ["ready"]:
            _, err = self.process.communicate(timeout=30)
            raise RuntimeError(f"no ready line: {line} {err}")
        self.port = int(line[1])

    def stop(self, timeout=120, told=False):
        """Sends SIGTERM, unless already sent (a second one during shutdown would kill the server); the exit code must
        be 0 and standard error empty (sanitizers report there)."""
        if not told and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        err = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert code == 0, f"exit code {code}: {err}"
        return err

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def request(self, method, path, body=None, headers=None, timeout=20):
        """One request on its own connection: (status, headers, body bytes)."""
        with contextlib.closing(self.connect(timeout)) as s:
            s.sendall(encode(method, path, body, {"Connection": "close", **(headers or {})}))
            return parse(read_all(s), method)

    def json(self, method, path, body=None, headers=None, timeout=20):
        status, _, data = self.request(method, path, body, headers, timeout)
        return status, json.loads(data)

    def engine(self):
        return self.json("GET", "/fake")[1]

    def wait_engine(self, check, seconds=10):
        """Polls GET /fake until check(state) holds; returns the last state."""
        end = time.monotonic() + seconds
        while True:
            state = self.engine()
            if check(state) or time.monotonic() > end:
                return state
            time.sleep(0.02)


def encode(method, path, body=None, headers=None):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    names = {k.lower() for k in (headers or {})}
    if body is not None:
        if "content-type" not in names:
            lines.append("Content-Type: application/json")
        if "content-length" not in names and "transfer-encoding" not in names:
            lines.append(f"Content-Length: {len(body)}")
    lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def read_until(s, mark, data=b""):
    while mark not in data:
        more = s.recv(65536)
        if not more:
            raise EOFError(f"closed after {data!r}")
        data += more
    return data


def read_response(s, method="GET", rest=b""):
    """One response with Content-Length or chunks from a kept-alive connection: (status, headers, body, rest)."""
    data = read_until(s, b"\r\n\r\n", rest)
    head, _, rest = data.partition(b"\r\n\r\n")
    status, headers = parse_head(head)
    if method == "HEAD" or status in (204, 304):
        return status, headers, b"", rest
    if headers.get("transfer-encoding") == "chunked":
        rest = read_until(s, b"0\r\n\r\n", rest)
        body, rest = dechunk(rest)
        return status, headers, body, rest
    length = int(headers["content-length"])
    while len(rest) < length:
        more = s.recv(65536)
        if not more:
            raise EOFError("closed inside a body")
        rest += more
    return status, headers, rest[:length], rest[length:]


def parse_head(head):
    lines = head.decode("latin-1").split("\r\n")
    version, status, _ = lines[0].split(" ", 2)
    assert version in ("HTTP/1.1", "HTTP/1.0"), lines[0]
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        assert name and name.lower() not in headers, f"header twice or empty: {line}"
        headers[name.lower()] = value.strip()
    return int(status), headers


def dechunk(data):
    """(body, bytes after the last chunk); strict about framing."""
    body = b""
    while True:
        size, mark, data = data.partition(b"\r\n")
        assert mark, f"chunk size without end: {size!r}"
        n = int(size, 16)
        assert data[n:n + 2] == b"\r\n", data[:80]
        body, data = body + data[:n], data[n + 2:]
        if n == 0:
            return body, data


def parse(data, method="GET"):
    head, mark, body = data.partition(b"\r\n\r\n")
    assert mark, f"no complete head in {data!r}"
    status, headers = parse_head(head)
    if headers.get("transfer-encoding") == "chunked":
        body, rest = dechunk(body)
        assert rest == b"", rest
    elif method != "HEAD" and "content-length" in headers:
        assert len(body) == int(headers["content-length"]), (headers, body)
    return status, headers, body


def events(body):
    """The data of a server-sent event stream; comments are skipped, everything else must be valid."""
    assert body.endswith(b"\n\n"), body[-40:]
    out = []
    for block in body[:-2].split(b"\n\n"):
        if block.startswith(b":"):
            continue
        assert block.startswith(b"data: ") and b"\n" not in block, block
        out.append(block[6:])
    return out


def chunks(body):
    """Parsed chunks of a complete stream, without [DONE]."""
    data = events(body)
    assert data[-1] == b"[DONE]", data[-1]
    return [json.loads(item) for item in data[:-1]]


def chat(text, **more):
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **more}
