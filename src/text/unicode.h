#pragma once
// UTF-8 and character classes for tokenizers and templates. Wraps utf8proc.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

// One character at `pos`: the code point and its length. A byte that starts no valid character
// gives {0xFFFD, length 1, valid false}.
struct Utf8Char {
  char32_t cp = 0;
  uint32_t length = 1;
  bool valid = true;
};
Utf8Char utf8_decode(std::string_view text, size_t pos);
void utf8_append(std::string& out, char32_t cp);

// Length of the longest prefix that is valid UTF-8.
size_t utf8_valid_prefix(std::string_view text);
inline bool utf8_is_valid(std::string_view text) { return utf8_valid_prefix(text) == text.size(); }
// Bytes at the end of `text` that begin an incomplete character (0..3).
size_t utf8_incomplete_tail(std::string_view text);
// U+FFFD for each maximal part that is not UTF-8 (as Unicode recommends and Rust and Python do).
std::string utf8_lossy(std::string_view text);
size_t utf8_length(std::string_view text);  // characters of valid text
std::u32string utf8_to_u32(std::string_view text);
std::string u32_to_utf8(std::u32string_view text);

inline bool is_utf8_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
inline uint32_t utf8_sequence_length(char first) {
  const auto c = static_cast<unsigned char>(first);
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// Unicode general category classes.
bool is_white_space(char32_t c);      // property White_Space
bool is_letter(char32_t c);           // L
bool is_numeric(char32_t c);          // N
bool is_decimal_digit(char32_t c);    // Nd
bool is_punctuation(char32_t c);      // P
bool is_mark(char32_t c);             // M
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // C: control, format, unassigned, private use
bool is_word(char32_t c);             // L, M, N, Pc and joiners: \w of regular expressions
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_alphabetic(char32_t c);

// By the older tables of `tokenizers`.
bool is_accent(char32_t c);
bool is_bert_accent(char32_t c);
bool is_bert_punctuation(char32_t c);  // P, and the symbols of ASCII
bool is_bert_control(char32_t c);

// A character of the same length and category that every library's tables have, if `c` is one of
// Unicode 15 or 16, else `c`.
char32_t known_stand_in(char32_t c);
struct CharRange {
  char32_t first, last;
};
// The text with those stand-ins; false: it needs none, and `out` is empty. A character stays if one
// of the ranges contains it and not its stand-in, or the reverse.
bool with_known_characters(std::string_view text, const std::vector<CharRange>& ranges,
                           std::string& out);
char32_t new_lower(char32_t c);  // of letters of Unicode 16 and 17, else `c`

const char* general_category(char32_t c);  // "Lu", "Nd", ...; "Cn" beyond U+10FFFF

void append_lower(std::string& out, char32_t c);  // full mapping, no context
void append_upper(std::string& out, char32_t c);
std::string to_lower(std::string_view text);
void append_title(std::string& out, char32_t c);
std::string to_upper(std::string_view text);
std::string to_lower_words(std::string_view text);  // with final sigma, as in Python
std::string fold_case(std::string_view text);       // full case folding
bool is_title(char32_t c);                          // Lt
bool is_digit_like(char32_t c);  // Nd, superscripts, circled digits: Numeric_Type decimal or digit
int decimal_value(char32_t c);   // of a decimal digit

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize_unicode(std::string_view text, NormalForm form);

// Ends of extended grapheme clusters.
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace tokamak
