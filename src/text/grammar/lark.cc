#include "text/grammar/lark.h"

#include <map>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/rule_parser.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

// The terminals of Lark's library `common`.
const std::map<std::string_view, const char*> kCommonTerminals = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

class LarkParser final : RuleParser {
 public:
  explicit LarkParser(std::string_view text) : RuleParser(text) {
    if (!utf8_is_valid(text)) fail(ErrorCode::kInvalidArgument, "the grammar is not valid UTF-8");
    bool ignores = text.find("%ignore") != std::string_view::npos;
    ignore_ = ignores ? ir_.add_rule("%ignore") : kNoRule;
  }

  Ir parse() {
    for (skip(true); !end(); skip(true)) {
      if (peek() == '%')
        directive();
      else
        definition();
    }
    if (ignore_ != kNoRule)
      ir_.define(ignore_, ir_.repeat(ir_.alt(std::move(ignored_)), 0, kUnbounded));
    check_all_defined();
    const RuleId* start = ir_.find_rule("start");
    if (!start) start = ir_.find_rule(first_);
    if (!start) fail(ErrorCode::kInvalidArgument, "the grammar has no rule");
    ir_.root = *start;
    return std::move(ir_);
  }

 private:
  static constexpr RuleId kNoRule = UINT32_MAX;

  void skip(bool newlines) override {
    while (!end()) {
      char c = peek();
      if (at("//") || c == '#')
        while (!end() && peek() != '\n') ++pos_;
      else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n'))
        ++pos_;
      else
        break;
    }
  }

  static bool is_terminal(std::string_view name) {
    size_t letter = name.find_first_not_of("_0123456789");
    return letter != std::string_view::npos && name[letter] >= 'A' && name[letter] <= 'Z';
  }

  void end_of_statement() {
    skip(false);
    if (!end() && peek() != '\n') error("the end of the definition is expected");
  }

  void definition() {
    if (peek() == '?' || peek() == '!') ++pos_;
    std::string own = name();
    if (peek() == '{') error("templates are not available");
    if (peek() == '[') error("attributes of rules are not available");
    if (take(".")) number();  // a priority
    skip(false);
    if (!take(":")) error("':' is expected after the name of a rule");
    in_terminal_ = is_terminal(own);
    if (first_.empty() && !in_terminal_) first_ = own;
    skip(true);
    ExprId body = alternatives();
    end_of_statement();
    define(own, body);
  }

  void directive() {
    ++pos_;
    std::string what = name();
    skip(false);
    if (what == "ignore") {
      in_terminal_ = true;
      ignored_.push_back(alternatives());
    } else if (what == "import") {
      import();
    } else {
      error(fmt::format("%{} is not available", what));
    }
    end_of_statement();
  }

  // %import common.NAME, %import common.NAME -> OTHER, %import common (A, B)
  void import() {
    if (name() != "common") error("only the library 'common' can be imported");
    skip(false);
    if (take("(")) {
      do {
        skip(true);
        std::string own = name();
        import_as(own, own);
        skip(true);
      } while (take(","));
      if (!take(")")) error("')' is expected");
      return;
    }
    if (!take(".")) error("'.' is expected");
    std::string library = name(), own = library;
    skip(false);
    if (take("->")) {
      skip(false);
      own = name();
    }
    import_as(library, own);
  }

  void import_as(const std::string& library, const std::string& own) {
    auto known = kCommonTerminals.find(library);
    if (known == kCommonTerminals.end())
      error(fmt::format("the library 'common' has no terminal '{}' here", library));
    define(own, expr_of(ir_, parse_regex(known->second, RegexUse::kWhole)));
  }

  ExprId sequence() override {
    std::vector<ExprId> parts;
    while (!end()) {
      char c = peek();
      if (take("->")) {  // the name of the alternative
        skip(false);
        name();
        skip(depth_ > 1);
        break;
      }
      if (c == '"') {
        parts.push_back(lexeme(text_or_range()));
      } else if (c == '/') {
        parts.push_back(lexeme(regex()));
      } else if (c == '(' || c == '[') {
        parts.push_back(group(c == '['));
      } else if (is_name(c)) {
        parts.push_back(reference());
      } else if (take("%json")) {
        parts.push_back(lexeme(json_schema()));
      } else if (c == '<' || c == '%' || c == '@' || c == '\'') {
        error("a string, a regular expression, a name or a bracket is expected");
      } else {
        break;
      }
      skip(depth_ > 1);
      repetitions(parts.back());
    }
    return parts.size() == 1 ? parts[0] : ir_.seq(std::move(parts));
  }

  // What %ignore names may follow every terminal, but not occur inside of one.
  ExprId lexeme(ExprId terminal) {
    if (in_terminal_ || ignore_ == kNoRule) return terminal;
    return ir_.seq({terminal, ir_.ref(ignore_)});
  }

  ExprId reference() {
    std::string to = name();
    if (peek() == '{' && peek(1) != ',' && (peek(1) < '0' || peek(1) > '9'))
      error("templates are not available");
    if (in_terminal_ && !is_terminal(to))
      error(fmt::format("a terminal cannot use the rule '{}'", to));
    ExprId ref = ir_.ref(ir_.rule_named(to));
    return is_terminal(to) ? lexeme(ref) : ref;
  }

