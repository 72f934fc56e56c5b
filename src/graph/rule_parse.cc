#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "graph/rule.h"

namespace tokamak {
namespace {

struct Token {
  enum class Kind : uint8_t { kName, kNumber, kString, kMark, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;
  Value value;    // kNumber
  size_t at = 0;  // in the text
};

bool name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool name_char(char c) { return name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }

[[noreturn]] void bad_at(std::string_view text, size_t at, std::string_view rule,
                         std::string_view what) {
  auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(at, text.size()));
  fail(ErrorCode::kInvalidArgument, "{}line {}: {}",
       rule.empty() ? std::string() : fmt::format("rule {}, ", rule),
       1 + std::count(text.begin(), end, '\n'), what);
}

// Numbers: an integer stays one; "0..4" is a range, not "0." and ".4".
size_t number_end(std::string_view text, size_t pos) {
  auto digits = [&] {
    while (pos < text.size() && std::isdigit(static_cast<unsigned char>(text[pos]))) ++pos;
  };
  digits();
  if (pos + 1 < text.size() && text[pos] == '.' &&
      std::isdigit(static_cast<unsigned char>(text[pos + 1]))) {
    ++pos;
    digits();
  }
  if (pos < text.size() && (text[pos] == 'e' || text[pos] == 'E')) {
    ++pos;
    if (pos < text.size() && (text[pos] == '-' || text[pos] == '+')) ++pos;
    digits();
  }
  return pos;
}

Token number_token(std::string_view text, size_t at, size_t end) {
  std::string_view digits = text.substr(at, end - at);
  Token t{Token::Kind::kNumber, std::string(digits), {}, at};
  if (digits.find_first_of(".eE") == std::string_view::npos) {
    int64_t v = 0;
    auto [p, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), v);
    if (ec != std::errc()) bad_at(text, at, "", "an integer beyond 64 bits");
    t.value = v;
  } else {
    double v = 0;
    auto [p, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), v);
    if (ec != std::errc() || p != digits.data() + digits.size())
      bad_at(text, at, "", "not a number");
    t.value = v;
  }
  return t;
}

std::vector<Token> tokenize(std::string_view text) {
  std::vector<Token> out;
  for (size_t pos = 0; pos < text.size();) {
    char c = text[pos];
    size_t at = pos;
    if (std::isspace(static_cast<unsigned char>(c))) {
      ++pos;
    } else if (text.substr(pos, 2) == "//") {
      pos = std::min(text.find('\n', pos), text.size());
    } else if (name_start(c)) {
      while (pos < text.size() && name_char(text[pos])) ++pos;
      std::string word(text.substr(at, pos - at));
      if (word == "inf")
        out.push_back({Token::Kind::kNumber, word, Value(INFINITY), at});
      else
        out.push_back({Token::Kind::kName, std::move(word), {}, at});
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      pos = number_end(text, pos);
      out.push_back(number_token(text, at, pos));
    } else if (c == '"') {
      size_t end = text.find('"', pos + 1);
      if (end == std::string_view::npos) bad_at(text, at, "", "a string without its end");
      out.push_back({Token::Kind::kString, std::string(text.substr(at + 1, end - at - 1)), {}, at});
      pos = end + 1;
    } else {
      size_t length = 1;
      for (std::string_view two : {"=>", "==", "!=", "<=", ">=", ".."})
        if (text.substr(pos, 2) == two) length = 2;
      out.push_back({Token::Kind::kMark, std::string(text.substr(pos, length)), {}, at});
      pos += length;
    }
  }
  out.push_back({Token::Kind::kEnd, "the end of the text", {}, text.size()});
  return out;
}

constexpr int64_t kMaxExtent = 256;  // the verifier makes tensors with these extents
constexpr int kMaxCalls = 256;

class RuleParser {
 public:
  explicit RuleParser(std::string_view text) : text_(text), tokens_(tokenize(text)) {}

