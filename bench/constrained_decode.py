"""Decode time of constrained against free answers: python bench/constrained_decode.py TOKAMAK MODEL [--llama bench/llama_grammar's program] [--threads 1] [--rounds 5] [--schema]

One greedy request at a time, with the grammar bench/constrained.gbnf (or a JSON schema) and without, in turns; as many tokens of both. The first request compiles the grammar and is not
counted. Prints milliseconds per token, of the clock and of CPU time (which other programs change little), and the median of the ratios of all rounds: what two requests in a row cost changes
less with the machine's clock than what all of them do. --llama runs the same with llama.cpp.
"""
import argparse
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from served import Server

SCHEMA = {"type": "array", "minItems": 30, "items": {"type": "object", "required": ["name", "age", "email", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 40}, "age": {"type": "integer", "minimum": 1, "maximum": 999},
    "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}}}}
PROMPT = "A JSON list of people with name, age, email and tags:\n"


def ask(port, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "temperature": 0, **fields}), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    if "error" in answer:
        raise SystemExit(answer["error"]["message"])
    return answer


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokamak")
    parser.add_argument("model")
    parser.add_argument("--llama")
    parser.add_argument("--converter", help="llama.cpp's examples/json_schema_to_grammar.py, for --llama with --schema")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schema", action="store_true", help="a JSON schema instead of the grammar")
    args = parser.parse_args()
    if args.llama and args.schema and not args.converter:
        parser.error("--llama with --schema needs --converter: llama.cpp reads grammars only")
    path = pathlib.Path(__file__).parent / "constrained.gbnf"
    with Server(args.tokamak, args.model, "--threads", args.threads, "--no-prefix-cache") as server:
        kinds = {"free": {"ignore_eos": True}, "constrained": {"guided_json": SCHEMA} if args.schema else {"grammar": path.read_text()}}
        cpu, wall = {k: [] for k in kinds}, {k: [] for k in kinds}
        for r in range(-1, args.rounds):
            for kind, fields in sorted(kinds.items(), reverse=r % 2 == 0):
                times = []
                for tokens in 8, args.tokens + 8:  # the difference is without the prompt
                    start, used = time.perf_counter(), server.cpu_seconds()
                    answer = ask(server.port, max_tokens=tokens, **fields)
                    times.append((server.cpu_seconds() - used, time.perf_counter() - start))
                    assert answer["usage"]["completion_tokens"] == tokens, answer
                if r >= 0:
                    cpu[kind].append(1e3 * (times[1][0] - times[0][0]) / args.tokens)
                    wall[kind].append(1e3 * (times[1][1] - times[0][1]) / args.tokens)
        c, w = {k: median(v) for k, v in cpu.items()}, {k: median(v) for k, v in wall.items()}
        pairs = lambda times: median([b / a for a, b in zip(times["free"], times["constrained"])])
        print(f"tokamak:   free {c['free']:.2f} ms CPU, {w['free']:.2f} ms; constrained {c['constrained']:.2f} ms CPU, {w['constrained']:.2f} ms; "
              f"ratio {pairs(cpu):.3f} CPU, {pairs(wall):.3f}")
        print(answer["choices"][0]["text"][:60])
    if args.llama:
        with tempfile.TemporaryDirectory() as folder:
            if args.schema:
                grammar = subprocess.run([sys.executable, args.converter, "-"], input=json.dumps(SCHEMA), check=True, capture_output=True, text=True).stdout
                path = pathlib.Path(folder) / "schema.gbnf"
                path.write_text(grammar)
            print(subprocess.run([args.llama, args.model, str(path), PROMPT, str(args.tokens), str(args.threads), str(args.rounds)], check=True, capture_output=True,
                                 text=True).stdout)


if __name__ == "__main__":
    main()
