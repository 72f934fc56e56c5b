#include "text/grammar/gbnf.h"

#include <map>
#include <string>

#include "base/error.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Ir parse() {
    skip(true);
    while (!end()) rule();
    auto root = names_.find("root");
    if (root == names_.end() || ir_.rules()[root->second].body == kNoExpr)
      fail(ErrorCode::kInvalidArgument, "the grammar has no rule named root");
    for (const Ir::Rule& r : ir_.rules())
      if (r.body == kNoExpr)
        fail(ErrorCode::kInvalidArgument, "the grammar uses rule '{}', which it does not define",
             r.name);
    ir_.root = root->second;
    return std::move(ir_);
  }

 private:
  bool end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : 0;
  }

  [[noreturn]] void error(std::string_view what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos_ && i < text_.size(); ++i) {
      ++column;
      if (text_[i] == '\n') ++line, column = 1;
    }
    fail(ErrorCode::kInvalidArgument, "the grammar, line {}, column {}: {}", line, column, what);
  }

  void skip(bool newlines) {
    while (!end()) {
      char c = peek();
      if (c == '#')
        while (!end() && peek() != '\n' && peek() != '\r') ++pos_;
      else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')))
        ++pos_;
      else
        break;
    }
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }

  std::string name() {
    size_t begin = pos_;
    while (is_name(peek())) ++pos_;
    if (pos_ == begin) error("a rule name is expected");
    return std::string(text_.substr(begin, pos_ - begin));
  }

  RuleId rule_named(const std::string& name) {
    auto it = names_.find(name);
    if (it == names_.end()) it = names_.emplace(name, ir_.add_rule(name)).first;
    return it->second;
  }

  void rule() {
    std::string own = name();
    skip(false);
    if (text_.substr(pos_, 3) != "::=") error("'::=' is expected after the name of a rule");
    pos_ += 3;
    skip(true);
    RuleId id = rule_named(own);
    if (ir_.rules()[id].body != kNoExpr) error(fmt::format("rule '{}' is defined twice", own));
    ExprId body = alternatives(false);
    ir_.define(id, without_left_recursion(ir_, id, body));
    if (!end() && peek() != '\n' && peek() != '\r') error("the end of the rule is expected");
    skip(true);
  }

  ExprId alternatives(bool nested) {
    if (++depth_ > kMaxNesting) error("the brackets are nested too deeply");
    std::vector<ExprId> parts{sequence(nested)};
    while (next_alternative()) {
      ++pos_;
      skip(true);
      parts.push_back(sequence(nested));
    }
    --depth_;
    return parts.size() == 1 ? parts[0] : ir_.alt(std::move(parts));
  }

  // Also at the beginning of a line.
  bool next_alternative() {
    size_t before = pos_;
    skip(true);
    if (peek() == '|') return true;
    pos_ = before;
    return false;
  }

  ExprId sequence(bool nested) {
    std::vector<ExprId> parts;
    while (!end()) {
      char c = peek();
      if (c == '"') {
        parts.push_back(literal());
      } else if (c == '[') {
        parts.push_back(char_class());
      } else if (c == '.') {
        ++pos_;
        parts.push_back(ir_.chars(any_code()));
      } else if (c == '(') {
        ++pos_;
        skip(true);
        parts.push_back(alternatives(true));
        if (peek() != ')') error("')' is expected");
        ++pos_;
      } else if (is_name(c)) {
        parts.push_back(ir_.ref(rule_named(name())));
      } else if (c == '<' || c == '!') {
        error("tokens, <...>, are not available; write the text they stand for");
      } else {
        break;
      }
      skip(nested);
      repetitions(parts.back(), nested);
    }
    return parts.size() == 1 ? parts[0] : ir_.seq(std::move(parts));
  }

  void repetitions(ExprId& part, bool nested) {
    while (true) {
      char c = peek();
      uint32_t min = c == '+' ? 1 : 0, max = c == '?' ? 1 : kUnbounded;
      if (c != '*' && c != '+' && c != '?' && c != '{') return;
      ++pos_;
      if (c == '{') counts(min, max);
      part = ir_.repeat(part, min, max);
      skip(nested);
    }
  }

  uint32_t number() {
    if (peek() < '0' || peek() > '9') error("a number is expected");
    uint64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint64_t>(peek() - '0');
      if (value > kMaxRepeat) error(fmt::format("a part repeats more than {} times", kMaxRepeat));
      ++pos_;
    }
    return static_cast<uint32_t>(value);
  }

  void counts(uint32_t& min, uint32_t& max) {
    skip(false);
    min = number();
    max = min;
    skip(false);
    if (peek() == ',') {
      ++pos_;
      skip(false);
      max = peek() == '}' ? kUnbounded : number();
      skip(false);
    }
    if (peek() != '}') error("'}' is expected");
    if (max < min) error("the counts in {m,n} are in the wrong order");
    ++pos_;
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      char c = peek();
      int digit = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
      if (digit < 0) error("a hexadecimal digit is expected");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > kMaxCode || (value >= 0xD800 && value <= 0xDFFF)) error("not a character");
    return value;
  }

  char32_t character() {
    if (end()) error("the grammar ends inside quotes or brackets");
    if (peek() != '\\') {
      Utf8Char c = utf8_decode(text_, pos_);
      if (!c.valid) error("the text is not valid UTF-8");
      pos_ += c.length;
      return c.cp;
    }
    char c = peek(1);
    pos_ += 2;
    switch (c) {
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
        return static_cast<char32_t>(c);
      default:
        pos_ -= 2;
        error("unknown escape; use \\n \\r \\t \\\\ \\\" \\[ \\] \\xNN \\uNNNN \\UNNNNNNNN");
    }
  }

  ExprId literal() {
    ++pos_;
    std::string text;
    while (peek() != '"') utf8_append(text, character());
    ++pos_;
    return ir_.bytes(text);
  }

  ExprId char_class() {
    ++pos_;
    bool negated = peek() == '^';
    if (negated) ++pos_;
    CodeSet set;
    while (peek() != ']') {
      char32_t lo = character(), hi = lo;
      if (peek() == '-' && peek(1) != ']') {
        ++pos_;
        hi = character();
        if (hi < lo) error("a range in [...] is in the wrong order");
      }
      set.push_back({lo, hi});
    }
    ++pos_;
    set = normalized(std::move(set));
    return ir_.chars(negated ? complement(set) : std::move(set));
  }

  std::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;
  Ir ir_;
  std::map<std::string, RuleId> names_;
};

}  // namespace

Ir parse_gbnf(std::string_view text) { return GbnfParser(text).parse(); }

}  // namespace tokamak::grammar
