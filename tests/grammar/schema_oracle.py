#!/usr/bin/env python3
"""Compares JSON schemas as grammars with the Python package jsonschema, and regular expressions with Python's.

Schemas of objects are also checked as parameters of a function, in the formats in which models write calls: what a model's chat template prints for a past
call with valid arguments must match and must be read as the same arguments, and whatever matches must be read as one call whose arguments are valid.

Every random text of a grammar must be valid under its schema, and no invalid text of schemas.json may match. Random texts of the expressions of
grammars.json, and changes of them, match or not as in Python; its other grammars have examples. The same holds for random schemas (random_schemas.py). With --suite DIR, the same for a checkout of JSON-Schema-Test-Suite; schemas that Tokamak rejects are counted by keyword.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys

try:
    import jsonschema
    import regex as unicode_expressions  # knows \p{...}
except ImportError as error:
    print(f"the Python package {error.name} is not installed")
    sys.exit(77)

from random_schemas import RandomSchemas, changed as changed_value


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the driver ended at {question}")
        return json.loads(line)


def validator_of(schema, draft):
    cls = jsonschema.Draft7Validator if draft == "draft7" else jsonschema.Draft202012Validator
    return cls(schema, format_checker=cls.FORMAT_CHECKER)


def dumps(data):
    return json.dumps(data, ensure_ascii=False)


class Checks:
    def __init__(self, driver, walks, thorough):
        self.driver, self.walks, self.thorough = driver, walks, thorough
        self.count = collections.Counter()
        self.refused = collections.Counter()
        self.failures = []
        self.unmatched = []  # calls with valid arguments that do not match although they are read again

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED {text}", file=sys.stderr)

    def check(self, name, schema, draft, valid, invalid):
        """Returns which of the valid texts match."""
        answer = self.driver.ask(schema=schema, texts=valid + invalid, walks=self.walks, seed=len(name))
        self.count["schemas"] += 1
        if "error" in answer:
            self.count["refused"] += 1
            keyword = re.search(r"(?:/([$\w]+))?: [^:]*$", answer["error"])
            self.refused[(keyword.group(1) if keyword else "") or answer["error"][:60]] += 1
            return answer["error"]
        validator = validator_of(schema, draft)
        for text in answer["walks"]:
            self.count["walks"] += 1
            errors = list(validator.iter_errors(json.loads(text)))
            if errors:
                self.fail(f"{name}: {dumps(schema)} generates {text}: {errors[0].message}")
        for text, matches in zip(invalid, answer["matches"][len(valid):]):
            self.count["invalid texts"] += 1
            if matches:
                self.fail(f"{name}: {dumps(schema)} matches the invalid text {text}")
        self.count["valid texts"] += len(valid)
        self.count["valid texts that match"] += sum(answer["matches"][:len(valid)])
        return answer["matches"][:len(valid)]


def own_schemas(checks):
    for case in json.loads((pathlib.Path(__file__).parent / "schemas.json").read_text(encoding="utf-8")):
        name, schema = case["name"], case["schema"]
        draft = "draft7" if "draft-07" in schema.get("$schema", "") else "draft2020-12"
        valid, invalid = [dumps(v) for v in case.get("valid", [])], [dumps(v) for v in case.get("invalid", [])]
        validator = validator_of(schema, draft)
        for texts, wanted in (case.get("valid", []), True), (case.get("invalid", []), False):
            for data in texts:
                if validator.is_valid(data) != wanted:
                    checks.fail(f"{name}: jsonschema disagrees about {dumps(data)}")
        result = checks.check(name, schema, draft, valid, invalid)
        if isinstance(result, str):
            if case.get("error") is None or case["error"] not in result:
                checks.fail(f"{name}: {result}")
        elif "error" in case:
            checks.fail(f"{name}: an error was expected: {case['error']}")
        else:
            calls(checks, name, schema, draft, case.get("valid", []), case.get("invalid", []))
            for text, matches in zip(valid, result):
                if not matches:
                    checks.fail(f"{name}: the valid text {text} does not match")


def qwen_value(value):
    return value if isinstance(value, str) else dumps(value) if isinstance(value, (dict, list)) else str(value)


def gemma_value(value, quote):
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma_value(v, quote)}" for k, v in sorted(value.items(), key=lambda item: item[0].lower())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(v, quote) for v in value) + "]"
    return str(value)


def glm_value(value):
    return value if isinstance(value, str) else dumps(value)


# What the models' chat templates print for a call of f with these arguments. For Llama 4: what its prompt asks for.
PRINTED = {
    "qwen3_coder": lambda a: "<function=f>\n" + "".join(f"<parameter={k}>\n{qwen_value(v)}\n</parameter>\n" for k, v in a.items()) + "</function>",
    "glm45": lambda a: "<tool_call>f\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{glm_value(v)}</arg_value>\n" for k, v in a.items()) + "</tool_call>",
    "glm4": lambda a: "f\n" + dumps(a),
    "gemma": lambda a: "<start_function_call>call:f" + gemma_value(a, "<escape>"),
    "gemma4": lambda a: "<|tool_call>call:f" + gemma_value(a, '<|"|>'),
    "llama4": lambda a: "[f(" + ", ".join(f"{k}={v!r}" for k, v in a.items()) + ")]",
    "mistral_args": lambda a: "[TOOL_CALLS]f[ARGS]" + dumps(a),
    "kimi_k2": lambda a: "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" + dumps(a),
    "deepseek": lambda a: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" + dumps(a) + "\n```",
}


def has_one_spelling(form, schema, arguments):
    """Formats other than JSON write members that the schema does not name last, and not all names of them; in Python, quotes in constants have a backslash."""
    if form in ("glm4", "kimi_k2", "deepseek", "mistral_args"):
        return True
    return all(name in schema.get("properties", {}) for name in arguments) and not (form == "llama4" and '\\"' in dumps(arguments))


def calls(checks, name, schema, draft, valid, invalid):
    """Whether a text without quotes is a string or something else is up to the schema; where a template's text is ambiguous, it need not match."""
    valid, invalid = ([v for v in values if isinstance(v, dict)] for values in (valid, invalid))
    if not isinstance(schema, dict) or not valid:
        return
    validator = validator_of(schema, draft)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    forms = list(PRINTED)
    if not checks.thorough:  # two formats for each schema, in turn
        checks.count["calls: turns"] += 1
        forms = [forms[(3 * checks.count["calls: turns"] + i) % len(forms)] for i in (0, 1)]
    for form in forms:
        printed = PRINTED[form]
        texts = [printed(a) for a in valid + invalid]
        answer = checks.driver.ask(calls=form, tools=tools, texts=texts, walks=max(2, checks.walks // 8), seed=len(name))
        checks.count["calls: schemas"] += 1
        if "error" in answer:
            checks.count["calls: refused"] += 1
            continue
        taken = list(zip(texts + answer["walks"], answer["matches"] + [True] * len(answer["walks"]), answer["parsed"]))
        for i, (text, matches, parsed) in enumerate(taken):
            arguments = json.loads(parsed[0][1]) if parsed else None
            if matches:
                checks.count["calls: texts that match"] += 1
                if not parsed or not all(validator.is_valid(json.loads(a)) for _, a in parsed):
                    checks.fail(f"{name}: {form}: {dumps(schema)} matches {text!r}, which is read as {parsed}")
            if i >= len(valid):
                continue
            checks.count["calls: valid arguments"] += 1
            same = arguments == valid[i]
            checks.count["calls: read again"] += same
            checks.count["calls: matching"] += same and matches
            if same and not matches and has_one_spelling(form, schema, valid[i]):
                checks.unmatched.append((name, form, text))


def changed(rng, text, alphabet):
    """The text with one or two characters more, less, or replaced."""
    chars = list(text)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(chars) + 1)
        chars[at:at + rng.randrange(2)] = rng.choice(["", rng.choice(alphabet)])
    return "".join(chars)


def expression(checks, regex):
    """\\d and \\w are ASCII, as in ECMAScript."""
    rng = random.Random(regex)
    wanted = unicode_expressions.compile(regex) if "\\p" in regex.lower() else re.compile(regex, re.ASCII)
    walks = checks.driver.ask(regex=regex, walks=checks.walks, seed=1)["walks"]
    alphabet = sorted(set("".join(walks))) + list('aZ0 .-\n"é')
    texts = [""] + walks + [changed(rng, text, alphabet) for text in walks for _ in range(4)]
    for text, matches in zip(texts, checks.driver.ask(regex=regex, texts=texts)["matches"]):
        checks.count["texts of expressions"] += 1
        if matches != (wanted.fullmatch(text) is not None):
            checks.fail(f"{regex}: {text!r} {'matches' if matches else 'does not match'}")


def own_grammars(checks):
    for case in json.loads((pathlib.Path(__file__).parent / "grammars.json").read_text(encoding="utf-8")):
        kind = "regex" if "regex" in case else "grammar"
        valid, invalid = case.get("valid", []), case.get("invalid", [])
        answer = checks.driver.ask(**{kind: case[kind]}, texts=valid + invalid, walks=2, seed=1)
        name = f"{case.get('name', case[kind])!r}"
        checks.count["grammars"] += 1
        if "error" in answer or "error" in case:
            if case.get("error") is None or case["error"] not in answer.get("error", ""):
                checks.fail(f"{name}: {answer.get('error', 'an error was expected')}")
        elif kind == "regex":
            expression(checks, case["regex"])
        elif answer["matches"] != [True] * len(valid) + [False] * len(invalid):
            checks.fail(f"{name}: matches {[t for t, m in zip(valid + invalid, answer['matches']) if m]}")


def suite(checks, folder):
    for draft in "draft7", "draft2020-12":
        paths = sorted((folder / "tests" / draft).glob("*.json")) + sorted((folder / "tests" / draft / "optional" / "format").glob("*.json"))
        for path in paths:
            for group in json.loads(path.read_text(encoding="utf-8")):
                schema = group["schema"]
                if draft == "draft7" and isinstance(schema, dict):
                    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
                name = f"{draft}/{path.stem}: {group['description']}"
                try:
                    if "remote" in path.stem.lower():
                        continue
                    calls(checks, name, schema, draft, [t["data"] for t in group["tests"] if t["valid"]], [t["data"] for t in group["tests"] if not t["valid"]])
                    checks.check(name, schema, draft, [dumps(t["data"]) for t in group["tests"] if t["valid"]],
                                 [dumps(t["data"]) for t in group["tests"] if not t["valid"]])
                except Exception as e:  # a reference that the validator cannot resolve
                    print(f"{name}: {type(e).__name__}: {str(e)[:100]}")


def random_schemas(checks, count, seed):
    """No random text of a random schema is invalid, and no changed one that matches is. Texts with line breaks are left out: Python's $ is before one, too."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        schema = RandomSchemas(rng).document()
        validator = validator_of(schema, "draft2020-12")
        walks = checks.driver.ask(schema=schema, walks=5, seed=number)
        checks.count["random schemas"] += 1
        if "error" in walks:
            checks.count["random schemas: refused"] += 1
            if not re.search(r"#|too large", walks["error"]):
                checks.fail(f"random schema {number}: no place in {walks['error']}")
            continue
        texts = list(walks["walks"])
        for _ in range(20 if texts else 0):
            texts.append(dumps(changed_value(rng, json.loads(rng.choice(texts[:5])))))
        matches = checks.driver.ask(schema=schema, texts=texts)["matches"]
        for text, match in zip(texts, matches):
            checks.count["random schemas: texts"] += 1
            try:
                valid = "\\n" in text or validator.is_valid(json.loads(text))
            except RecursionError:  # a reference to itself, for the same value
                break
            if match and not valid:
                checks.fail(f"random schema {number}: {dumps(schema)} matches the invalid text {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--suite", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=700, help="number of random schemas")
    parser.add_argument("--seed", type=int, default=1, help="of the random schemas")
    args = parser.parse_args()
    checks = Checks(Driver(args.driver), args.walks, args.suite is not None)
    own_schemas(checks)
    for name, form, text in checks.unmatched:
        checks.fail(f"{name}: {form}: {text!r} does not match")
    own_grammars(checks)
    random_schemas(checks, args.random, args.seed)
    if args.suite:
        suite(checks, args.suite)
    print(", ".join(f"{n} {what}" for what, n in checks.count.items()))
    if args.suite:
        print("refused, by keyword:", dict(checks.refused.most_common()))
    print(f"{len(checks.failures)} failures")
    return 1 if checks.failures or checks.count["walks"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
