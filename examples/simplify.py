#!/usr/bin/env python3
"""What simplification removes, pass by pass.

simplify.tkg contains typical exporter output: the same norm twice, a dropout left over from training, a multiplication
by one, and an unused node. `tokamak debug opt` reads it, runs the passes and counts nodes.
"""
from common import HERE, expect, table, tokamak, tokamak_json

GRAPH = HERE / "simplify.tkg"
written = sum(" = " in line and "input" not in line for line in GRAPH.read_text().splitlines() if line.startswith("  %"))
EXACT = ("--disable-pass", "fuse,fold-norms")  # the first forms kernels, the second changes rounding
report = tokamak_json("debug", "opt", GRAPH, *EXACT)["functions"]["main"]

print(f"as written: {written} ops; read: {report['before']['nodes']} (equal pure nodes are merged when reading)")
rows = []
for p in report["passes"]:
    if p["fired"] or p["nodes_before"] != p["nodes_after"]:
        rules = ", ".join(f"{name} x{n}" for name, n in p["rules"].items())
        rows.append((p["name"], p["nodes_before"], p["nodes_after"], rules or "-"))
table(("pass (inputs and weights count as nodes)", "before", "after", "rules"), rows)
print(f"left: {report['after']['nodes']} ops\n")
print(tokamak("debug", "opt", GRAPH, *EXACT).stdout)

check = tokamak("debug", "check", GRAPH, *EXACT)
print(check.stdout.strip())
expect(written == 8 and report["before"]["nodes"] == 7, "eight ops are written, seven are read")
expect({"exp", "dropout", "mul"}.isdisjoint(report["after"]["ops"]), "dropout, multiplication by one and the unused op are removed")
