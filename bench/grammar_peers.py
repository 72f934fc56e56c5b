"""Masks of our grammars beside those of llguidance, on random walks: python bench/grammar_peers.py DRIVER [--walks N]

DRIVER is build/release/tests/grammar/grammar_driver. For every grammar, a random walk chooses tokens from our mask; at every state on it the two masks and
"may end" are compared bit by bit, with two exceptions. Where only one text can follow, llguidance allows only the token that its tokenizer begins that text with, and
ours every token that the text begins with: such states are counted apart. The two allow different forms of white space in JSON (docs/structured.md), so llguidance is told
to allow none, and our tokens with white space outside of strings are left out. Classes such as \\d are Unicode there and ASCII here, and not used.
"""
import argparse
import json
import subprocess
import sys

import llguidance
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

REGEXES = ["[a-f]{2,5}-[0-9]", "(ab|cd)*e", "[a-z]+@[a-z]+\\.(org|com)", "a?b?c?d", "[^\\n\"]{1,9}", "-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "(true|false|null)(,(true|false|null))*",
           "x{3}y{2,}z", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "(name|nam|na){1,3}", "é+|[à-ü]x", "(http|https)://[a-z]+(/[a-z]*)*"]
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


def has_outer_space(text, token):
    """Whether the token has white space outside of the strings of JSON."""
    inside = escaped = False
    for i, byte in enumerate(text + token):
        if not inside and i >= len(text) and byte in b" \t\r\n":
            return True
        if byte == 0x22 and not escaped:
            inside = not inside
        escaped = inside and byte == 0x5C and not escaped
    return False


def compare(ours, grammar, tokenizer, vocabulary, spaces):
    """(states compared, of them forced, first difference or None)"""
    states = forced = 0
    for walk in ours["masks"]:
        matcher = LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            return 0, 0, "llguidance refuses: " + matcher.get_error()[:90]
        text = b""
        for token, allowed, ends in walk:
            theirs = bits(matcher.compute_bitmask(), vocabulary.eos_token_id)
            only = matcher.compute_ff_bytes()
            mine = {i for i in allowed if not (spaces and has_outer_space(text, vocabulary.tokens[i]))}
            states += 1
            if only and mine != theirs:
                forced += 1
                same = theirs <= mine and all(only.startswith(vocabulary.tokens[i]) or vocabulary.tokens[i].startswith(only) for i in mine)
            else:
                same = mine == theirs
            if not same or ends != matcher.is_accepting():
                show = lambda ids: [vocabulary.tokens[i].decode("latin1") for i in sorted(ids)[:6]]
                return states, forced, (f"after {text.decode('latin1')!r}: only ours {show(mine - theirs)}, only theirs {show(theirs - mine)}, "
                                        f"may end {ends}/{matcher.is_accepting()}")
            if token < 0 or token not in mine or not matcher.try_consume_tokens([token]):
                break
            text += vocabulary.tokens[token]
    return states, forced, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--walks", type=int, default=40)
    args = parser.parse_args()
    driver = subprocess.Popen([args.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    vocabulary = Vocabulary(ask(driver, {"vocabulary": True})["vocabulary"])
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))
    states = forced = equal = 0
    for kind, sources in (("regex", REGEXES), ("schema", SCHEMAS)):
        for i, source in enumerate(sources):
            ours = ask(driver, {kind: source, "masks": args.walks, "seed": i + 1})
            if "error" in ours:
                print(f"{kind} {source!r}: we refuse: {ours['error']}")
                continue
            grammar = (LLMatcher.grammar_from_regex(source) if kind == "regex" else
                       LLMatcher.grammar_from_json_schema(json.dumps(source), defaults={"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}))
            n, alone, difference = compare(ours, grammar, tokenizer, vocabulary, kind == "schema")
            states += n
            forced += alone
            equal += difference is None
            if difference:
                print(f"{kind} {json.dumps(source)}: {difference}")
    print(f"llguidance {llguidance.__version__}: {equal} of {len(REGEXES) + len(SCHEMAS)} grammars with equal masks, {states} states compared, "
          f"{forced} of them forced")
    driver.stdin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
