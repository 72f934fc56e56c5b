#!/usr/bin/env python3
"""Fails when a source file does not include what it uses.

The usual builds compile several files as one and precompile common headers, so a missing include can go unnoticed.
  check_includes.py             names of the standard library and of fmt and GoogleTest: their headers must be included by the file,
                                or by a header of this project that it includes. Reads text only.
  check_includes.py --compile   everything else: compiles every file of the product alone, syntax only. Headers of the standard library
                                and of fmt, which the first check covers, are precompiled: that halves the time. Reads
                                build/plain/compile_commands.json. A file that passed is not compiled again until it, a header that it
                                includes or its command changes (~/.cache/tokamak/includes.json).
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRECOMPILED = ROOT / "build" / "plain" / "standard_headers.h"
FOLDERS = ["src", "apps", "tests", "include", "examples"]

# Headers that define what every container needs: utilities, iterators, initializer lists.
BASIC = "algorithm array charconv chrono deque functional future iterator list map memory numeric optional queue random set span string string_view tuple unordered_map unordered_set utility variant vector"
# Names after std:: -> headers that declare them; any of these will do.
NAMES = {
    "algorithm": "all_of any_of binary_search clamp copy copy_n count count_if equal fill fill_n find find_if for_each is_sorted lower_bound make_heap max max_element merge min min_element minmax_element mismatch none_of nth_element partial_sort pop_heap push_heap replace reverse rotate sort stable_partition stable_sort transform unique upper_bound",
    "cmath": "acos asin atanh ceil copysign cos erf erfc exp exp2 expm1 fabs floor fma fmax fmod frexp isfinite isinf isnan ldexp log log1p log2 lround nan nanf nearbyint nextafter nextafterf pow round signbit sin sqrt tanh trunc",
    "cmath cstdlib": "abs",
    "cstdlib": "abort aligned_alloc atoi atoll calloc exit free getenv malloc strtod strtoll strtoull",
    "cstdio": "fclose ferror fflush fopen fprintf fputs fscanf fwrite printf puts sscanf",
    "cstring": "memcmp memcpy memmove memset strcmp strerror strncmp strncpy",
    "cctype": "isalnum isalpha isdigit isspace tolower toupper",
    "csignal signal.h": "signal",
    "ctime chrono": "clock clock_t strftime time time_t timespec timespec_get tm",
    "array": "array",
    "atomic": "atomic atomic_flag memory_order_acq_rel memory_order_acquire memory_order_relaxed memory_order_release",
    "bit": "bit_cast bit_ceil bit_floor countl_zero countr_zero endian has_single_bit popcount",
    "charconv": "chars_format from_chars to_chars",
    "chrono": "chrono",
    "concepts": "integral same_as",
    "condition_variable": "condition_variable",
    "cstddef " + BASIC: "byte nullptr_t ptrdiff_t to_integer",
    "deque": "deque",
    "list": "list",
    "exception": "current_exception exception_ptr rethrow_exception",
    "exception stdexcept": "exception",
    "filesystem": "filesystem",
    "fstream": "fstream ifstream ofstream",
    "functional": "function multiplies ref",
    "functional map set algorithm": "greater less",
    "functional string string_view memory optional variant": "hash",
    "future": "future future_error future_status packaged_task promise",
    "initializer_list " + BASIC: "initializer_list",
    "iostream": "cerr cin cout",
    "iostream sstream fstream ostream gtest/gtest.h": "endl flush ios ostream streamsize",
    "iterator " + BASIC: "advance back_inserter begin distance end input_iterator_tag next prev size ssize",
    "iterator iostream fstream sstream": "istreambuf_iterator",
    "limits": "numeric_limits",
    "map": "map multimap",
    "memory": "enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag try_to_lock",
    "mutex condition_variable": "unique_lock",
    "new": "bad_alloc nothrow_t",
    "numbers": "numbers",
    "numeric": "accumulate gcd iota lcm",
    "optional": "nullopt optional",
    "queue": "priority_queue",
    "random": "mt19937 mt19937_64 random_device",
    "set": "set",
    "span": "as_bytes span",
    "sstream": "istringstream ostringstream",
    "stdexcept": "logic_error runtime_error",
    "regex": "regex sregex_iterator",
    "string": "stod stof stoi stoll stoul stoull string to_string u32string",
    "string iostream sstream fstream": "getline",
    "string_view string": "string_view u32string_view",
    "system_error charconv filesystem": "errc error_code",
    "system_error": "system_error",
    "thread": "this_thread thread",
    "tuple": "tie tuple",
    "type_traits concepts": "conditional_t is_class_v is_enum_v is_floating_point_v is_same_v is_signed_v is_trivially_copyable_v remove_const_t remove_reference_t",
    "unordered_map": "unordered_map unordered_multimap",
    "unordered_set": "unordered_set",
    "utility " + BASIC: "as_const exchange forward integer_sequence make_integer_sequence move pair swap",
    "variant": "get_if holds_alternative monostate variant visit",
    "vector": "vector",
    "variant tuple utility array map": "get",
    "string vector map set deque unordered_map unordered_set": "erase erase_if",
}
# Other names, as regular expressions -> headers.
OTHERS = {
    r"(?<![\w:])u?int(?:8|16|32|64)_t\b|\bU?INT(?:8|16|32|64)_M(?:AX|IN)\b": "cstdint",
    # Not std::size_t: <vector> and <map> bring that alone.
    r"(?<![\w:])size_t\b": "cstddef cstdlib cstring cstdio ctime stddef.h stdlib.h string.h algorithm chrono filesystem optional span fstream functional iostream memory sstream string string_view fmt/format.h gtest/gtest.h",
    r"\b(?:INFINITY|NAN)\b": "cmath",
    r"(?<![\w:.>])errno\b": "cerrno",
    r"(?<![\w:.>])std(?:err|out|in)\b|(?<![\w:.>])(?:snprintf|printf|fprintf)\(": "cstdio",
    r"(?<![\w:.>])(?:memcpy|memset|memcmp|memmove|strlen|strcmp|strerror)\(": "cstring",
    r"\bassert\(": "cassert",
    r"\btypeid\(": "typeinfo",
    r"\b(?:INT_MAX|INT_MIN|CHAR_BIT)\b": "climits",
    r"\bfmt::": "fmt/format.h fmt/ranges.h",
    r"^TEST(?:_F|_P)?\(|\bEXPECT_[A-Z]+\(": "gtest/gtest.h",
}


def header_of_names():
    table = {}
    for headers, names in NAMES.items():
        for name in names.split():
            table[name] = headers.split()
    return table


def code_of(text):
    """Without comments and strings: those contain names that are not used."""
    pattern = r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, '""', re.sub(r'^(\s*#\s*include\s*)"([^"]+)"', r"\1{\2}", text, flags=re.MULTILINE), flags=re.DOTALL)


@functools.lru_cache(maxsize=None)
def read(path):
    """The code of a file, the headers of others that it includes, and those of this project."""
    code = code_of(path.read_text(encoding="utf-8", errors="replace"))
    angle = set(re.findall(r"^\s*#\s*include\s*<([^>]+)>", code, re.MULTILINE))
    own = []
    for name in re.findall(r"^\s*#\s*include\s*\{([^}]+)\}", code, re.MULTILINE) + [a for a in angle if a.startswith("tokamak/")]:
        for base in (ROOT / "src", ROOT / "include", ROOT, ROOT / "tests", path.parent):
            if (base / name).is_file():
                own.append((base / name).resolve())
                break
    return code, frozenset(angle), tuple(own)


@functools.lru_cache(maxsize=None)
def provided(path):
    """All headers of others that a file includes, directly or through headers of this project."""
    seen, todo, out = set(), [path], set()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        _, angle, own = read(at)
        out |= angle
        todo += own
    return out


def missing(path, table=header_of_names()):
    """Yields the names that a file uses without a header for them."""
    code, has = read(path)[0], provided(path)
    for name in sorted(set(re.findall(r"\bstd::(\w+)", code))):
        if name not in table:
            yield f"std::{name} is not in the table of tools/check_includes.py: add it"
        elif not has.intersection(table[name]):
            yield f"std::{name} needs <{table[name][0]}>"
    for pattern, headers in OTHERS.items():
        found = re.search(pattern, code, re.MULTILINE)
        if found and not has.intersection(headers.split()):
            yield f"{found.group(0).rstrip('(')} needs <{headers.split()[0]}>"


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                yield path


def check_names():
    files = messages = 0
    for path in sources():
        files += 1
        for message in missing(path):
            messages += 1
            print(f"{path.relative_to(ROOT)}: {message}")
    print(f"check_includes: {files} files, {messages} names without their header")
    return messages == 0 and files > 0


def self_test():
    """The check must be able to fail."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.cc"
        path.write_text('#include <string>\n// std::map\nstd::string f(const std::vector<int>& v, int64_t n) { return "std::set"; }\n'
                        "std::vector<int> g(std::string s) { return {std::move(s).size()}; }\n")
        if (found := list(missing(path))) != ["std::vector needs <vector>", "int64_t needs <cstdint>"]:
            sys.exit("check_includes: self-test found " + repr(found))


