// Grammars in Lark's notation: texts that match and texts that do not, and what is refused. Most
// cases follow the tests of llguidance and xgrammar.
#include "text/grammar/lark.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/test_vocabulary.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/matcher.h"

namespace tokamak::grammar {
namespace {

struct LarkCase {
  const char* grammar;
  std::vector<const char*> good, bad;
};

const LarkCase kLarkCases[] = {
    {R"(start: /.../ "abc" /.../)", {"abcabcabc", "\xE2\x9C\x85xxabcyyy"}, {"aaabcccc"}},
    {"start: ab{3,5}\nab: \"a\" | \"b\"", {"aba", "ababa"}, {"ab", "ababab"}},
    {"start: ab~2..3 C{,1}\nab: \"a\" | \"b\"\nC: \"c\"", {"ab", "abac"}, {"a", "abcc"}},
    {"start: [\"x\"] \"y\"* (\"z\" | \"w\")+", {"xyz", "w", "yyzw"}, {"x", "xxz"}},
    {"start: \"a\"..\"f\" DIGIT~2\n%import common.DIGIT", {"b07"}, {"g07", "b0"}},
    {"start: \"Yes\"i \"!\"", {"yEs!"}, {"yes"}},
    {"start: /[a-c]+/i /x./s", {"aBCx\n"}, {"dx\n"}},
    {"start: WORD NUMBER -> pair\n%import common (WORD, NUMBER)", {"ab12.5e3"}, {"ab", "12"}},
    {"?start: sum\n?sum: product | sum \"+\" product -> add\n?product: atom | product \"*\" atom\n"
     "?atom: NUMBER | \"-\" atom | \"(\" sum \")\"\n%import common.NUMBER\n%import "
     "common.WS_INLINE\n"
     "%ignore WS_INLINE",
     {"1+2*3", "1 + (2 * -3)", "((4))  "},
     {"1+", "(1", "1 2", " 1"}},
    {"start: \"a\" \"b\" // comment\n\n  | \"c\" # another\n", {"ab", "c"}, {"a"}},
    {"!start.2: A_1 _b\nA_1: \"x\"\n_b: \"y\"", {"xy"}, {"x"}},
    {"first: \"a\" second\nsecond: \"b\"", {"ab"}, {"b"}},
    {"start: \"v=\" %json {\"type\": \"array\", \"items\": {\"enum\": [\"}\", 1]}} \".\"",
     {"v=[1].", "v=[\"}\", 1]."},
     {"v=[2].", "v=1."}},
    {"start: A | B\nA: \"\\x41\\u00e9\"\nB: /\\/[^\\/]*\\//", {"A\xC3\xA9", "/ab/"}, {"A", "//b/"}},
    {"start: string\nstring: ESCAPED_STRING\n%import common.ESCAPED_STRING",
     {"\"a\\\"b\""},
     {"\"a\\\"", "\"a\nb\""}},
    {"start: (A C_COMMENT)+\nA: \"a\"\n%import common.C_COMMENT", {"a/* * x */"}, {"a/* x *"}},
};

TEST(Lark, MatchesWhatTheGrammarSays) {
  auto vocabulary = byte_vocabulary();
  for (const LarkCase& c : kLarkCases) {
    ASSERT_TRUE(is_lark(c.grammar));
    Grammar grammar(parse_lark(c.grammar), vocabulary);
    for (const char* text : c.good) EXPECT_TRUE(grammar.matches(text)) << c.grammar << ": " << text;
    for (const char* text : c.bad) EXPECT_FALSE(grammar.matches(text)) << c.grammar << ": " << text;
  }
  EXPECT_FALSE(is_lark("root ::= \"a\" | \":\""));
}

TEST(Lark, RejectsWhatIsNotAvailable) {
  const std::pair<const char*, const char*> bad[] = {
      {"start: x", "uses 'x', which it does not define"},
      {"start: \"a\n", "line 1, column 10: the line ends inside quotes"},
      {"start: /a\n/", "inside a regular expression"},
      {"start: \"a\"\nstart: \"b\"", "'start' is defined twice"},
      {"start: (\"a\"", "')' is expected"},
      {"start: a{x}\na: \"a\"", "templates"},
      {"start{x}: \"a\"", "templates"},
      {"start[lazy]: \"a\"", "attributes"},
      {"start: \"a\"~3..2", "wrong order"},
      {"start: \"a\"\n%declare X", "%declare is not available"},
      {"start: X\n%import common.NONE -> X", "no terminal 'NONE'"},
      {"start: X\n%import python.NAME", "only the library 'common'"},
      {"start: A\nA: b\nb: \"b\"", "a terminal cannot use the rule 'b'"},
      {"start: <|special|>: x", "is expected"},
      {"start: /(?=a)/", "look-around"},
      {"start: /a/x", "flag 'x'"},
      {"start: \"z\"..\"a\"", "a range has one character"},
      {"start: %json {\"type\": \"arra\"}", "is not a JSON type"},
      {"start: %json [1]", "a JSON schema, {...}, is expected"},
      {"start: %json {\"a\": ", "a JSON schema, {...}, is expected"},
      {"start: a \"x\"\na: b \"y\"\nb: a \"z\" | \"q\"", "left recursion"},
      {"\xFF: a", "not valid UTF-8"},
  };
  for (const auto& [text, message] : bad) {
    try {
      Grammar grammar(parse_lark(text), byte_vocabulary());
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos)
          << text << " -> " << e.what();
    }
  }
  std::string deep = "start: " + std::string(10000, '(') + "\"a\"" + std::string(10000, ')');
  EXPECT_THROW(parse_lark(deep), Error);
}

// Rules that begin with themselves match the same texts as their right-recursive forms.
TEST(Grammar, DirectLeftRecursion) {
  const std::pair<const char*, const char*> pairs[] = {
      {"root ::= root \"a\" | \"b\"", "root ::= \"b\" \"a\"*"},
      {"root ::= root | root \"a\" | \"b\" | root \"ab\" | \"a\"",
       "root ::= (\"b\" | \"a\") (\"a\" | \"ab\")*"},
      {"root ::= \"(\" e \")\" | e\ne ::= e \"a\" e | \"b\"",
       "root ::= \"(\" e \")\" | e\ne ::= \"b\" (\"a\" e)*"},
  };
  for (const auto& [left, right] : pairs) {
    Grammar a(parse_gbnf(left), byte_vocabulary()), b(parse_gbnf(right), byte_vocabulary());
    std::vector<std::string> texts{""};
    size_t matched = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      bool match = a.matches(texts[i]);
      EXPECT_EQ(match, b.matches(texts[i])) << left << ": " << texts[i];
      matched += match;
      if (texts[i].size() < 6)
        for (char c : std::string_view("ab()")) texts.push_back(texts[i] + c);
    }
    EXPECT_GT(matched, 3u);
  }
}

}  // namespace
}  // namespace tokamak::grammar
