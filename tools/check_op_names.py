#!/usr/bin/env python3
"""Counts comparisons with op names in src/compile: a planner or pass knows an op by its properties (src/ops/op.h).

A file that is about certain ops may name them; LIMITS has the most comparisons it may have, and why. A new op then
changes nothing in src/compile.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Most comparisons per file, and the reason.
LIMITS = {
    "src/compile/fold_norms.cc": (4, "moves the weights of norms into the matrices that follow"),
    "src/compile/quant/storage.cc": (1, "the residual stream is a chain of sums"),
    "src/compile/sampling.cc": (1, "asks whether the backend chooses tokens itself"),
}


def op_names():
    names = set()
    for path in sorted((ROOT / "src" / "ops").glob("*.cc")):
        text = path.read_text()
        names |= set(re.findall(r'(?:\.name = |kName = |\bop\(|_op\(|structural\(|region\()\s*"([a-z_0-9]+)"', text))
        for table in re.findall(r"kStageNames\[\] = \{([^}]*)\}", text):
            names |= set(re.findall(r'"([a-z_0-9]+)"', table))
    return names


def comparisons(text, names):
    """Lines and the op name that each compares with."""
    text = re.sub(r"//[^\n]*", "", text)
    patterns = [r'[=!]=\s*"([a-z_0-9]+)"', r'"([a-z_0-9]+)"\s*[=!]=', r'\bfind_op\("([a-z_0-9]+)"\)\s*[=!]=',
                r'[=!]=\s*find_op\("([a-z_0-9]+)"\)', r'(?:starts_with|ends_with|contains)\("([a-z_0-9]+)"\)']
    for pattern in patterns:
        for m in re.finditer(pattern, text):
            around = text[max(0, m.start() - 60):m.start()]
            word = m.group(1)
            known = word in names or any(n.startswith(word) for n in names if word.endswith("_"))
            if known and (re.search(r"\bop\b|op->name|op\(|name\s*$|name\s*\)?\s*$", around)):
                yield text.count("\n", 0, m.start()) + 1, word
    for m in re.finditer(r"std::(?:set|map|array|vector)<std::string_view[^;{]*\{([^;]*)\}", text):
        words = re.findall(r'"([a-z_0-9]+)"', m.group(1))
        if len(words) > 2 and all(w in names for w in words):
            for word in words:
                yield text.count("\n", 0, m.start()) + 1, word


def main():
    names = op_names()
    if len(names) < 50:
        sys.exit(f"check_op_names: only {len(names)} ops found in src/ops")
    errors = total = 0
    for path in sorted((ROOT / "src" / "compile").rglob("*")):
        relative = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".cc", ".h") or path.stem.endswith("_test"):
            continue
        if relative.startswith("src/compile/import/"):  # compares with words of model files
            continue
        found = list(comparisons(path.read_text(), names))
        total += len(found)
        limit = LIMITS.get(relative, (0, ""))[0]
        if len(found) > limit:
            errors += 1
            for line, word in found:
                print(f'{relative}:{line}: compares with the op "{word}": use a property of OpDef (src/ops/op.h)')
        elif len(found) < limit:
            errors += 1
            print(f"{relative}: {len(found)} comparisons with op names, LIMITS allows {limit}: lower it")
    allowed = sum(limit for limit, _ in LIMITS.values())
    print(f"check_op_names: {len(names)} ops, {total} comparisons (ceiling {allowed}), {errors} errors")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
