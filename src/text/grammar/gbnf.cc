#include "text/grammar/gbnf.h"

#include <string>

#include "base/error.h"
#include "text/grammar/rule_parser.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

class GbnfParser final : RuleParser {
 public:
  explicit GbnfParser(std::string_view text) : RuleParser(text) {}

  Ir parse() {
    skip(true);
    while (!end()) rule();
    const RuleId* root = ir_.find_rule("root");
    if (!root || ir_.rules()[*root].body == kNoExpr)
      fail(ErrorCode::kInvalidArgument, "the grammar has no rule named root");
    check_all_defined();
    ir_.root = *root;
    return std::move(ir_);
  }

 private:
  void skip(bool newlines) override {
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

  bool is_name(char c) const override { return RuleParser::is_name(c) || c == '-'; }

  void rule() {
    std::string own = name();
    skip(false);
    if (!take("::=")) error("'::=' is expected after the name of a rule");
    skip(true);
    define(own, alternatives());
    if (!end() && peek() != '\n' && peek() != '\r') error("the end of the rule is expected");
    skip(true);
  }

  ExprId sequence() override {
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
        parts.push_back(alternatives());
        if (peek() != ')') error("')' is expected");
        ++pos_;
      } else if (is_name(c)) {
        parts.push_back(ir_.ref(ir_.rule_named(name())));
      } else if (c == '<' || c == '!') {
        error("tokens, <...>, are not available; write the text they stand for");
      } else {
        break;
      }
      skip(depth_ > 1);
      repetitions(parts.back());
    }
    return parts.size() == 1 ? parts[0] : ir_.seq(std::move(parts));
  }

  void repetitions(ExprId& part) {
    while (true) {
      char c = peek();
      uint32_t min = c == '+' ? 1 : 0, max = c == '?' ? 1 : kUnbounded;
      if (c != '*' && c != '+' && c != '?' && c != '{') return;
      ++pos_;
      if (c == '{') counts(min, max);
      part = ir_.repeat(part, min, max);
      skip(depth_ > 1);
    }
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
};

}  // namespace

Ir parse_gbnf(std::string_view text) { return GbnfParser(text).parse(); }

}  // namespace tokamak::grammar
