#!/usr/bin/env python3
"""Compares two commits on this machine: bits of logits and KV, greedy texts, and speed.

    tools/compare_builds.py OLD NEW --work FOLDER [--models M ...] [--latency MODEL] [--rounds 5] [--jobs 2]

OLD and NEW are git commits, or folders with a release build. A commit is cloned into FOLDER and built there (`logit_bits`, and
with --latency also `tokamak`); what is already built is not built again. Each runs tests/numerics/logit_bits.cc over the models
(default: the tiny models of the tests, written to FOLDER): logits of prefill in chunks, mixed steps and decode, the KV cache where the commit can read it back, and a
greedy answer, for cpu and ref, activations auto and f32, KV f32, f16 and int8. A commit without that program gets this tree's.
--latency runs `tokamak bench latency` of both in turn and prints medians. Exits with 1 if any line differs, or if no line was compared.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "tests/numerics/logit_bits.cc"
PLACES = {"logit_bits": "tests/numerics/logit_bits", "tokamak": "tokamak"}  # targets in a build folder
TARGET = """
add_executable(logit_bits EXCLUDE_FROM_ALL logit_bits.cc model_runner.cc)
target_include_directories(logit_bits PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(logit_bits PRIVATE tk_compile tk_backend)
"""


def build(what, work, targets, jobs):
    """The folder of a release build of a commit, or of a folder that has one."""
    if (folder := pathlib.Path(what)).is_dir():
        for target in targets:
            if not (folder / PLACES[target]).exists():
                sys.exit(f"{folder} has no {PLACES[target]}: cmake --build {folder} --target {target}")
        return folder.resolve()
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", what + "^{commit}"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True)
    if found.returncode != 0:
        sys.exit(f"{what} is neither a folder nor a commit")
    commit = found.stdout.strip()
    tree = work / commit
    if not tree.exists():
        subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", ROOT, tree], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "-q", commit], check=True)
        if not (tree / PROGRAM).exists():
            (tree / PROGRAM).write_text((ROOT / PROGRAM).read_text())
            with open(tree / "tests/numerics/CMakeLists.txt", "a") as f:
                f.write(TARGET)
    subprocess.run(["cmake", "--preset", "release"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "release", "-j", str(jobs), "--target", *targets], cwd=tree, check=True,
                   stdout=subprocess.DEVNULL)
    return tree / "build/release"


def tiny_models(folder):
    if not folder.exists():
        subprocess.run([sys.executable, ROOT / "tools/tiny_models.py", "--out", folder], check=True, stdout=subprocess.DEVNULL)
    return sorted(p for p in folder.iterdir() if p.suffix == ".gguf" or (p / "config.json").exists())


def bits(build_folder, model):
    """{backend, activations, KV type: {logits, kv, text}} or the error that the program printed."""
    program = build_folder / PLACES["logit_bits"]
    out, lines = subprocess.run([program, model], stdout=subprocess.PIPE, text=True, check=True).stdout, {}
    for line in out.splitlines():
        head, _, text = line.partition(" | ")
        words = head.split()
        if "logits" in words:
            at = words.index("logits")
            lines[tuple(words[at - 3:at])] = {"logits": words[at + 1], "kv": words[at + 3], "text": text}
        else:
            key, _, error = line.partition(": ")
            lines[tuple(key.split()[1:])] = {"error": error}
    return lines


def compare_bits(old, new, models):
    equal, errors, only_new, different = 0, 0, 0, []
    for model in models:
        a, b = bits(old, model), bits(new, model)
        for key in sorted(a.keys() | b.keys()):
            x, y = a.get(key, {"error": "no line"}), b.get(key, {"error": "no line"})
            if "error" in x and "error" in y:
                errors += 1
                continue
            if "error" in x:
                only_new += 1
                continue
            wrong = [f for f in ("logits", "kv", "text") if x.get(f) != y.get(f) and "-" not in (x.get(f), y.get(f))]
            if wrong:
                different.append(f"{model.name} {' '.join(key)}: {', '.join(wrong)} {y.get('error', '')}".rstrip())
            else:
                equal += 1
    print(f"{equal} lines equal, {len(different)} different, {only_new} that only NEW computes, {errors} that neither does")
    for line in different:
        print("  " + line)
    return equal > 0 and not different


def compare_speed(old, new, model, rounds):
    results = {}
    for _ in range(rounds):
        for name, folder in (("old", old), ("new", new)):
            command = [folder / "tokamak", "bench", "latency", model, "--prompt", "64", "--gen", "128", "--repeat", "1", "--json"]
            row = json.loads(subprocess.check_output(command, text=True))[0]
            for part in ("prefill", "decode"):
                results.setdefault((part, name), []).append(row[f"{part}_tokens_per_second"])
    for part in ("prefill", "decode"):
        a, b = (statistics.median(results[part, name]) for name in ("old", "new"))
        print(f"{part}: {a:.1f} -> {b:.1f} tokens/s ({b / a:.3f}), rounds " +
              ", ".join(f"{name} {min(results[part, name]):.1f} to {max(results[part, name]):.1f}" for name in ("old", "new")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, nargs="+", help="files and folders; default: the tiny models")
    parser.add_argument("--latency", type=pathlib.Path, help="also compare the speed of this model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    work = args.work.resolve()
    targets = ["logit_bits"] + (["tokamak"] if args.latency else [])
    old, new = (build(what, work, targets, args.jobs) for what in (args.old, args.new))
    same = compare_bits(old, new, args.models if args.models is not None else tiny_models(work / "tiny_models"))
    if args.latency:
        compare_speed(old, new, args.latency, args.rounds)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
