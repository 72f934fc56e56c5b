#!/usr/bin/env python3
"""Compares llama.cpp's logits of the tiny GGUF files with the goldens, or writes goldens of models that transformers computes otherwise.

    tools/llama_goldens.py --llama SOURCE --build BUILD --models FOLDER [FOLDER ...]     # a table: model, NMSE
    tools/llama_goldens.py ... --write mamba2_grouped                                   # writes tests/golden/families

SOURCE is llama.cpp's repository, BUILD its build folder with shared libraries, FOLDER what tools/tiny_models.py wrote."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
GOLDENS = TOP / "tests" / "golden"


def build(source, libraries, out):
    command = ["g++", "-std=c++17", "-O1", f"-I{source}/include", f"-I{source}/ggml/include", TOP / "tools" / "llama_logits.cc",
               f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-o", out]
    subprocess.run(command, check=True)


def run(program, model, sequences):
    """Logits of the rows and the greedy continuation of each sequence; an error is a text."""
    lines = [f"{' '.join(map(str, s['ids']))}|{' '.join(map(str, s['rows']))}|{len(s['greedy'])}" for s in sequences]
    done = subprocess.run([program, model], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["failed"])[0]
    out = iter(done.stdout.splitlines())
    return [([[float(x) for x in next(out).split()] for _ in s["rows"]], [int(x) for x in next(out).split()]) for s in sequences]


def compare(program, model, golden):
    got = run(program, model, golden["sequences"])
    if isinstance(got, str):
        return got
    worst, equal, tokens = 0.0, 0, 0
    for (logits, greedy), want in zip(got, golden["sequences"]):
        for a, b in zip(logits, want["logits"]):
            worst = max(worst, sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))
        equal += sum(x == y for x, y in zip(greedy, want["greedy"]))
        tokens += len(want["greedy"])
    return f"{worst:.1e} | {equal}/{tokens}"


def write(program, name, folder):
    """Prompts are those of mamba2's golden."""
    sys.path.insert(0, str(TOP / "tools"))
    import tiny_families
    import tiny_models
    like = json.loads((GOLDENS / "families" / "mamba2.json").read_text())
    golden = {"format": 1, "model": name, "gguf": True, "folder": name not in tiny_families.GGUF_ONLY, "vocab": like["vocab"],
              "weights_sha256": tiny_models.fingerprint(tiny_families.tensors_of(name).hf), "reference": "llama.cpp", "sequences": []}
    for s, (logits, greedy) in zip(like["sequences"], run(program, folder / f"{name}.gguf", like["sequences"])):
        golden["sequences"].append({"ids": s["ids"], "rows": s["rows"], "greedy": greedy, "logits": logits})
    tiny_models.write_golden(GOLDENS / "families" / f"{name}.json", golden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--write", nargs="*", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "llama_logits"
        build(args.llama, args.build / "bin", program)
        for name in args.write:
            write(program, name, args.models[-1])
        for path in [] if args.write else sorted(GOLDENS.glob("numerics/*.json")) + sorted(GOLDENS.glob("families/*.json")):
            golden = json.loads(path.read_text())
            files = [m / f"{golden['model']}.gguf" for m in args.models if (m / f"{golden['model']}.gguf").exists()]
            if files:
                print(f"| {path.stem} | {compare(program, files[0], golden)} |", flush=True)


if __name__ == "__main__":
    main()
