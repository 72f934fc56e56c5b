#!/usr/bin/env python3
"""Performance of the front end alone: `tokamak serve --backend null` computes nothing, so all time is spent in the server.

    bench/serve_front.py MODEL [--tokamak build/release/tokamak] [--requests 2000] [--seconds 20] [--json FILE]

paced      steps of the null engine take 20 ms of wall time: 1, 16 and 64 streams of 50 tokens/s each. The overhead of a token is
           its delay at the client relative to the earliest token of the same second on a 20 ms grid. It includes
           the engine thread, detokeniser, JSON, HTTP, both sockets, the client, and waiting for a core.
saturated  steps take no time, so that closed-loop clients measure the server's maximum: requests/s with answers of one
           token, streamed tokens/s with answers of 512, and the server's CPU time per token.

Client and server share the machine's cores.
"""
import argparse
import json
import os
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time
import urllib.request

from served import Server, Stream

PACE = 0.020


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--requests", type=int, default=2000)
    p.add_argument("--seconds", type=float, default=20, help="of each paced measurement")
    p.add_argument("--json", type=pathlib.Path, help="also write the result here")
    return p.parse_args()


def histogram(server, name):
    """(sum, count) of a histogram of /metrics."""
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    value = lambda kind: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"tokamak_{name}_{kind}"))
    return value("sum"), value("count")


def bench(args, server, **flags):
    command = [args.tokamak, "bench", "serve", "--url", server.url, "--json", "--warmup", "2"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    before, start = server.cpu_seconds(), time.perf_counter()
    steps = histogram(server, "step_seconds")
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    after = histogram(server, "step_seconds")
    tokens = result["completion_tokens"]
    return {**{k: flags[k] for k in ("requests", "concurrency", "prompt", "output")}, "requests_per_second": result["requests_per_second"],
            "tokens_per_second": result["output_tokens_per_second"], "itl_p50_ms": result["itl_ms"]["p50"],
            "itl_p99_ms": result["itl_ms"]["p99"], "ttft_p50_ms": result["ttft_ms"]["p50"],
            "engine_step_ms": 1e3 * (after[0] - steps[0]) / max(1, after[1] - steps[1]),
            "server_cpu_us_per_token": 1e6 * (server.cpu_seconds() - before) / tokens,
            "server_cores": (server.cpu_seconds() - before) / (time.perf_counter() - start), "failed": result["failed"]}


def delays(times, window=50):
    """Delay of each token in seconds relative to the earliest one of its window."""
    late = [t - i * PACE for i, t in enumerate(times)]
    return [d - min(late[i:i + window]) for i in range(0, len(late), window) for d in late[i:i + window]]


def paced(args, server, streams):
    """One event per token; the streams start within one step of each other and then run in lockstep."""
    all_streams = [Stream(server, f"stream {i}", int(args.seconds / PACE)) for i in range(streams)]
    selector = selectors.DefaultSelector()
    for s in all_streams:
        selector.register(s.socket, selectors.EVENT_READ, s)
    cpu, start = server.cpu_seconds(), time.perf_counter()
    while not all(s.done for s in all_streams):
        for key, _ in selector.select():
            key.data.read()
            if key.data.done:
                selector.unregister(key.data.socket)
    cpu, took = server.cpu_seconds() - cpu, time.perf_counter() - start
    over = sorted(1e3 * delay for s in all_streams for delay in delays(s.times))
    gaps = sorted(1e3 * (b - a) for s in all_streams for a, b in zip(s.times, s.times[1:]))
    at = lambda share: over[min(len(over) - 1, int(share * len(over)))]
    return {"streams": streams, "tokens": sum(len(s.times) for s in all_streams), "tokens_per_second_each": (len(over) / took) / streams,
            "overhead_p50_ms": at(0.5), "overhead_p99_ms": at(0.99), "overhead_p999_ms": at(0.999), "overhead_max_ms": over[-1],
            "gap_p50_ms": gaps[len(gaps) // 2], "gap_max_ms": gaps[-1],
            "server_cpu_us_per_token": 1e6 * cpu / max(1, len(over)), "server_cores": cpu / took}


def show(row):
    print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row


def with_server(args, more, rows):
    with Server(args.tokamak, args.model, "--backend", "null", "--context", 8192, "--kv-blocks", 40000, *more) as server:
        return [show(row(server)) for row in rows]


def main():
    args = parse_args()
    result = {"load_average": os.getloadavg()[0]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as machine:
        json.dump({"name": "paced", "flops": 1e18, "bandwidth": 1e18, "launch_seconds": PACE, "real_time": True}, machine)
        machine.flush()
        result["paced"] = with_server(args, ["--machine", machine.name], [lambda s, n=n: paced(args, s, n) for n in (1, 16, 64)])
    result["saturated"] = with_server(args, [], [lambda s, f=f: bench(args, s, **f) for f in (
        {"requests": args.requests, "concurrency": 1, "prompt": 16, "output": 1},
        {"requests": args.requests, "concurrency": 8, "prompt": 16, "output": 1},
        {"requests": args.requests // 4, "concurrency": 32, "prompt": 128, "output": 1},
        {"requests": 20, "concurrency": 1, "prompt": 16, "output": 512},
        {"requests": 64, "concurrency": 8, "prompt": 16, "output": 512},
        {"requests": 128, "concurrency": 32, "prompt": 16, "output": 512})])
    result["load_average_after"] = os.getloadavg()[0]
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
