// Regular expressions against tables of texts, and their automata against each other.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/test_vocabulary.h"
#include "text/grammar/look_ahead.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

struct RegexCase {
  const char* pattern;
  RegexUse use;
  std::vector<const char*> good, bad;
};

const RegexCase kRegexCases[] = {
    {"a|bc", RegexUse::kWhole, {"a", "bc"}, {"", "abc", "b", "ab"}},
    {"^a|bc$", RegexUse::kWhole, {"a", "bc"}, {"ab", "xbc"}},
    {"^a|bc$", RegexUse::kSearch, {"a", "axx", "bc", "xbc"}, {"xa", "bcx", ""}},
    {"b", RegexUse::kSearch, {"b", "abc"}, {"", "ac"}},
    {"", RegexUse::kSearch, {"", "x"}, {}},
    {"^$", RegexUse::kSearch, {""}, {"x"}},
    {"^[a-c]+$", RegexUse::kSearch, {"a", "abc"}, {"", "abcd", "dabc"}},
    {"(^|,)x(,|$)", RegexUse::kSearch, {"x", "a,x,b", "x,", ",x"}, {"xx", "ax", "a,xb"}},
    {"a{2,3}", RegexUse::kWhole, {"aa", "aaa"}, {"a", "aaaa"}},
    {"(ab){2}c*?", RegexUse::kWhole, {"abab", "ababcc"}, {"ab", "ababab"}},
    {"a{2,}", RegexUse::kWhole, {"aa", "aaaaaa"}, {"a"}},
    {"[^a-c]", RegexUse::kWhole, {"d", "\xC3\xA9", "\n"}, {"a", "", "dd"}},
    {".", RegexUse::kWhole, {"a", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}, {"\n", "", "ab"}},
    {"\\d+\\.\\d", RegexUse::kWhole, {"12.3"}, {"1.", "1x3"}},
    {"\\w\\W\\s\\S", RegexUse::kWhole, {"a! b", "_ \xC2\xA0x"}, {"a! "}},
    {"[\\w.-]+@x", RegexUse::kWhole, {"a.b-c_d@x"}, {"@x", "a b@x"}},
    {"\\p{Lu}\\p{L}*", RegexUse::kWhole, {"\xC3\x84h", "A"}, {"a", "\xC3\xA4"}},
    {"\\P{L}", RegexUse::kWhole, {"1"}, {"a"}},
    {"\\pL\\PL\\p{^Lu}", RegexUse::kWhole, {"a1b"}, {"a1B", "11b"}},
    // Scripts, also of characters beyond U+FFFF; scx: with those that other scripts use, too.
    {"\\p{Greek}+", RegexUse::kWhole, {"\u03b1\u03a9\u1f00"}, {"a", "\u0436", "\u00b5", ""}},
    {"\\p{Script=Han}", RegexUse::kWhole, {"\u4e00", "\U00020000", "\u3005"}, {"\u3042", "a"}},
    {"\\p{sc=Hira}|\\p{script:Kana}", RegexUse::kWhole, {"\u3042", "\u30a2"}, {"\u30fc", "\u4e00"}},
    {"\\p{scx=Hira}", RegexUse::kWhole, {"\u3042", "\u30fc"}, {"\u4e00", "\u30a2"}},
    {"[^\\p{Cyrillic}x]", RegexUse::kWhole, {"a", "\u03b1"}, {"\u0436", "x"}},
    {"[\\P{Latin}a-c]+", RegexUse::kWhole, {"1b\u0436"}, {"d", "\u00e9"}},
    {"(?i)\\p{sc=Deseret}[\\p{Lu}]",
     RegexUse::kWhole,
     {"\U00010428a", "\U00010400\u03b1"},
     {"a", "\U000104281"}},
    {"\\p{Yi}\\p{old italic}", RegexUse::kWhole, {"\ua000\U00010300"}, {"\ua000a"}},
    // Binary properties and long names, loosely spelt.
    {"\\p{Alphabetic}\\p{alpha}", RegexUse::kWhole, {"a\u0345", "\u2160b"}, {"a1"}},
    {"\\p{Emoji}\\p{Emoji_Presentation}",
     RegexUse::kWhole,
     {"1\U0001F600", "\u2764\u231a"},
     {"\u27641", "aa"}},
    {"\\p{White_Space}\\p{Uppercase}\\p{hex-digit}",
     RegexUse::kWhole,
     {" \u2160f", "\u3000AA"},
     {" aa", " AG"}},
    {"\\p{General_Category=Decimal_Number}\\p{gc=lt}\\p{LC}",
     RegexUse::kWhole,
     {"1\u01c5a"},
     {"1aa", "1\u01c5\u01bb"}},
    {"\\p{ID_Start}\\p{ID_Continue}*", RegexUse::kWhole, {"a_1", "\u03b1"}, {"_", "1a"}},
    {"[\\p{Nd}x]+", RegexUse::kWhole, {"\xD9\xA3x1"}, {"y"}},
    {"\\u00e9|\\u{1F600}|\\uD83D\\uDE01|\\x41|\\cJ",
     RegexUse::kWhole,
     {"\xC3\xA9", "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81", "A", "\n"},
     {"B", "J"}},
    {"\\/\\^\\$\\\\\\.\\-", RegexUse::kWhole, {"/^$\\.-"}, {"/^$\\x-"}},
    {"(?:a|(?<n>b))c", RegexUse::kWhole, {"ac", "bc"}, {"abc"}},
    {"[]|a", RegexUse::kWhole, {"a"}, {""}},
    {"[^]", RegexUse::kWhole, {"a", "\n"}, {""}},
    {"[a-]+", RegexUse::kWhole, {"a-a"}, {"b"}},
    {"(a|)b", RegexUse::kWhole, {"ab", "b"}, {"a"}},
    {"(?i)a\\x42[x-z\u00e4]+", RegexUse::kWhole, {"abX", "ABz\u00c4"}, {"acx", "abw"}},
    {"(?i)[^a-c]", RegexUse::kWhole, {"d"}, {"B", "b"}},
    {"a(?i:b)c", RegexUse::kWhole, {"aBc", "abc"}, {"Abc", "abC"}},
    {"(?is)a.", RegexUse::kWhole, {"A\n"}, {"A"}},
    {"(?P<n>a)b", RegexUse::kWhole, {"ab"}, {"a"}},
    {"^^a$$", RegexUse::kWhole, {"a"}, {"", "aa"}},
    {"^(^a$|^(^b)c*$)$", RegexUse::kSearch, {"a", "b", "bcc"}, {"ab", "ba", "xa", "bca"}},
    {"^{2}a|b$*", RegexUse::kSearch, {"a", "ac", "b", "xbx"}, {"xa", ""}},
    {"a^b|a$b|c", RegexUse::kSearch, {"c", "ac"}, {"ab", "a"}},
    {"\\x{1F600}\\U0001F601", RegexUse::kWhole, {"\U0001F600\U0001F601"}, {"\U0001F600"}},
    {"\\Aab\\Z", RegexUse::kSearch, {"ab"}, {"xab", "abx"}},
    {"^(?!a|b[)]|c$)[a-c)]+$", RegexUse::kSearch, {"b", "bb)", "cc"}, {"a", "b)", "c", "d", ""}},
    {"^(?!x)", RegexUse::kSearch, {"", "ax"}, {"x", "xa"}},
    {"^(?=.{2,3}$)(?!\\))a*\\)$", RegexUse::kSearch, {"a)", "aa)"}, {")", "aaa)", "aa"}},
    {"(?!ab)[ab]*", RegexUse::kWhole, {"", "a", "ba"}, {"ab", "aba", "c"}},
    {"(?=a)[ab]{2}", RegexUse::kWhole, {"aa", "ab"}, {"ba", "a"}},
};

