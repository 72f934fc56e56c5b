#!/usr/bin/env python3
"""Soak test: many short-lived and misbehaving clients; checks for leaks.

    tools/soak.py MODEL [--tokamak build/release/tokamak] [--minutes 20] [--clients 6] [--seed 1] [--json FILE]

Starts `tokamak serve` with few KV blocks, lets clients send all kinds of requests (streams, choices, beams, stop strings,
shared prefixes, garbage) and disconnect at random, and monitors blocks, sequences, file descriptors, threads and memory.
Exits with 1 if anything leaked, if memory keeps growing, or if the server had an internal error.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--threads", type=int, default=1, help="of the server's backend")
    p.add_argument("--kv-blocks", type=int, default=96)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--every", type=float, default=5, help="seconds between samples")
    p.add_argument("--slope", type=float, default=20, help="maximum memory growth in the second half, MiB per hour")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=pathlib.Path, help="write samples and result here")
    return p.parse_args()


class Server:
    def __init__(self, args):
        self.process = subprocess.Popen(
            [args.tokamak, "serve", args.model, "--port", "0", "--threads", str(args.threads), "--kv-blocks", str(args.kv_blocks),
             "--context", str(args.context), "--max-queue", "64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        text = ""
        while "ready at" not in text:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"no server: {text}{self.process.stderr.read()}")
            text += line
        self.host, self.port = re.search(r"http://([^:\s]+):(\d+)", text).groups()
        self.errors = collections.deque(maxlen=20)
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self.listen, args=(stream,), daemon=True).start()

    def listen(self, stream):
        for line in stream:
            if "error" in line.lower():
                self.errors.append(line.strip())

    def get(self, path):
        c = http.client.HTTPConnection(self.host, int(self.port), timeout=60)
        try:
            c.request("GET", path)
            return c.getresponse().read().decode()
        finally:
            c.close()

    def sample(self):
        pid = self.process.pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        metrics = {}
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                metrics[name.split("{")[0]] = metrics.get(name.split("{")[0], 0) + float(value)
        return {"rss_mib": int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024,
                "anon_mib": int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) / 1024,
                "threads": int(re.search(r"Threads:\s+(\d+)", status).group(1)),
                "fds": len(os.listdir(f"/proc/{pid}/fd")),
                "blocks": metrics["tokamak_kv_blocks_used"], "running": metrics["tokamak_requests_running"],
                "waiting": metrics["tokamak_requests_waiting"], "answers": metrics["tokamak_api_requests_running"],
                "connections": metrics["tokamak_http_connections"], "preemptions": metrics["tokamak_preemptions_total"],
                "gone": metrics["tokamak_http_clients_gone_total"], "tokens": metrics["tokamak_generation_tokens_total"]}


WORDS = "the a house tree goes sees and old new red river under stone light paper seven walks quickly".split()


def random_body(rng):
    shared = random.Random(rng.randrange(4))
    text = " ".join(shared.choices(WORDS, k=rng.choice((0, 20, 100, 300)))) + " " + " ".join(rng.choices(WORDS, k=rng.randint(1, 40)))
    body = {"max_tokens": rng.choice((1, 8, 40, 120)), "temperature": rng.choice((0, 1)), "stream": rng.random() < 0.6}
    if rng.random() < 0.5:
        body["messages"] = [{"role": "user", "content": text}]
        path = "/v1/chat/completions"
        if rng.random() < 0.2:
            body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        if rng.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 3}
    else:
        body["prompt"], path = text, "/v1/completions"
        if rng.random() < 0.2:
            body["logprobs"] = 3
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.2:
        body["stop"] = [rng.choice(WORDS), "\n"]
    if rng.random() < 0.1:
        body |= {"use_beam_search": True, "best_of": 4, "stop": None, "logprobs": None, "top_logprobs": None}
    if rng.random() < 0.1:
        body["cache_salt"] = str(rng.randrange(1000))
    if rng.random() < 0.1:
        body[rng.choice(list(body))] = rng.choice((None, -1, "x", [], {}, 1e300))
    return path, body


class Client(threading.Thread):
    def __init__(self, server, seed, until, counts):
        super().__init__()
        self.server, self.rng, self.until, self.counts = server, random.Random(seed), until, counts

    def run(self):
        while time.monotonic() < self.until and self.server.process.poll() is None:
            try:
                self.counts[self.ask()] += 1
            except (OSError, http.client.HTTPException) as e:
                self.counts[f"client error {type(e).__name__}"] += 1
                time.sleep(0.2)

    def ask(self):
        rng = self.rng
        path, body = random_body(rng)
        data = json.dumps(body).encode()
        if rng.random() < 0.03:
            data = data[:rng.randrange(len(data))]
        request = (f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(data)}\r\n\r\n").encode() + data
        leaves = rng.random() < 0.35
        with socket.create_connection((self.server.host, int(self.server.port)), timeout=600) as s:
            if leaves and rng.random() < 0.2:
                s.sendall(request[:rng.randrange(len(request))])
                return "left while sending"
            s.sendall(request)
            if leaves:
                s.settimeout(max(0.001, rng.expovariate(2)))
                try:
                    while s.recv(rng.choice((10, 4096))):
                        if rng.random() < 0.05:
                            return "left while reading"
                except TimeoutError:
                    return "left while waiting"
                return "finished first"
            answer = b""
            while more := s.recv(65536):
                answer += more
        status = int(answer[9:12])
        if status == 200 and body.get("stream") is True and not answer.rstrip().endswith(b"0") and b"[DONE]" not in answer:
            return "stream without end"
        return f"status {status}"


def slope_per_hour(times, values):
    n = len(times)
    mean_t, mean_v = sum(times) / n, sum(values) / n
    spread = sum((t - mean_t) ** 2 for t in times)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread if spread else 0.0


def main():
    args = parse_args()
    server = Server(args)
    first = server.sample()
    counts = collections.Counter()
    start = time.monotonic()
    until = start + 60 * args.minutes
    clients = [Client(server, args.seed * 1000 + i, until, counts) for i in range(args.clients)]
    for c in clients:
        c.start()
    samples = []
    while time.monotonic() < until and server.process.poll() is None:
        time.sleep(args.every)
        samples.append({"t": round(time.monotonic() - start, 1), **server.sample()})
    for c in clients:
        c.join()
    end = time.monotonic() + 30
    last = server.sample()
    while time.monotonic() < end and (last["blocks"] or last["running"] or last["answers"] or last["connections"] > 1):
        time.sleep(0.2)
        last = server.sample()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(timeout=60)
    half = samples[len(samples) // 2:]
    slope = slope_per_hour([s["t"] for s in half], [s["anon_mib"] for s in half])
    result = {"minutes": args.minutes, "requests": sum(counts.values()), "outcomes": dict(sorted(counts.items())), "first": first,
              "peak_rss_mib": max(s["rss_mib"] for s in samples), "last": last, "anon_slope_mib_per_hour": round(slope, 2),
              "exit_code": code, "log_errors": list(server.errors)}
    wrong = [f"{k} left: {last[k]}" for k in ("blocks", "running", "waiting", "answers") if last[k]]
    wrong += [f"fds {first['fds']} -> {last['fds']}"] if last["fds"] > first["fds"] + 2 else []
    wrong += [f"threads {first['threads']} -> {last['threads']}"] if last["threads"] > first["threads"] else []
    wrong += [f"memory grows by {slope:.1f} MiB per hour"] if slope > args.slope else []
    wrong += [f"{k}: {v}" for k, v in counts.items() if k.startswith(("status 5", "client error", "stream without"))]
    wrong += [f"exit code {code}"] if code else []
    result["wrong"] = wrong
    if args.json:
        args.json.write_text(json.dumps({**result, "samples": samples}, indent=1))
    print(json.dumps(result, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
