"""Time of token masks and of compilation in llguidance and xgrammar, beside `tokamak bench grammar`: python bench/grammar_times.py TOKAMAK TOKENIZER... [--repeat N]

TOKENIZER is a folder with tokenizer.json or a GGUF file. The schemas and documents are those of bench/grammar_cases.json. For every schema, fresh grammars
are compiled, and the document is followed token by token; a time is that of one mask (without the step that accepts the token). All three run one after
the other on one thread. The peers are called from Python, which adds about a microsecond per mask.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

import llguidance
import tokenizers
import xgrammar


def summary(times):
    times = sorted(times)
    at = lambda q: times[min(len(times) - 1, int(q * len(times)))] * 1e6
    return f"{at(0.5):9.1f} {at(0.99):9.1f} {at(1):9.1f}"


def load_tokenizer(path):
    path = pathlib.Path(path)
    if path.is_dir():
        return tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    sys.exit(f"{path} is not a folder with tokenizer.json")


class Peer:
    """compile(schema) makes a grammar, start() a matcher, mask() is what is timed."""


class Llguidance(Peer):
    name = f"llguidance {llguidance.__version__ if hasattr(llguidance, '__version__') else ''}"

    def __init__(self, tokenizer):
        self.tokenizer = llguidance.LLTokenizer(tokenizer.to_str())

    def compile(self, schema):
        self.grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self.start()
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def start(self):
        self.matcher = llguidance.LLMatcher(self.tokenizer, self.grammar)

    def mask(self):
        self.matcher.compute_bitmask()

    def accept(self, token):
        return self.matcher.try_consume_tokens([token]) == 1


class Xgrammar(Peer):
    name = f"xgrammar {xgrammar.__version__ if hasattr(xgrammar, '__version__') else ''}"

    def __init__(self, tokenizer):
        size = tokenizer.get_vocab_size()
        pieces = [""] * size
        for piece, i in tokenizer.get_vocab().items():
            pieces[i] = piece
        info = xgrammar.TokenizerInfo(pieces, vocab_type=xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[0])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, size)

    def compile(self, schema):
        self.grammar = self.compiler.compile_json_schema(json.dumps(schema), strict_mode=True)
        self.start()

    def start(self):
        self.matcher = xgrammar.GrammarMatcher(self.grammar)

    def mask(self):
        self.matcher.fill_next_token_bitmask(self.bits)

    def accept(self, token):
        return self.matcher.accept_token(token)


def measure(peer, tokenizer, cases, repeat):
    passes, compiles, skipped = ([], []), [], []
    for case in cases:
        ids = tokenizer.encode(case["document"], add_special_tokens=False).ids
        for _ in range(repeat):
            start = time.perf_counter()
            try:
                peer.compile(case["schema"])
            except Exception as error:  # its bindings raise several types
                skipped.append(f"{case['name']}: {str(error).splitlines()[0][:80]}")
                break
            compiles.append(time.perf_counter() - start)
            for times in passes:
                peer.start()
                for token in ids:
                    start = time.perf_counter()
                    peer.mask()
                    times.append(time.perf_counter() - start)
                    if not peer.accept(token):
                        skipped.append(f"{case['name']}: does not accept the document")
                        break
    for name, times in zip(("first", "second"), passes):
        print(f"{peer.name:22} {name:7} {summary(times)}  {sorted(compiles)[len(compiles) // 2] * 1e3:8.2f} {max(compiles) * 1e3:8.2f}")
    for line in sorted(set(skipped)):
        print(f"  {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokamak")
    parser.add_argument("tokenizer", nargs="+")
    parser.add_argument("--cases", default="bench/grammar_cases.json")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    cases = json.loads(pathlib.Path(args.cases).read_text())
    for path in args.tokenizer:
        tokenizer = load_tokenizer(path)
        print(f"{path}: {tokenizer.get_vocab_size()} tokens; times of masks in us, of compilation in ms")
        print(f"{'':22} {'pass':7} {'median':>9} {'p99':>9} {'max':>9}  {'compile':>8} {'max':>8}")
        ours = json.loads(subprocess.run([args.tokamak, "bench", "grammar", path, "--cases", args.cases, "--repeat", str(args.repeat)],
                                         check=True, capture_output=True, text=True).stdout)
        for name in "first", "second", "later":
            t = ours[name]
            print(f"{'tokamak':22} {name:7} {t['median_us']:9.1f} {t['p99_us']:9.1f} {t['max_us']:9.1f}  {ours['compile_median_us'] / 1e3:8.2f} {ours['compile_max_us'] / 1e3:8.2f}")
        for peer in Llguidance, Xgrammar:
            measure(peer(tokenizer), tokenizer, cases, args.repeat)


if __name__ == "__main__":
    main()