TEST(Regex, Matches) {
  auto vocabulary = byte_vocabulary();
  for (const RegexCase& c : kRegexCases) {
    CharFsm fsm = parse_regex(c.pattern, c.use);
    CharFsm dfa = deterministic(fsm), inverse = complement(fsm);
    Ir ir;
    RuleId root = ir.add_rule("root");
    ir.define(root, expr_of(ir, fsm));
    Grammar grammar(ir, vocabulary);
    for (bool good : {true, false})
      for (const char* text : good ? c.good : c.bad) {
        EXPECT_EQ(fsm.matches(std::string_view(text)), good) << c.pattern << ": " << text;
        EXPECT_EQ(dfa.matches(std::string_view(text)), good) << c.pattern << ": " << text;
        EXPECT_EQ(inverse.matches(std::string_view(text)), !good) << c.pattern << ": " << text;
        EXPECT_EQ(grammar.matches(text), good) << c.pattern << ": " << text;
      }
    EXPECT_TRUE(is_empty(intersect(dfa, inverse))) << c.pattern;
  }
}

TEST(Regex, RejectsWhatIsNotAvailable) {
  const std::pair<const char*, const char*> bad[] = {
      {"a(?=a)b", "look-around"},
      {"(?=a)b|c", "look-around"},
      {"^((?!a).)*$", "look-around"},
      {"(?!(?!a)b)c", "look-around"},
      {"(?<!a)b", "look-around"},
      {"(?x)a", "look-around and flags"},
      {"a(?i)b", "look-around and flags"},
      {"(a)\\1", "back-references"},
      {"\\bword", "word boundaries"},
      {"\\q", "unknown escape"},
      {"a**", "repetition follows"},
      {"[[:alpha:]]+", "[:alpha:] are not available"},
      {"*a", "nothing to repeat"},
      {"(a", "')' is expected"},
      {"a)", "has no '('"},
      {"[a", "']' is expected"},
      {"[b-a]", "wrong order"},
      {"a{2,1}", "wrong order"},
      {"a{99999}", "too large"},
      {"((((a{99}){99}){99}){99})", "too large"},
      {"\\p{Script=Nonsense}", "'Script=Nonsense' is not available"},
      {"\\p{Greek Extended}", "not available"},  // a block
      {"\\p{Script=Alphabetic}", "not available"},
      {"\\p{gc=Greek}", "not available"},
      {"\\p{=Greek}", "not available"},
      {"\\p{Greek}\\p{a}|(?i:b}", "'a' is not available"},
      {"\\p{Greek", "'}' is expected"},
      {"\\U00110000", "not a character"},
      {"a\\p", "a property is expected"},
      {"a\\", "ends with a backslash"},
      {"\xFF", "not valid UTF-8"},
      // The pattern and the position are those of the caller, also where look-ahead was removed.
      {"^(?!ab)x(", "'^(?!ab)x(', character 10: ')' is expected"},
      {"(?!\xC3\xA9)(?=a**)b", "character 11: a repetition follows"},
      {"^(?!a)(?i)b", "look-around and flags"},
  };
  for (const auto& [pattern, message] : bad) {
    try {
      parse_regex(pattern, RegexUse::kWhole);
      FAIL() << pattern;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << pattern << e.what();
    }
  }
  EXPECT_THROW(parse_regex(std::string(5000, '(') + std::string(5000, ')'), RegexUse::kWhole),
               Error);
  // Exponentially many states when it is made deterministic.
  EXPECT_THROW(complement(parse_regex("(a|b)*a(a|b){30}", RegexUse::kWhole)), Error);
}

