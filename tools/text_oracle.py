#!/usr/bin/env python3
"""Compares the text lane with the Python packages `tokenizers` and `jinja2`.

  text_oracle.py goldens --out tests/text/goldens       writes small golden files for the unit tests
  text_oracle.py diff --driver build/.../text_driver    compares random tokenizers and templates; exit 1 on a difference
                 [--rounds 40] [--strings 60] [--seed 1] [--tokenizer tokenizer.json]
  text_oracle.py bench --driver ... --tokenizer tokenizer.json --text FILE   throughput compared with `tokenizers`, one thread
"""
import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import jinja2
    import tokenizers
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from text_random import CONTEXT, CORPUS, NOW, random_expression, random_template, random_text, random_tokenizer
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"SKIPPED: {missing.name} is not installed (pip install tokenizers jinja2)")
    sys.exit(77)

class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _body(self, context, caller):
        return caller()


def jinja_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = jinja_environment()
def comparable(want):
    """False if the text contains addresses of Python objects, or Markup, which we keep only for `safe` and `escape`."""
    return not (isinstance(want, str) and (" at 0x" in want or "Markup(" in want))


def render(template, context):
    try:
        return ENV.from_string(template).render(**copy.deepcopy(context))  # filters may write to it
    except Exception as e:  # noqa: BLE001: for any Python exception, the other side must fail too
        return {"error": f"{type(e).__name__}: {e}"}


