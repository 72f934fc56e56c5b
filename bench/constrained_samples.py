"""Samples of a real model under JSON schemas: python bench/constrained_samples.py [--samples 200] [--temperature 1.5] [--tokens 96] TOKAMAK MODEL [-- FLAGS]

For every schema of bench/grammar_cases.json as many answers are drawn, through response_format, with jump-forward, and as arguments of a call that tool_choice
forces (the template of the model has to show tools: -- --chat-template FILE). Finished ones must be valid for the Python package jsonschema; those that --tokens cut off are counted. Ends with an error if one is not valid.
"""
import argparse
import http.client
import json
import pathlib
import sys

import jsonschema

from served import Server


def post(server, path, **body):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    if "error" in answer:
        sys.exit(answer["error"]["message"])
    return answer


def request(way, schema):
    """Fields of the request, and how the text is found in a choice."""
    if way == "tool_choice":
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        return {"tools": [tool], "tool_choice": "required"}, lambda c: c["message"]["tool_calls"][0]["function"]["arguments"]
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    return {**fields, "jump_forward": way == "jump_forward"}, lambda c: c["message"]["content"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokamak")
    parser.add_argument("model")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("flags", nargs="*", help="for the server, after --")
    args = parser.parse_args()
    cases = json.loads((pathlib.Path(__file__).parent / "grammar_cases.json").read_text())
    finished = cut = 0
    invalid = []
    with Server(args.tokamak, args.model, *args.flags) as server:
        for case in cases:
            schema = case["schema"]
            cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            validator = cls(schema, format_checker=cls.FORMAT_CHECKER)
            for way in ("response_format", "jump_forward", "tool_choice"):
                if way == "tool_choice" and schema.get("type") != "object":
                    continue
                fields, text_of = request(way, schema)
                messages = [{"role": "user", "content": "Write an example as JSON."}]
                for seed in range(0, args.samples, args.batch):
                    answer = post(server, "/v1/chat/completions", messages=messages, n=args.batch, seed=seed, temperature=args.temperature, max_tokens=args.tokens, **fields)
                    for choice in answer["choices"]:
                        if choice["finish_reason"] == "length":
                            cut += 1
                            continue
                        finished += 1
                        text = text_of(choice)
                        try:
                            errors = [e.message for e in validator.iter_errors(json.loads(text))]
                        except ValueError as e:
                            errors = [str(e)]
                        if errors:
                            invalid.append(f"{case['name']}, {way}: {text}: {errors[0]}")
    print(f"{len(cases)} schemas, {finished} finished answers, {cut} cut off, {len(invalid)} invalid")
    for line in invalid[:20]:
        print("FAILED", line)
    sys.exit(bool(invalid))


if __name__ == "__main__":
    main()
