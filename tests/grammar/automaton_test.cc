// The automaton against a slow matcher, masks against single tokens, and the laws of matchers.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "tests/grammar/oracle.h"
#include "tests/grammar/test_vocabulary.h"
#include "text/grammar/gbnf.h"

namespace tokamak::grammar {
namespace {

struct Case {
  const char* name;
  const char* gbnf;
  const char* letters;  // of the texts that are tried
  int length;           // of the longest
};

const Case kCases[] = {
    {"literal", R"(root ::= "ab" | "abc" | "b")", "abc", 5},
    {"repeats", R"(root ::= ("a" | "bc"){2,4} "d"?)", "abcd", 7},
    {"star", R"(root ::= ("a"* "b")* "a")", "ab", 9},
    {"recursion", R"g(root ::= "(" root ")" | "x" | root2
root2 ::= "[" root "]" root2 | "y")g",
     "()[]xy", 6},
    {"list", R"(root ::= item ("," root)?
item ::= [a-b]+)",
     "ab,", 8},
    {"right_recursion", R"(root ::= "a" root | "")", "ab", 8},
    {"nullable", R"(root ::= ws "a" ws "b" ws
ws ::= " "*)",
     "ab ", 7},
    {"ambiguous", R"(root ::= "a" x | "a" y
x ::= root "x" | ""
y ::= root "y" | "x")",
     "axy", 7},
    {"two_calls", R"(root ::= s s s
s ::= "a" s "b" | "c")",
     "abc", 8},
    {"after_end", R"(root ::= n "." n | n
n ::= [0-1]+)",
     "01.", 8},
    {"optional_tail", R"(root ::= "a" root "b"? | "c")", "abc", 8},
    {"unicode", "root ::= [\xC3\xA0-\xC3\xBF\xE2\x82\xAC]+ \"!\"?", "\xC3\xA0\xE2\x82\xAC!", 6},
    {"negated", R"(root ::= "\"" [^"\\]* "\"")", "\"\\a", 6},
    {"empty", R"(root ::= "" | "a")", "ab", 3},
    {"json", R"(root ::= value
value ::= "{" (pair ("," pair)*)? "}" | "[" (value ("," value)*)? "]" | "1"
pair ::= "k:" value)",
     "{}[],k:1", 6},
};

std::shared_ptr<const Grammar> compiled(const char* gbnf,
                                        std::shared_ptr<const Vocabulary> vocabulary) {
  return std::make_shared<Grammar>(parse_gbnf(gbnf), std::move(vocabulary));
}

// Every text over `letters` up to a length: accepted exactly when the slow matcher accepts it, and
// every beginning of an accepted text is live.
TEST(Automaton, AcceptsWhatTheGrammarSays) {
  for (const Case& c : kCases) {
    Ir ir = parse_gbnf(c.gbnf);
    SlowMatcher slow(ir);
    auto vocabulary = byte_vocabulary();
    auto grammar = std::make_shared<Grammar>(ir, vocabulary);
    std::string_view letters = c.letters;
    size_t accepted = 0, tried = 0;
    std::vector<std::string> level{""};
    for (int length = 0; length <= c.length; ++length) {
      std::vector<std::string> next;
      for (const std::string& text : level) {
        ++tried;
        bool expected = slow.matches(text);
        accepted += expected;
        ASSERT_EQ(grammar->matches(text), expected) << c.name << ": " << text;
        Matcher matcher(grammar);
        bool live = true;
        for (char byte : text) live = live && matcher.accept(static_cast<uint8_t>(byte));
        if (expected) {
          ASSERT_TRUE(live && matcher.accepting()) << c.name << ": " << text;
        }
        // Texts that are not live need not be extended, which the slow matcher confirms.
        if (!live && !text.empty() && tried % 7 != 0) continue;
        if (tried < 60000)
          for (char letter : letters) next.push_back(text + letter);
      }
      level = std::move(next);
    }
    EXPECT_GT(accepted, 0u) << c.name;
  }
}

