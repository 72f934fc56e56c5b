#!/usr/bin/env python3
"""How long streams stall while prompts are computed.

    bench/prefill_gaps.py MODEL [--tokamak build/release/tokamak] [--streams 1,4,8] [--prompts 1024,3000,500+1000+3000] [--targets default,250,2x]
                          [--json FILE] [--step-log FILE] [-- SERVE FLAGS...]

A few streams decode; when their pace is known, a prompt that is not in the cache arrives, or several at once (500+1000). For every target of the time per output token
(`serve --tpot-target`, in ms, or 2x: twice the pace of the streams; default: without the flag) and every prompt the table has the median gap between two tokens of
a stream before the prompt and after it (streams grow meanwhile, and their steps with them), the gaps while it was computed (median, 90th and
99th percentile, worst), the worst gap divided by the median before, by the pace, and by what the target allows (the target, or twice the pace where that is longer), and the time to the prompt's
first token (of the last one, if there are several). The server's own view of the steps with prompts and streams follows: their number, how many took more than 1.1 times the limit they were planned for, and
an upper bound of the worst such ratio (`tokamak_step_limit_ratio`); then, from its log of steps (`--step-log`), the processor time of the engine's thread per step: the median before, and the longest one meanwhile divided by it. That leaves out
what the thread waited for a core. Then, how many cores other programs used meanwhile ("others"). Last, the step in which the worst gap ended: its time, processor time, predicted time, limit, prompt tokens and their position. The pace at a gap is what streams of that length take without prompts: between the medians before and after, by the number of tokens. All times are measured at the client.

A prompt of 0 tokens is none: the gaps of --quiet seconds in which nothing but the streams runs, which is what the machine itself adds.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import re
import selectors
import statistics
import sys
import tempfile
import time
import urllib.request

from served import Server, Stream


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--streams", default="4")
    p.add_argument("--prompts", default="1024,2048,4096", help="tokens")
    p.add_argument("--targets", default="default", help="milliseconds, or multiples of the streams' pace")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--settle", type=float, default=1, help="seconds without prompts before each prompt")
    p.add_argument("--quiet", type=float, default=10, help="seconds of a prompt of 0 tokens")
    p.add_argument("--json", type=pathlib.Path, help="also write every step here: start, tokens, ms")
    p.add_argument("--step-log", help="keep the server's log of steps here")
    mine = sys.argv[1:]
    at = mine.index("--") if "--" in mine else len(mine)
    args = p.parse_args(mine[:at])
    args.serve = mine[at + 1:]  # for the server
    return args


def start_server(args, target):
    most = max(sum(sizes) for sizes in prompts_of(args))
    return Server(args.tokamak, args.model, "--context", most + 4096, "--no-prefix-cache", "--step-log", args.step_log,
                  "--kv-blocks", (most * 2 + 9 * 4096) // 16, *([] if target is None else ["--tpot-target", target]), *args.serve)


def prompts_of(args):
    return [[int(n) for n in text.split("+")] for text in args.prompts.split(",")]


def others_seconds(server):
    """Processor seconds of all but the server and this program, and those that were stolen from this virtual machine."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, soft, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / tick - server.cpu_seconds() - time.process_time()


def worst_step(args, worst_end):
    """The step whose token ended the worst gap: the last one before it arrived."""
    steps = [json.loads(line) for line in open(args.step_log).read().split("\n")[:-1]]
    step = max((s for s in steps if s["end"] <= worst_end), key=lambda s: s["end"])
    return "/".join(f"{step[k]:.4g}" for k in ("ms", "cpu_ms", "predicted_ms", "limit_ms", "prompt_tokens", "depth"))


def step_columns(args, start, end, settle):
    """Processor time of the engine's thread per step that decodes: the median before `start`, and the longest one from `start` to `end`.
    Empty if no such step ended in one of these periods."""
    log = [json.loads(line) for line in open(args.step_log).read().split("\n")[:-1]]
    times = lambda a, b: [step["cpu_ms"] for step in log if a < step["end"] <= b and step["decodes"]]
    quiet, during = times(start - settle, start), times(start, end)
    if not quiet or not during:
        return {}
    before, worst = statistics.median(quiet), max(during)
    return {"cpu_before_ms": before, "cpu_worst_ms": worst, "cpu_worst_by_before": worst / before}


