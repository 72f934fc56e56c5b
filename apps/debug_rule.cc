// tokamak debug rule: the rule verifier on rules in text form.
#include <algorithm>

#include "apps/debug.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/simplify/rules.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

struct RuleFlags {
  std::string file;
  VerifyEffort effort;
  bool json = false, list = false;
};

void list_rules(bool json) {
  Value out = Value::array();
  for (std::string_view group : rule_groups())
    for (const RewriteRule& rule : rules_of(group)) {
      const char* cls = rule.cls == RuleClass::kExact ? "exact" : "real";
      if (!json) fmt::print("{:<10} {:<24} {:<6} {}\n", group, rule.name, cls, rule.doc);
      out.push(Value::Object{
          {"group", group}, {"name", rule.name}, {"class", cls}, {"text", rule.text}});
    }
  if (json) fmt::print("{}\n", dump_json(out, 2));
}

void run(const RuleFlags& f) {
  if (f.list) return list_rules(f.json);
  if (f.file.empty()) fail(ErrorCode::kInvalidArgument, "give a file with rules, or use --list");
  std::vector<RewriteRule> rules = reading([&] { return parse_rules(read_text_file(f.file)); });
  if (rules.empty()) fail(ErrorCode::kInvalidArgument, "{} has no rules", f.file);
  int refused = 0;
  Value out = Value::array();
  for (const RewriteRule& rule : rules) {
    RuleVerdict v = verify_rule(rule, f.effort);
    refused += !v.accepted;
    out.push(Value::Object{{"rule", rule.name},
                           {"accepted", v.accepted},
                           {"instances", v.instances},
                           {"in_field", v.in_field},
                           {"counterexample", v.message}});
    if (f.json) continue;
    if (v.accepted)
      fmt::print("{}: accepted ({}; {} instances, {} of them in the finite field)\n", rule.name,
                 rule.cls == RuleClass::kExact ? "exact" : "real", v.instances, v.in_field);
    else
      fmt::print("{}: refused: {}\n", rule.name, v.message);
  }
  if (f.json) fmt::print("{}\n", dump_json(out, 2));
  if (refused > 0) fail(ErrorCode::kCorrupt, "{} of {} rules refused", refused, rules.size());
}

}  // namespace

void add_debug_rule(CLI::App& debug) {
  auto flags = std::make_shared<RuleFlags>();
  CLI::App* tool =
      debug.add_subcommand("rule", "verify rewrite rules: accepted, or a counterexample");
  tool->add_option("RULE", flags->file, "a file with rules (docs/rewrite_rules.md)");
  tool->add_option("--seed", flags->effort.seed, "seed of shapes and values")
      ->capture_default_str();
  tool->add_option("--instances", flags->effort.instances, "instances to compare")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  tool->add_flag("--list", flags->list, "list the compiler's own rules instead");
  tool->add_flag("--json", flags->json, "print as JSON");
  tool->footer("Examples:\n  tokamak debug rule my.rule\n  tokamak debug rule --list");
  tool->callback([flags] {
    flags->effort.tries = std::max(flags->effort.tries, flags->effort.instances * 50);
    run(*flags);
  });
}

}  // namespace tokamak