  std::vector<RewriteRule> parse() {
    std::vector<RewriteRule> rules;
    while (now().kind != Token::Kind::kEnd) rules.push_back(rule());
    return rules;
  }

 private:
  const Token& now() const { return tokens_[pos_]; }
  const Token& next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  [[noreturn]] void bad(std::string_view what) const { bad_at(text_, now().at, r_.name, what); }
  bool is(std::string_view mark) const {
    return now().kind == Token::Kind::kMark && now().text == mark;
  }
  bool is_word(std::string_view w) const {
    return now().kind == Token::Kind::kName && now().text == w;
  }
  bool take(std::string_view mark) {
    if (!is(mark)) return false;
    ++pos_;
    return true;
  }
  bool take_word(std::string_view w) {
    if (!is_word(w)) return false;
    ++pos_;
    return true;
  }
  void need(std::string_view mark) {
    if (!take(mark)) bad(fmt::format("expected '{}', found '{}'", mark, now().text));
  }
  std::string name() {
    if (now().kind != Token::Kind::kName)
      bad(fmt::format("expected a name, found '{}'", now().text));
    return tokens_[pos_++].text;
  }

  RewriteRule rule() {
    r_ = {};
    calls_ = 0;
    size_t begin = now().at;
    if (!take_word("rule")) bad("expected \"rule\"");
    r_.name = name();
    if (take_word("real"))
      r_.cls = RuleClass::kReal;
    else if (!take_word("exact"))
      bad("expected the rule's class: exact or real");
    if (now().kind == Token::Kind::kString) r_.doc = tokens_[pos_++].text;
    need(":");
    while (now().kind == Token::Kind::kName && next().text == ":") variable();
    in_pattern_ = true;
    r_.pattern = term();
    in_pattern_ = false;
    if (r_.terms[r_.pattern].kind != RuleTerm::Kind::kOp) bad("a pattern starts with an op");
    need("=>");
    r_.replacement = term();
    if (take_word("if")) {
      do r_.conditions.push_back(expr());
      while (take(","));
    }
    if (now().kind != Token::Kind::kEnd && !is_word("rule"))
      bad(fmt::format("expected the next rule, found '{}'", now().text));
    const Token& last = tokens_[pos_ - 1];
    size_t quotes = last.kind == Token::Kind::kString ? 2 : 0;
    r_.text = text_.substr(begin, last.at + last.text.size() + quotes - begin);
    return std::move(r_);
  }

  void variable() {
    RuleVar v;
    v.name = name();
    for (const RuleVar& other : r_.vars)
      if (other.name == v.name) bad(fmt::format("{} is declared twice", v.name));
    need(":");
    if (take_word("scalar")) v.kind = RuleVar::Kind::kScalar;
    if (take_word("state")) {
      v.kind = RuleVar::Kind::kState;
      if (take("{")) planes(v);
    }
    if (take_word("view")) v.kind = RuleVar::Kind::kView;
    if (v.kind == RuleVar::Kind::kTensor) {
      if (take_word("const")) v.kind = RuleVar::Kind::kConst;
      if (take_word("weight")) v.kind = RuleVar::Kind::kWeight;
      v.dtype = name();
      if (v.dtype != "any" && v.dtype != "float" && !dtype_from_name(v.dtype))
        bad(fmt::format("there is no element type {}", v.dtype));
      if (take("[")) shape(v);
    }
    if (is_word("in") || is_word("within")) {
      v.assumed = is_word("within");
      ++pos_;
      if (r_.cls == RuleClass::kExact || v.dtype == "i32")
        bad("a range is for floating variables of real rules");
      RuleExpr lo = sum();
      need("..");
      v.range = {std::move(lo), sum()};
    }
    r_.vars.push_back(std::move(v));
  }

  void planes(RuleVar& v) {
    do {
      v.planes.push_back(name());
      need("[");
      shape(v);
      if (v.shape.size() != v.planes.size()) bad("a plane of a state in a rule has one axis");
    } while (take(","));
    need("}");
  }

