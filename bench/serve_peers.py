#!/usr/bin/env python3
"""Tokamak's server and llama.cpp's, same file, same threads, same client (`tokamak bench serve --url`), one after the other.

    bench/serve_peers.py MODEL.gguf [--part load|gap|prefix|full ...] [--tokamak build/release/tokamak]
                         [--llama-server PATH | --python PYTHON] [--threads 2] [--clients 1,4,8,16] [--json FILE]

load    closed loop, 128 prompt and 64 answer tokens: tokens/s, TTFT, ITL for each number of clients
gap     three streams run, then a prompt of 3000 tokens arrives: the longest gap between two tokens of a stream
prefix  four clients at once whose prompts share 512 of 544 tokens: prompt tokens computed
full    a KV cache too small for the load: how many of 8 requests are answered

The peer is llama.cpp's own server (--llama-server) if given, with its default batch sizes; otherwise the server of the
package llama-cpp-python, which runs llama.cpp's library one request at a time. The result says which. At the end both
are printed side by side as Markdown tables.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--part", nargs="+", default=["load", "gap", "prefix", "full"], choices=["load", "gap", "prefix", "full"])
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--llama-server", help="llama.cpp's server program")
    p.add_argument("--python", default=sys.executable, help="a Python with llama-cpp-python and its server's packages")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--clients", default="1,4,8,16")
    p.add_argument("--requests", type=int, default=0, help="per measurement (default: four per client, at least 8)")
    p.add_argument("--only", choices=["tokamak", "llama.cpp"], help="measure only one of the two")
    p.add_argument("--json", type=pathlib.Path)
    return p.parse_args()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One of the two, with a context for `parallel` sequences of `length` tokens."""

    def __init__(self, args, kind, parallel, length, kv_tokens=0):
        self.kind = kind
        self.port = free_port()
        kv = kv_tokens or parallel * length
        if kind == "tokamak":
            command = [args.tokamak, "serve", args.model, "--port", self.port, "--threads", args.threads, "--context", length,
                       "--kv-blocks", (kv + 15) // 16, "--max-num-seqs", max(parallel, 4)]
        elif args.llama_server:
            command = [args.llama_server, "-m", args.model, "--port", self.port, "-t", args.threads, "-c", kv, "-np", parallel,
                       "--metrics", "--no-webui"]
            if kv_tokens:
                command.append("--kv-unified")  # one shared pool, as in Tokamak; otherwise each slot has a fixed share
        else:
            command = [args.python, "-m", "llama_cpp.server", "--model", args.model, "--port", self.port, "--n_threads", args.threads,
                       "--n_threads_batch", args.threads, "--n_ctx", length, "--interrupt_requests", "false"]
        self.process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + 60
        while True:
            try:
                status, body = self.get("/v1/models")
                if status == 200:
                    self.name = json.loads(body)["data"][0]["id"]
                    break
            except OSError:
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                self.close()
                sys.exit(f"{kind} did not start: {' '.join(map(str, command))}")
            time.sleep(0.2)

    def get(self, path):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as c:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode()

    def computed(self):
        """Prompt tokens computed so far; None if the server does not report them."""
        names = ("tokamak_prefill_tokens_total", "llamacpp:prompt_tokens_total")
        status, text = self.get("/metrics")
        rows = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(names)]
        return sum(rows) if status == 200 and rows else None

    def post(self, body):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)) as c:
            c.request("POST", "/v1/completions", json.dumps({"model": self.name, "temperature": 0, **body}), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read() or b"{}")

    def stream(self, body, on_token):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)) as c:
            c.request("POST", "/v1/completions", json.dumps({"model": self.name, "temperature": 0, "stream": True, **body}),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            while line := r.readline():
                if line.startswith(b"data: {"):
                    on_token(time.perf_counter())

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


WORDS = ("time year people way day man thing world life hand part child eye woman place work week case point home water room night "
         "line end house door light road book word side").split()


def words(count, key):
    return " ".join(WORDS[(i * i * 31 + i * (key + 7) + key * key) % len(WORDS)] for i in range(count))


def load(args, kind):
    rows = []
    clients = [int(c) for c in args.clients.split(",")]
    with Server(args, kind, max(clients), 256) as s:
        for c in clients:
            n = args.requests or max(8, 4 * c)
            done = subprocess.run([args.tokamak, "bench", "serve", "--url", s.url, "--concurrency", str(c), "--requests", str(n),
                                   "--prompt", "128", "--output", "64", "--warmup", "1", "--seed", str(c),  # different prompts each time
                                   "--json"], capture_output=True, text=True)
            r = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr[-300:]}
            if "error" in r:
                rows.append({"clients": c, "error": r["error"]})
                continue
            rows.append({"clients": c, "completed": r["completed"], "failed": r["failed"], "tokens_per_second": r["output_tokens_per_second"],
                         "ttft_p50_ms": r["ttft_ms"]["p50"], "ttft_max_ms": r["ttft_ms"]["max"], "itl_p50_ms": r["itl_ms"]["p50"],
                         "itl_p99_ms": r["itl_ms"]["p99"], "e2e_p50_ms": r["e2e_ms"]["p50"]})
    return rows


