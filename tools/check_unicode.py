#!/usr/bin/env python3
"""Compares every Unicode character with the `tokenizers` package: classes in patterns, normalizers, pre-tokenizers.

    tools/check_unicode.py [NAME...] [--driver build/release/tests/text/text_driver]

Prints for each of them the number of characters that differ, and which. NAME limits it to those whose name contains it.
Takes ten minutes.
"""
import argparse
import json
import subprocess

from tokenizers import Tokenizer

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def byte_letters():
    """The alphabet of ByteLevel: a printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(others)}}


def spec(normalizer, pre_tokenizer):
    """Tokens are bytes; a piece that a pre-tokenizer makes begins with a space."""
    whole = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": normalizer, "post_processor": None, "decoder": whole,
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pre_tokenizer, whole] if pre_tokenizer else [whole]},
                       "model": {"type": "BPE", "vocab": byte_letters(), "merges": []}})


def cases():
    properties = "L Lu Ll Lt Lm Lo M Mn Mc N Nd Nl No P S Z C Han Hiragana Hangul Arabic Alphabetic".split()
    for pattern in [*(f"\\p{{{p}}}" for p in properties), r"\s", r"\w", r"\d", ".", "[[:punct:]]", r"[^\s\p{L}\p{N}]"]:
        yield "pattern " + pattern, "", spec({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}, None)
    for name in "Lowercase NFC NFD NFKC NFKD StripAccents Nmt BertNormalizer".split():
        bert = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        yield "normalizer " + name, "ab", spec({"type": name, **(bert if name.startswith("Bert") else {})}, None)
    for name, more in (("BertPreTokenizer", {}), ("Whitespace", {}), ("WhitespaceSplit", {}), ("UnicodeScripts", {}),
                       ("Digits", {"individual_digits": True}), ("Punctuation", {"behavior": "Isolated"})):
        yield "pre-tokenizer " + name, "ab", spec(None, {"type": name, **more})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--driver", default="build/release/tests/text/text_driver")
    args = parser.parse_args()
    driver = subprocess.Popen([args.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(**request):
        print(json.dumps(request), file=driver.stdin, flush=True)
        return json.loads(driver.stdout.readline())

    def differing(tokenizer, around, characters):
        text = "".join(f"{around[:1]}{chr(c)}{around[1:]}" for c in characters)
        if tokenizer.encode(text, add_special_tokens=False).ids == ask(encode=text, special=False):
            return []
        if len(characters) == 1:
            return characters
        part = max(1, len(characters) // 8)
        return [c for i in range(0, len(characters), part) for c in differing(tokenizer, around, characters[i:i + part])]

    for name, around, text in cases():
        if args.names and not any(n in name for n in args.names):
            continue
        ask(load_text=text)
        tokenizer, bad = Tokenizer.from_str(text), []
        for i in range(0, len(CHARACTERS), 4096):
            bad += differing(tokenizer, around, CHARACTERS[i:i + 4096])
        print(f"{name}: {len(bad)}", " ".join(f"{c:X}" for c in bad[:40]), "..." if len(bad) > 40 else "", flush=True)


if __name__ == "__main__":
    main()