  void shape(RuleVar& v) {
    v.shaped = true;
    const size_t before = v.shape.size();
    while (!take("]")) {
      if (v.shape.size() > before) need(",");
      ShapeItem item;
      if (take("*")) item.kind = ShapeItem::Kind::kSplat;
      if (now().kind == Token::Kind::kNumber && now().value.is_int()) {
        item.kind = ShapeItem::Kind::kNumber;
        item.number = tokens_[pos_++].value.as_int();
        if (item.number > kMaxExtent) bad(fmt::format("an extent is {} at most", kMaxExtent));
      } else {
        item.name = name();
        if (item.name == "_") item.kind = ShapeItem::Kind::kAny;
      }
      if (item.kind == ShapeItem::Kind::kSplat)
        for (const ShapeItem& other : v.shape)
          if (other.kind == ShapeItem::Kind::kSplat) bad("a shape has one *name at most");
      auto& names = r_.shape_names;
      if (item.kind != ShapeItem::Kind::kNumber && item.kind != ShapeItem::Kind::kAny &&
          std::find(names.begin(), names.end(), item.name) == names.end())
        names.push_back(item.name);
      v.shape.push_back(std::move(item));
    }
  }

  size_t add(RuleTerm t) {
    r_.terms.push_back(std::move(t));
    if (r_.terms.size() > 64) bad("a rule has 64 terms at most");
    return r_.terms.size() - 1;
  }

  size_t term() {
    if (++depth_ > 32) bad("nested too deeply");
    RuleTerm t;
    if (now().kind == Token::Kind::kNumber || is("-") || is("~")) {
      t.kind = RuleTerm::Kind::kNumber;
      t.near = take("~");
      r_.approximate |= t.near;
      bool minus = take("-");
      if (now().kind != Token::Kind::kNumber) bad("expected a number");
      t.number = tokens_[pos_++].value.as_double() * (minus ? -1.0 : 1.0);
    } else if (next().text != "(" || next().kind != Token::Kind::kMark) {
      t.var = variable_index(name());
    } else {
      op_term(t);
    }
    --depth_;
    return add(std::move(t));
  }

  void op_term(RuleTerm& t) {
    std::string op = name();
    t.kind = RuleTerm::Kind::kOp;
    if (!in_pattern_ && op == "scalar") t.kind = RuleTerm::Kind::kScalar;
    if (!in_pattern_ && op == "fill") t.kind = RuleTerm::Kind::kFill;
    if (!in_pattern_ && op == "recipe") t.kind = RuleTerm::Kind::kRecipe;
    if (t.kind == RuleTerm::Kind::kOp) {
      t.op = find_op(op);
      if (!t.op || t.op->tier == Tier::kStructural) bad(fmt::format("there is no op {}", op));
      if (t.op->writes_state) bad(fmt::format("{} writes a state: no rule may touch it", op));
    }
    need("(");
    while (!take(")")) {
      if (!t.inputs.empty()) need(",");
      t.inputs.push_back(term());
    }
    if (take("{")) attributes(t);
    if (take(".")) {
      if (!now().value.is_int()) bad("expected the number of an output");
      t.output = static_cast<uint32_t>(tokens_[pos_++].value.as_int());
    }
    if (t.op) check_op(t);
  }

  void check_op(const RuleTerm& t) const {
    auto n = static_cast<int>(t.inputs.size());
    if (n < t.op->min_inputs || (t.op->max_inputs >= 0 && n > t.op->max_inputs))
      bad(fmt::format("{} does not take {} inputs", t.op->name, n));
    auto given = [&](std::string_view key) {
      return std::any_of(t.attrs.begin(), t.attrs.end(), [&](auto& a) { return a.first == key; });
    };
    for (const auto& [key, value] : t.attrs)
      if (std::find(t.op->attr_names.begin(), t.op->attr_names.end(), key) ==
          t.op->attr_names.end())
        bad(fmt::format("{} has no attribute {}", t.op->name, key));
    for (int i = 0; i < t.op->required_attrs && !t.open; ++i)
      if (!given(t.op->attr_names[static_cast<size_t>(i)]))
        bad(fmt::format("{} needs the attribute {} (or {{..}} for any)", t.op->name,
                        t.op->attr_names[static_cast<size_t>(i)]));
    if (t.open && !in_pattern_) bad("{..} is for patterns");
  }

