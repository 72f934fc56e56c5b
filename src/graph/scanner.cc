#include "graph/scanner.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr int kMaxDepth = 16;  // of values inside values

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void Scanner::error_at(size_t pos, std::string_view what) const {
  const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(pos, text_.size()));
  fail(ErrorCode::kInvalidArgument, "line {}: {}", 1 + std::count(text_.begin(), end, '\n'), what);
}

void Scanner::expected(std::string_view what) {
  skip();
  std::string found = "the end of the text";
  if (pos_ < text_.size()) {
    std::string_view rest = text_.substr(pos_, 24);
    rest = rest.substr(0, rest.find('\n'));
    found = rest.empty() ? "the end of the line" : quote_text(rest);
  }
  error_at(pos_, fmt::format("expected {}, found {}", what, found));
}

void Scanner::skip() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && nesting_ > 0)) {
      ++pos_;
    } else if (c == '/' && text_.substr(pos_, 2) == "//") {
      pos_ = std::min(text_.find('\n', pos_), text_.size());
    } else {
      return;
    }
  }
}

void Scanner::skip_lines() {
  ++nesting_;
  skip();
  --nesting_;
}

bool Scanner::at_end() {
  skip_lines();
  return pos_ == text_.size();
}

void Scanner::end_of_line() {
  skip();
  if (pos_ < text_.size() && text_[pos_] != '\n') expected("the end of the line");
}

bool Scanner::peek(char c) {
  skip();
  return pos_ < text_.size() && text_[pos_] == c;
}
bool Scanner::take(char c) {
  if (!peek(c)) return false;
  ++pos_;
  return true;
}
bool Scanner::take_text(std::string_view mark) {
  skip();
  if (text_.substr(pos_, mark.size()) != mark) return false;
  pos_ += mark.size();
  return true;
}
void Scanner::need(char c) {
  if (!take(c)) expected(fmt::format("'{}'", c));
}
void Scanner::open(char c) {
  need(c);
  ++nesting_;
}
bool Scanner::try_close(char c) {
  if (!take(c)) return false;
  --nesting_;
  return true;
}
void Scanner::close(char c) {
  if (!try_close(c)) expected(fmt::format("'{}'", c));
}

bool Scanner::at_name() {
  skip();
  return pos_ < text_.size() && (text_[pos_] == '"' || is_bare_start(text_[pos_]));
}

std::string_view Scanner::word() {
  skip();
  const size_t begin = pos_;
  if (pos_ < text_.size() && is_bare_start(text_[pos_])) {
    while (pos_ < text_.size() && is_bare_char(text_[pos_])) ++pos_;
  }
  return text_.substr(begin, pos_ - begin);
}

void Scanner::need_word(std::string_view w) {
  const size_t begin = (skip(), pos_);
  if (word() != w) {
    pos_ = begin;
    expected(fmt::format("\"{}\"", w));
  }
}

std::string Scanner::name() {
  if (peek('"')) return string();
  std::string_view w = word();
  if (w.empty()) expected("a name");
  return std::string(w);
}

std::string Scanner::string() {
  need('"');
  const size_t begin = pos_;
  std::string out;
  for (;;) {
    if (pos_ >= text_.size() || text_[pos_] == '\n') error_at(begin, "a string without its end");
    char c = text_[pos_++];
    if (c == '"') return out;
    if (c == '\\') {
      const char e = pos_ < text_.size() ? text_[pos_++] : '\0';
      if (e == 'n') {
        c = '\n';
      } else if (e == 't') {
        c = '\t';
      } else if (e == '"' || e == '\\') {
        c = e;
      } else {
        const int hi = e == 'x' && pos_ + 1 < text_.size() ? hex_digit(text_[pos_]) : -1;
        const int lo = hi >= 0 ? hex_digit(text_[pos_ + 1]) : -1;
        if (lo < 0) error_at(begin, "an unknown escape in a string");
        c = static_cast<char>(hi * 16 + lo);
        pos_ += 2;
      }
    }
    out += c;
  }
}

