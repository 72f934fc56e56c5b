#include "text/grammar/regex_parser.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar/look_ahead.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

// The text is taken to stand between two marks, which ^ and $ match.
constexpr char32_t kBeginMark = kMaxCode + 1, kEndMark = kMaxCode + 2;

struct Fragment {
  uint32_t begin, end;
};

class RegexParser {
 public:
  // Reads bytes begin..end of a pattern that is valid UTF-8; errors name the whole pattern and the
  // position in it. `anchored`: the part matches where the text begins, as after ^.
  RegexParser(std::string_view pattern, size_t begin, size_t end, bool anchored, RegexFlags flags)
      : original_(pattern),
        text_(utf8_to_u32(pattern.substr(0, end))),
        pos_(utf8_length(pattern.substr(0, begin))),
        anchored_(anchored),
        flags_(flags) {
    if (!anchored) leading_flags();
  }

  CharFsm parse(RegexUse use) {
    uint32_t begin = fsm_.add_state();
    if (use == RegexUse::kSearch)
      fsm_.add_edge(begin, {{0, kEndMark}}, begin);
    else
      begin = optional_mark(begin, kBeginMark);
    if (anchored_) {
      uint32_t after = fsm_.add_state();
      fsm_.add_edge(begin, {{kBeginMark, kBeginMark}}, after);
      begin = after;
    }
    Fragment all = alternatives();
    if (!end()) error("')' has no '('");
    fsm_.empty[begin].push_back(all.begin);
    if (use == RegexUse::kSearch)
      fsm_.add_edge(all.end, {{0, kEndMark}}, all.end);
    else
      all.end = optional_mark(all.end, kEndMark);
    fsm_.final[all.end] = 1;
    return between_marks();
  }

