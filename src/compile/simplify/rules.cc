#include "compile/simplify/rules.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "compile/simplify/rules_data.h"
#include "graph/rule_verify.h"

namespace tokamak {

namespace {

struct RuleGroup {
  std::string_view name, text;
};
constexpr RuleGroup kGroups[] = {{"algebra", kAlgebraRules},
                                 {"canonical", kCanonicalRules},
                                 {"fold", kFoldRules},
                                 {"latent", kLatentRules},
                                 {"recognize", kRecognizeRules}};

std::string stamp_of(const RewriteRule& rule) {
  return fmt::format("{:016x} {}", rule.hash(), rule.name);
}

const std::set<std::string, std::less<>>& known_stamps() {
  static const std::set<std::string, std::less<>> stamps = [] {
    std::set<std::string, std::less<>> out;
    for (std::string_view text = kVerifiedStamps; !text.empty();) {
      size_t end = std::min(text.find('\n'), text.size());
      out.emplace(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return out;
  }();
  return stamps;
}

std::vector<RewriteRule> load(std::string_view text, bool trusted) {
  std::vector<RewriteRule> rules = parse_rules(text);
  for (const RewriteRule& rule : rules) {
    if (trusted || known_stamps().contains(stamp_of(rule))) continue;
    RuleVerdict verdict = verify_rule(rule);
    if (!verdict.accepted)
      fail(ErrorCode::kInvalidArgument, "rule {} is not accepted: {}", rule.name, verdict.message);
    log::debug("rule {} verified while loading: {} instances", rule.name, verdict.instances);
  }
  return rules;
}

}  // namespace

std::vector<std::string_view> rule_groups() {
  std::vector<std::string_view> groups;
  for (const RuleGroup& group : kGroups) groups.push_back(group.name);
  return groups;
}

const std::vector<RewriteRule>& rules_of(std::string_view group) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<RewriteRule>, std::less<>> loaded;
  std::lock_guard lock(mutex);
  if (auto it = loaded.find(group); it != loaded.end()) return it->second;
  for (const RuleGroup& one : kGroups)
    if (one.name == group) return loaded.emplace(group, load(one.text, false)).first->second;
  fail(ErrorCode::kInternal, "there are no rules \"{}\"", group);
}

std::vector<RewriteRule> load_rules(std::string_view text, bool trusted) {
  return load(text, trusted);
}

std::string rule_stamps() {
  std::string out;
  for (const RuleGroup& group : kGroups)
    for (const RewriteRule& rule : parse_rules(group.text)) out += stamp_of(rule) + "\n";
  return out;
}

}  // namespace tokamak
