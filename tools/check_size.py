#!/usr/bin/env python3
"""Limits files to 500 lines and functions to 60.

Kernels and generated data may be longer if LONGER gives the reason.
Functions are found by matching braces, which is good enough for code formatted by clang-format.
"""
import pathlib
import re
import sys

FILE_LINES = 500
FUNCTION_LINES = 60

# file or folder (with a trailing slash) -> why it may contain longer files or functions
LONGER = {}

FOLDERS = ["src", "apps", "include", "tests", "tools", "bench", "cmake"]
CODE = {".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".inc"}
OTHER = {".py", ".sh", ".cmake"}
NOT_A_FUNCTION = re.compile(r"^\s*(?:\w+ )*(?:namespace|class|struct|union|enum|extern)\b[^()]*$")


def blank_strings_and_comments(text):
    """Blanks the contents of literals and comments, so that only real braces are left."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z_])\'(?:\\.|[^\'\\\n])+\'',
        re.DOTALL)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def blank_macros(text):
    """Blanks preprocessor lines: macros may contain braces."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text,
                  flags=re.MULTILINE)


def functions(text):
    """Yields (first line, number of lines, head) of each outermost function: a brace after a parameter list."""
    clean = blank_macros(blank_strings_and_comments(text))
    stack, start = [], 0
    for i, c in enumerate(clean):
        if c in ";}" and not any(stack):
            start = i + 1
        if c == "{":
            head = clean[start:i]
            inside = any(stack)
            is_function = not inside and "(" in head and not NOT_A_FUNCTION.match(" ".join(head.split()))
            stack.append((start, head) if is_function else None)
            if not is_function and not inside:
                start = i + 1
        elif c == "}" and stack:
            opened = stack.pop()
            if opened:
                begin = opened[0] + len(opened[1]) - len(opened[1].lstrip())
                first = clean.count("\n", 0, begin) + 1
                yield first, clean.count("\n", begin, i) + 1, " ".join(opened[1].split())
                start = i + 1


def allowed_longer(name):
    return any(name == key or (key.endswith("/") and name.startswith(key)) for key in LONGER)


def check_tree(root):
    long_files, long_functions, count = [], [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in CODE | OTHER or not path.is_file():
                continue
            count += 1
            name = str(path.relative_to(root))
            if allowed_longer(name):
                continue
            text = path.read_text(encoding="utf-8")
            lines = text.count("\n")
            if lines > FILE_LINES:
                long_files.append(f"{name}: {lines} lines")
            if path.suffix in CODE:
                for first, length, head in functions(text):
                    if length > FUNCTION_LINES:
                        long_functions.append(f"{name}:{first}: {length} lines: {head[:80]}")
    return count, long_files, long_functions


SELF_TEST = """
namespace a {
class B : public C {
 public:
  int f(int x) const { return x; }
  B() : x_{1}, y_(2) {
%s  }
  struct D { int v[2] = {1, 2}; };
};
#define M(x) \\
  do { \\
  } while (0)
const char* s = R"x({{{)x";  // {
template <class T>
auto g(T t) -> decltype(t) {
  if (t) {
%s  }
  return [&] { return '{'; }();
}
}  // namespace a
"""


def self_test():
    """The parser must find two functions of known length among braces that are not functions."""
    text = SELF_TEST % ("    k();\n" * 70, "    k();\n" * 80)
    found = [(length, head) for _, length, head in functions(text) if length > FUNCTION_LINES]
    if [n for n, _ in found] != [72, 86]:
        sys.exit(f"check_size: self-test found {found}")


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    count, long_files, long_functions = check_tree(root)
    for line in long_files + long_functions:
        print(line)
    print(f"check_size: {count} files; {len(long_files)} over {FILE_LINES} lines; "
          f"{len(long_functions)} functions over {FUNCTION_LINES} lines")
    return 1 if long_files or long_functions or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
