"""Random tokenizers, texts and templates for text_oracle.py, all from one random.Random."""
import base64
import datetime
import json
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NOW = datetime.datetime(2026, 11, 15, 12, 30, 45)
CORPUS = ["the quick brown fox jumps over the lazy dog 12345", "Hello, World! it's   a test\n\nnew line\ttab",
          "naïve café Ünïcödé ΑΒΓ αβγ привет мир", "你好世界。日本語テキスト 한국어", "def f(x):\n    return x ** 2  # code",
          "emoji 😀👍🏽 ❤️ and ﬁ ligature ½ ①", "don't can't we'll I'm they've YOU'RE", "1 22 333 4444 55555 3.14"]
ALPHABET = list("abcdeiot ABCEST  \n\t'.,!?-_#0123") + list("éüßÄñçİıſΣσςдЖ你好世の日한글ー々。「") + [
    "e\u0301", "\u0301", "\u00a0", "\u180e", "\u200b", "\u3000", "😀", "👍🏽", "❤️", "ﬁ", "½", "①", "²", "Ⅷ", "\u2581",
    "<s>", "</s>", "<mask>", "<x>", "[UNK]", " it's", " the", "  ", "\r\n", "\x00", "\x07", "\u2028", "\ufeff", "\U0001F1E9"]
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
REGEXES = [GPT2, LLAMA3, r"\s+", r"\d{1,3}(?=(?:\d{3})*\b)", r"[\p{Han}\p{Hiragana}]+", r"\w+|[^\w\s]+", r"[a-c&&[^b]]+",
           r"\p{N}", r"(?i)THE|it", r"^\s|\s$", r"[^\S\n]+", r"\p{Lu}?\p{Ll}+", r"\s+$", r"^\s+|\s+$", r"(?=(\d{3})+(?!\d))",
           r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r" ?[^(\s|.,!?…。，、।۔،)]+",
           r"\s*[\r\n]+", r"\p{L}\p{M}*", r"[\p{L}&&\p{Lu}]+|\h+", r"(?<=[a-c])t|\bthe\b", r".", r"(?m:.+)", r"[[:alpha:]]+|[[:punct:]]",
           r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
           r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+"]


# A small SentencePiece character map (ligatures, fractions, "abc" -> "x", ...), compressed.
CHARSMAP = zlib.decompress(base64.b64decode(
    "eNoV02mwj1UYAPDn/m8+mKGZZkzDBzMG1dhdWzejLEmKbCl7uveiVNZbtsQ1U9nHTiW5ZlC4uClr9os2ZClZQypLkmzZ+b0ffud53vPO"
    "e95zznNOPBAReWmRRSlZ9uS0yCkT0bNBeuyMVIx6MqK0/vySEWliMeZqHhJLkNcmFeM9J6Pki+nihveSl6nIGxBRkGkM/Q8m3xWk4mFx"
    "YllN8YgphakQ8qZsS0U5A1SgPI9Qkcd4lEp8tCcVVcTKVKMqNahOBjWpTS3qUofHqccTZLJob0R90ZKiAQ15isY04mma8AxNeZZmPEdz"
    "WvA8L9CS1rSiLW14kXa8RHs68DKd6EgXOtONrnTnFbJ4lRyy6UkPXqMXvXmdN3mDPrxFP/pim6M/uQzkHd5mMIMYyhDeZRjKE8MZyQhG"
    "JcXjd5t2ykQ/kL/PaD5kLGMYzzgmMoFJ/Lsn4qLFTpZPYyozmM4sZvJxUj9m8wlz+JS5fMY88tmqqEWbIxbI5/M5C5O68QVLWMxSCljO"
    "Mr6kkK9YwUq+ZjWrWMsavmEdG1jPJjayBb+NomQObGcb37KD7/mOH/mBXezkJ3bjWIVtiP3s4xd+5lcOcIiDHOEwxzjKcX7jJCc4ldSA"
    "P/mD0/zFWc7wN+f4h/PJ3nOB/7jIZS5xlSv8zzVucJ1b3OQOt7nH3eTmlnOFMmrUivqVnL1evSM313kZGkWL4j6Y0KGm"))


def random_text(rng, longest=40):
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(longest)))


