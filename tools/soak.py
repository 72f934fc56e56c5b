#!/usr/bin/env python3
"""Soak test: many short-lived and misbehaving clients; checks for leaks.

    tools/soak.py MODEL [--tokamak build/release/tokamak] [--minutes 20] [--clients 6] [--seed 1] [--page] [--json FILE]

Starts `tokamak serve` with few KV blocks, lets clients send all kinds of requests (streams, choices, beams, stop strings,
shared prefixes, garbage) and disconnect at random, and monitors blocks, sequences, file descriptors, threads and memory.
Meanwhile other clients repeat requests whose answers are known from a quiet server (chats, tools, schemas, other APIs, and
all of them as batch jobs), connections open and close in storms, and with --page a browser uses the chat page in two tabs.
Exits with 1 if anything leaked, if the memory of the server or of the page keeps growing, if an answer differed, or if the server
had an internal error.
--page needs Chromium and the Python package playwright.
"""
import argparse
import atexit
import collections
import http.client
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
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
    p.add_argument("--checkers", type=int, default=2, help="clients that compare answers")
    p.add_argument("--storm", type=int, default=100, help="clients that disconnect at once, every half minute")
    p.add_argument("--chat-template", help="of the server; requests with tools need one that shows them")
    p.add_argument("--backend", default="cpu", help="of the server; with cuda the GPU's memory is watched, too")
    p.add_argument("--no-compare", action="store_true", help="the backend's answers depend on the batch: only their status counts")
    p.add_argument("--server-flags", default="", help="more flags of the server, such as '--speculate suffix --jump-forward'")
    p.add_argument("--page", action="store_true", help="use the chat page in Chromium")
    p.add_argument("--json", type=pathlib.Path, help="write samples and result here")
    return p.parse_args()


