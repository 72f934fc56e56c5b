#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

std::string wrong_rules() { return read_text_file(TK_RULES_GOLDEN "/wrong.rules"); }

// True over the reals, though a number in it is rounded.
TEST(WrongRules, ARightOneIsNot) {
  for (const char* text :
       {"rule a real: x: f32[m, n] reduce_mean(x){axis=1, keep=1} => scale(reduce_sum(x){axis=1, "
        "keep=1}){value=1.0 / n}",
        "rule a real: x: f32 y: f32 z: f32 add(mul(x, y), mul(x, z)) => mul(x, add(y, z))"}) {
    RuleVerdict v = verify_rule(parse_rules(text).at(0));
    EXPECT_TRUE(v.accepted) << text << "\n" << v.message;
  }
}

// One that never applies would say nothing about the verifier.
TEST(WrongRules, EveryOneIsRefuted) {
  int refused = 0;
  std::set<std::string> names;
  for (const RewriteRule& rule : parse_rules(wrong_rules())) {
    SCOPED_TRACE(rule.text);
    EXPECT_TRUE(names.insert(rule.name).second) << "two rules named " << rule.name;
    RuleVerdict v = verify_rule(rule);
    EXPECT_FALSE(v.accepted);
    EXPECT_FALSE(v.message.empty());
    EXPECT_TRUE(v.message.find("never applies") == std::string::npos || rule.name == "another_type")
        << v.message;
    refused += !v.accepted;
  }
  fmt::print("{} of {} wrong rules refuted\n", refused, names.size());
  EXPECT_GE(refused, 927);
}

// Texts that are no rules at all: each error names the place.
TEST(WrongRules, TextErrors) {
  for (const char* text : {"rule",
                           "rule a",
                           "rule a exact",
                           "rule a exact: x => x",
                           "rule a exact: neg(x) => ",
                           "rule a exact: neg(x) => y",
                           "rule a exact: nop(x) => x",
                           "rule a exact: neg(x, y) => x",
                           "rule a exact: scale(x) => x",
                           "rule a exact: scale(x){value=1.0, other=2} => x",
                           "rule a exact: x: f33 neg(x) => x",
                           "rule a exact: x: f32[*a, *b] neg(x) => x",
                           "rule a exact: neg(x) => x if",
                           "rule a exact: neg(x => x",
                           "rule a exact: neg(x) => x y",
                           "rule a exact: scale(x){..} => scale(x){..}",
                           "rule a fast: neg(x) => x",
                           "\"",
                           "rule a exact: append(s, v, a, b, c) => s",
                           "rule a exact: x: f32[100000, 100000] neg(neg(x)) => x"}) {
    try {
      parse_rules(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << text;
      EXPECT_NE(std::string(e.what()).find("line"), std::string::npos) << e.what();
    }
  }
}

// Any text is either parsed as rules or refused with an error.
TEST(WrongRules, DamagedTextEndsInAnError) {
  const std::string all = wrong_rules();
  Rng rng(5);
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    size_t from = rng.below(all.size() - 200);
    std::string text = all.substr(from, 1 + rng.below(200));
    if (rng.below(2)) text = "rule a exact: " + text;
    for (size_t n = rng.below(4); n > 0; --n)
      text[rng.below(text.size())] =
          static_cast<char>(rng.below(3) ? 32 + rng.below(95) : rng.below(256));
    try {
      parse_rules(text);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kInvalidArgument) << text << "\n" << e.what();
      ++errors;
    }
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace tokamak