def random_normalizer(rng):
    n = normalizers
    options = [n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt, lambda: n.Precompiled(CHARSMAP),
               lambda: n.Strip(rng.random() < .5, rng.random() < .5), n.ByteLevel,
               lambda: n.Replace(rng.choice(["a", "th", "``", "''"]), rng.choice(["", "zz", "\""])),
               lambda: n.Prepend("▁"), lambda: n.Replace(" ", "▁"), lambda: n.Replace(Regex(" {2,}"), " "),
               lambda: n.Replace(Regex(rng.choice(REGEXES)), rng.choice(["", "x", "▁"])),
               lambda: n.BertNormalizer(rng.random() < .7, rng.random() < .7, rng.choice([None, True, False]), rng.random() < .6)]
    picked = [rng.choice(options)() for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
    return None if not picked else picked[0] if len(picked) == 1 else n.Sequence(picked)


def random_pre_tokenizer(rng):
    p = pre_tokenizers
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    options = [p.BertPreTokenizer, p.Whitespace, p.WhitespaceSplit, p.UnicodeScripts,
               lambda: p.ByteLevel(rng.random() < .5, use_regex=rng.random() < .6),
               lambda: p.CharDelimiterSplit(rng.choice("a_ ")), lambda: p.Digits(rng.random() < .5),
               lambda: p.Metaspace("▁", rng.choice(["always", "never", "first"]), rng.random() < .6),
               lambda: p.Punctuation(rng.choice(behaviors)),
               lambda: p.Split(Regex(rng.choice(REGEXES)), rng.choice(behaviors), rng.random() < .3),
               lambda: p.Split(rng.choice([" ", "e", "th", "."]), rng.choice(behaviors), rng.random() < .3)]
    if hasattr(p, "FixedLength"):
        options.append(lambda: p.FixedLength(rng.randrange(1, 6)))
    picked = [rng.choice(options)() for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
    return None if not picked else picked[0] if len(picked) == 1 else p.Sequence(picked)


def random_decoder(rng):
    d = decoders
    options = [d.ByteLevel, d.ByteFallback, d.Fuse, lambda: d.Metaspace("▁", rng.choice(["always", "never", "first"])),
               lambda: d.Replace("▁", " "), lambda: d.Replace(Regex("[aeiou]+"), "*"), lambda: d.Strip(rng.choice(" ▁a"), rng.randrange(3), rng.randrange(3)),
               lambda: d.Replace(rng.choice(["a", "th", " ."]), rng.choice(["", "b"])), lambda: d.WordPiece("", True),
               lambda: d.WordPiece("##", rng.random() < .5), lambda: d.BPEDecoder("</w>"), lambda: d.CTC()]
    picked = [rng.choice(options)() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return None if not picked else picked[0] if len(picked) == 1 else d.Sequence(picked)


def random_model(rng):
    kind = rng.choice(["bpe", "bpe", "bpe-bytes", "unigram", "wordpiece", "wordlevel"])
    special = ["<unk>"] + ([f"<0x{b:02X}>" for b in range(256)] if kind == "bpe-bytes" or rng.random() < .2 else [])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if rng.random() < .5 else []
    size = rng.randrange(60, 400)
    if kind.startswith("bpe"):
        options = {"continuing_subword_prefix": rng.choice(["##", "_"])} if rng.random() < .15 else {}
        options |= {"end_of_word_suffix": "</w>"} if rng.random() < .15 else {}
        model = models.BPE(unk_token=rng.choice([None, "<unk>"]), byte_fallback=kind == "bpe-bytes",
                           fuse_unk=rng.random() < .5, ignore_merges=rng.random() < .2, **options)
        return model, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet,
                                          show_progress=False, **options)
    if kind == "unigram":
        return models.Unigram(), trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>",
                                                         initial_alphabet=alphabet, show_progress=False)
    if kind == "wordpiece":
        return (models.WordPiece(unk_token="<unk>", max_input_chars_per_word=rng.choice([100, 6])),
                trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False))
    return models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=size, special_tokens=special, show_progress=False)


