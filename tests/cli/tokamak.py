"""Runs the built program for the black-box tests."""
import json
import os
import pathlib
import subprocess

BINARY = os.environ["TOKAMAK_BINARY"]
TINY = pathlib.Path(os.environ["TOKAMAK_TINY_MODELS"])
FAMILIES = pathlib.Path(os.environ["TOKAMAK_TINY_FAMILIES"])
SOURCE = pathlib.Path(os.environ["TOKAMAK_SOURCE_DIR"])


def run(*args, stdin=None, timeout=120):
    """CompletedProcess with text streams; never raises on a bad exit code."""
    return subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout)


def run_json(*args, stdin=None, timeout=120):
    done = run(*args, stdin=stdin, timeout=timeout)
    assert done.returncode == 0, f"{args}: exit {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)
