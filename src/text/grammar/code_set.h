#pragma once
// Sets of Unicode characters as sorted, disjoint ranges that do not touch.
#include <cstdint>
#include <string_view>
#include <vector>

namespace tokamak::grammar {

struct CodeRange {
  char32_t lo, hi;
  bool operator==(const CodeRange&) const = default;
};
using CodeSet = std::vector<CodeRange>;
inline constexpr char32_t kMaxCode = 0x10FFFF;

CodeSet normalized(CodeSet set);
CodeSet unite(const CodeSet& a, const CodeSet& b);
CodeSet intersect(const CodeSet& a, const CodeSet& b);
CodeSet complement(const CodeSet& set);  // within U+0000 .. U+10FFFF
bool contains(const CodeSet& set, char32_t c);
inline CodeSet any_code() { return {{0, kMaxCode}}; }

// A general category or one of its groups ("Lu", "L", "Uppercase_Letter", "gc=Lu"), a script
// ("Greek", "Script=Grek", "scx=Grek" with extensions) or a binary property ("Alphabetic",
// "Emoji"), as in ECMAScript, Rust and Python's `regex`; case, blanks, '-' and '_' do not count.
// nullptr: not known. Categories are those of utf8proc, the rest those of PCRE2. The first use of a
// name takes milliseconds; the result lives as long as the program.
const CodeSet* unicode_property(std::string_view name);

}  // namespace tokamak::grammar