std::string_view Scanner::number_text() {
  skip();
  const size_t begin = pos_;
  if (pos_ < text_.size() && text_[pos_] == '-') ++pos_;
  if (pos_ < text_.size() && is_bare_start(text_[pos_])) {  // nan, inf
    while (pos_ < text_.size() && is_bare_start(text_[pos_])) ++pos_;
  } else {
    auto digits = [&] {
      while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
    };
    digits();
    // ".." belongs to a range
    if (pos_ + 1 < text_.size() && text_[pos_] == '.' && is_digit(text_[pos_ + 1])) {
      ++pos_;
      digits();
    }
    if (pos_ < text_.size() && (text_[pos_] == 'e' || text_[pos_] == 'E')) {
      ++pos_;
      if (pos_ < text_.size() && (text_[pos_] == '-' || text_[pos_] == '+')) ++pos_;
      digits();
    }
  }
  return text_.substr(begin, pos_ - begin);
}

int64_t Scanner::integer() {
  const size_t begin = (skip(), pos_);
  if (pos_ < text_.size() && text_[pos_] == '-') ++pos_;
  while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
  int64_t value = 0;
  auto [end, status] = std::from_chars(text_.data() + begin, text_.data() + pos_, value);
  if (status != std::errc() || end != text_.data() + pos_) {
    pos_ = begin;
    expected("an integer of 64 bits");
  }
  return value;
}

uint64_t Scanner::index() {
  const size_t begin = pos_;  // no space between a mark and its number
  if (begin >= text_.size() || !is_digit(text_[begin])) expected("a number");
  const int64_t value = integer();
  if (value > UINT32_MAX) error_at(begin, "a number beyond 32 bits");
  return static_cast<uint64_t>(value);
}

template <class T>
T Scanner::number() {
  const size_t begin = (skip(), pos_);
  std::string_view text = number_text();
  if (text == "nan") return std::numeric_limits<T>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<T>::infinity();
  if (text == "-inf") return -std::numeric_limits<T>::infinity();
  T value = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) {
    pos_ = begin;
    expected("a number");
  }
  return value;
}
template float Scanner::number<float>();
template double Scanner::number<double>();

Value Scanner::value(int depth) {
  if (depth > kMaxDepth) expected("less nesting");
  if (peek('"')) return string();
  if (peek('{')) return object(depth + 1);
  if (peek('[')) {
    Value out = Value::array();
    open('[');
    if (try_close(']')) return out;
    for (;;) {
      out.push(value(depth + 1));
      if (try_close(']')) return out;
      if (!take(',')) expected("',' or ']'");
    }
  }
  const size_t begin = (skip(), pos_);
  std::string_view w = word();
  if (w == "null") return Value();
  if (w == "true") return Value(true);
  if (w == "false") return Value(false);
  pos_ = begin;
  std::string_view text = number_text();
  pos_ = begin;
  if (text.empty()) expected("a value");
  return text.find_first_of(".eEn") == std::string_view::npos ? Value(integer())
                                                              : Value(number<double>());
}

Value Scanner::object(int depth) {
  Value out = Value::object();
  open('{');
  if (try_close('}')) return out;
  for (;;) {
    std::string key = name();
    need('=');
    // Appended, not set(): that would look for the key each time. Repeated keys are refused with
    // the node.
    out.as_object().emplace_back(std::move(key), value(depth));
    if (try_close('}')) return out;
    if (!take(',')) expected("',' or '}'");
  }
}

TensorType Scanner::tensor_type() {
  skip();
  const size_t begin = pos_;
  try {
    return parse_tensor_type(text_, pos_);
  } catch (const Error& e) {
    error_at(begin, e.what());
  }
}

Type Scanner::type() {
  skip();
  for (std::string_view kind : {"state<", "view<"}) {
    if (!take_text(kind)) continue;
    std::string n = name();
    need('>');
    return kind == "state<" ? Type::state(std::move(n)) : Type::view(std::move(n));
  }
  return Type::of(tensor_type());
}

}  // namespace tokamak