def random_tokenizer(rng):
    """A trained tokenizer as JSON; its parts are drawn at random."""
    model, trainer = random_model(rng)
    tok = Tokenizer(model)
    normalizer = random_normalizer(rng)
    pre = random_pre_tokenizer(rng)
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    tok.train_from_iterator(CORPUS * 3, trainer)
    decoder = random_decoder(rng)
    if decoder is not None:
        tok.decoder = decoder
    flags = lambda: dict(single_word=rng.random() < .3, lstrip=rng.random() < .3, rstrip=rng.random() < .3, normalized=rng.random() < .5)
    tok.add_special_tokens([AddedToken(t, **flags()) for t in ["<s>", "</s>", "<mask>"]])
    tok.add_tokens([AddedToken(t, **flags()) for t in ["<x>", "it's", "世の"]])
    choice = rng.randrange(4)
    sid = tok.token_to_id
    if choice == 1:
        tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", sid("<s>")), ("</s>", sid("</s>"))])
    elif choice == 2:
        tok.post_processor = processors.BertProcessing(("</s>", sid("</s>")), ("<s>", sid("<s>")))
    elif choice == 3:
        tok.post_processor = processors.Sequence([processors.ByteLevel(False), processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", sid("<s>"))])])
    return edited(rng, json.loads(tok.to_str()))


def edited(rng, spec):
    """Variants that only occur in files: fields that the package no longer writes, and fields that exporters omit."""
    if rng.random() < .2:
        spec["truncation"] = {"direction": "Right", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
        spec["padding"] = {"strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "<unk>"}
    model = spec["model"]
    if model["type"] == "Unigram" and rng.random() < .4:
        model["byte_fallback"] = True
    if model["type"] == "BPE" and rng.random() < .3:  # merges as lines
        if all(" " not in a and " " not in b for a, b in model["merges"]):
            model["merges"] = [f"{a} {b}" for a, b in model["merges"]]
    if model["type"] == "BPE" and rng.random() < .1:
        model["unk_token"] = "<x>" if rng.random() < .5 else "not there"
    return json.dumps(spec, ensure_ascii=False)


CONTEXT = {"messages": [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "Hi 'you' \"ü\" <b> 你好"},
                        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None, True]}}}]}],
           "tools": [{"name": "f", "parameters": {"type": "object"}}], "n": 7, "m": -3, "f": 2.5, "big": 1e20, "tiny": 1e-7,
           "s": "a,b,,c  d", "t": True, "none": None, "d": {"b": 2, "A": 1, "c": [3]}, "xs": [3, 1, 2, 3], "ws": ["b", "A", "c"], "empty": ""}
ATOMS = ["n", "m", "f", "s", "t", "none", "d", "xs", "ws", "empty", "big", "tiny", "missing", "messages", "messages[1].content", "messages[-1]", "tools",
         "1", "2.0", "'x'", "\"it's\"", "[1, 'a', none]", "{'k': [1], 2: true}", "(1, 2)", "()", "d.b", "d['A']", "d.items()", "s.split(',')",
         "xs[1:]", "xs[::-1]", "s[2:-1]", "s[::-2]", "range(5)", "range(4, 0, -2)", "loop", "dict(a=1, b='x')", "'%s-%05.1f' % ('a', f)",
         "'{:>5}|{!r}'.format(n, s)", "strftime_now('%d %b %Y')"]
