#!/usr/bin/env python3
"""The effect of each group of compiler passes: nodes, kernel calls, bytes, arena and speed with it off and on.

    bench/ablation.py --tokamak build/release/tokamak model.gguf ... > bench/results/DATE-ablation.md

The first row is all passes, the last is eager: op by op, without fusion, memory plan or reuse. Rounds of the
variants alternate, so that changes in machine speed affect all of them; the best round counts.
"""
import argparse
import json
import os
import platform
import subprocess
import sys

# Groups of related passes; passes that the pipeline does not know are skipped.
GROUPS = {
    "all passes": [],
    "no fusion (fuse)": ["fuse"],
    "no simplification (canonicalize, fold-constants)": ["canonicalize", "fold-constants"],
    "no recognition (recognize)": ["recognize"],
    "no scale and norm folding (fold-scales, fold-norms)": ["fold-scales", "fold-norms"],
    "no facts of decode (use-facts)": ["use-facts"],
    "no pass but int8 activations": ["canonicalize", "fold-constants", "recognize", "fold-scales", "fold-norms", "use-facts", "fuse"],
}
EAGER = "eager (op by op)"


def run_json(tokamak, *args):
    done = subprocess.run([tokamak, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def variants(tokamak):
    known = {p["name"] for p in run_json(tokamak, "debug", "passes", "--json")}
    for name, passes in GROUPS.items():
        there = [p for p in passes if p in known]
        if passes and not there:
            continue
        yield name, ["--disable-pass", ",".join(there)] if there else []
    yield EAGER, ["--mode", "eager"]


def nodes_of(report):
    return report["passes"][-1]["nodes_after"] if report["passes"] else 0


def static_figures(options, model, flags):
    """Decode of one sequence and a whole prompt step, as reported by explain."""
    out = {}
    for fn, shape in (("decode", f"B=1,S={options.prompt}"), ("step", f"T={options.prompt}")):
        r = run_json(options.tokamak, "explain", model, "--fn", fn, "--shape", shape, "--json", *flags)
        out[fn] = {"nodes": nodes_of(r), "calls": r["totals"]["calls"], "bytes": r["totals"]["bytes"],
                   "arena": r["memory"]["peak"]}
    return out


def speeds(options, model, all_variants):
    """{variant: (prefill, decode)}: best tokens per second over alternating rounds."""
    best = {name: [0.0, 0.0] for name, _ in all_variants}
    for _ in range(options.rounds):
        for name, flags in all_variants:
            row = run_json(options.tokamak, "bench", "latency", model, "--prompt", options.prompt, "--gen", options.gen,
                           "--repeat", options.repeat, "--json", *flags)[0]
            for i, key in enumerate(("prefill_tokens_per_second_best", "decode_tokens_per_second_best")):
                best[name][i] = max(best[name][i], row[key])
    return best


def megabytes(n):
    return f"{n / 1e6:.2f}"


def table(options, model):
    all_variants = list(variants(options.tokamak))
    figures = {name: static_figures(options, model, flags) for name, flags in all_variants}
    speed = speeds(options, model, all_variants)
    print(f"## {os.path.basename(model)}\n")
    print("| variant | nodes decode / step | calls decode / step | MB per decode step | MB per prompt step | arena MB decode / step "
          "| prefill t/s | decode t/s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, _ in all_variants:
        d, s = figures[name]["decode"], figures[name]["step"]
        print(f"| {name} | {d['nodes']} / {s['nodes']} | {d['calls']} / {s['calls']} | {megabytes(d['bytes'])} | "
              f"{megabytes(s['bytes'])} | {megabytes(d['arena'])} / {megabytes(s['arena'])} | {speed[name][0]:.1f} | {speed[name][1]:.1f} |")
    whole, eager = speed["all passes"], speed[EAGER]
    d, e = figures["all passes"]["decode"], figures[EAGER]["decode"]
    print(f"\n**Compiled against eager: prefill {whole[0] / eager[0]:.2f}x, decode {whole[1] / eager[1]:.2f}x; "
          f"{e['calls']} -> {d['calls']} calls per decode step, arena {megabytes(e['arena'])} -> {megabytes(d['arena'])} MB.**\n")
    sys.stdout.flush()


def graph_table(options, path):
    """A graph of primitives, as exporters write it: shows passes that the model families do not need."""
    print(f"## {os.path.basename(path)}\n\n| variant | nodes | kernels | bytes of values and weights |\n|---|---|---|---|")
    rows = [(name, flags) for name, flags in variants(options.tokamak) if name != EAGER]
    first = run_json(options.tokamak, "debug", "opt", path, "--json", "--passes", "dead-code")
    print(f"| as written | {first['before']['nodes']} | {first['before']['kernels']} | {first['before']['bytes']:.0f} |")
    for name, flags in rows:
        after = run_json(options.tokamak, "debug", "opt", path, "--json", *flags)["after"]
        print(f"| {name} | {after['nodes']} | {after['kernels']} | {after['bytes']:.0f} |")
    print()


def machine():
    try:
        names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                 if line.startswith(("model name", "CPU part"))]
    except OSError:
        names = []
    return f"{platform.machine()}, {os.cpu_count()} cores, {names[0] if names else 'unknown CPU'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--graph", help="also report the effect of the passes on this graph text (.tkg)")
    parser.add_argument("--tokamak", default="build/release/tokamak")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=2, help="measured repeats inside a round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over all variants")
    options = parser.parse_args()
    print(f"# Ablation of the compiler's passes\n\n{machine()}; load {os.getloadavg()[0]:.2f} at the start. Best of {options.rounds} "
          f"alternating rounds of {options.repeat} repeats; prompt of {options.prompt} tokens in one step, then {options.gen} tokens, one "
          f"sequence.\nBytes, calls and arena are `tokamak explain`'s (decode at S={options.prompt}, step at T={options.prompt}).\n\n"
          f"    bench/ablation.py {' '.join(os.path.basename(a) if os.path.exists(a) else a for a in sys.argv[1:])}\n")
    for model in options.models:
        table(options, model)
    if options.graph:
        graph_table(options, options.graph)
    print(f"Load at the end: {os.getloadavg()[0]:.2f}.")


if __name__ == "__main__":
    main()
