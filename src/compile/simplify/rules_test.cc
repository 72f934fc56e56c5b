// Every rule that ships is verified here, and verified.stamps says so. TK_GOLDEN_WRITE=1 writes the
// stamps of rules that passed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/file.h"
#include "compile/simplify/rules.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

// Sanitizers make this eight times slower and look for something else.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kInstances = 20;
#else
constexpr int kInstances = 80;
#endif

TEST(Rules, EveryRuleIsVerified) {
  std::set<std::string> names;
  int rules = 0, instances = 0, tries = 0, in_field = 0, refused = 0;
  for (std::string_view group : rule_groups()) {
    std::string file = fmt::format("{}/{}.rules", TK_SIMPLIFY_DIR, group);
    for (const RewriteRule& rule : parse_rules(read_text_file(file))) {
      EXPECT_TRUE(names.insert(rule.name).second) << "two rules named " << rule.name;
      VerifyEffort effort;
      effort.instances = kInstances;
      RuleVerdict v = verify_rule(rule, effort);
      EXPECT_TRUE(v.accepted) << group << ".rules, " << rule.name << ": " << v.message;
      if (v.tries > 3000) fmt::print("{}: {} instances of {}\n", rule.name, v.instances, v.tries);
      ++rules;
      refused += !v.accepted;
      instances += v.instances;
      tries += v.tries;
      in_field += v.in_field;
    }
  }
  fmt::print("{} rules, {} instances compared of {} made, {} of them in the finite field\n", rules,
             instances, tries, in_field);
  EXPECT_GE(rules, 100);
  EXPECT_GT(in_field, rules / 4);
  std::string path = std::string(TK_SIMPLIFY_DIR) + "/verified.stamps";
  if (std::getenv("TK_GOLDEN_WRITE") && refused == 0) write_text_file(path, rule_stamps());
  EXPECT_EQ(read_text_file(path), rule_stamps())
      << "verify the rules and write the stamps with TK_GOLDEN_WRITE=1";
}

}  // namespace
}  // namespace tokamak