class Server:
    def __init__(self, args, folder):
        self.process = subprocess.Popen(
            [args.tokamak, "serve", args.model, "--port", "0", "--threads", str(args.threads), "--kv-blocks", str(args.kv_blocks),
             "--context", str(args.context), "--max-queue", "256", "--batch-dir", folder, "--batch-concurrency", "2", "--batch-retention", "60",
             "--backend", args.backend, *(["--chat-template", args.chat_template] if args.chat_template else []), *shlex.split(args.server_flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.gpu = args.backend == "cuda"
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

    def post(self, path, body, kind="application/json"):
        """(status, JSON)"""
        c = http.client.HTTPConnection(self.host, int(self.port), timeout=600)
        try:
            c.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": kind})
            answer = c.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            c.close()

    def gpu_mib(self):
        """Memory that the server's process has on the GPU; all of it that is used where the driver does not tell."""
        apps = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
        for line in apps.splitlines():
            pid, _, used = line.partition(", ")
            if pid == str(self.process.pid) and used.isdigit():
                return int(used)
        return int(subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout.split()[0])

    def sample(self):
        pid = self.process.pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        metrics = {}
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                metrics[name.split("{")[0]] = metrics.get(name.split("{")[0], 0) + float(value)
        return {**({"gpu_mib": self.gpu_mib()} if self.gpu else {}), "rss_mib": int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024,
                "anon_mib": int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) / 1024,
                "threads": int(re.search(r"Threads:\s+(\d+)", status).group(1)),
                "fds": len(os.listdir(f"/proc/{pid}/fd")),
                "blocks": metrics["tokamak_kv_blocks_used"], "running": metrics["tokamak_requests_running"],
                "waiting": metrics["tokamak_requests_waiting"], "answers": metrics["tokamak_api_requests_running"],
                "connections": metrics["tokamak_http_connections_open"], "preemptions": metrics["tokamak_preemptions_total"],
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


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
          "required": ["name", "old"], "additionalProperties": False}


def known_requests(model):
    """(path, body) of requests whose answers do not depend on what else runs."""
    out = []
    for i, text in enumerate(("Name a river.", "What is a stone?", "Count to seven.")):
        messages = [{"role": "user", "content": text}]
        chat = {"model": model, "messages": messages, "max_tokens": 24, "seed": i, "temperature": i % 2}
        out += [("/v1/chat/completions", chat),
                ("/v1/chat/completions", {**chat, "n": 2, "temperature": 1}),
                ("/v1/chat/completions", {**chat, "max_tokens": 80, "response_format": {
                    "type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}),
                ("/v1/chat/completions", {**chat, "max_tokens": 80, "tools": [TOOL], "tool_choice": "required"}),
                ("/v1/completions", {"model": model, "prompt": text, "max_tokens": 30, "temperature": 0, "logprobs": 2}),
                ("/v1/responses", {"model": model, "input": text, "max_output_tokens": 24, "temperature": 0, "store": False}),
                ("/v1/messages", {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}),
                ("/completion", {"prompt": text, "n_predict": 24, "temperature": 0}),
                ("/api/generate", {"model": model, "prompt": text, "stream": False, "options": {"temperature": 0, "num_predict": 24}})]
    return out


COMPARE = True


def essence(value):
    """An answer without what differs from run to run: ids, times, what was cached."""
    if not COMPARE:
        return None
    changing = {"id", "created", "created_at", "completed_at", "timings", "usage", "tokens_cached", "item_id", "call_id", "seed"}
    if isinstance(value, dict):
        return {k: essence(v) for k, v in value.items() if k not in changing and not k.endswith("_duration")}
    return [essence(v) for v in value] if isinstance(value, list) else value


class Checker(threading.Thread):
    """Repeats known requests and compares the answers."""

    def __init__(self, server, known, seed, until, counts, wrong):
        super().__init__()
        self.server, self.known, self.rng, self.until, self.counts, self.wrong = server, known, random.Random(seed), until, counts, wrong

    def run(self):
        while time.monotonic() < self.until and self.server.process.poll() is None:
            try:
                self.check()
            except (OSError, http.client.HTTPException) as e:
                self.counts[f"client error {type(e).__name__}"] += 1
            time.sleep(0.2)

    def check(self):
        path, body, expected = self.rng.choice(self.known)
        status, answer = self.server.post(path, body)
        self.counts["compared" if status == 200 else f"status {status}"] += 1
        if status == 200 and essence(answer) != expected:
            self.wrong.append(f"{path} {json.dumps(body)}: {json.dumps(essence(answer))} instead of {json.dumps(expected)}")


class Batches(Checker):
    """Runs the known requests as batches, one after the other."""

    def check(self):
        path = self.rng.choice(("/v1/chat/completions", "/v1/completions"))
        jobs = {f"job-{i}": (body, expected) for i, (p, body, expected) in enumerate(self.known) if p == path}
        lines = "".join(json.dumps({"custom_id": name, "method": "POST", "url": path, "body": body}) + "\n" for name, (body, _) in jobs.items())
        form = ("--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; "
                f"name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{lines}\r\n--x--\r\n")
        _, file = self.server.post("/v1/files", form.encode(), "multipart/form-data; boundary=x")
        _, batch = self.server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"})
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(1)
            batch = json.loads(self.server.get(f"/v1/batches/{batch['id']}"))
        if batch["status"] != "completed" or batch["request_counts"]["completed"] != len(jobs):
            self.wrong.append(f"batch: {json.dumps(batch)}")
            return
        for line in self.server.get(f"/v1/files/{batch['output_file_id']}/content").splitlines():
            answer = json.loads(line)
            if essence(answer["response"]["body"]) != jobs[answer["custom_id"]][1]:
                self.wrong.append(f"batch {answer['custom_id']}: {line}")
        self.counts["batches"] += 1
        self.counts["answers of batches"] += len(jobs)


class Storms(Checker):
    """Many clients at once that ask and leave."""

    def __init__(self, *args, size=100):
        super().__init__(*args)
        self.size = size

    def check(self):
        data = json.dumps({"prompt": "a storm of clients", "max_tokens": 100, "stream": True}).encode()
        request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        sockets = []
        for _ in range(self.size):
            s = socket.create_connection((self.server.host, int(self.server.port)), timeout=60)
            s.sendall(request)
            sockets.append(s)
        time.sleep(self.rng.random())
        for s in sockets:
            s.close()
        self.counts["storms"] += 1
        end = min(self.until, time.monotonic() + 30)
        while time.monotonic() < end:
            time.sleep(0.5)


class Page(Checker):
    """A browser with two tabs of the chat page: asks, stops, asks again, looks at the other views. The second tab is also reloaded; the
    memory of the first is measured."""

    def __init__(self, *args):
        super().__init__(*args)
        self.start_time, self.samples = time.monotonic(), []

    def run(self):
        from playwright.sync_api import sync_playwright
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            context = browser.new_context(viewport={"width": 1100, "height": 760})
            context.set_default_timeout(300000)
            pages = [context.new_page() for _ in range(2)]
            for page in pages:
                page.on("pageerror", lambda e: self.wrong.append(f"page: {e}"))
                page.goto(f"http://{self.server.host}:{self.server.port}/")
            session = context.new_cdp_session(pages[0])
            session.send("Performance.enable")
            while time.monotonic() < self.until and self.server.process.poll() is None:
                for page in pages:
                    page.bring_to_front()
                    self.visit(page)
                self.measure(session)
                if self.rng.random() < 0.5:
                    pages[1].reload()
            browser.close()

    def visit(self, page):
        page.locator("#tab-chat").click()
        page.locator("#input").fill(" ".join(self.rng.choices(WORDS, k=8)))
        page.locator("#input").press("Enter")
        if self.rng.random() < 0.4:
            page.wait_for_timeout(1000)
            page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
        self.counts["messages on the page"] += 1
        for tab in ("#tab-server", "#tab-plan"):
            page.locator(tab).click()
            page.wait_for_timeout(2500)
        page.locator("#tab-chat").click()
        if self.rng.random() < 0.5:
            page.locator("#clear").click()

    def measure(self, session):
        """What the page holds after garbage was collected."""
        session.send("HeapProfiler.collectGarbage")
        found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        self.samples.append({"t": round(time.monotonic() - self.start_time, 1), "heap_mib": round(found["JSHeapUsedSize"] / 2**20, 2),
                             "nodes": int(found["Nodes"]), "listeners": int(found["JSEventListeners"])})


def slope_per_hour(times, values):
    n = len(times)
    mean_t, mean_v = sum(times) / n, sum(values) / n
    spread = sum((t - mean_t) ** 2 for t in times)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread if spread else 0.0


def main():
    global COMPARE
    args = parse_args()
    COMPARE = not args.no_compare
    folder = tempfile.mkdtemp(prefix="tokamak-soak-")
    server = Server(args, folder)
    model = json.loads(server.get("/v1/models"))["data"][0]["id"]
    known, different = [], []
    for path, body in known_requests(model):  # on a quiet server, one after the other
        status, answer = server.post(path, body)
        if status == 200:
            known.append((path, body, essence(answer)))
        elif status == 400 and "template" in json.dumps(answer):
            sys.exit(f"{args.model} has no chat template: give it one with --chat-template FILE")
        else:
            different.append(f"{path} {json.dumps(body)}: {status} {json.dumps(answer)}")
    first = server.sample()
    counts = collections.Counter()
    start = time.monotonic()
    until = start + 60 * args.minutes
    clients = [Client(server, args.seed * 1000 + i, until, counts) for i in range(args.clients)]
    common = (until, counts, different)
    clients += [Checker(server, known, args.seed * 100 + i, *common) for i in range(args.checkers)]
    clients += [Batches(server, known, args.seed, *common)]
    clients += [Storms(server, known, args.seed, *common, size=args.storm)] if args.storm else []
    pages = [Page(server, known, args.seed, *common)] if args.page else []
    clients += pages
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
    for path, body, expected in known:  # and on a quiet server again
        if essence(server.post(path, body)[1]) != expected:
            different.append(f"after the load: {path} {json.dumps(body)}")
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(timeout=60)
    shutil.rmtree(folder)
    half = samples[len(samples) // 2:]
    slope = slope_per_hour([s["t"] for s in half], [s["anon_mib"] for s in half])
    result = {"minutes": args.minutes, "known requests": len(known), "requests": sum(counts.values()), "outcomes": dict(sorted(counts.items())), "first": first,
              "peak_rss_mib": max(s["rss_mib"] for s in samples), "last": last, "anon_slope_mib_per_hour": round(slope, 2),
              "exit_code": code, "log_errors": list(server.errors)}
    wrong = [f"{k} left: {last[k]}" for k in ("blocks", "running", "waiting", "answers") if last[k]]
    wrong += [f"fds {first['fds']} -> {last['fds']}"] if last["fds"] > first["fds"] + 2 else []
    wrong += [f"threads {first['threads']} -> {last['threads']}"] if last["threads"] > first["threads"] else []
    wrong += [f"memory grows by {slope:.1f} MiB per hour"] if slope > args.slope else []
    for page in pages:
        seen = page.samples[len(page.samples) // 2:] or [{"t": 0, "heap_mib": 0, "nodes": 0, "listeners": 0}]
        slope = slope_per_hour([s["t"] for s in seen], [s["heap_mib"] for s in seen])
        result["page"] = {"samples": len(page.samples), "heap_slope_mib_per_hour": round(slope, 2),
                          **{k: [page.samples[0][k], seen[0][k], max(s[k] for s in seen), seen[-1][k]] for k in ("heap_mib", "nodes", "listeners") if page.samples}}
        wrong += ["the page was not used"] if len(page.samples) < 2 else []
        wrong += [f"the page grows by {slope:.1f} MiB per hour"] if slope > args.slope else []
    if server.gpu:  # what is made for the first steps of each shape is kept, so the second half counts
        result["gpu_mib"] = [min(s["gpu_mib"] for s in half), max(s["gpu_mib"] for s in half), last["gpu_mib"]]
        wrong += [f"GPU memory {half[0]['gpu_mib']} -> {last['gpu_mib']} MiB"] if last["gpu_mib"] > half[0]["gpu_mib"] + 2 else []
    wrong += [f"{k}: {v}" for k, v in counts.items() if k.startswith(("status 5", "client error", "stream without"))]
    wrong += different[:20]
    wrong += [f"exit code {code}"] if code else []
    result["wrong"] = wrong
    if args.json:
        args.json.write_text(json.dumps({**result, "samples": samples, "page_samples": [s for p in pages for s in p.samples]}, indent=1))
    print(json.dumps(result, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
