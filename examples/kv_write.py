#!/usr/bin/env python3
"""A write to the KV cache survives dead-code elimination, although nothing in this call reads it.

A state is an argument and a result: `append` takes a version of it and gives the next one. The last version of each state
is a result of the function, so a write can never be dead code; `exp`, which nothing reads either, is.
"""
import tempfile

from common import HERE, expect, tokamak, tokamak_json

GRAPH = HERE / "kv_write.tkg"
report = tokamak_json("debug", "opt", GRAPH, "--passes", "dead-code")["functions"]["step"]
for when in ("before", "after"):
    ops = {op: n for op, n in report[when]["ops"].items() if op != "input"}
    print(f"{when:>6}: {ops}")
print(tokamak("debug", "opt", GRAPH, "--passes", "dead-code").stdout)
print(tokamak("debug", "check", GRAPH).stdout.strip())
expect(report["after"]["ops"].get("append") == 1, "the write is there")
expect("exp" in report["before"]["ops"] and "exp" not in report["after"]["ops"], "what nobody reads is gone")

# Without the state among the results the text is refused: a write cannot get lost by writing the graph carelessly.
text = GRAPH.read_text().replace("  return kv = %5\n", "")
with tempfile.NamedTemporaryFile("w", suffix=".tkg") as bad:
    bad.write(text)
    bad.flush()
    refused = tokamak("debug", "opt", bad.name, may_fail=True)
print("without `return kv`:", refused.stderr.strip())
expect(refused.returncode != 0 and "kv" in refused.stderr, "a function must return the states it takes")
