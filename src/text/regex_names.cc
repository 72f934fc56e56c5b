// Names of character sets in Oniguruma's syntax and in PCRE2.
#include <utility>

#include "text/regex.h"

namespace tokamak {

std::string_view regex_property_name(std::string_view key) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
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
      {"space", "White_Space"}};
  for (const auto& [from, to] : kNames)
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
