#include "text/jinja/lexer.h"

#include <algorithm>

#include "text/jinja/value.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

size_t space_length(std::string_view text,
                    size_t pos) {  // of the white space character at pos, or 0
  if (pos >= text.size()) return 0;
  const Utf8Char c = utf8_decode(text, pos);
  return is_white_space(c.cp) || (c.cp >= 0x1C && c.cp <= 0x1F) ? c.length : 0;
}

void rstrip(std::string& text, size_t from = 0) {
  while (text.size() > from) {
    size_t last = text.size() - 1;
    while (last > from && is_utf8_continuation(text[last])) --last;
    if (space_length(text, last) == 0) return;
    text.resize(last);
  }
}

// \r\n and \r are newlines; one newline at the very end is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, int& line) : text_(normalize(source)), line_(line) { line_ = 1; }

  std::vector<Token> run() {
    while (pos_ < text_.size()) data();
    tokens_.push_back({Tok::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view s) const { return std::string_view(text_).substr(pos_, s.size()) == s; }

  void count_lines(size_t from, size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(from),
                                         text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
  }

  // Text up to the next tag, with the tag's white space control applied.
  void data() {
    size_t tag = pos_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        tag = std::string::npos;
        break;
      }
      const char c = text_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    const size_t end = tag == std::string::npos ? text_.size() : tag;
    std::string piece = text_.substr(pos_, end - pos_);
    const int line = line_;
    count_lines(pos_, end);
    pos_ = end;
    if (tag == std::string::npos) {
      add_data(std::move(piece), line);
      return;
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    strip_before(piece, sign, kind != '{');
    add_data(std::move(piece), line);
    pos_ = tag + 2;
    if (sign == '-' || sign == '+') ++pos_;
    line_starting_ = false;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      tokens_.push_back({Tok::kVarBegin, "{{", line_});
      code(Tok::kVarEnd, "}}");
    } else if (!raw()) {
      tokens_.push_back({Tok::kBlockBegin, "{%", line_});
      code(Tok::kBlockEnd, "%}");
    }
  }

  void strip_before(std::string& piece, char sign, bool block) const {
    if (sign == '-') return rstrip(piece);
    if (sign == '+' || !block) return;
    const size_t newline = piece.rfind('\n');
    const size_t start = newline == std::string::npos ? 0 : newline + 1;
    if (start == 0 && !line_starting_) return;
    size_t pos = start;
    while (const size_t length = space_length(piece, pos)) pos += length;
    if (pos == piece.size()) piece.resize(start);
  }

  void add_data(std::string piece, int line) {
    if (!piece.empty()) tokens_.push_back({Tok::kData, std::move(piece), line});
  }

  void skip_space() {
    const size_t from = pos_;
    while (const size_t length = space_length(text_, pos_)) pos_ += length;
    count_lines(from, pos_);
  }

  // After a closing tag. trims: the tag includes a newline right after it.
  void after_end(bool minus, bool plus, bool trims) {
    const size_t from = pos_;
    if (minus) {
      skip_space();
    } else if (trims && !plus && pos_ < text_.size() && text_[pos_] == '\n') {
      ++pos_;
      ++line_;
    }
    line_starting_ = pos_ > from && text_[pos_ - 1] == '\n';
  }

  void comment() {
    const size_t end = text_.find("#}", pos_);
    if (end == std::string::npos) raise("a comment is not closed");
    const char sign = end > pos_ ? text_[end - 1] : '\0';
    count_lines(pos_, end);
    pos_ = end + 2;
    after_end(sign == '-', sign == '+', true);
  }

  // {% raw %} ... {% endraw %}
  bool raw() {
    const size_t start = pos_;
    const int line = line_;
    skip_space();
    if (!at("raw") || (pos_ + 3 < text_.size() && is_name_char(text_[pos_ + 3]))) {
      pos_ = start;
      line_ = line;
      return false;
    }
    pos_ += 3;
    skip_space();
    const bool minus = at("-%}");
    if (!minus && !at("%}")) raise("raw takes no arguments");
    pos_ += minus ? 3 : 2;
    after_end(minus, true, false);
    size_t tag = pos_;
    while (true) {
      tag = text_.find("{%", tag);
      if (tag == std::string::npos) raise("raw is not closed");
      size_t p = tag + 2;
      const char sign = p < text_.size() ? text_[p] : '\0';
      if (sign == '-' || sign == '+') ++p;
      while (const size_t length = space_length(text_, p)) p += length;
      if (text_.compare(p, 6, "endraw") == 0) {
        p += 6;
        while (const size_t length = space_length(text_, p)) p += length;
        const char close = p < text_.size() ? text_[p] : '\0';
        const size_t mark = close == '-' || close == '+' ? p + 1 : p;
        if (text_.compare(mark, 2, "%}") == 0) {
          std::string piece = text_.substr(pos_, tag - pos_);
          strip_before(piece, sign, true);
          add_data(std::move(piece), line_);
          count_lines(pos_, mark);
          pos_ = mark + 2;
          after_end(close == '-', close == '+', true);
          return true;
        }
      }
      tag += 2;
    }
  }

  void code(Tok end_type, std::string_view end) {
    int open = 0;  // brackets: "}}" inside a dict does not close the tag
    while (true) {
      skip_space();
      if (pos_ >= text_.size()) raise("a tag is not closed");
      if (open == 0) {
        const char sign = text_[pos_];
        const bool signed_end = (sign == '-' || (sign == '+' && end_type == Tok::kBlockEnd)) &&
                                std::string_view(text_).substr(pos_ + 1, 2) == end;
        if (signed_end || at(end)) {
          tokens_.push_back({end_type, std::string(end), line_});
          pos_ += signed_end ? 3 : 2;
          after_end(signed_end && sign == '-', signed_end && sign == '+',
                    end_type == Tok::kBlockEnd);
          return;
        }
      }
      token(open);
    }
  }

  void token(int& open) {
    const char c = text_[pos_];
    if (is_name_start(c)) {
      const size_t from = pos_;
      while (pos_ < text_.size() && is_name_char(text_[pos_])) ++pos_;
      check_name(from);
      tokens_.push_back({Tok::kName, text_.substr(from, pos_ - from), line_});
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
      for (std::string_view op : kTwo)
        if (at(op)) {
          tokens_.push_back({Tok::kOp, std::string(op), line_});
          pos_ += 2;
          return;
        }
      if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
        raise(std::string("unexpected character '") +
              std::string(text_, pos_, utf8_decode(text_, pos_).length) + "'");
      if (c == '(' || c == '[' || c == '{') ++open;
      if (c == ')' || c == ']' || c == '}') {
        if (open == 0) raise(std::string("unexpected '") + c + "'");
        --open;
      }
      tokens_.push_back({Tok::kOp, std::string(1, c), line_});
      ++pos_;
    }
  }

  // Names consist of letters of any script; emoji and symbols are not allowed.
  void check_name(size_t from) const {
    for (size_t pos = from; pos < pos_;) {
      const Utf8Char c = utf8_decode(text_, pos);
      if (c.cp >= 0x80 && !(pos == from ? is_letter(c.cp) : is_word(c.cp)))
        raise("unexpected character '" + text_.substr(pos, c.length) + "'");
      pos += c.length;
    }
  }

  void digits(std::string& out) {
    while (pos_ < text_.size() &&
           (is_digit(text_[pos_]) ||
            (text_[pos_] == '_' && pos_ + 1 < text_.size() && is_digit(text_[pos_ + 1])))) {
      if (text_[pos_] != '_') out += text_[pos_];
      ++pos_;
    }
  }

  void number() {
    std::string out;
    Tok type = Tok::kInt;
    const char next = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
    if (text_[pos_] == '0' && next != '\0' &&
        std::string_view("xXoObB").find(next) != std::string_view::npos) {
      out = text_.substr(pos_, 2);
      pos_ += 2;
      while (pos_ < text_.size() &&
             (isxdigit(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '_')) {
        if (text_[pos_] != '_') out += text_[pos_];
        ++pos_;
      }
      tokens_.push_back({type, std::move(out), line_});
      return;
    }
    digits(out);
    // "1.5" is a number, "x.1.foo" and "1.real" are not.
    const bool after_dot =
        !tokens_.empty() && tokens_.back().type == Tok::kOp && tokens_.back().text == ".";
    if (!after_dot && pos_ + 1 < text_.size() && text_[pos_] == '.' && is_digit(text_[pos_ + 1])) {
      type = Tok::kFloat;
      out += text_[pos_++];
      digits(out);
    }
    if (!after_dot && pos_ < text_.size() && (text_[pos_] == 'e' || text_[pos_] == 'E')) {
      size_t p = pos_ + 1;
      if (p < text_.size() && (text_[p] == '+' || text_[p] == '-')) ++p;
      if (p < text_.size() && is_digit(text_[p])) {
        type = Tok::kFloat;
        out.append(text_, pos_, p - pos_);
        pos_ = p;
        digits(out);
      }
    }
    tokens_.push_back({type, std::move(out), line_});
  }

  void string(char quote) {
    const int line = line_;
    std::string out;
    ++pos_;
    while (true) {
      if (pos_ >= text_.size()) raise("a string is not closed");
      const char c = text_[pos_++];
      if (c == quote) break;
      if (c == '\n') ++line_;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (pos_ >= text_.size()) raise("a string is not closed");
      escape(out);
    }
    tokens_.push_back({Tok::kString, std::move(out), line});
  }

  void escape(std::string& out) {
    const char c = text_[pos_++];
    static constexpr std::string_view kFrom = "nrtbfav\\'\"", kTo = "\n\r\t\b\f\a\v\\'\"";
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      out += kTo[i];
      return;
    }
    if (c == '\n') {  // a line continuation
      ++line_;
      return;
    }
    const int want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (want > 0) {
      utf8_append(out, hex(want));
      return;
    }
    if (c >= '0' && c <= '7') {
      uint32_t v = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '7'; ++i)
        v = v * 8 + static_cast<uint32_t>(text_[pos_++] - '0');
      utf8_append(out, v);
      return;
    }
    if (c == 'N') raise("\\N escapes are not supported: write the character");
    out += '\\';
    out += c;
  }

  char32_t hex(int count) {
    const auto read = [&](size_t at, int n) -> int64_t {
      int64_t v = 0;
      for (int i = 0; i < n; ++i) {
        const char c = at + i < text_.size() ? text_[at + i] : '\0';
        if (!isxdigit(static_cast<unsigned char>(c))) return -1;
        v = v * 16 + (is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
      }
      return v;
    };
    int64_t v = read(pos_, count);
    if (v < 0 || v > 0x10FFFF) raise("invalid \\x or \\u escape");
    pos_ += static_cast<size_t>(count);
    if (v >= 0xD800 && v < 0xDC00 && text_.compare(pos_, 2, "\\u") == 0) {
      const int64_t low = read(pos_ + 2, 4);
      if (low >= 0xDC00 && low < 0xE000) {
        pos_ += 6;
        return static_cast<char32_t>(0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00));
      }
    }
    return v >= 0xD800 && v < 0xE000 ? 0xFFFD : static_cast<char32_t>(v);
  }

  std::string text_;
  int& line_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source, int& line) { return Lexer(source, line).run(); }

}  // namespace tokamak::jinja