FILTERS = ["tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true, separators=(',', ':'))", "length", "upper", "lower",
           "title", "capitalize", "trim", "string", "list", "first", "last", "join('-')", "join", "int", "float", "abs", "round", "round(1)", "default('z')",
           "default('z', true)", "sort", "sort(reverse=true)", "unique|list", "reverse|list", "sum", "min", "max", "items|list", "dictsort", "replace('a', 'b')",
           "map('string')|list", "map(attribute='role')|list", "select|list", "reject('none')|list", "selectattr('role')|list", "indent(2)", "indent(3, true)",
           "batch(2)|list", "slice(2)|list", "truncate(5)", "wordcount", "center(12)", "escape", "format(1)", "groupby('role')|length", "urlencode", "count"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "true", "false", "odd", "even",
         "divisibleby(2)", "in xs", "eq(1)", "equalto('x')", "lower", "upper", "sameas(none)", "callable", "gt(1)", "le 2"]
METHODS = ["upper()", "strip()", "lstrip('a')", "split()", "split(',', 1)", "rsplit(' ', 1)", "splitlines()", "startswith('a')", "endswith(('d', 'x'))", "find('b')",
           "replace(',', ';', 1)", "title()", "count(',')", "partition(',')", "isdigit()", "zfill(12)", "join(['a', 'b'])", "get('b')", "get('q', 5)", "keys()|list", "values()|list",
           "index('b')", "removeprefix('a')", "center(14, '*')", "swapcase()", "capitalize()"]


def random_expression(rng, depth=0):
    r = rng.random()
    if depth > 3 or r < .25:
        return rng.choice(ATOMS)
    sub = lambda: random_expression(rng, depth + 1)
    if r < .5:
        return f"({sub()})|{rng.choice(FILTERS)}"
    if r < .6:
        return f"({sub()}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if r < .7:
        return f"({sub()}).{rng.choice(METHODS)}"
    if r < .88:
        return f"{sub()} {rng.choice(['+', '-', '*', '/', '//', '%', '~', '==', '!=', '<', '>=', 'in', 'not in', 'and', 'or'])} {sub()}"
    if r < .94:
        return f"(({sub()}) if ({sub()}) else ({sub()}))"
    return f"[{sub()}, {sub()}]"


def random_template(rng, depth=0):
    ws = lambda: rng.choice(["", "", " ", "\n", "  \n  ", "\t", "text", " x\n"])
    o, c = rng.choice(["", "", "-", "+"]), rng.choice(["", "", "-"])
    tag = lambda body: "{%" + o + " " + body + " " + c + "%}"
    expr = lambda: "{{" + rng.choice(["", "-"]) + " " + random_expression(rng) + " " + rng.choice(["", "-"]) + "}}"
    parts = []
    for _ in range(rng.randrange(1, 4)):
        r = rng.random()
        body = lambda: random_template(rng, depth + 1) if depth < 2 else expr()
        if r < .45:
            parts.append(expr())
        elif r < .6:
            parts.append(tag(f"if {random_expression(rng)}") + ws() + body() + tag("else") + ws() + body() + tag("endif"))
        elif r < .75:
            filt = rng.choice(["", "", f" if {rng.choice(['x is defined', 'x', 'loop is undefined'])}"])
            parts.append(tag(f"for x in {rng.choice(['xs', 'ws', 'd', 'messages', 's', 'missing', 'range(3)'])}{filt}") + ws() +
                         "{{ loop.index0 }}{{ loop.last }}{{ x }}" + rng.choice(["", tag("break"), "{{ loop.previtem }}", "{% set q = x %}"]) + body() + tag("endfor"))
        elif r < .83:
            parts.append(tag(f"set v = {random_expression(rng)}") + ws() + "{{ v }}")
        elif r < .9:
            parts.append(tag("macro mm(a, b='d')") + "[{{ a }}/{{ b }}{{ caller() if caller else '' }}]" + tag("endmacro") + ws() +
                         f"{{{{ mm({random_expression(rng)}) }}}}" + "{% call mm(1, b=2) %}in{% endcall %}")
        elif r < .95:
            parts.append("{#" + o + " note " + c + "#}" + ws() + "{% set blk %}" + ws() + body() + "{% endset %}<{{ blk }}>")
        else:
            parts.append("{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{% raw %}{{ x }}{% endraw %}")
        parts.append(ws())
    return "".join(parts)


