#include "text/scripts.h"

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// Han, Hiragana and Katakana first: they count as one script.
constexpr std::string_view kNames[] = {"Han",
                                       "Hiragana",
                                       "Katakana",
                                       "Common",
                                       "Inherited",
                                       "Latin",
                                       "Greek",
                                       "Cyrillic",
                                       "Armenian",
                                       "Hebrew",
                                       "Arabic",
                                       "Syriac",
                                       "Thaana",
                                       "Devanagari",
                                       "Bengali",
                                       "Gurmukhi",
                                       "Gujarati",
                                       "Oriya",
                                       "Tamil",
                                       "Telugu",
                                       "Kannada",
                                       "Malayalam",
                                       "Sinhala",
                                       "Thai",
                                       "Lao",
                                       "Tibetan",
                                       "Myanmar",
                                       "Georgian",
                                       "Hangul",
                                       "Ethiopic",
                                       "Cherokee",
                                       "Canadian_Aboriginal",
                                       "Ogham",
                                       "Runic",
                                       "Khmer",
                                       "Mongolian",
                                       "Bopomofo",
                                       "Yi",
                                       "Old_Italic",
                                       "Gothic",
                                       "Deseret",
                                       "Tagalog",
                                       "Hanunoo",
                                       "Buhid",
                                       "Tagbanwa",
                                       "Limbu",
                                       "Tai_Le",
                                       "Linear_B",
                                       "Ugaritic",
                                       "Shavian",
                                       "Osmanya",
                                       "Cypriot",
                                       "Braille",
                                       "Buginese",
                                       "Coptic",
                                       "New_Tai_Lue",
                                       "Glagolitic",
                                       "Tifinagh",
                                       "Syloti_Nagri",
                                       "Old_Persian",
                                       "Kharoshthi",
                                       "Balinese",
                                       "Cuneiform",
                                       "Phoenician",
                                       "Phags_Pa",
                                       "Nko",
                                       "Sundanese",
                                       "Lepcha",
                                       "Ol_Chiki",
                                       "Vai",
                                       "Saurashtra",
                                       "Kayah_Li",
                                       "Rejang",
                                       "Lycian",
                                       "Carian",
                                       "Lydian",
                                       "Cham",
                                       "Tai_Tham",
                                       "Tai_Viet",
                                       "Avestan",
                                       "Egyptian_Hieroglyphs",
                                       "Samaritan",
                                       "Lisu",
                                       "Bamum",
                                       "Javanese",
                                       "Meetei_Mayek",
                                       "Imperial_Aramaic",
                                       "Old_South_Arabian",
                                       "Inscriptional_Parthian",
                                       "Inscriptional_Pahlavi",
                                       "Old_Turkic",
                                       "Kaithi",
                                       "Batak",
                                       "Brahmi",
                                       "Mandaic",
                                       "Chakma",
                                       "Meroitic_Cursive",
                                       "Meroitic_Hieroglyphs",
                                       "Miao",
                                       "Sharada",
                                       "Sora_Sompeng",
                                       "Takri",
                                       "Caucasian_Albanian",
                                       "Bassa_Vah",
                                       "Duployan",
                                       "Elbasan",
                                       "Grantha",
                                       "Pahawh_Hmong",
                                       "Khojki",
                                       "Linear_A",
                                       "Mahajani",
                                       "Manichaean",
                                       "Mende_Kikakui",
                                       "Modi",
                                       "Mro",
                                       "Old_North_Arabian",
                                       "Nabataean",
                                       "Palmyrene",
                                       "Pau_Cin_Hau",
                                       "Old_Permic",
                                       "Psalter_Pahlavi",
                                       "Siddham",
                                       "Khudawadi",
                                       "Tirhuta",
                                       "Warang_Citi",
                                       "Ahom",
                                       "Anatolian_Hieroglyphs",
                                       "Hatran",
                                       "Multani",
                                       "Old_Hungarian",
                                       "SignWriting",
                                       "Adlam",
                                       "Bhaiksuki",
                                       "Marchen",
                                       "Newa",
                                       "Osage",
                                       "Tangut",
                                       "Masaram_Gondi",
                                       "Nushu",
                                       "Soyombo",
                                       "Zanabazar_Square"};

constexpr char32_t kEnd = 0x31350;  // beyond it: tags and variation selectors, Common and Inherited

std::vector<uint8_t> build() {
  std::string all;
  std::vector<uint8_t> table(kEnd, kScriptAny);
  for (char32_t c = 1; c < kEnd; ++c)
    if (c < 0xD800 || c > 0xDFFF) utf8_append(all, c);
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const Regex regex("\\p{" + std::string(kNames[i]) + "}+");
    regex.for_each(all, [&](Regex::Match m) {
      const char32_t first = utf8_decode(all, m.begin).cp;
      const size_t count = utf8_length(std::string_view(all).substr(m.begin, m.end - m.begin));
      for (size_t k = 0, c = first; k < count; ++k, ++c) {
        if (c == 0xD800) c = 0xE000;
        table[c] = static_cast<uint8_t>(i < 3 ? 1 : i + 1);
      }
    });
  }
  // Characters with a stand-in (unicode.h) were matched as that one, which has another script.
  // U+180E and U+1171E have the script of their neighbour; the others are newer than the table of
  // scripts of `tokenizers`.
  for (char32_t c = 0; c < kEnd; ++c)
    if (known_stand_in(c) != c) table[c] = c == 0x180E || c == 0x1171E ? table[c - 1] : kScriptAny;
  table[0] = 4;  // U+0000 is Common
  table[' '] = kScriptAny;
  table[0x30FC] = 1;
  return table;
}

}  // namespace

int script_of(char32_t c) {
  static const std::vector<uint8_t> table = build();
  if (c < kEnd) return table[c];
  if (c == 0xE0001 || (c >= 0xE0020 && c <= 0xE007F)) return 4;
  return c >= 0xE0100 && c <= 0xE01EF ? 5 : kScriptAny;
}

}  // namespace tokamak
