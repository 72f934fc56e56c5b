"""JSONSchemaBench: python bench/json_schema_bench.py GRAMMAR_DRIVER DATA [--walks N] [--match NAME] [--rejected FILE]

DATA is the folder maskbench/data of github.com/guidance-ai/jsonschemabench: a file has a schema and texts that are valid or not. Every schema is given to the driver
(tests/grammar/grammar_driver.cc) with its texts. Prints how many are accepted, which texts match, the CPU time of compilation, and why schemas are rejected; with --walks,
N random texts of each grammar are checked with the Python package jsonschema. A failure is an invalid text that matches or is generated. --rejected writes file, place and reason, one per line.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import time

import jsonschema

SLOW = 10  # seconds for one schema with its texts, of the clock


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the driver ended")
        return json.loads(line)


def generates_invalid(schema, walks):
    """A text that the schema does not allow, or None."""
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = cls(schema, format_checker=cls.FORMAT_CHECKER)
    for text in walks:
        try:
            if not validator.is_valid(json.loads(text)):
                return text
        except Exception:  # schemas that jsonschema cannot read
            return None
    return None


def reason(error):
    """The message without names: its keyword and what is said about it."""
    place = re.search(r"#\S*?/([$\w]+): (.*)$", error, re.DOTALL)
    text = f"{place.group(1)}: {place.group(2)}" if place else error
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", text)[:110]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--walks", type=int, default=0)
    parser.add_argument("--match", default="")
    parser.add_argument("--rejected", type=argparse.FileType("w"))
    args = parser.parse_args()
    driver, count, why, times, failures, slow = Driver(args.driver), collections.Counter(), collections.Counter(), [], [], []
    for path in sorted(args.data.glob(f"*{args.match}*.json" if args.match else "*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        tests = case.get("tests", [])
        texts = [json.dumps(t["data"], ensure_ascii=False) for t in tests]
        start = time.monotonic()
        answer = driver.ask({"schema": case["schema"], "texts": texts, "walks": args.walks, "seed": 1})
        if time.monotonic() - start > SLOW:
            slow.append(path.name)
        count["schemas"] += 1
        times.append(answer["compile_ms"])
        if "error" in answer:
            why[reason(answer["error"])] += 1
            if args.rejected:
                print(path.name, answer["error"], sep="\t", file=args.rejected)
            continue
        count["accepted"] += 1
        for test, text, matches in zip(tests, texts, answer["matches"]):
            kind = "valid" if test["valid"] else "invalid"
            count[kind] += 1
            count[f"{kind} that match"] += matches
            if matches and not test["valid"]:
                failures.append(f"{path.name} matches the invalid text {text[:200]}")
        count["walks"] += len(answer["walks"])
        if (text := generates_invalid(case["schema"], answer["walks"])) is not None:
            failures.append(f"{path.name} generates {text[:200]}")
    times.sort()
    print(f"{count['schemas']} schemas, {count['accepted']} accepted ({100 * count['accepted'] / max(1, count['schemas']):.1f} %)")
    print(f"invalid texts that match: {count['invalid that match']} of {count['invalid']}; valid ones: {count['valid that match']} of {count['valid']}; random texts: {count['walks']}")
    print("compilation, ms of CPU time: " + ", ".join(f"{name} {times[min(len(times) - 1, int(q * len(times)))]:.2f}"
                                                    for name, q in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1))))
    print(f"above 20 ms: {sum(t > 20 for t in times)}; above {SLOW} s with its texts: {slow}")
    for text, n in why.most_common(60):
        print(f"{n:5} {text}")
    for failure in failures:
        print("FAILED", failure)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
