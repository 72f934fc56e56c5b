#!/usr/bin/env python3
"""Rejects comparisons with op names in src/compile: a planner or pass knows an op by its properties (src/ops/op.h), so that
a new op changes nothing there.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
    errors = 0
    for path in sorted((ROOT / "src" / "compile").rglob("*")):
        relative = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".cc", ".h") or path.stem.endswith("_test"):
            continue
        if relative.startswith("src/compile/import/"):  # compares with words of model files
            continue
        for line, word in comparisons(path.read_text(), names):
            errors += 1
            print(f'{relative}:{line}: compares with the op "{word}": use a property of OpDef (src/ops/op.h)')
    print(f"check_op_names: {len(names)} ops, {errors} comparisons")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
