#!/usr/bin/env python3
"""Fails when a source file does not name what it includes.

The usual builds compile several files as one and precompile common headers, so a missing include can go unnoticed. This
compiles every file alone and without a precompiled header, syntax only. Reads build/plain/compile_commands.json.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys


def generate_headers(folder):
    """Headers that the build makes (embedded pages and rules)."""
    listed = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    headers = sorted({line.split(":")[0] for line in listed.stdout.splitlines() if re.search(r"generated/.*\.h:", line)})
    if headers:
        subprocess.run(["ninja", "-C", folder, *headers], check=True, stdout=subprocess.DEVNULL)


def syntax_command(entry):
    words = shlex.split(entry["command"])
    while words and not re.search(r"(g\+\+|c\+\+|clang\+\+)(-\d+)?$", words[0]):
        words.pop(0)  # launchers
    out, skip = [], False
    for word in words:
        if skip or word == "-c":
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif not word.startswith(("-M", "-O", "-g")):
            out.append(word)
    return out + ["-fsyntax-only", "-w"]


def check(entry):
    run = subprocess.run(syntax_command(entry), cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], run.returncode, run.stderr


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = root / "build" / "plain"
    generate_headers(str(folder))
    entries = [e for e in json.loads((folder / "compile_commands.json").read_text())
               if e["file"].startswith(str(root / "src")) or e["file"].startswith((str(root / "apps"), str(root / "tests")))]
    entries = list({e["file"]: e for e in entries}.values())  # tests compile some files again
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, code, errors in pool.map(check, entries):
            if code != 0:
                failed += 1
                lines = [line for line in errors.splitlines() if "error" in line][:3]
                print("\n".join([os.path.relpath(file, root) + ":", *("  " + line for line in lines)]))
    print(f"check_includes: {len(entries)} files, {failed} that do not compile alone")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
