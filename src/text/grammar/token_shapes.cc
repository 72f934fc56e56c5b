#include "text/grammar/token_shapes.h"

#include <algorithm>

#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

// In a shape, the bytes 1 to 4 stand for symbols; they sort before all that is printed.
constexpr uint8_t kSymbolBytes[] = {0, 'a', 'A', '0', 'a'};
constexpr uint8_t kLastCode = 4;

uint8_t word_code(char c) {
  if ('a' <= c && c <= 'z') return 1;
  if ('A' <= c && c <= 'Z') return 2;
  if ('0' <= c && c <= '9') return 3;
  return 0;
}

// Calls part(bytes, code) for the characters of the text; code 0: one byte as it is.
template <class Part>
void for_each_part(TokenShapes::Kind kind, std::string_view text, Part&& part) {
  bool quoted = false, escaped = false;
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 1;
    uint8_t code = 0;
    if (!quoted && !escaped) {
      if (kind == TokenShapes::Kind::kWords) {
        code = word_code(text[pos]);
      } else if (Utf8Char c = utf8_decode(text, pos); c.valid && is_plain(c.cp)) {
        length = c.length;
        code = kLastCode;
      }
    }
    quoted = quoted || text[pos] == '"';
    escaped = !escaped && text[pos] == '\\';
    if (!part(text.substr(pos, length), code)) return;
    pos += length;
  }
}

// Its first eight bytes decide most comparisons.
struct Shape {
  Shape(std::string shape, int32_t token) : text(std::move(shape)), id(token) {
    for (size_t i = 0; i < 8; ++i)
      first = first << 8 | (i < text.size() ? static_cast<uint8_t>(text[i]) : 0);
  }
  bool operator<(const Shape& o) const {
    if (first != o.first) return first < o.first;
    const int difference = text.compare(o.text);
    return difference != 0 ? difference < 0 : id < o.id;
  }
  uint64_t first = 0;
  std::string text;
  int32_t id;
};

}  // namespace

bool is_plain(char32_t c) { return c >= 0x20 && c != '"' && c != '\\'; }

std::pair<uint8_t, uint8_t> symbol_bytes(uint8_t symbol) {
  return symbol == kLower   ? std::pair<uint8_t, uint8_t>{'a', 'z'}
         : symbol == kUpper ? std::pair<uint8_t, uint8_t>{'A', 'Z'}
                            : std::pair<uint8_t, uint8_t>{'0', '9'};
}

bool may_begin(uint8_t symbol, uint8_t byte) {
  if (symbol == kPlainCharacter) return is_plain(byte);
  auto [first, last] = symbol_bytes(symbol);
  return first <= byte && byte <= last;
}

std::string TokenShapes::shape(std::string_view text) const {
  std::string out;
  for_each_part(kind_, text, [&](std::string_view bytes, uint8_t code) {
    out += code == 0 ? bytes[0] : static_cast<char>(code);
    return true;
  });
  return out;
}

size_t TokenShapes::offset(std::string_view text, size_t count) const {
  if (kind_ == Kind::kWords) return count;
  size_t out = 0;
  for_each_part(kind_, text, [&](std::string_view bytes, uint8_t) {
    if (count-- == 0) return false;
    out += bytes.size();
    return true;
  });
  return out;
}

TokenShapes::TokenShapes(Kind kind, std::span<const int32_t> tokens,
                         const std::function<std::string_view(int32_t)>& bytes)
    : kind_(kind) {
  std::vector<Shape> sorted;
  sorted.reserve(tokens.size());
  for (int32_t id : tokens) {
    std::string_view text = bytes(id);
    if (std::any_of(text.begin(), text.end(), [](char c) { return 1 <= c && c <= kLastCode; }))
      others_.push_back(id);
    else
      sorted.emplace_back(shape(text), id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> path;  // nodes of the text before
  std::string_view before;
  auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (const auto& [first, text, id] : sorted) {
    const auto common = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first -
        before.begin());
    close(common);
    for (size_t i = common; i < text.size(); ++i) {
      const auto code = static_cast<uint8_t>(text[i]);
      const bool symbol = 1 <= code && code <= kLastCode;
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      if (i == 0) roots_.push_back(path[0]);
      nodes_.push_back({.end = 0,
                        .first_token = static_cast<uint32_t>(tokens_.size()),
                        .depth = static_cast<uint16_t>(i),
                        .symbol = static_cast<uint8_t>(symbol ? 1 << (code - 1) : 0),
                        .byte = symbol ? kSymbolBytes[code] : code,
                        .symbols_only = symbol && (i == 0 || nodes_[path[i - 1]].symbols_only)});
    }
    deepest_ = std::max(deepest_, text.size());
    tokens_.push_back(id);
    before = text;
  }
  close(0);
  nodes_.emplace_back().first_token = static_cast<uint32_t>(tokens_.size());
}

}  // namespace tokamak::grammar
