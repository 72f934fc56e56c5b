#!/usr/bin/env python3
"""Fails if a lane includes a lane that it must not depend on. ARCHITECTURE.md explains the table.

Include paths are relative to src/ (`#include "base/error.h"`), so a quoted include starts with its lane.
"""
import pathlib
import re
import sys

# lane -> lanes it may include (besides itself); lowest first. ARCHITECTURE.md has the same table and a picture of it.
LANES = {
    "base": [],
    "tensor": ["base"],
    "ops": ["tensor", "base"],
    "loop": ["ops", "tensor", "base"],
    "graph": ["ops", "tensor", "base"],
    "plan": ["loop", "ops", "tensor", "base"],
    "backend": ["plan", "loop", "ops", "tensor", "base"],
    "compile": ["graph", "backend", "plan", "loop", "ops", "tensor", "base"],
    "text": ["plan", "base"],
    "engine": ["backend", "plan", "base"],
    "serve": ["engine", "text", "base"],
    "api": ["serve", "engine", "text", "compile", "backend", "plan", "base"],
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


def check_document(text):
    """Yields a message where the table or the picture of ARCHITECTURE.md differs from LANES."""
    rows = {lane: set(re.findall(r"[a-z]+", may)) for lane, may in re.findall(r"^\| `([a-z]+)/` \| ([^|]*) \|", text, re.MULTILINE)}
    for lane in sorted(LANES.keys() | rows.keys()):
        if set(LANES.get(lane, ["?"])) != rows.get(lane):
            yield f"ARCHITECTURE.md: the row of {lane}/ does not say what tools/check_layers.py says"
    picture = re.search(r"^```mermaid\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    edges = re.findall(r"^ *([a-z]+) --> ([a-z]+)", picture.group(1).lower() if picture else "", re.MULTILINE)
    for lane, other in edges:
        if lane in LANES and other not in LANES[lane]:
            yield f"ARCHITECTURE.md: the picture has an arrow from {lane} to {other}, which tools/check_layers.py forbids"
    for lane in LANES.keys() - {name for edge in edges for name in edge}:
        yield f"ARCHITECTURE.md: the picture lacks {lane}"


def self_test():
    """The check must be able to fail: a synthetic tree with four errors, and documents with one each."""
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
    rows = "".join(f"| `{lane}/` | {' '.join(may)} |\n" for lane, may in LANES.items())
    arrows = "".join(f"  {lane.title()} --> {other.title()}\n" for lane, may in LANES.items() for other in may)
    for document, errors in [(f"{rows}```mermaid\n{arrows}```\n", 0), (f"{rows}```mermaid\n{arrows}  base --> api\n```\n", 1),
                             (rows.replace("| plan base |", "| plan tensor base |") + f"```mermaid\n{arrows}```\n", 1)]:
        messages = list(check_document(document))
        if len(messages) != errors:
            sys.exit("check_layers: self-test of the document found " + repr(messages))


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    files, messages = check_tree(root)
    messages += check_document((root / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    for m in messages:
        print(m)
    print(f"check_layers: {files} files, {len(messages)} errors")
    return 1 if messages or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