  void attributes(RuleTerm& t) {
    while (!take("}")) {
      if (!t.attrs.empty()) need(",");
      if (take("..")) {
        t.open = true;
        need("}");
        return;
      }
      std::string key = name();
      need("=");
      t.attrs.emplace_back(std::move(key), expr());
    }
  }

  size_t variable_index(const std::string& v) {
    for (size_t i = 0; i < r_.vars.size(); ++i)
      if (r_.vars[i].name == v) return i;
    if (!in_pattern_) bad(fmt::format("{} is not in the pattern", v));
    r_.vars.push_back({});
    r_.vars.back().name = v;
    return r_.vars.size() - 1;
  }

  RuleExpr call(std::string op, std::vector<RuleExpr> args) {
    if (++calls_ > kMaxCalls) bad(fmt::format("a rule has {} operators at most", kMaxCalls));
    return {RuleExpr::Kind::kCall, {}, std::move(op), std::move(args)};
  }

  RuleExpr expr() {
    if (++depth_ > 32) bad("nested too deeply");
    RuleExpr e = conjunction();
    while (take_word("or")) e = call("or", {std::move(e), conjunction()});
    --depth_;
    return e;
  }
  RuleExpr conjunction() {
    RuleExpr e = comparison();
    while (take_word("and")) e = call("and", {std::move(e), comparison()});
    return e;
  }
  RuleExpr comparison() {
    if (take_word("not")) return call("not", {comparison()});
    RuleExpr e = sum();
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"})
      if (take(op)) return call(op, {std::move(e), sum()});
    return e;
  }
  RuleExpr sum() {
    RuleExpr e = product();
    while (is("+") || is("-")) {
      std::string op = tokens_[pos_++].text;
      e = call(op, {std::move(e), product()});
    }
    return e;
  }
  RuleExpr product() {
    RuleExpr e = unary();
    while (is("*") || is("/")) {
      std::string op = tokens_[pos_++].text;
      e = call(op, {std::move(e), unary()});
    }
    return e;
  }
  RuleExpr unary() {
    if (take("-")) return call("neg", {unary()});
    if (take("~")) {
      r_.approximate = true;
      return call("~", {unary()});
    }
    return primary();
  }

  std::vector<RuleExpr> expressions(std::string_view end) {
    std::vector<RuleExpr> out;
    while (!take(end)) {
      if (!out.empty()) need(",");
      if (take("*"))
        out.push_back({RuleExpr::Kind::kSplat, {}, name(), {}});
      else
        out.push_back(expr());
    }
    return out;
  }

  RuleExpr primary() {
    if (take("(")) {
      RuleExpr e = expr();
      need(")");
      return e;
    }
    if (take("[")) return {RuleExpr::Kind::kList, {}, {}, expressions("]")};
    const Token& t = now();
    if (t.kind == Token::Kind::kNumber || t.kind == Token::Kind::kString) {
      ++pos_;
      return {RuleExpr::Kind::kLiteral,
              t.kind == Token::Kind::kNumber ? t.value : Value(t.text),
              {},
              {}};
    }
    std::string n = name();
    if (take("(")) return call(std::move(n), expressions(")"));
    return {RuleExpr::Kind::kName, {}, std::move(n), {}};
  }

  std::string_view text_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  RewriteRule r_;
  bool in_pattern_ = false;
  int depth_ = 0, calls_ = 0;
};

}  // namespace

std::vector<RewriteRule> parse_rules(std::string_view text) { return RuleParser(text).parse(); }

uint64_t RewriteRule::hash() const {
  Hash128 h;
  for (const Token& t : tokenize(text)) h.add(t.text);
  return h.low();
}

}  // namespace tokamak
