"""Masks of our grammars beside those of llguidance or xgrammar, on random walks: python bench/grammar_peers.py DRIVER [--peer xgrammar] [--walks N]

DRIVER is build/release/tests/grammar/grammar_driver. For every grammar, a random walk chooses tokens from our mask; at every state on it the two masks and
"may end" are compared bit by bit, with two exceptions. Where only one text can follow, llguidance allows only the token that its tokenizer begins that text with, and
ours every token that the text begins with: such states are counted apart. The peers allow other forms of white space in JSON (docs/structured.md), so they are told
to allow none, and our tokens with white space outside of strings are left out. Classes such as \\d are Unicode in llguidance and ASCII here, and not used.
"""
import argparse
import importlib.metadata
import json
import subprocess
import sys

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


class Llguidance:
    """One matcher after another, for the grammar that compile() was given last."""
    def __init__(self, vocabulary):
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
        self.matchers, self.vocabulary = LLMatcher, vocabulary
        self.tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))

    def compile(self, kind, source):
        self.grammar = (self.matchers.grammar_from_regex(source) if kind == "regex" else self.matchers.grammar_from_json_schema(
            json.dumps(source), defaults={"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}))
        self.start()
        return self.matcher.get_error() if self.matcher.is_error() else None

    def start(self):
        self.matcher = self.matchers(self.tokenizer, self.grammar)

    def allowed(self):
        return bits(self.matcher.compute_bitmask(), self.vocabulary.eos_token_id)

    def only(self):
        return self.matcher.compute_ff_bytes()

    def may_end(self):
        return self.matcher.is_accepting()

    def accept(self, token):
        return self.matcher.try_consume_tokens([token])


class Xgrammar:
    def __init__(self, vocabulary):
        import xgrammar
        self.xgrammar, self.vocabulary = xgrammar, vocabulary
        info = xgrammar.TokenizerInfo(vocabulary.tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[vocabulary.eos_token_id])
        self.compiler = xgrammar.GrammarCompiler(info)
        self.bitmask = xgrammar.allocate_token_bitmask(1, len(vocabulary.tokens))

    def compile(self, kind, source):
        try:
            self.grammar = (self.compiler.compile_regex(source) if kind == "regex" else
                            self.compiler.compile_json_schema(json.dumps(source), any_whitespace=False, separators=(",", ":")))
        except Exception as error:  # its bindings raise several types
            return str(error)
        return self.start()

    def start(self):
        self.matcher = self.xgrammar.GrammarMatcher(self.grammar)

    def allowed(self):
        self.bitmask.fill_(-1)
        self.matcher.fill_next_token_bitmask(self.bitmask)
        everything = bits(self.bitmask.numpy().tobytes(), self.vocabulary.eos_token_id + 1)
        self.ends = self.vocabulary.eos_token_id in everything
        return everything - {self.vocabulary.eos_token_id}

    def only(self):
        return b""

    def may_end(self):
        return self.ends

    def accept(self, token):
        return self.matcher.accept_token(token)


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


def compare(ours, peer, vocabulary, spaces):
    """(states compared, of them forced, first difference or None)"""
    states = forced = 0
    for walk in ours["masks"]:
        peer.start()
        text = b""
        for token, allowed, ends in walk:
            theirs, only = peer.allowed(), peer.only()
            mine = {i for i in allowed if not (spaces and has_outer_space(text, vocabulary.tokens[i]))}
            states += 1
            if only and mine != theirs:
                forced += 1
                same = theirs <= mine and all(only.startswith(vocabulary.tokens[i]) or vocabulary.tokens[i].startswith(only) for i in mine)
            else:
                same = mine == theirs
            if not same or ends != peer.may_end():
                show = lambda ids: [vocabulary.tokens[i].decode("latin1") for i in sorted(ids)[:6]]
                return states, forced, (f"after {text.decode('latin1')!r}: only ours {show(mine - theirs)}, only theirs {show(theirs - mine)}, "
                                        f"may end {ends}/{peer.may_end()}")
            if token < 0 or token not in mine or not peer.accept(token):
                break
            text += vocabulary.tokens[token]
    return states, forced, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--peer", choices=["llguidance", "xgrammar"], default="llguidance")
    parser.add_argument("--walks", type=int, default=40)
    args = parser.parse_args()
    driver = subprocess.Popen([args.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    vocabulary = Vocabulary(ask(driver, {"vocabulary": True})["vocabulary"])
    peer = (Llguidance if args.peer == "llguidance" else Xgrammar)(vocabulary)
    states = forced = equal = 0
    for kind, sources in (("regex", REGEXES), ("schema", SCHEMAS)):
        for i, source in enumerate(sources):
            ours = ask(driver, {kind: source, "masks": args.walks, "seed": i + 1})
            if "error" in ours:
                print(f"{kind} {source!r}: we refuse: {ours['error']}")
                continue
            difference = peer.compile(kind, source)
            if difference:
                print(f"{kind} {json.dumps(source)}: {args.peer} refuses: {difference[:90]}")
                continue
            n, alone, difference = compare(ours, peer, vocabulary, kind == "schema")
            states += n
            forced += alone
            equal += difference is None
            if difference:
                print(f"{kind} {json.dumps(source)}: {difference}")
    print(f"{args.peer} {importlib.metadata.version(args.peer)}: {equal} of {len(REGEXES) + len(SCHEMAS)} grammars with equal masks, {states} states compared, "
          f"{forced} of them forced")
    driver.stdin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