def step_ratios(server):
    """{upper bound: steps that took at most this many times their limit}, cumulative; empty if the server does not count them."""
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    return {float(le): int(float(n)) for le, n in re.findall(r'tokamak_step_limit_ratio_bucket\{.*?le="([^"]+)"\} (\S+)', text)}


def ratio_columns(before, after):
    counts = {le: after[le] - before.get(le, 0) for le in after}
    if not counts or not counts[float("inf")]:
        return {"mixed_steps": 0}
    steps = counts[float("inf")]
    return {"mixed_steps": steps, "late": steps - counts[1.1], "worst_ratio_below": min(le for le, n in counts.items() if n == steps)}


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


def open_streams(args, streams, server, client, ids):
    """Streams that decode, and the median gap between their tokens."""
    running = [client.open(server, ids(64), 4000) for _ in range(streams)]
    client.run(lambda: all(len(s.times) > 8 for s in running))
    start = time.perf_counter()
    client.wait(args.settle)
    return running, statistics.median(gaps(running, start, time.perf_counter()))


def measure_one(args, streams, server, target, sizes, rng):
    ids = lambda n: [rng.randrange(1000, 20000) for _ in range(n)]
    client = Client()
    running, before = open_streams(args, streams, server, client, ids)
    counted, used = step_ratios(server), others_seconds(server)
    start, chunks = time.perf_counter(), []
    if sizes != [0]:
        prompts = [client.open(server, ids(size), 1, progress=True) for size in sizes]
        client.run(lambda: all(p.done for p in prompts))
        end, chunks = max(p.times[-1] for p in prompts), [step for p in prompts for step in steps(p)]
    else:
        client.wait(args.quiet)
        end = time.perf_counter()
    others = (others_seconds(server) - used) / (end - start)
    client.wait(args.settle)
    if any(s.done for s in running):
        sys.exit("the streams ended before the prompt")
    found = gaps_at(running, start, end + 0.05)
    during = sorted(ms for ms, _ in found)
    worst_end = max((b - a, b) for s in running for a, b in zip(s.times, s.times[1:]) if start < b <= end + 0.05)[1]
    pace, after = pace_of(running, before, start, end)
    client.close()
    allowed = lambda i: 3 * pace(i) if target is None else max(target, 2 * pace(i))
    share = lambda part: during[int(part * (len(during) - 1))]
    return {"streams": streams, "target_ms": target or "default", "prompt": "+".join(map(str, sizes)), "before_ms": before, "after_ms": after, "median_ms": statistics.median(during), "p90_ms": share(0.9),
            "p99_ms": share(0.99), "worst_ms": during[-1], "p99_by_before": share(0.99) / before, "worst_by_before": during[-1] / before,
            "worst_by_pace": max(ms / pace(i) for ms, i in found),
            "worst_by_allowed": max(ms / allowed(i) for ms, i in found), "ttft_ms": 1e3 * (end - start), **ratio_columns(counted, step_ratios(server)),
            **step_columns(args, start, end, args.settle), "others": others, "worst_step": worst_step(args, worst_end), "steps": chunks}


def measure(args, server, target, rng):
    rows = []
    for _ in range(args.rounds):
        for streams, sizes in itertools.product(map(int, args.streams.split(",")), prompts_of(args)):
            rows.append(measure_one(args, streams, server, target, sizes, rng))
            print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items() if k != "steps"), flush=True)
    return rows


def main():
    args, rows, rng = parse_args(), [], random.Random(1)
    folder = tempfile.TemporaryDirectory()
    args.step_log = args.step_log or f"{folder.name}/steps"
    print(f"load {os.getloadavg()[0]:.2f}; {args.streams} streams; {' '.join(args.serve)}")
    for text in args.targets.split(","):
        target = None if text == "default" else float(text.rstrip("x"))
        server = start_server(args, target if text[-1] != "x" else 250)
        try:
            if text[-1] == "x":  # relative to the pace of the streams, which is measured first
                target *= open_streams(args, 4, server, Client(), lambda n: [rng.randrange(1000, 20000) for _ in range(n)])[1]
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