def gap(args, kind):
    """Longest gap in three streams while a prompt of 3000 tokens is computed."""
    with Server(args, kind, 4, 4096) as s:
        s.post({"prompt": words(20, 9), "max_tokens": 4})
        times = [[] for _ in range(3)]
        threads = [threading.Thread(target=s.stream, args=({"prompt": words(30, i), "max_tokens": 260, "ignore_eos": True}, times[i].append))
                   for i in range(3)]
        for t in threads:
            t.start()
        end = time.monotonic() + 60
        while time.monotonic() < end and min(len(t) for t in times) < 20 and any(t.is_alive() for t in threads):
            time.sleep(0.01)
        running = sum(t.is_alive() and len(times[i]) > 0 for i, t in enumerate(threads))
        started = time.perf_counter()
        status, answer = s.post({"prompt": words(3000, 5), "max_tokens": 2})
        took = time.perf_counter() - started
        for t in threads:
            t.join()
        # Gaps that overlap the time in which the long prompt was processed.
        silences = [b - a for t in times for a, b in zip(t, t[1:]) if b > started and a < started + took]
        before = [b - a for t in times for a, b in zip(t, t[1:]) if b <= started]
        return {"streams_running": running, "status": status, "prompt_tokens": answer.get("usage", {}).get("prompt_tokens"),
                "long_prompt_seconds": took, "longest_gap_seconds": max(silences) if silences else None,
                "median_gap_before_ms": 1e3 * sorted(before)[len(before) // 2] if before else None}


def prefix(args, kind):
    with Server(args, kind, 4, 1024) as s:
        s.post({"prompt": "hello", "max_tokens": 2})
        before = s.computed()
        shared = words(512, 3)
        answers = [None] * 4
        start = time.perf_counter()

        def ask(i):
            answers[i] = s.post({"prompt": shared + " " + words(32, 100 + i), "max_tokens": 8})
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        out = {"seconds": time.perf_counter() - start, "statuses": [a[0] for a in answers],
               "prompt_tokens": sum(a[1].get("usage", {}).get("prompt_tokens", 0) for a in answers),
               "cached_tokens": [a[1].get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens") for a in answers]}
        if before is not None:
            out["computed_prompt_tokens"] = s.computed() - before
        return out


def full(args, kind):
    """Eight requests of 128 + 128 tokens, room for 640."""
    with Server(args, kind, 8, 640, kv_tokens=640) as s:
        answers = [None] * 8

        def ask(i):
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                answers[i] = s.post({"prompt": words(128, i), "max_tokens": 128, "ignore_eos": True})
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        tokens = [a[1].get("usage", {}).get("completion_tokens", 0) if a and a[0] == 200 else 0 for a in answers]
        return {"seconds": time.perf_counter() - start, "statuses": [a and a[0] for a in answers], "complete": sum(t == 128 for t in tokens),
                "tokens": tokens}


def tables(result):
    """The result as Markdown."""
    kinds = [k for k in ("tokamak", "llama.cpp") if any(k in result.get(p, {}) for p in ("load", "gap", "prefix", "full"))]
    number = lambda v, digits=1: "–" if v is None else f"{v:.{digits}f}"
    lines = []
    if "load" in result:
        names = [("tokens_per_second", "tokens/s"), ("ttft_p50_ms", "TTFT p50 ms"), ("itl_p50_ms", "ITL p50 ms"), ("itl_p99_ms", "ITL p99 ms")]
        lines += ["| clients | " + " | ".join(f"{name}, {k}" for _, name in names for k in kinds) + " |", "|---" * (1 + len(names) * len(kinds)) + "|"]
        for rows in zip(*(result["load"][k] for k in kinds)):
            lines.append(f"| {rows[0]['clients']} | " + " | ".join(number(r.get(key)) for key, _ in names for r in rows) + " |")
    rest = [("gap", "longest_gap_seconds", "longest gap in three streams while 3000 prompt tokens are computed, s", 2),
            ("gap", "long_prompt_seconds", "the same: time until the long prompt is answered, s", 1),
            ("prefix", "computed_prompt_tokens", "prompt tokens computed, four clients sharing 512 of 544", 0),
            ("prefix", "seconds", "the same: time until all are answered, s", 2),
            ("full", "complete", "complete answers of 8, KV for 640 tokens", 0), ("full", "seconds", "the same: s", 1)]
    lines += ["", "| what | " + " | ".join(kinds) + " |", "|---" * (1 + len(kinds)) + "|"]
    for part, key, what, digits in rest:
        if part in result:
            lines.append(f"| {what} | " + " | ".join(number(result[part][k].get(key), digits) for k in kinds) + " |")
    return "\n".join(lines)


def main():
    args = parse_args()
    peer = "llama-server" if args.llama_server else "llama-cpp-python's server"
    result = {"model": args.model.name, "threads": args.threads, "peer": peer, "load_average": os.getloadavg()[0]}
    for part in args.part:
        for kind in ("tokamak", "llama.cpp"):
            if args.only in (None, kind):
                result.setdefault(part, {})[kind] = {"load": load, "gap": gap, "prefix": prefix, "full": full}[part](args, kind)
                print(part, kind, json.dumps(result[part][kind]), flush=True)
    result["load_average_after"] = os.getloadavg()[0]
    print(f"\npeer: {peer}; load {result['load_average']:.1f} before, {result['load_average_after']:.1f} after\n\n{tables(result)}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