TEST(Regex, LimitsLookAhead) {
  const auto pattern = [](size_t conditions) {
    std::string out;
    for (size_t i = 0; i < conditions; ++i)
      out += fmt::format("(?!{})", static_cast<char>('a' + i % 26));
    return out + "[a-z]*";
  };
  const CharFsm fsm = parse_regex(pattern(kMaxLookAheads), RegexUse::kWhole);
  EXPECT_TRUE(fsm.matches(std::string_view("za")));
  EXPECT_FALSE(fsm.matches(std::string_view("pa")));  // the last condition
  for (size_t conditions : {kMaxLookAheads + 1, size_t{20'000}}) {
    try {
      parse_regex(pattern(conditions), RegexUse::kWhole);
      FAIL() << conditions;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("character 81: there are more than 16 look-aheads"),
                std::string::npos)
          << e.what();
    }
  }
}

TEST(CharFsm, Operations) {
  CharFsm words = fsm_of_texts({"ab", "a", "abc", "\xC3\xA9"});
  for (const char* text : {"a", "ab", "abc", "\xC3\xA9"})
    EXPECT_TRUE(words.matches(std::string_view(text)));
  for (const char* text : {"", "b", "abcd"}) EXPECT_FALSE(words.matches(std::string_view(text)));
  CharFsm others = complement(words);
  EXPECT_TRUE(others.matches(std::string_view("abcd")));
  EXPECT_FALSE(others.matches(std::string_view("ab")));
  CharFsm some = intersect(others, fsm_of_length(2, 3));
  EXPECT_TRUE(some.matches(std::string_view("xy")));
  EXPECT_TRUE(some.matches(std::string_view("\xC3\xA9\xC3\xA9")));
  EXPECT_FALSE(some.matches(std::string_view("x")));
  EXPECT_FALSE(some.matches(std::string_view("wxyz")));
  EXPECT_TRUE(unite(words, some).matches(std::string_view("a")));
  EXPECT_TRUE(is_empty(intersect(words, others)));
  EXPECT_FALSE(is_empty(words));
}

}  // namespace
}  // namespace tokamak::grammar
