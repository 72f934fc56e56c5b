"""Masks of our grammars beside those of llguidance, on random walks: python bench/grammar_peers.py DRIVER [--walks N]

DRIVER is build/release/tests/grammar/grammar_driver. For every grammar, a random walk chooses tokens from our mask; at every state on it the two masks and
"may end" are compared bit by bit. Schemas are compared without white space: the two allow different forms of it (llguidance: none or any; ours: docs/structured.md),
so the grammar that llguidance gets is told to use none, and walks stay where neither mask contains a token with white space outside of a string.
"""
import argparse
import json
import subprocess
import sys

import llguidance
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

REGEXES = ["[a-f]{2,5}-\\d", "(ab|cd)*e", "\\w+@\\w+\\.(org|com)", "a?b?c?d", "[^\\n\"]{1,9}", "-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "(true|false|null)(,(true|false|null))*",
           "x{3}y{2,}z", "\\d{4}-\\d{2}-\\d{2}", "(name|nam|na){1,3}", "é+|[à-ü]x", "(http|https)://[a-z]+(/[a-z]*)*"]
SCHEMAS = [{"enum": ["x", "yes", "name", 12, None, True]}, {"type": "integer"}, {"type": "boolean"}, {"type": "string", "maxLength": 6}, {"type": "null"},
           {"const": {"a": [1, "b"]}}, {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
           {"type": "object", "properties": {"name": {"enum": ["a b", "x"]}, "n": {"type": "integer", "minimum": 3, "maximum": 40}}, "required": ["name", "n"],
            "additionalProperties": False},
           {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": [1, 12]}}, "required": ["b"], "additionalProperties": False},
           {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["true", "false"]}]},
           {"type": "string", "pattern": "^[a-c]{2,4}$"}, {"type": "string", "format": "date"},
           {"$defs": {"t": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}}, "required": ["next"],
                                "additionalProperties": False}}, "$ref": "#/$defs/t"}]


class Vocabulary:
    def __init__(self, tokens):
        self.tokens = [bytes(t) for t in tokens] + [b"<end>"]
        self.eos_token_id = len(tokens)
        self.bos_token_id = None
        self.special_token_ids = [len(tokens)]

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


def ask(driver, question):
    driver.stdin.write(json.dumps(question) + "\n")
    driver.stdin.flush()
    return json.loads(driver.stdout.readline())


def bits(mask, count):
    return {i for i in range(count) if mask[i // 8] >> (i % 8) & 1}


def compare(ours, grammar, tokenizer, vocabulary, spaces):
    """(states compared, first difference or None)"""
    states = 0
    for walk in ours["masks"]:
        matcher = LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            return 0, "llguidance refuses: " + matcher.get_error()[:90]
        text = b""
        for token, allowed, ends in walk:
            theirs = bits(matcher.compute_bitmask(), vocabulary.eos_token_id)
            mine = set(allowed)
            if spaces:  # tokens with white space outside of strings are only ours
                outside = text.count(b'"') % 2 == 0
                mine = {i for i in mine if not (outside and vocabulary.tokens[i].strip(b'"').strip() != vocabulary.tokens[i].strip(b'"'))}
            states += 1
            if mine != theirs or ends != matcher.is_accepting():
                show = lambda ids: [vocabulary.tokens[i].decode("latin1") for i in sorted(ids)[:6]]
                return states, f"after {text.decode('latin1')!r}: only ours {show(mine - theirs)}, only theirs {show(theirs - mine)}, may end {ends}/{matcher.is_accepting()}"
            if token < 0 or token not in mine or not matcher.consume_token(token):
                break
            text += vocabulary.tokens[token]
    return states, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--walks", type=int, default=40)
    args = parser.parse_args()
    driver = subprocess.Popen([args.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    vocabulary = Vocabulary(ask(driver, {"vocabulary": True})["vocabulary"])
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))
    states = equal = 0
    for kind, sources in (("regex", REGEXES), ("schema", SCHEMAS)):
        for i, source in enumerate(sources):
            ours = ask(driver, {kind: source, "masks": args.walks, "seed": i + 1})
            if "error" in ours:
                print(f"{kind} {source!r}: we refuse: {ours['error']}")
                continue
            grammar = (LLMatcher.grammar_from_regex(source) if kind == "regex" else
                       LLMatcher.grammar_from_json_schema(json.dumps(source), defaults={"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}))
            n, difference = compare(ours, grammar, tokenizer, vocabulary, kind == "schema")
            states += n
            equal += difference is None
            if difference:
                print(f"{kind} {json.dumps(source)}: {difference}")
    print(f"llguidance {llguidance.__version__}: {equal} of {len(REGEXES) + len(SCHEMAS)} grammars with equal masks, {states} states compared")
    driver.stdin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
