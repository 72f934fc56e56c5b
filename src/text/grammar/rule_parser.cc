#include "text/grammar/rule_parser.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak::grammar {

void RuleParser::error(std::string_view what) const {
  std::string_view before = text_.substr(0, std::min(pos_, text_.size()));
  auto line = 1 + std::count(before.begin(), before.end(), '\n');
  size_t begin = before.rfind('\n');
  size_t column = begin == std::string_view::npos ? before.size() + 1 : before.size() - begin;
  fail(ErrorCode::kInvalidArgument, "the grammar, line {}, column {}: {}", line, column, what);
}

bool RuleParser::is_name(char c) const {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string RuleParser::name() {
  size_t begin = pos_;
  while (is_name(peek())) ++pos_;
  if (pos_ == begin) error("a name is expected");
  return std::string(text_.substr(begin, pos_ - begin));
}

uint32_t RuleParser::number() {
  if (peek() < '0' || peek() > '9') error("a number is expected");
  uint64_t value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++pos_) {
    value = value * 10 + static_cast<uint64_t>(peek() - '0');
    if (value > kMaxRepeat) error(fmt::format("a part repeats more than {} times", kMaxRepeat));
  }
  return static_cast<uint32_t>(value);
}

char32_t RuleParser::hex(int digits) {
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

ExprId RuleParser::alternatives() {
  if (++depth_ > kMaxNesting) error("the brackets are nested too deeply");
  std::vector<ExprId> parts{sequence()};
  while (next_alternative()) {
    ++pos_;
    skip(true);
    parts.push_back(sequence());
  }
  --depth_;
  return parts.size() == 1 ? parts[0] : ir_.alt(std::move(parts));
}

// Also at the beginning of a line.
bool RuleParser::next_alternative() {
  size_t before = pos_;
  skip(true);
  if (peek() == '|') return true;
  pos_ = before;
  return false;
}

void RuleParser::define(const std::string& name, ExprId body) {
  RuleId rule = ir_.rule_named(name);
  if (ir_.rules()[rule].body != kNoExpr) error(fmt::format("'{}' is defined twice", name));
  ir_.define(rule, without_left_recursion(ir_, rule, body));
}

void RuleParser::check_all_defined() const {
  for (const Ir::Rule& r : ir_.rules())
    if (r.body == kNoExpr)
      fail(ErrorCode::kInvalidArgument, "the grammar uses '{}', which it does not define", r.name);
}

}  // namespace tokamak::grammar
