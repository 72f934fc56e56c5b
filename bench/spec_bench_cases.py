#!/usr/bin/env python3
"""Prompts of Spec-Bench as cases of `tokamak bench speculate`.

    bench/spec_bench_cases.py question.jsonl --each 4 > cases.json
    tokamak bench speculate MODEL --cases cases.json --no-adaptive --drafts 8

question.jsonl: data/spec_bench/question.jsonl of github.com/hemingkx/Spec-Bench. The first turns are taken, spread evenly over each
of its six tasks; the categories of MT-Bench are one task, as in its tables.
"""
import argparse
import collections
import json
import pathlib
import sys

TASKS = {"translation": "translation", "summarization": "summarization", "qa": "question answering", "math_reasoning": "mathematical reasoning",
         "rag": "retrieval-augmented"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("questions", type=pathlib.Path)
    p.add_argument("--each", type=int, default=4, help="prompts of each task")
    args = p.parse_args()
    tasks = collections.defaultdict(list)
    for line in args.questions.read_text().splitlines():
        question = json.loads(line)
        tasks[TASKS.get(question["category"], "multi-turn conversation")].append(question["turns"][0])
    cases = [{"kind": kind, "prompt": prompts[i * len(prompts) // args.each]} for kind, prompts in tasks.items() for i in range(args.each)]
    json.dump(cases, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
