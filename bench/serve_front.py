#!/usr/bin/env python3
"""What the front end alone can do: `tokamak serve --backend null` computes nothing, so every millisecond is the server's.

    bench/serve_front.py MODEL [--tokamak build/release/tokamak] [--requests 2000] [--json]

Requests/s with answers of one token, streamed tokens/s with answers of 512, at 1, 8 and 32 clients. The time between two tokens
at a client is the engine's step and the front end's share; the mean step is reported beside it. Client and server share the
machine's cores; server_cpu_us_per_token is the server's part alone, engine included.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokamak", default="build/release/tokamak")
    p.add_argument("--requests", type=int, default=2000)
    p.add_argument("--json", action="store_true")
    return p.parse_args()


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, args):
        self.process = subprocess.Popen([args.tokamak, "serve", args.model, "--backend", "null", "--port", "0", "--context", "2048",
                                         "--kv-blocks", "20000"], stdout=subprocess.PIPE, text=True)
        text = ""
        while "ready at" not in text:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(text)
            text += line
        self.url = re.search(r"http://\S+", text).group()

    def histogram(self, name):
        """(sum, count) of a histogram of /metrics."""
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        value = lambda kind: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"tokamak_{name}_{kind}"))
        return value("sum"), value("count")


def bench(args, server, **flags):
    command = [args.tokamak, "bench", "serve", "--url", server.url, "--json", "--warmup", "2"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    before, start = cpu_seconds(server.process.pid), time.perf_counter()
    steps = server.histogram("step_seconds")
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    after = server.histogram("step_seconds")
    tokens = result["completion_tokens"]
    return {**{k: flags[k] for k in ("requests", "concurrency", "prompt", "output")}, "requests_per_second": result["requests_per_second"],
            "tokens_per_second": result["output_tokens_per_second"], "itl_p50_ms": result["itl_ms"]["p50"],
            "itl_p99_ms": result["itl_ms"]["p99"], "ttft_p50_ms": result["ttft_ms"]["p50"],
            "engine_step_ms": 1e3 * (after[0] - steps[0]) / max(1, after[1] - steps[1]),
            "server_cpu_us_per_token": 1e6 * (cpu_seconds(server.process.pid) - before) / tokens,
            "server_cores": (cpu_seconds(server.process.pid) - before) / (time.perf_counter() - start), "failed": result["failed"]}


def main():
    args = parse_args()
    server = Server(args)
    rows = []
    try:
        for flags in ({"requests": args.requests, "concurrency": 1, "prompt": 16, "output": 1},
                      {"requests": args.requests, "concurrency": 8, "prompt": 16, "output": 1},
                      {"requests": args.requests // 4, "concurrency": 32, "prompt": 128, "output": 1},
                      {"requests": 20, "concurrency": 1, "prompt": 16, "output": 512},
                      {"requests": 64, "concurrency": 8, "prompt": 16, "output": 512},
                      {"requests": 128, "concurrency": 32, "prompt": 16, "output": 512}):
            rows.append(bench(args, server, **flags))
            if not args.json:
                print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    finally:
        server.process.terminate()
        server.process.wait()
    if args.json:
        print(json.dumps({"load_average": os.getloadavg()[0], "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
