"""Jump-forward on and off, in turns, on the schemas of bench/grammar_cases.json: python bench/jump_forward.py TOKAMAK MODEL [--rounds N] [--cases FILE]

Starts a server. For every schema a chat request is answered greedily with both settings; prints tokens of the answer, tokens that were forced (each saves a step), the speed with and
without, and whether the texts are equal.
"""
import argparse
import json
import pathlib
import re
import statistics
import time
import urllib.request

from served import Server


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def metric(base, name):
    with urllib.request.urlopen(base + "/metrics") as answer:
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", answer.read().decode(), re.M))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokamak")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--cases", default=pathlib.Path(__file__).parent / "grammar_cases.json", type=pathlib.Path)
    args = parser.parse_args()
    cases = json.loads(args.cases.read_text())
    with Server(args.tokamak, args.model) as server:
        base = server.url
        print("| schema | tokens | forced | tokens/s without | with | ratio | same text |\n|---|---|---|---|---|---|---|")
        total = [0, 0, 0.0, 0.0]
        for case in cases:
            body = {"messages": [{"role": "user", "content": "Invent one entry and write it as JSON."}], "temperature": 0, "max_tokens": args.max_tokens,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": case["schema"]}}}
            post(base + "/v1/chat/completions", body)  # compiles the grammar and computes the prompt
            seconds, texts, tokens, forced = {False: [], True: []}, {}, {}, 0
            for _ in range(args.rounds):
                for jump in False, True:
                    before, start = metric(base, "tokamak_jump_forward_tokens_total"), time.monotonic()
                    answer = post(base + "/v1/chat/completions", {**body, "jump_forward": jump})
                    seconds[jump].append(time.monotonic() - start)
                    forced = metric(base, "tokamak_jump_forward_tokens_total") - before if jump else forced
                    texts[jump], tokens[jump] = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
            plain, fast = (tokens[j] / statistics.median(seconds[j]) for j in (False, True))
            total = [total[0] + tokens[True], total[1] + forced, total[2] + plain, total[3] + fast]
            print(f"| {case['name']} | {tokens[True]} | {forced:.0f} | {plain:.1f} | {fast:.1f} | {fast / plain:.2f} | {'yes' if texts[False] == texts[True] else 'no'} |", flush=True)
        print(f"| all | {total[0]} | {total[1]:.0f} | {total[2] / len(cases):.1f} | {total[3] / len(cases):.1f} | {total[3] / total[2]:.2f} | |")


if __name__ == "__main__":
    main()
