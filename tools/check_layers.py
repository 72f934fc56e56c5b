#!/usr/bin/env python3
"""Fails if a lane includes a lane that it must not depend on. ARCHITECTURE.md explains the table.

Include paths are relative to src/ (`#include "base/error.h"`), so a quoted include starts with its lane.
"""
import pathlib
import re
import sys

# lane -> lanes it may include (besides itself); lowest first
LANES = {
    "base": [],
    "tensor": ["base"],
    "ops": ["tensor", "base"],
    "loop": ["ops", "tensor", "base"],
    "graph": ["ops", "loop", "tensor", "base"],
    "plan": ["ops", "loop", "tensor", "base"],
    "comm": ["tensor", "base"],
    "backend": ["plan", "loop", "ops", "comm", "tensor", "base"],
    "compile": ["graph", "plan", "loop", "ops", "backend", "tensor", "base"],
    "text": ["plan", "base"],
    "engine": ["plan", "comm", "backend", "tensor", "base"],
    "serve": ["engine", "text", "base"],
    "cluster": ["engine", "comm", "base"],
    "api": ["graph", "plan", "loop", "ops", "backend", "compile", "text", "engine", "serve", "cluster", "comm", "tensor", "base"],
}
# Deliberate exceptions: {file relative to src/: {lane: reason}}. Tests may include one more lane.
EXCEPTIONS = {}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SUFFIXES = {".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".inc"}


def check_file(path, src):
    """Yields a message for each include that violates the table."""
    name = path.relative_to(src)
    lane = name.parts[0]
    text = path.read_text(encoding="utf-8")
    for match in INCLUDE.finditer(text):
        target = match.group(1)
        line = text.count("\n", 0, match.start()) + 1
        where = f"src/{name}:{line}"
        if target.startswith(".") or "/" not in target:
            yield f'{where}: write the path of "{target}" relative to src/'
            continue
        other = target.split("/")[0]
        if other == lane:
            continue
        if other not in LANES:
            yield f'{where}: "{target}" is in no lane (libraries go in <angle brackets>)'
        elif other not in LANES[lane] and other not in EXCEPTIONS.get(str(name), {}):
            yield f"{where}: {lane}/ may not include {other}/ (\"{target}\"); it may include: {', '.join(LANES[lane])}"


def check_tree(root):
    src = root / "src"
    messages, files = [], 0
    for path in sorted(src.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        lane = path.relative_to(src).parts[0]
        if lane not in LANES:
            messages.append(f"src/{path.relative_to(src)}: src/{lane} is not a lane")
            continue
        files += 1
        messages += check_file(path, src)
    return files, messages


def self_test():
    """The check must be able to fail: a synthetic tree with four errors."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {
            "base/a.h": '#include <vector>\n#include "tensor/t.h"\n',    # upwards
            "engine/e.cc": '#include "engine/e.h"\n#include "graph/g.h"\n#include "plan/p.h"\n',  # forbidden
            "serve/s.cc": '#include "s.h"\n',                            # not from src/
            "misc/m.cc": "",                                             # no lane
        }.items():
            path = root / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _, messages = check_tree(root)
        if len(messages) != 4:
            sys.exit("check_layers: self-test found " + repr(messages))


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    files, messages = check_tree(root)
    for m in messages:
        print(m)
    print(f"check_layers: {files} files, {len(messages)} forbidden includes")
    return 1 if messages or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