// A mask has exactly the tokens that can be accepted.
TEST(Automaton, MasksAreTheAcceptedTokens) {
  for (const Case& c : kCases) {
    auto vocabulary = random_vocabulary(c.letters, 900, 7);
    auto grammar = compiled(c.gbnf, vocabulary);
    std::mt19937 rng(11);
    size_t allowed_total = 0;
    for (int round = 0; round < 40; ++round) {
      Matcher matcher(grammar);
      for (int step = 0; step < 12; ++step) {
        std::vector<uint32_t> mask(vocabulary->words(), 0);
        matcher.fill_mask(mask);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id) {
          Matcher fork = matcher;
          bool expected = fork.accept(id);
          ASSERT_EQ(has_bit(mask, id), expected)
              << c.name << ": token '" << vocabulary->bytes(id) << "' at step " << step;
          if (expected) allowed.push_back(id);
        }
        allowed_total += allowed.size();
        EXPECT_EQ(matcher.finished(), allowed.empty()) << c.name;
        if (allowed.empty()) break;
        ASSERT_TRUE(matcher.accept(allowed[rng() % allowed.size()]));
      }
    }
    EXPECT_GT(allowed_total, 0u) << c.name;
  }
}

TEST(Matcher, RollbackAndForkRestore) {
  for (const Case& c : kCases) {
    auto vocabulary = random_vocabulary(c.letters, 600, 3);
    auto grammar = compiled(c.gbnf, vocabulary);
    auto mask_of = [&](Matcher& m) {
      std::vector<uint32_t> mask(vocabulary->words(), 0);
      m.fill_mask(mask);
      return mask;
    };
    std::mt19937 rng(5);
    Matcher matcher(grammar);
    std::vector<std::vector<uint32_t>> masks{mask_of(matcher)};
    for (int step = 0; step < 30; ++step) {
      if (rng() % 4 == 0 && matcher.size() > 0) {
        size_t back = 1 + rng() % matcher.size();
        Matcher fork = matcher;
        matcher.rollback(back);
        EXPECT_EQ(mask_of(fork), masks.back()) << c.name;
        masks.resize(masks.size() - back);
        EXPECT_EQ(mask_of(matcher), masks.back()) << c.name;
        continue;
      }
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id)
        if (has_bit(masks.back(), id)) allowed.push_back(id);
      if (allowed.empty()) break;
      ASSERT_TRUE(matcher.accept(allowed[rng() % allowed.size()]));
      masks.push_back(mask_of(matcher));
    }
  }
}

TEST(Matcher, ForcedBytes) {
  auto grammar =
      compiled(R"(root ::= "{\"name\": \"" [a-z]+ "\", \"age\": " [0-9]+ "}")", byte_vocabulary());
  Matcher matcher(grammar);
  EXPECT_EQ(matcher.forced(100), "{\"name\": \"");
  EXPECT_EQ(matcher.forced(4), "{\"na");
  for (char c : std::string_view("{\"name\": \"bob")) ASSERT_TRUE(matcher.accept(c));
  EXPECT_EQ(matcher.forced(100), "");
  ASSERT_TRUE(matcher.accept('"'));
  EXPECT_EQ(matcher.forced(100), ", \"age\": ");
}

// Against its definition: every token at every byte of the forced text.
TEST(Matcher, FirstCrossing) {
  int crossed = 0, whole = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    auto vocabulary = random_vocabulary("abc", 300 + seed * 10, seed);
    auto grammar =
        compiled(seed % 2 == 0 ? R"(root ::= "abca" "bcbac" ("ab" | "cc") [ab]{1,6} "abcabcab")"
                               : R"(root ::= ("aab" | "bc") "cabacabac" ("a" root | "b"))",
                 vocabulary);
    Matcher matcher(grammar);
    std::mt19937 rng(seed);
    for (int step = 0; step < 12; ++step) {
      std::string text = matcher.forced(64);
      size_t want = text.size();
      Matcher ahead = matcher;
      for (char c : text) ASSERT_TRUE(ahead.accept(1 + static_cast<uint8_t>(c)));
      for (size_t i = 0; i < text.size() && want == text.size(); ++i)
        for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id) {
          std::string_view bytes = vocabulary->bytes(id);
          if (bytes.size() <= text.size() - i || !bytes.starts_with(text.substr(i))) continue;
          Matcher beyond = ahead;
          bool fits = true;
          for (char c : bytes.substr(text.size() - i))
            fits = fits && beyond.accept(1 + static_cast<uint8_t>(c));
          if (fits) want = i;
        }
      EXPECT_EQ(matcher.first_crossing(text), want) << seed << " " << text;
      (want < text.size() ? crossed : whole) += text.empty() ? 0 : 1;
      std::vector<uint32_t> mask(vocabulary->words(), 0);
      matcher.fill_mask(mask);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id)
        if (has_bit(mask, id)) allowed.push_back(id);
      if (allowed.empty()) break;
      matcher.accept(allowed[rng() % allowed.size()]);
    }
  }
  EXPECT_GT(crossed, 20);
  EXPECT_GT(whole, 20);
}