  // %json {...}, as in llguidance: a text that follows the JSON schema.
  ExprId json_schema() {
    skip(false);
    size_t begin = pos_;
    int depth = 0;
    bool quoted = false;
    do {
      if (end() || (depth == 0 && peek() != '{')) error("a JSON schema, {...}, is expected");
      char c = text_[pos_++];
      if (quoted && c == '\\')
        ++pos_;
      else if (c == '"')
        quoted = !quoted;
      else if (!quoted)
        depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    } while (depth > 0);
    Value schema = parse_json(text_.substr(begin, pos_ - begin), "the JSON schema of the grammar");
    Ir json = json_schema_grammar(schema);
    // The text around it need not be JSON, in which they would be found.
    for (const Ir::Rule& rule : json.rules())
      if (rule.unique) error("uniqueItems of strings is not available in %json");
    return ir_.ref(ir_.embed(json));
  }

  ExprId group(bool optional) {
    ++pos_;
    skip(true);
    ExprId inner = alternatives();
    skip(true);
    if (!take(optional ? "]" : ")")) error(optional ? "']' is expected" : "')' is expected");
    return optional ? ir_.optional(inner) : inner;
  }

  void repetitions(ExprId& part) {
    while (true) {
      uint32_t min = 0, max = kUnbounded;
      if (take("?")) {
        max = 1;
      } else if (take("+")) {
        min = 1;
      } else if (take("~")) {
        skip(false);
        min = max = number();
        skip(false);
        if (take("..")) {
          skip(false);
          max = number();
        }
      } else if (take("{")) {
        min = peek() == ',' ? 0 : number();
        max = !take(",") ? min : peek() == '}' ? kUnbounded : number();
        if (!take("}")) error("'}' is expected");
      } else if (!take("*")) {
        return;
      }
      if (max < min) error("the counts are in the wrong order");
      part = ir_.repeat(part, min, max);
      skip(depth_ > 1);
    }
  }

  char32_t character() {
    if (end() || peek() == '\n') error("the line ends inside quotes");
    if (peek() != '\\') {
      Utf8Char c = utf8_decode(text_, pos_);
      pos_ += c.length;
      return c.cp;
    }
    char c = peek(1);
    pos_ += 2;
    constexpr std::string_view kLetters = "bntrfv\\\"'/", kCodes = "\b\n\t\r\f\v\\\"'/";
    if (size_t i = kLetters.find(c); i != std::string_view::npos)
      return static_cast<char32_t>(kCodes[i]);
    if (c == 'x') return hex(2);
    if (c == 'u') return hex(4);
    if (c == 'U') return hex(8);
    pos_ -= 2;
    error("unknown escape; use \\b \\n \\t \\r \\f \\v \\\\ \\\" \\xNN \\uNNNN \\UNNNNNNNN");
  }

  std::u32string quoted() {
    if (!take("\"")) error("'\"' is expected");
    std::u32string out;
    while (peek() != '"') out += character();
    ++pos_;
    return out;
  }

  // "text", "text"i or "a".."z"
  ExprId text_or_range() {
    std::u32string text = quoted();
    if (at("..") && peek(2) == '"') {
      pos_ += 2;
      std::u32string last = quoted();
      if (text.size() != 1 || last.size() != 1 || last[0] < text[0])
        error("a range has one character on both sides, the smaller one first");
      return ir_.chars({{text[0], last[0]}});
    }
    if (peek() != 'i' || is_name(peek(1))) return ir_.bytes(u32_to_utf8(text));
    ++pos_;
    std::vector<ExprId> parts;
    for (char32_t c : text) parts.push_back(ir_.chars(any_case({{c, c}})));
    return ir_.seq(std::move(parts));
  }

  ExprId regex() {
    size_t begin = ++pos_;
    for (bool in_class = false; in_class || peek() != '/'; ++pos_) {
      if (end() || peek() == '\n') error("the line ends inside a regular expression");
      if (peek() == '\\') {
        ++pos_;
      } else if (peek() == '[') {
        in_class = true;
      } else if (peek() == ']') {
        in_class = false;
      }
    }
    std::string_view pattern = text_.substr(begin, pos_ - begin);
    ++pos_;
    RegexFlags flags;
    for (; is_name(peek()); ++pos_) {
      char c = peek();
      if (c == 'i')
        flags.any_case = true;
      else if (c == 's')
        flags.dot_all = true;
      else if (c != 'u' && c != 'l')
        error(fmt::format("the flag '{}' of a regular expression is not available", c));
    }
    try {
      flags.inside = true;
      return expr_of(ir_, parse_regex(pattern, RegexUse::kWhole, flags));
    } catch (const Error& e) {
      pos_ = begin;
      error(e.what());
    }
  }

  bool in_terminal_ = false;
  std::string first_;            // rule of the text
  RuleId ignore_ = kNoRule;      // any number of what %ignore names
  std::vector<ExprId> ignored_;  // what it names
};

}  // namespace

bool is_lark(std::string_view text) {
  return text.find("::=") == std::string_view::npos && text.find(':') != std::string_view::npos;
}

Ir parse_lark(std::string_view text) { return LarkParser(text).parse(); }

}  // namespace tokamak::grammar
