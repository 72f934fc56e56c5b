#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace tokamak {
namespace {

utf8proc_category_t category(char32_t c) {
  if (c > 0x10FFFF) return UTF8PROC_CATEGORY_CN;
  const auto found = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (found != UTF8PROC_CATEGORY_CN) return found;
  return utf8proc_category(static_cast<utf8proc_int32_t>(known_stand_in(c)));
}

bool is_ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

}  // namespace

Utf8Char utf8_decode(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) -> uint32_t {
    return pos + i < text.size() ? static_cast<unsigned char>(text[pos + i]) : 0;
  };
  const uint32_t a = byte(0);
  if (a < 0x80) return {a, 1, true};
  const auto follows = [](uint32_t b) { return (b & 0xC0) == 0x80; };
  const uint32_t b = byte(1), c = byte(2), d = byte(3);
  if (a >= 0xC2 && a < 0xE0 && follows(b)) return {(a & 0x1F) << 6 | (b & 0x3F), 2, true};
  if (a >= 0xE0 && a < 0xF0 && follows(b) && follows(c)) {
    const char32_t cp = (a & 0x0F) << 12 | (b & 0x3F) << 6 | (c & 0x3F);
    if (cp >= 0x800 && (cp < 0xD800 || cp > 0xDFFF)) return {cp, 3, true};
  }
  if (a >= 0xF0 && a < 0xF5 && follows(b) && follows(c) && follows(d)) {
    const char32_t cp = (a & 0x07) << 18 | (b & 0x3F) << 12 | (c & 0x3F) << 6 | (d & 0x3F);
    if (cp >= 0x10000 && cp <= 0x10FFFF) return {cp, 4, true};
  }
  return {0xFFFD, 1, false};
}

void utf8_append(std::string& out, char32_t cp) {
  if (cp < 0x80) {
    out += static_cast<char>(cp);
  } else if (cp < 0x800) {
    out += static_cast<char>(0xC0 | cp >> 6);
    out += static_cast<char>(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    out += static_cast<char>(0xE0 | cp >> 12);
    out += static_cast<char>(0x80 | (cp >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (cp & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | cp >> 18);
    out += static_cast<char>(0x80 | (cp >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (cp >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (cp & 0x3F));
  }
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    // Eight ASCII bytes at a time.
    while (pos + 8 <= text.size()) {
      uint64_t word;
      __builtin_memcpy(&word, text.data() + pos, 8);
      if (word & 0x8080808080808080ULL) break;
      pos += 8;
    }
    if (pos >= text.size()) break;
    const Utf8Char c = utf8_decode(text, pos);
    if (!c.valid) return pos;
    pos += c.length;
  }
  return pos;
}

size_t utf8_incomplete_tail(std::string_view text) {
  // A tail is incomplete if some continuation could make it valid, judging by its first two bytes.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto first = static_cast<unsigned char>(text[text.size() - back]);
    if ((first & 0xC0) == 0x80) continue;
    if (first < 0xC2 || first > 0xF4) return 0;
    const uint32_t needed = utf8_sequence_length(static_cast<char>(first));
    if (needed <= back) return 0;
    if (back >= 2) {
      const auto second = static_cast<unsigned char>(text[text.size() - back + 1]);
      if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
          (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F))
        return 0;
    }
    return back;
  }
  return 0;
}

std::string utf8_lossy(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    // The maximal part: the longest prefix that could have become a character.
    size_t bad = 1;
    while (bad < 4 && bad < text.size() && utf8_incomplete_tail(text.substr(0, bad + 1)) == bad + 1)
      ++bad;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(bad);
  }
  return out;
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  for (char c : text) count += !is_utf8_continuation(c);
  return count;
}

std::u32string utf8_to_u32(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    out += c.cp;
    pos += c.length;
  }
  return out;
}

std::string u32_to_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char32_t c : text) utf8_append(out, c);
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
bool is_letter(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_mark(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}
bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }
bool is_numeric(char32_t c) {
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) ||
         (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);  // of Unicode 17
}
bool is_decimal_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_punctuation(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}
bool is_other(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_CN || (k >= UTF8PROC_CATEGORY_CC && k <= UTF8PROC_CATEGORY_CO);
}
const char* general_category(char32_t c) {
  return c > 0x10FFFF ? "Cn" : utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}
bool is_alphabetic(char32_t c) {
  // Other_Alphabetic beyond L and Nl is nearly all marks, which callers accept separately.
  return is_letter(c) || category(c) == UTF8PROC_CATEGORY_NL || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}
bool is_word(char32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= 'a' && c <= 'z');
  return is_alphabetic(c) || is_mark(c) || is_decimal_digit(c) ||
         category(c) == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D;
}
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == 0x130) {  // the only letter whose lower case is two characters
    out += "i\xCC\x87";
  } else {
    const auto lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    utf8_append(out, lower == c ? new_lower(c) : lower);
  }
}

