#!/usr/bin/env python3
"""How long streams stall while prompts are computed.

    bench/prefill_gaps.py MODEL [--tokamak build/release/tokamak] [--streams 4] [--prompts 1024,2048,4096] [--targets 250,2x]
                          [--json FILE] [-- SERVE FLAGS...]

A few streams decode; when their pace is known, a prompt that is not in the cache arrives. For every target of the time per output token
(`serve --tpot-target`, in ms, or 2x: twice the pace of the streams) and every prompt the table has the median gap between two tokens of
a stream before the prompt and after it (streams grow meanwhile, and their steps with them), the gaps while it was computed (median, 90th and
99th percentile, worst), the worst gap divided by the median before, by the pace, and by what the target allows (the target, or twice the pace where that is longer), and the time to the prompt's
first token. The pace at a gap is what streams of that length take without prompts: between the medians before and after, by the number of tokens. All times are measured at the client.

A prompt of 0 tokens is none: the gaps of --quiet seconds in which nothing but the streams runs, which is what the machine itself adds.
"""
import argparse
import json
import os
import pathlib
import random
import selectors
import statistics
import sys
import time

from served import Server, Stream


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--prompts", default="1024,2048,4096", help="tokens")
    p.add_argument("--targets", default="250,2x", help="milliseconds, or multiples of the streams' pace")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--settle", type=float, default=1, help="seconds without prompts before each prompt")
    p.add_argument("--quiet", type=float, default=10, help="seconds of a prompt of 0 tokens")
    p.add_argument("--json", type=pathlib.Path, help="also write every step here: start, tokens, ms")
    mine = sys.argv[1:]
    at = mine.index("--") if "--" in mine else len(mine)
    args = p.parse_args(mine[:at])
    args.serve = mine[at + 1:]  # for the server
    return args


def start_server(args, target):
    most = max(map(int, args.prompts.split(",")))
    return Server(args.tokamak, args.model, "--context", most + 4096, "--no-prefix-cache",
                  "--kv-blocks", (most * 2 + (args.streams + 1) * 4096) // 16, "--tpot-target", target, *args.serve)


class Client:
    def __init__(self):
        self.selector, self.streams = selectors.DefaultSelector(), []

    def open(self, server, prompt, tokens, progress=False):
        stream = Stream(server, prompt, tokens, temperature=0, return_progress=progress)
        self.selector.register(stream.socket, selectors.EVENT_READ, stream)
        self.streams.append(stream)
        return stream

    def run(self, until, limit=300):
        end = time.perf_counter() + limit
        while not until():
            if time.perf_counter() > end:
                sys.exit("no progress")
            for key, _ in self.selector.select(0.05):
                key.data.read()
                if key.data.done:
                    self.selector.unregister(key.data.socket)
                    key.data.socket.close()

    def close(self):
        for s in self.streams:
            s.socket.close()

    def wait(self, seconds):
        end = time.perf_counter() + seconds
        self.run(lambda: time.perf_counter() >= end)


def gaps(streams, start, end):
    """Milliseconds between tokens of the streams, of the gaps that end between two times."""
    return [ms for ms, _ in gaps_at(streams, start, end)]


def gaps_at(streams, start, end):
    """The same with the number of tokens before each gap."""
    return [(1e3 * (b - a), i) for s in streams for i, (a, b) in enumerate(zip(s.times, s.times[1:])) if start < b <= end]


def pace_of(streams, before, start, end):
    """Milliseconds per token without prompts, by the number of tokens, and the median after `end`."""
    later = gaps_at(streams, end + 0.1, time.perf_counter())
    after = statistics.median(ms for ms, _ in later)
    at = lambda found: statistics.median(i for _, i in found)
    a, b = at(gaps_at(streams, 0, start)), at(later)
    return lambda i: before + (after - before) * min(max((i - a) / max(b - a, 1), 0), 1), after


def steps(prompt):
    """[position, tokens, milliseconds] of the chunks of a prompt."""
    return [[a, b - a, 1e3 * (t - s)] for (s, a), (t, b) in zip(prompt.chunks, prompt.chunks[1:])]


def open_streams(args, server, client, ids):
    """Streams that decode, and the median gap between their tokens."""
    running = [client.open(server, ids(64), 4000) for _ in range(args.streams)]
    client.run(lambda: all(len(s.times) > 8 for s in running))
    start = time.perf_counter()
    client.wait(args.settle)
    return running, statistics.median(gaps(running, start, time.perf_counter()))


def measure_one(args, server, target, size, rng):
    ids = lambda n: [rng.randrange(1000, 20000) for _ in range(n)]
    client = Client()
    running, before = open_streams(args, server, client, ids)
    start, chunks = time.perf_counter(), []
    if size > 0:
        prompt = client.open(server, ids(size), 1, progress=True)
        client.run(lambda: prompt.done)
        end, chunks = prompt.times[-1], steps(prompt)
    else:
        client.wait(args.quiet)
        end = time.perf_counter()
    client.wait(args.settle)
    if any(s.done for s in running):
        sys.exit("the streams ended before the prompt")
    found = gaps_at(running, start, end + 0.05)
    during = sorted(ms for ms, _ in found)
    pace, after = pace_of(running, before, start, end)
    client.close()
    share = lambda part: during[int(part * (len(during) - 1))]
    return {"target_ms": target, "prompt": size, "before_ms": before, "after_ms": after, "median_ms": statistics.median(during), "p90_ms": share(0.9),
            "p99_ms": share(0.99), "worst_ms": during[-1], "worst_by_before": during[-1] / before,
            "worst_by_pace": max(ms / pace(i) for ms, i in found),
            "worst_by_allowed": max(ms / max(target, 2 * pace(i)) for ms, i in found), "ttft_ms": 1e3 * (end - start), "steps": chunks}


def measure(args, server, target, rng):
    rows = []
    for _ in range(args.rounds):
        for size in map(int, args.prompts.split(",")):
            rows.append(measure_one(args, server, target, size, rng))
            print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items() if k != "steps"), flush=True)
    return rows


def main():
    args, rows, rng = parse_args(), [], random.Random(1)
    print(f"load {os.getloadavg()[0]:.2f}; {args.streams} streams; {' '.join(args.serve)}")
    for text in args.targets.split(","):
        target = float(text.rstrip("x"))
        server = start_server(args, target if text[-1] != "x" else 250)
        try:
            if text[-1] == "x":  # relative to the pace of the streams, which is measured first
                target *= open_streams(args, server, Client(), lambda n: [rng.randrange(1000, 20000) for _ in range(n)])[1]
                server.stop()
                server = start_server(args, target)
            rows += measure(args, server, target, rng)
        finally:
            server.stop()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