 private:
  bool end() const { return pos_ >= text_.size(); }
  char32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : 0;
  }
  bool take(char32_t c) {
    if (end() || peek() != c) return false;
    ++pos_;
    return true;
  }

  [[noreturn]] void error(std::string_view what) const { regex_error(original_, pos_, what); }

  // (?i) at the beginning, as in Python.
  void leading_flags() {
    while (peek() == '(' && peek(1) == '?' && is_flag(peek(2))) {
      size_t before = pos_;
      pos_ += 2;
      RegexFlags own = flags_;
      while (is_flag(peek())) set_flag(own);
      if (!take(')')) {
        pos_ = before;  // (?i:...)
        break;
      }
      flags_ = own;
    }
  }
  static bool is_flag(char32_t c) { return c == 'i' || c == 's' || c == 'u'; }
  void set_flag(RegexFlags& flags) {
    flags.any_case |= peek() == 'i';
    flags.dot_all |= peek() == 's';
    ++pos_;
  }

  uint32_t optional_mark(uint32_t state, char32_t mark) {
    uint32_t after = fsm_.add_state();
    fsm_.empty[state].push_back(after);
    fsm_.add_edge(state, {{mark, mark}}, after);
    return after;
  }

  // What `from` reaches by one or more of these marks: ^ and $ may be repeated.
  static std::vector<uint32_t> after_marks(const CharFsm& all, uint32_t from, char32_t mark) {
    std::vector<uint32_t> out;
    for (size_t next = 0; next <= out.size(); ++next) {
      for (const CharFsm::Edge& e : all.edges[next == 0 ? from : out[next - 1]])
        if (e.lo <= mark && mark <= e.hi && std::find(out.begin(), out.end(), e.to) == out.end())
          out.push_back(e.to);
    }
    return out;
  }

  // Keeps the text between the marks.
  CharFsm between_marks() const {
    CharFsm all = without_empty(fsm_), out;
    out.add_state();
    auto copy = [&](uint32_t from, uint32_t to) {
      for (uint32_t s : after_marks(all, from, kEndMark))
        if (all.final[s]) out.final[to] = 1;
      for (const CharFsm::Edge& e : all.edges[from])
        if (e.lo <= kMaxCode) out.edges[to].push_back({e.lo, std::min(e.hi, kMaxCode), e.to + 1});
    };
    for (uint32_t s = 0; s < all.size(); ++s) copy(s, out.add_state());
    for (uint32_t s : after_marks(all, 0, kBeginMark)) copy(s, 0);
    return out;
  }

  Fragment alternatives() {
    if (++depth_ > kMaxNesting) error("the groups are nested too deeply");
    Fragment out = sequence();
    while (take('|')) {
      Fragment other = sequence();
      uint32_t begin = fsm_.add_state(), after = fsm_.add_state();
      for (Fragment f : {out, other}) {
        fsm_.empty[begin].push_back(f.begin);
        fsm_.empty[f.end].push_back(after);
      }
      out = {begin, after};
    }
    --depth_;
    return out;
  }

  Fragment sequence() {
    uint32_t begin = fsm_.add_state();
    Fragment out{begin, begin};
    while (!end() && peek() != '|' && peek() != ')') {
      Fragment next = repeated();
      fsm_.empty[out.end].push_back(next.begin);
      out.end = next.end;
    }
    return out;
  }

  Fragment repeated() {
    size_t from = pos_;
    Fragment part = atom();
    size_t atom_end = pos_;
    uint32_t min = 1, max = 1;
    if (take('*'))
      min = 0, max = kUnbounded;
    else if (take('+'))
      max = kUnbounded;
    else if (take('?'))
      min = 0;
    else if (peek() == '{' && !end())
      counts(min, max);
    else
      return part;
    take('?');  // lazy: the same texts match
    if (!end() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{'))
      error("a repetition follows a repetition");
    size_t after = pos_;
    // The first copy exists; the others are parsed again.
    auto copy = [&] {
      pos_ = from;
      Fragment f = atom();
      TK_CHECK(pos_ == atom_end, "a part of a regular expression was read in two ways");
      return f;
    };
    Fragment out = repeat(part, min, max, copy);
    pos_ = after;
    return out;
  }

  template <class Copy>
  Fragment repeat(Fragment first, uint32_t min, uint32_t max, Copy&& copy) {
    uint32_t begin = fsm_.add_state(), last = fsm_.add_state(), at = begin;
    bool used = false;
    auto next = [&] { return std::exchange(used, true) ? copy() : first; };
    for (uint32_t i = 0; i < min; ++i) {
      Fragment f = next();
      fsm_.empty[at].push_back(f.begin);
      at = f.end;
    }
    if (max == kUnbounded) {
      Fragment f = next();
      uint32_t loop = fsm_.add_state();
      fsm_.empty[at].push_back(loop);
      fsm_.empty[loop].push_back(f.begin);
      fsm_.empty[f.end].push_back(loop);
      at = loop;
    } else {
      for (uint32_t i = min; i < max; ++i) {
        Fragment f = next();
        fsm_.empty[at].push_back(last);
        fsm_.empty[at].push_back(f.begin);
        at = f.end;
      }
    }
    fsm_.empty[at].push_back(last);
    return {begin, last};
  }

  uint32_t number() {
    if (peek() < '0' || peek() > '9') error("a number is expected in {m,n}");
    uint64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++pos_) {
      value = value * 10 + (peek() - '0');
      if (value > kMaxFsmStates) error("the count in {m,n} is too large");
    }
    return static_cast<uint32_t>(value);
  }

  void counts(uint32_t& min, uint32_t& max) {
    ++pos_;
    min = max = number();
    if (take(',')) max = peek() == '}' ? kUnbounded : number();
    if (!take('}')) error("'}' is expected");
    if (max < min) error("the counts in {m,n} are in the wrong order");
  }

  Fragment of_set(const CodeSet& set) {
    uint32_t begin = fsm_.add_state(), after = fsm_.add_state();
    fsm_.add_edge(begin, set, after);
    return {begin, after};
  }

  Fragment atom() {
    char32_t c = peek();
    switch (c) {
      case '^':
      case '$':
        ++pos_;
        return of_set(c == '^' ? CodeSet{{kBeginMark, kBeginMark}} : CodeSet{{kEndMark, kEndMark}});
      case '(':
        return group();
      case '[':
        return of_set(char_class());
      case '.':
        ++pos_;
        return of_set(flags_.dot_all
                          ? any_code()
                          : complement(CodeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\':
        if (peek(1) == 'A' || peek(1) == 'Z' || peek(1) == 'z') {  // as in Python and Rust
          char32_t mark = peek(1) == 'A' ? kBeginMark : kEndMark;
          pos_ += 2;
          return of_set({{mark, mark}});
        }
        return of_set(cased(escape(false)));
      case '*':
      case '+':
      case '?':
      case '{':
        error("nothing to repeat");
      default:
        ++pos_;
        return of_set(cased({{c, c}}));
    }
  }

  CodeSet cased(CodeSet set) const { return flags_.any_case ? any_case(set) : set; }

  Fragment group() {
    ++pos_;
    RegexFlags outer = flags_;
    if (take('?')) {
      while (is_flag(peek())) set_flag(flags_);
      if (peek() == 'P' && peek(1) == '<') ++pos_;  // Python's (?P<name>...)
      if (take(':')) {
      } else if (peek() == '<' && peek(1) != '=' && peek(1) != '!') {
        while (!end() && peek() != '>') ++pos_;
        if (!take('>')) error("'>' is expected after the name of a group");
      } else {
        error("look-around and flags are not available");
      }
    }
    Fragment out = alternatives();
    if (!take(')')) error("')' is expected");
    flags_ = outer;
    return out;
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      char32_t c = peek();
      int digit = c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
                  : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a') + 10
                  : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A') + 10
                                         : -1;
      if (digit < 0) error("a hexadecimal digit is expected");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  char32_t unicode_escape() {
    if (take('{')) {
      char32_t value = 0;
      do {
        value = value * 16 + hex(1);
        if (value > kMaxCode) error("not a character");
      } while (!end() && peek() != '}');
      if (!take('}')) error("'}' is expected");
      return value;
    }
    char32_t high = hex(4);
    if (high < 0xD800 || high > 0xDBFF || peek() != '\\' || peek(1) != 'u') return high;
    size_t before = pos_;
    pos_ += 2;
    char32_t low = peek() == '{' ? 0 : hex(4);
    if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    pos_ = before;
    return high;
  }

  CodeSet property(bool negated) {
    std::string name;
    if (take('{')) {
      negated ^= take('^');
      while (!end() && peek() != '}') utf8_append(name, text_[pos_++]);
      if (!take('}')) error("'}' is expected");
    } else {
      if (end()) error("a property is expected after \\p");
      utf8_append(name, text_[pos_++]);  // \pL
    }
    const CodeSet* set = unicode_property(name);
    if (set == nullptr)
      error(
          fmt::format("the Unicode property '{}' is not available; general categories, scripts "
                      "and binary properties are",
                      utf8_lossy(name.substr(0, 40))));
    return negated ? complement(*set) : *set;
  }

  CodeSet escape(bool in_class) {
    static const CodeSet kDigit{{'0', '9'}}, kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
        kSpace{{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
               {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
               {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    ++pos_;
    if (end()) error("the expression ends with a backslash");
    char32_t c = text_[pos_++];
    auto one = [](char32_t code) { return CodeSet{{code, code}}; };
    switch (c) {
      case 'd':
        return kDigit;
      case 'D':
        return complement(kDigit);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'p':
      case 'P':
        return property(c == 'P');
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':  // also \x{1F600}, as in PCRE and Rust
        return one(peek() == '{' ? unicode_escape() : hex(2));
      case 'U': {  // \U0001F600, as in Python
        const char32_t code = hex(8);
        if (code > kMaxCode) error("not a character");
        return one(code);
      }
      case 'u':
        return one(unicode_escape());
      case 'c':
        if ((peek() | 32) < 'a' || (peek() | 32) > 'z') error("a letter is expected after \\c");
        return one(text_[pos_++] & 31);
      default:
        return other_escape(c, in_class);
    }
  }

  CodeSet other_escape(char32_t c, bool in_class) {
    if (c == 'b' && in_class) return {{8, 8}};
    if (c == '0' && !(peek() >= '0' && peek() <= '9')) return {{0, 0}};
    --pos_;
    if (c == 'b' || c == 'B') error("word boundaries are not available");
    if ((c >= '0' && c <= '9') || c == 'k') error("back-references are not available");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) error("unknown escape");
    ++pos_;
    return {{c, c}};
  }

  CodeSet class_item(bool& single) {
    if (end()) error("']' is expected");
    single = true;
    if (peek() != '\\') {
      char32_t c = text_[pos_++];
      return {{c, c}};
    }
    CodeSet set = escape(true);
    single = set.size() == 1 && set[0].lo == set[0].hi;
    return set;
  }

  CodeSet char_class() {
    ++pos_;
    bool negated = take('^');
    CodeSet out;
    while (end() || peek() != ']') {
      if (peek() == '[' && peek(1) == ':' && text_.find(U":]", pos_) != text_.npos)
        error("classes such as [:alpha:] are not available; use \\p{...}");
      bool single = false, other = false;
      CodeSet item = class_item(single);
      if (single && peek() == '-' && peek(1) != ']' && pos_ + 1 < text_.size()) {
        ++pos_;
        CodeSet last = class_item(other);
        if (!other) error("a range in [...] ends with a class");
        if (last[0].lo < item[0].lo) error("a range in [...] is in the wrong order");
        item[0].hi = last[0].lo;
      }
      out.insert(out.end(), item.begin(), item.end());
    }
    ++pos_;
    out = cased(normalized(std::move(out)));
    return negated ? complement(out) : out;
  }

  std::string_view original_;
  std::u32string text_;
  size_t pos_;
  bool anchored_;
  int depth_ = 0;
  RegexFlags flags_;
  CharFsm fsm_;
};

}  // namespace

CodeSet any_case(const CodeSet& set) {
  constexpr size_t kMostCodes = 20'000;  // beyond: only letters of ASCII
  size_t codes = 0;
  for (const CodeRange& r : set) codes += r.hi - r.lo + 1;
  CodeSet out = set;
  for (const CodeRange& r : set)
    for (char32_t c = r.lo; c <= r.hi && (codes <= kMostCodes || c < 0x80); ++c)
      for (bool upper : {false, true}) {
        std::string other;
        (upper ? append_upper : append_lower)(other, c);
        std::u32string mapped = utf8_to_u32(other);
        if (mapped.size() == 1 && mapped[0] != c) out.push_back({mapped[0], mapped[0]});
      }
  return normalized(std::move(out));
}

CharFsm parse_regex(std::string_view pattern, RegexUse use, RegexFlags flags) {
  if (!utf8_is_valid(pattern))
    fail(ErrorCode::kInvalidArgument, "a regular expression is not valid UTF-8");
  std::vector<LookAhead> conditions;
  const size_t rest = flags.inside ? 0 : without_look_ahead(pattern, use, conditions);
  CharFsm out = RegexParser(pattern, rest, pattern.size(), rest > 0, flags).parse(use);
  for (const LookAhead& c : conditions) {
    CharFsm fsm = RegexParser(pattern, c.begin, c.end, true, flags).parse(RegexUse::kSearch);
    out = intersect(out, c.negative ? complement(fsm) : fsm);
  }
  return out;
}

}  // namespace tokamak::grammar
