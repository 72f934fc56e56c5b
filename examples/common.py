"""Shared by the examples: finding the program, running it, and printing tables."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BINARY = os.environ.get("TOKAMAK_BINARY", str(HERE.parent / "build/release/tokamak"))


def tokamak(*args, may_fail=False, **kwargs):
    """Runs a verb and returns the finished process. An error ends the example with the program's own message."""
    done = subprocess.run([BINARY, *map(str, args)], text=True, capture_output=True, **kwargs)
    if done.returncode and not may_fail:
        sys.exit(f"tokamak {' '.join(map(str, args))}: {done.stderr.strip()}")
    return done


def tokamak_json(*args, **kwargs):
    return json.loads(tokamak(*args, "--json", **kwargs).stdout)


def table(head, rows):
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))))


def expect(truth, what):
    """Fails the example if it no longer demonstrates what it claims."""
    if not truth:
        sys.exit(f"no longer true: {what}")
