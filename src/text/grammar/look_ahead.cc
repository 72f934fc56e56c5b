#include "text/grammar/look_ahead.h"

#include "base/error.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

// The end of the group or alternative that begins at `pos`: a `)` or, with `bars`, a `|` that is
// not inside of another one; npos: none.
size_t end_of_part(std::string_view pattern, size_t pos, bool bars) {
  int depth = 0;
  for (bool in_class = false; pos < pattern.size(); ++pos) {
    const char c = pattern[pos];
    if (c == '\\')
      ++pos;
    else if (in_class)
      in_class = c != ']';
    else if (c == '[')
      in_class = true;
    else if (c == '(')
      ++depth;
    else if ((c == ')' && depth-- == 0) || (bars && c == '|' && depth == 0))
      return pos;
  }
  return pattern.npos;
}

}  // namespace

size_t without_look_ahead(std::string_view pattern, RegexUse use,
                          std::vector<LookAhead>& conditions) {
  size_t pos = pattern.starts_with('^') ? 1 : 0;
  if (pos == 0 && use == RegexUse::kSearch) return 0;
  const auto at = [&](std::string_view text) { return pattern.substr(pos).starts_with(text); };
  while (at("(?!") || at("(?=")) {
    const size_t close = end_of_part(pattern, pos + 3, false);
    if (close == pattern.npos) break;
    if (conditions.size() == kMaxLookAheads)
      regex_error(pattern, utf8_length(pattern.substr(0, pos)),
                  fmt::format("there are more than {} look-aheads; write negative ones as "
                              "alternatives of one: (?!a|b)",
                              kMaxLookAheads));
    conditions.push_back({pos + 3, close, pattern[pos + 2] == '!'});
    pos = close + 1;
  }
  // Alternatives: the condition belongs to the first one.
  if (end_of_part(pattern, pos, true) != pattern.npos) conditions.clear();
  return conditions.empty() ? 0 : pos;
}

void regex_error(std::string_view pattern, size_t before, std::string_view what) {
  fail(ErrorCode::kInvalidArgument, "the regular expression '{}', character {}: {}",
       pattern.substr(0, 200), before + 1, what);
}

}  // namespace tokamak::grammar
