#pragma once
// Regular expressions of tokenizers: Oniguruma (Ruby) syntax, run by PCRE2 with JIT, which only
// regex.cc uses.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace tokamak {

// Immutable and thread-safe. Matching is on valid UTF-8 only.
class Regex {
 public:
  explicit Regex(std::string_view pattern);  // throws Error(kUnsupported) naming the pattern
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  struct Match {
    size_t begin = 0, end = 0;
  };
  // Calls found(Match) for each match in turn, as a "find all" does: an empty match directly after
  // another match is not reported.
  template <class F>
  void for_each(std::string_view text, F&& found) const {
    Scan scan(*this, text);
    Match m;
    while (scan.next(m)) found(m);
  }

 private:
  struct Code;
  class Scan {
   public:
    Scan(const Regex& regex, std::string_view text);
    Scan(const Scan&) = delete;  // text_ may point into known_
    Scan& operator=(const Scan&) = delete;
    bool next(Match& match);

   private:
    const Regex& regex_;
    std::string known_;  // a copy with characters that PCRE2 knows, where that is needed
    std::string_view text_;
    bool next_digits(Match& match);
    size_t window_end(size_t at) const;
    size_t window_ = 0;  // bytes visible to a match; 0: all
    size_t pos_ = 0, last_end_ = std::string_view::npos;
    size_t run_end_ = 0, run_left_ = 0;  // of the current digit run of next_digits()
  };
  std::unique_ptr<Code> code_;
};

// A literal as a pattern.
std::string regex_escape(std::string_view literal);

// PCRE2's name for \p{key} (lower case, no separators); empty: none.
std::string_view regex_property_name(std::string_view key);
// The characters of \p{name}, by PCRE2's tables (Unicode 14); false: it has no property of this
// name.
bool regex_property(std::string_view name, std::vector<CharRange>& out);
// Class items for a set that PCRE2 lacks or defines differently; posix: as in [[:punct:]].
std::string_view regex_named_set(std::string_view name, bool posix);

// How a pattern refers to characters.
struct RegexCharacters {
  std::vector<CharRange> named;  // beyond U+07FF: alone or as a range of a class
  bool classes = false;          // also by properties: \s, \p{L}, [:alpha:]
};
RegexCharacters regex_characters(std::string_view pattern);

// The same pattern in PCRE2's syntax.
std::string regex_to_pcre(std::string_view pattern);

}  // namespace tokamak