def generate_headers(folder):
    """Headers that the build makes (embedded pages and rules). Only their own commands are run: for ninja they depend on libraries."""
    listed = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    headers = sorted({line.split(":")[0] for line in listed.stdout.splitlines() if re.search(r"generated/.*\.h:", line)})
    commands = subprocess.run(["ninja", "-C", folder, "-t", "commands", *headers], check=True, capture_output=True, text=True)
    for command in dict.fromkeys(line for line in commands.stdout.splitlines() if "embed.cmake" in line or "gzip" in line):
        subprocess.run(command, shell=True, cwd=folder, check=True)


def compiler_words(entry):
    """The compiler and its options, and the source file last."""
    words = shlex.split(entry["command"])
    while words and not re.search(r"(g\+\+|c\+\+|clang\+\+)(-\d+)?$", words[0]):
        words.pop(0)  # launchers
    out, skip = [], False
    for word in words:
        if skip or word == "-c":
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif not word.startswith(("-M", "-O", "-g")):
            out.append(word)
    return [*out, "-w"]


def syntax_command(entry):
    return compiler_words(entry) + ["-fsyntax-only", "-include", str(PRECOMPILED)]


def precompile(entry):
    """Options that do not fit (-march) make the compiler read the header itself."""
    PRECOMPILED.write_text("".join(f"#include <{h}>\n" for h in f"{BASIC} fmt/format.h".split()))
    words = [w for w in compiler_words(entry) if w != entry["file"]]
    subprocess.run([*words, "-x", "c++-header", str(PRECOMPILED), "-o", f"{PRECOMPILED}.gch"], cwd=entry["directory"], check=True)


