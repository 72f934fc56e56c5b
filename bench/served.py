"""What benchmarks of the server share: `tokamak serve` as a process, and streamed answers with the times of their tokens."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time


class Server:
    """Runs `tokamak serve` on a free port until stop(), or until the end of a with statement."""

    def __init__(self, tokamak, model, *flags, stderr=subprocess.DEVNULL):
        command = [str(a) for a in (tokamak, "serve", model, "--port", 0, *flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        text = ""
        while "ready at" not in text:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"{' '.join(command)} did not start: {text}")
            text += line
        self.url, self.host, port = re.search(r"(http://([^:\s]+):(\d+))", text).groups()
        self.port = int(port)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Stream:
    """A streamed completion. times: when each token's event arrived; chunks: (time, tokens of the prompt computed so far)."""

    def __init__(self, server, prompt, tokens, **fields):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "return_token_ids": True, **fields})
        self.socket = socket.create_connection((server.host, server.port))
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.sent, self.times, self.chunks, self.rest, self.done = time.perf_counter(), [], [], b"", False

    def read(self):
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if progress := re.search(rb'"processed": ?(\d+)', line):
                self.chunks.append((now, int(progress.group(1))))
            elif line.startswith(b"data: {"):
                self.times.append(now)
        self.done = not data or any(line.startswith(b"data: [DONE]") for line in lines)
