// Names of character sets in Oniguruma's syntax and in PCRE2, and the characters of a pattern.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "text/regex.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// The character at `pos` of a pattern, which is moved beyond it; `one` is false for a class.
char32_t pattern_character(std::string_view pattern, size_t& pos, bool& one) {
  one = true;
  const char escaped = pattern[pos] == '\\' && pos + 1 < pattern.size() ? pattern[pos + 1] : '\0';
  if (escaped == 'x' || escaped == 'u') {
    const bool braces = pattern.substr(pos + 2).starts_with('{');
    const size_t begin = std::min(pattern.size(), pos + (braces ? 3 : 2));
    const std::string_view digits = pattern.substr(begin, braces ? 8 : escaped == 'x' ? 2 : 4);
    uint32_t code = 0;
    const char* end = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16).ptr;
    pos = begin + static_cast<size_t>(end - digits.data());
    if (braces && pos < pattern.size()) ++pos;
    return code;
  }
  if (escaped == '\0') {
    const Utf8Char c = utf8_decode(pattern, pos);
    pos += c.length;
    return c.cp;
  }
  const Utf8Char c = utf8_decode(pattern, pos + 1);
  pos += 1 + c.length;
  const bool letter = (c.cp | 32) >= 'a' && (c.cp | 32) <= 'z';
  one = !letter || std::string_view("aefnrtvQEV").find(escaped) != std::string_view::npos;
  return c.cp;
}

// From lower case without separators.
constexpr std::pair<std::string_view, std::string_view> kPropertyNames[] = {
    {"letter", "L"},
    {"mark", "M"},
    {"number", "N"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"other", "C"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"punct", "P"},
    {"digit", "Nd"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"alpha", "Alphabetic"},
    {"alphabetic", "Alphabetic"},
    {"uppercase", "Uppercase"},
    {"lowercase", "Lowercase"},
    {"cntrl", "Cc"},
    {"any", "Any"},
    {"emoji", "Emoji"},
    {"ideographic", "Ideographic"},
    {"extendedpictographic", "Extended_Pictographic"},
    {"emojipresentation", "Emoji_Presentation"},
    {"emojimodifier", "Emoji_Modifier"},
    {"emojicomponent", "Emoji_Component"},
    {"whitespace", "White_Space"},
    {"idstart", "ID_Start"},
    {"idcontinue", "ID_Continue"},
    {"xidstart", "XID_Start"},
    {"xidcontinue", "XID_Continue"},
    {"math", "Math"},
    {"dash", "Dash"},
    {"hexdigit", "Hex_Digit"},
    {"diacritic", "Diacritic"},
    {"extender", "Extender"},
    {"quotationmark", "Quotation_Mark"},
    {"cased", "Cased"},
    {"caseignorable", "Case_Ignorable"},
    {"defaultignorablecodepoint", "Default_Ignorable_Code_Point"},
    {"variationselector", "Variation_Selector"},
    {"regionalindicator", "Regional_Indicator"},
    {"graphemebase", "Grapheme_Base"},
    {"graphemeextend", "Grapheme_Extend"},
    {"unifiedideograph", "Unified_Ideograph"},
    {"radical", "Radical"},
    {"terminalpunctuation", "Terminal_Punctuation"},
    {"joincontrol", "Join_Control"},
    {"space", "White_Space"}};

}  // namespace

RegexCharacters regex_characters(std::string_view pattern) {
  constexpr char32_t kFirst = 0x800;  // no stand-in is below
  RegexCharacters out;
  out.classes = pattern.find("[:") != pattern.npos;
  int depth = 0;
  for (size_t pos = 0; pos < pattern.size();) {
    if (pattern[pos] == '[') {
      ++depth;
      ++pos;
      if (pattern.substr(pos).starts_with('^')) ++pos;
      if (pattern.substr(pos).starts_with(']')) ++pos;  // the first one is a character
      continue;
    }
    if (pattern[pos] == ']' && depth > 0) --depth;
    bool one = true, other = true;
    const char32_t first = pattern_character(pattern, pos, one);
    out.classes |= !one;
    char32_t last = first;
    if (one && depth > 0 && pattern.substr(pos).starts_with('-') && pos + 1 < pattern.size() &&
        pattern[pos + 1] != ']') {
      size_t end = pos + 1;
      last = pattern_character(pattern, end, other);
      if (other && last >= first)
        pos = end;
      else
        last = first;
    }
    if (one && last >= kFirst) out.named.push_back({first, last});
  }
  return out;
}

std::string_view regex_property_name(std::string_view key) {
  for (const auto& [from, to] : kPropertyNames)
    if (key == from) return to;
  return {};
}

std::string_view regex_named_set(std::string_view name, bool posix) {
  if (posix && name == "punct") return R"(\p{P}\p{S})";
  static constexpr std::pair<std::string_view, std::string_view> kSets[] = {
      {"alpha", R"(\p{Alphabetic})"},
      {"upper", R"(\p{Uppercase})"},
      {"lower", R"(\p{Lowercase})"},
      {"digit", R"(\p{Nd})"},
      {"alnum", R"(\p{Alphabetic}\p{Nd})"},
      {"space", R"(\t-\r\x{85}\p{Z})"},
      {"blank", R"(\t\p{Zs})"},
      {"cntrl", R"(\p{Cc})"},
      {"punct", R"(\p{P})"},
      {"graph", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co})"},
      {"print", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Cf}\p{Co}\p{Zs})"},
      {"word", R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})"},
      {"xdigit", "0-9a-fA-F"},
      {"ascii", R"(\x{0}-\x{7f})"},
      {"assigned", R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{Cc}\p{Cf}\p{Co}\p{Cs})"}};
  for (const auto& [from, to] : kSets)
    if (name == from) return to;
  return {};
}

}  // namespace tokamak
