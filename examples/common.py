"""Shared by the examples: finding the program, running it, and printing tables."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BINARY = os.environ.get("TOKAMAK_BINARY", str(HERE.parent / "build/release/tokamak"))

# Ctrl-C ends an example without a traceback; its temporary folders have been removed by then.
sys.excepthook = lambda kind, *rest: None if kind is KeyboardInterrupt else sys.__excepthook__(kind, *rest)
if {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print(sys.modules["__main__"].__doc__.strip()))


def say(text):
    """What runs now, for a person who waits."""
    if sys.stderr.isatty():
        print(f"... {text}", file=sys.stderr, flush=True)


def script(path, *args, **kwargs):
    """Runs a script of the repository, which prints its own errors."""
    done = subprocess.run([sys.executable, HERE.parent / path, *map(str, args)], text=True, **kwargs)
    if done.returncode:
        sys.exit(f"{path} failed")
    return done


def tokamak(*args, may_fail=False, **kwargs):
    """Runs a verb and returns the finished process. An error ends the example with the program's own message."""
    try:
        done = subprocess.run([BINARY, *map(str, args)], text=True, capture_output=True, **kwargs)
    except OSError as error:
        sys.exit(f"cannot run {BINARY} ({error.strerror}): build it with make build, or name another one in TOKAMAK_BINARY")
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