def is_test(entry):
    return "-DGTEST" in entry["command"]


def closure(path):
    """A file and all headers of this project that it includes."""
    seen, todo = set(), [path]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += read(at)[2]
    return sorted(seen)


class Passed:
    """The files that passed, each as a hash of everything its compilation depends on."""

    def __init__(self, folder):
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        self.path = pathlib.Path(os.environ.get("TOKAMAK_CACHE") or pathlib.Path(cache) / "tokamak") / "includes.json"
        try:
            self.known = set(json.loads(self.path.read_text()))
        except (OSError, ValueError):
            self.known = set()
        self.now = set()
        generated = sorted(folder.rglob("generated/**/*.h"))
        compiler = subprocess.run(["c++", "--version"], check=True, capture_output=True).stdout
        self.common = hashlib.sha256(compiler + b"".join(h.read_bytes() for h in generated)).hexdigest()

    def key(self, entry):
        command = entry["command"].replace(str(ROOT), "")  # the same in every checkout
        digest = hashlib.sha256((self.common + command).encode())
        for path in closure(pathlib.Path(entry["file"]).resolve()):
            digest.update(path.read_bytes() + b"\0")
        return digest.hexdigest()

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(sorted(self.now)))


def must_fail(folder, entry):
    """A file gets no header of this project that it does not include."""
    path = folder / "needs_value.cc"
    path.write_text("tokamak::Value v;\n")
    words = [str(path) if w == entry["file"] else w for w in syntax_command(entry)]
    if subprocess.run(words, cwd=entry["directory"], capture_output=True).returncode == 0:
        sys.exit("check_includes: a file without includes compiles")


def check_alone():
    folder = ROOT / "build" / "plain"
    generate_headers(str(folder))
    entries = [e for e in json.loads((folder / "compile_commands.json").read_text())
               if e["file"].startswith(tuple(str(ROOT / f) for f in ("src", "apps"))) and not is_test(e)]
    entries = list({e["file"]: e for e in entries}.values())  # some targets compile the same file
    precompile(next(e for e in entries if "-ffp-contract" not in e["command"]))
    must_fail(folder, entries[0])
    passed = Passed(folder)
    keys = {e["file"]: passed.key(e) for e in entries}
    passed.now = {k for k in keys.values() if k in passed.known}
    todo = [e for e in entries if keys[e["file"]] not in passed.known]

    def check(entry):
        run = subprocess.run(syntax_command(entry), cwd=entry["directory"], capture_output=True, text=True)
        return entry["file"], run.returncode, run.stderr

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count())) as pool:
        for file, code, errors in pool.map(check, todo):
            if code == 0:
                passed.now.add(keys[file])
                continue
            failed += 1
            lines = [line for line in errors.splitlines() if "error" in line][:3]
            print("\n".join([os.path.relpath(file, ROOT) + ":", *("  " + line for line in lines)]))
    passed.save()
    print(f"check_includes: {len(entries)} files, {len(todo)} compiled, {failed} that do not compile alone")
    return failed == 0 and len(entries) > 0


def main():
    self_test()
    good = check_names()
    if "--compile" in sys.argv[1:]:
        good = check_alone() and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