TEST(Grammar, RejectsWhatItCannotRun) {
  struct Bad {
    const char* gbnf;
    const char* message;
  };
  const Bad bad[] = {
      {"root ::= a \"a\" | \"b\"\na ::= root", "left recursion: rule"},
      {"root ::= root \"a\"", "matches no text"},
      {"root ::= a\na ::= b\nb ::= \"\" a \"x\" | \"y\"", "left recursion"},
      {"root ::= e root \"x\" | \"y\"\ne ::= \" \"?", "left recursion"},
      {"root ::= \"a\" root", "matches no text"},
      {"root ::= []", "matches no text"},
      {"root ::= x", "which it does not define"},
      {"a ::= \"x\"", "no rule named root"},
      {"root ::= (\"a\"", "')' is expected"},
      {"root ::= \"a", "ends inside"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"root ::= [b-a]", "wrong order"},
      {"root ::= \"a\"{3,2}", "wrong order"},
      {"root ::= \"a\"{999999999}", "more than 100000 times"},
      {"root ::= ((((\"a\"{1000}){1000}){1000}){1000})", "too large"},
      {"root ::= (\"\"{99999}){99999}", "too large"},
      {"root ::= <think>", "not available"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root = \"a\"", "'::=' is expected"},
  };
  for (const Bad& b : bad) {
    try {
      Grammar grammar(parse_gbnf(b.gbnf), byte_vocabulary());
      FAIL() << b.gbnf;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(b.message), std::string::npos)
          << b.gbnf << " -> " << e.what();
    }
  }
  std::string deep = "root ::= " + std::string(10000, '(') + "\"a\"" + std::string(10000, ')');
  EXPECT_THROW(parse_gbnf(deep), Error);
}

// Readings that double with each byte share their contexts.
TEST(Grammar, AmbiguityDoesNotMultiply) {
  auto grammar = compiled(R"(root ::= s
s ::= "a" x | "a" y | "c"
x ::= s "x"
y ::= s "y")",
                          byte_vocabulary());
  std::string text(60, 'a');
  text += 'c';
  for (int i = 0; i < 60; ++i) text += i % 3 == 0 ? 'x' : 'y';
  EXPECT_TRUE(grammar->matches(text));
  EXPECT_FALSE(grammar->matches(text + "x"));
  // An expression that backtracking matchers need exponential time for.
  auto slow = compiled(R"(root ::= ("a" | "a" "a")* ("a"? "a"?){30} "b")", byte_vocabulary());
  EXPECT_TRUE(slow->matches(std::string(5000, 'a') + "b"));
  EXPECT_FALSE(slow->matches(std::string(5000, 'a')));
}

// Lists that are written as recursion do not become slower or larger with their length.
TEST(Grammar, TailCallsNeedNoDepth) {
  auto grammar = compiled(R"(root ::= "[" list
list ::= "a" ("," list | "]"))",
                          byte_vocabulary());
  auto text = [](size_t items) {
    std::string out = "[a";
    for (size_t i = 1; i < items; ++i) out += ",a";
    return out + "]";
  };
  EXPECT_TRUE(grammar->matches(text(10)));
  size_t before = grammar->cache_bytes();
  EXPECT_TRUE(grammar->matches(text(20000)));
  EXPECT_EQ(grammar->cache_bytes(), before);
}

// The caches are bounded; a matcher that they forgot goes on as if nothing had happened.
TEST(Grammar, CachesAreBounded) {
  auto grammar = compiled(R"g(root ::= "(" root ")" | "[" root "]" | "x")g", byte_vocabulary());
  Matcher waiting(grammar);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(waiting.accept('('));
  std::mt19937 rng(1);
  size_t most = 0, last = 0;
  bool cleared = false;
  for (int round = 0; round < 30; ++round) {
    Matcher matcher(grammar);
    for (int i = 0; i < 8000; ++i) {
      if (i % 1000 == 0) {
        size_t bytes = grammar->cache_bytes();
        cleared |= bytes < last;
        most = std::max(most, last = bytes);
      }
      ASSERT_TRUE(matcher.accept(rng() % 2 == 0 ? '(' : '['));
    }
  }
  EXPECT_TRUE(cleared);
  EXPECT_LT(most, 2 * kMaxCacheBytes);
  ASSERT_TRUE(waiting.accept('x'));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(waiting.accept(')'));
  EXPECT_TRUE(waiting.finished());
}

}  // namespace
}  // namespace tokamak::grammar
