#!/usr/bin/env python3
"""A write to the KV cache survives dead-code elimination, although nothing in this call reads it.

A state is an argument and a result: `append` takes a version of it and returns the next one. The last version of each state
is a result of the function, so a write can never be dead code; the unused `exp` is.
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
expect(report["after"]["ops"].get("append") == 1, "the write is kept")
expect("exp" in report["before"]["ops"] and "exp" not in report["after"]["ops"], "the unused op is removed")

# The text is rejected if the state is not among the results, so that a write cannot be lost by mistake.
text = GRAPH.read_text().replace("  return kv = %5\n", "")
with tempfile.NamedTemporaryFile("w", suffix=".tkg") as bad:
    bad.write(text)
    bad.flush()
    refused = tokamak("debug", "opt", bad.name, may_fail=True)
print("without `return kv`:", refused.stderr.strip())
expect(refused.returncode != 0 and "kv" in refused.stderr, "a function must return the states it takes")