class Driver:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, **request):
        self.process.stdin.write((json.dumps(request) + "\n").encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the driver crashed on {json.dumps(request)[:2000]}")
        return json.loads(line)


def try_encode(tok, text, special):
    try:
        return tok.encode(text, add_special_tokens=special).ids
    except BaseException as e:  # noqa: BLE001: the package may panic, which is not an Exception
        return {"panic" if "Panic" in type(e).__name__ else "error": str(e)}


def try_decode(tok, ids, skip):
    try:
        return tok.decode(ids, skip_special_tokens=skip)
    except BaseException as e:  # noqa: BLE001: a decoder may panic on odd tokens
        return {"error": str(e)}


def same(a, b):
    """Equal, or both fail; if the package panics, the result is undefined."""
    return a == b or (isinstance(a, dict) and (isinstance(b, dict) or "panic" in a))


def ambiguous(tok, spec):
    """Added tokens that normalise to the same or empty text: the package's result depends on hash table order."""
    if tok.normalizer is None:
        return False
    spelled = [tok.normalizer.normalize_str(t["content"]) for t in json.loads(spec)["added_tokens"] if t["normalized"]]
    return len(set(spelled)) < len(spelled) or "" in spelled


def compare_tokenizer(driver, rng, spec, strings, report):
    try:
        tok = Tokenizer.from_str(spec)
    except Exception:  # noqa: BLE001: the package writes scores it cannot read
        return
    tok.no_truncation()
    tok.no_padding()
    loaded = driver(load_text=spec)
    if isinstance(loaded, dict):
        return report("load", spec, loaded, "loads")
    if ambiguous(tok, spec):
        return
    for k in range(strings):
        text, special = random_text(rng, 40 if k % 10 else 300), k % 2 == 0
        want, got = try_encode(tok, text, special), driver(encode=text, special=special)
        if not same(want, got):
            report("encode " + repr(text), spec, got, want)
        ids = [rng.randrange(tok.get_vocab_size() + 2) for _ in range(rng.randrange(12))] if k % 3 == 0 else want
        if isinstance(ids, list):
            skip = k % 4 == 0
            want, got = try_decode(tok, ids, skip), driver(decode=ids, skip=skip)
            if not same(want, got) and not isinstance(want, dict):
                report("decode " + repr(ids), spec, got, want)
            stream = driver(stream=ids, skip=skip)
            if not isinstance(got, dict) and "".join(stream) != got:
                report("stream " + repr(ids), spec, stream, got)


# Deliberately more lenient than Python: the length and slices of a filter's generator, keyword arguments of
# str methods, and methods that modify a list or a dict (the sandbox forbids them; other engines render such templates).
LENIENT = ("'generator' has no len()", "'generator' object is not subscriptable", "takes no keyword arguments", "SecurityError")


def compare_file(args, rng, report, bad):
    """Many strings against one tokenizer.json: all requests are sent to the driver at once."""
    spec = open(args.tokenizer, encoding="utf-8").read()
    tok = Tokenizer.from_str(spec)
    tok.no_truncation()
    tok.no_padding()
    texts = [random_text(rng, 40 if k % 10 else 300) for k in range(args.strings)]
    with tempfile.TemporaryFile() as questions:
        for k, text in enumerate(texts):
            questions.write((json.dumps({"both": text, "special": k % 2 == 0, "skip": k % 4 == 0}) + "\n").encode())
        questions.seek(0)
        load = (json.dumps({"load_json": args.tokenizer}) + "\n").encode()
        answers = subprocess.run(["sh", "-c", 'cat - "$1" | "$0"', args.driver, f"/dev/fd/{questions.fileno()}"], input=load,
                                 stdout=subprocess.PIPE, pass_fds=[questions.fileno()], check=True).stdout.splitlines()[1:]
    for k, (text, line) in enumerate(zip(texts, answers, strict=True)):
        got, want = json.loads(line), try_encode(tok, text, k % 2 == 0)
        if not same(want, got.get("ids", got)):
            report("encode " + repr(text), spec, got, want)
        elif isinstance(want, list):
            decoded = try_decode(tok, want, k % 4 == 0)
            if not same(decoded, got["text"]) or got["text"] != "".join(got["stream"]):
                report("decode " + repr(want), spec, got, decoded)
    print(f"{args.tokenizer}: {args.strings} strings, {len(bad)} differences")
    return 1 if bad else 0


def run_diff(args):
    rng, driver, bad, seen = random.Random(args.seed), Driver(args.driver), [], set()

    def report(what, where, got, want):
        bad.append(what)
        key = (what.split(" ")[0], where)
        if key in seen:
            return
        seen.add(key)
        if len(seen) <= args.show:
            where = {k: v for k, v in json.loads(where).items() if k != "added_tokens"} if where.startswith("{\n") or where.startswith('{"version') else where
            if isinstance(where, dict):
                where["model"] = {k: v for k, v in where["model"].items() if k not in ("vocab", "merges")}
            print(f"DIFFERENT {what[:300]}\n  in   {json.dumps(where, ensure_ascii=False)[:700]}\n  got  {str(got)[:200]}\n  want {str(want)[:200]}")
    if args.tokenizer:
        return compare_file(args, rng, report, bad)
    for _ in range(args.rounds):
        try:
            spec = random_tokenizer(rng)
        except Exception:  # noqa: BLE001: some combinations cannot be trained
            continue
        compare_tokenizer(driver, rng, spec, args.strings, report)
    tokenizer_differences, rendered, lenient = len(bad), 0, 0
    for _ in range(args.rounds * 20):
        template = random_template(rng)
        want, got = render(template, CONTEXT), driver(render=template, context=CONTEXT, now=NOW.isoformat())
        if not comparable(want):
            continue
        rendered += isinstance(want, str)
        if isinstance(want, dict) and isinstance(got, str) and any(t in want["error"] for t in LENIENT):
            lenient += 1
        elif not same(want, got):
            report("render " + repr(template), template, got, want)
    print(f"{args.rounds} tokenizers x {args.strings} strings: {tokenizer_differences} differences; "
          f"{args.rounds * 20} templates ({rendered} render): {len(bad) - tokenizer_differences} differences, {lenient} accepted beyond jinja2")
    return 1 if bad else 0


def run_goldens(args):
    rng = random.Random(7)
    os.makedirs(args.out, exist_ok=True)
    total = 0
    cases = []
    while len(cases) < 36:
        try:
            spec = random_tokenizer(rng)
        except Exception:  # noqa: BLE001
            continue
        if len(spec) > 26000:
            continue
        try:
            tok, items = Tokenizer.from_str(spec), []
        except Exception:  # noqa: BLE001: the package writes scores it cannot read
            continue
        if ambiguous(tok, spec):
            continue
        tok.no_truncation()
        tok.no_padding()
        for k in range(8):
            text = random_text(rng, 30) if k else rng.choice(CORPUS)
            want = try_encode(tok, text, k % 2 == 0)
            if isinstance(want, dict):
                continue
            decoded = try_decode(tok, want, False)
            items.append({"text": text, "special": k % 2 == 0, "ids": want, "decoded": None if isinstance(decoded, dict) else decoded})
        cases.append({"tokenizer": json.loads(spec), "cases": items})
    for name, content in (("tokenizers", cases), ("templates", golden_templates(rng))):
        path = os.path.join(args.out, name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        total += os.path.getsize(path)
    print(f"{len(cases)} tokenizers, {total} bytes in {args.out}")
    return 0


def golden_templates(rng):
    out, seen = [], set()
    while len(out) < 160:
        template = random_template(rng)
        want = render(template, CONTEXT)
        if isinstance(want, dict):
            if any(t in want["error"] for t in LENIENT) or rng.random() < .8:
                continue
            want = None
        elif not comparable(want) or len(want) > 1500:
            continue
        if template not in seen:
            seen.add(template)
            out.append({"template": template, "expected": want})
    return {"context": CONTEXT, "now": NOW.isoformat(), "cases": out}


def run_bench(args):
    text = open(args.text, encoding="utf-8").read()
    while len(text.encode()) < args.megabytes << 20:
        text += text
    size = len(text.encode())
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as f:
        f.write(text)
        f.flush()
        driver = Driver(args.driver)
        driver(load_json=args.tokenizer)
        driver(encode="warm up")
        ours = min((driver(encode_file=f.name) for _ in range(3)), key=lambda r: r["seconds"])
    tok = Tokenizer.from_file(args.tokenizer)
    tok.encode("warm up")
    # The package is fastest on small inputs; time it line by line as well as on the whole text.
    lines = text.splitlines(keepends=True)
    best = float("inf")
    for pieces in ([text], lines):
        start = time.perf_counter()
        count = sum(len(tok.encode(p, add_special_tokens=False).ids) for p in pieces)
        best = min(best, time.perf_counter() - start)
    print(f"{size / 1e6:.1f} MB, one thread: tokamak {size / 1e6 / ours['seconds']:.1f} MB/s ({ours['count']} tokens), "
          f"tokenizers {tokenizers.__version__} {size / 1e6 / best:.1f} MB/s ({count} tokens), ratio {best / ours['seconds']:.2f}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    g = sub.add_parser("goldens")
    g.add_argument("--out", required=True)
    d = sub.add_parser("diff")
    d.add_argument("--driver", required=True)
    d.add_argument("--rounds", type=int, default=40)
    d.add_argument("--strings", type=int, default=60)
    d.add_argument("--seed", type=int, default=1)
    d.add_argument("--show", type=int, default=5)
    d.add_argument("--tokenizer")
    b = sub.add_parser("bench")
    b.add_argument("--driver", required=True)
    b.add_argument("--tokenizer", required=True)
    b.add_argument("--text", required=True)
    b.add_argument("--megabytes", type=int, default=10)
    args = parser.parse_args()
    return {"goldens": run_goldens, "diff": run_diff, "bench": run_bench}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