namespace {
// SpecialCasing.txt, unconditional upper-case mappings of more than one character.
struct SpecialUpper {
  char32_t from, to[3];
};
constexpr SpecialUpper kSpecialUpper[] = {
    {0x00DF, {'S', 'S', 0}},         {0x0149, {0x2BC, 'N', 0}},       {0x01F0, {'J', 0x30C, 0}},
    {0x0390, {0x399, 0x308, 0x301}}, {0x03B0, {0x3A5, 0x308, 0x301}}, {0x0587, {0x535, 0x552, 0}},
    {0x1E96, {'H', 0x331, 0}},       {0x1E97, {'T', 0x308, 0}},       {0x1E98, {'W', 0x30A, 0}},
    {0x1E99, {'Y', 0x30A, 0}},       {0x1E9A, {'A', 0x2BE, 0}},       {0xFB00, {'F', 'F', 0}},
    {0xFB01, {'F', 'I', 0}},         {0xFB02, {'F', 'L', 0}},         {0xFB03, {'F', 'F', 'I'}},
    {0xFB04, {'F', 'F', 'L'}},       {0xFB05, {'S', 'T', 0}},         {0xFB06, {'S', 'T', 0}},
    {0x1F50, {0x3A5, 0x313, 0}},     {0x1FB6, {0x391, 0x342, 0}},     {0x1FC6, {0x397, 0x342, 0}},
    {0x1FD6, {0x399, 0x342, 0}},     {0x1FE4, {0x3A1, 0x313, 0}},     {0x1FE6, {0x3A5, 0x342, 0}},
    {0x1FF6, {0x3A9, 0x342, 0}},     {0x1FB3, {0x391, 0x399, 0}},     {0x1FC3, {0x397, 0x399, 0}},
    {0x1FF3, {0x3A9, 0x399, 0}}};
}  // namespace

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    return;
  }
  for (const SpecialUpper& s : kSpecialUpper)
    if (s.from == c) {
      for (char32_t t : s.to)
        if (t) utf8_append(out, t);
      return;
    }
  utf8_append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    append_lower(out, c.cp);
    pos += c.length;
  }
  return out;
}

// The first character of a word. If its upper case has several characters, the others are lower
// case.
void append_title(std::string& out, char32_t c) {
  const auto one = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
  std::string upper;
  append_upper(upper, c);
  const size_t first = utf8_decode(upper, 0).length;
  // utf8proc has the capital letter for U+00DF, which Python writes as two.
  if ((one != c && c != 0xDF) || first == upper.size()) return utf8_append(out, one);
  out += upper.substr(0, first);
  out += c == 0x149 ? upper.substr(first) : to_lower(upper.substr(first));
}

namespace {
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }
bool is_case_ignorable(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
         k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' ||
         c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
}
}  // namespace

std::string to_lower_words(std::string_view text) {
  if (text.find("\xCE\xA3") == std::string_view::npos) return to_lower(text);
  const std::u32string chars = utf8_to_u32(text);
  std::string out;
  for (size_t i = 0; i < chars.size(); ++i) {
    if (chars[i] != 0x3A3) {
      append_lower(out, chars[i]);
      continue;
    }
    size_t before = i, after = i + 1;
    while (before > 0 && is_case_ignorable(chars[before - 1])) --before;
    while (after < chars.size() && is_case_ignorable(chars[after])) ++after;
    const bool ends = before > 0 && is_cased(chars[before - 1]) &&
                      !(after < chars.size() && is_cased(chars[after]));
    utf8_append(out, ends ? 0x3C2 : 0x3C3);
  }
  return out;
}

std::string fold_case(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.cp), folded,
                                                       8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t k = 0; k < n && k < 8; ++k)
      utf8_append(out, static_cast<char32_t>(folded[k]));
  }
  return out;
}

bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_digit_like(char32_t c) {
  static constexpr char32_t kRanges[][2] = {
      {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
      {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
      {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
      {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
      {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  for (const auto& [first, last] : kRanges)
    if (c >= first && c <= last) return true;
  return is_decimal_digit(c);
}

// Decimal digits come in runs of ten, from zero to nine.
int decimal_value(char32_t c) {
  char32_t zero = c;
  while (is_decimal_digit(zero - 1)) --zero;
  return static_cast<int>((c - zero) % 10);
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    append_upper(out, c.cp);
    pos += c.length;
  }
  return out;
}

namespace {

// Characters that NFC does not change and that never combine with each other or with what follows.
bool nfc_inert(char32_t c) {
  return c < 0x300 || (c >= 0x388 && c <= 0x3FF) || (c >= 0x400 && c <= 0x481) ||
         (c >= 0x2010 && c <= 0x2027) || (c >= 0x2030 && c <= 0x205E) ||
         (c >= 0x2190 && c <= 0x2328) || (c >= 0x2500 && c <= 0x27BF) ||
         (c >= 0x3001 && c <= 0x3020) || (c >= 0x3041 && c <= 0x3096) ||
         (c >= 0x30A0 && c <= 0x30FA) || (c >= 0x3400 && c <= 0x9FFF) ||
         (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFFEE) ||
         (c >= 0x1F300 && c <= 0x1FAFF);
}

bool all_nfc_inert(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    if (!nfc_inert(c.cp)) return false;
    pos += c.length;
  }
  return true;
}

std::string map_with_utf8proc(std::string_view text, int options) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(raw, &std::free);
  if (length < 0)
    fail(ErrorCode::kInvalidArgument, "text cannot be normalised: {}", utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(length));
}

}  // namespace

std::string normalize_unicode(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  // Non-ASCII runs, each with the preceding ASCII character, which marks may combine with.
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    while (begin < text.size() && static_cast<unsigned char>(text[begin]) < 0x80) ++begin;
    size_t end = begin;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    const size_t from = begin > pos && end > begin ? begin - 1 : begin;
    out.append(text.substr(pos, from - pos));
    const std::string_view run = text.substr(from, end - from);
    if (form == NormalForm::kNfc && all_nfc_inert(run)) {
      out.append(run);
    } else if (!run.empty()) {
      out += map_with_utf8proc(run, options);
    }
    pos = end;
  }
  return out;
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  std::vector<size_t> ends;
  utf8proc_int32_t state = 0, before = -1;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    const auto cp = static_cast<utf8proc_int32_t>(c.cp);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, cp, &state)) ends.push_back(pos);
    before = cp;
    pos += c.length;
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

}  // namespace tokamak
