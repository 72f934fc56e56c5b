#include "compile/simplify/rules.h"

#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "graph/rule_verify.h"

namespace tokamak {

// Written by the build from *.rules and verified.stamps; an empty name ends it.
extern const std::pair<std::string_view, std::string_view> kRuleFiles[];

namespace {

std::string stamp_of(const RewriteRule& rule) {
  return fmt::format("{:016x} {}", rule.hash(), rule.name);
}

const std::set<std::string, std::less<>>& known_stamps() {
  static const std::set<std::string, std::less<>> stamps = [] {
    std::set<std::string, std::less<>> out;
    for (const auto* file = kRuleFiles; !file->first.empty(); ++file) {
      if (file->first != "verified.stamps") continue;
      std::string_view text = file->second;
      while (!text.empty()) {
        size_t end = std::min(text.find('\n'), text.size());
        out.emplace(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
      }
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
  for (const auto* file = kRuleFiles; !file->first.empty(); ++file)
    if (file->first.ends_with(".rules"))
      groups.push_back(file->first.substr(0, file->first.size() - 6));
  return groups;
}

const std::vector<RewriteRule>& rules_of(std::string_view group) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<RewriteRule>, std::less<>> loaded;
  std::lock_guard lock(mutex);
  if (auto it = loaded.find(group); it != loaded.end()) return it->second;
  for (const auto* file = kRuleFiles; !file->first.empty(); ++file)
    if (file->first == fmt::format("{}.rules", group))
      return loaded.emplace(group, load(file->second, false)).first->second;
  fail(ErrorCode::kInternal, "there are no rules \"{}\"", group);
}

std::vector<RewriteRule> load_rules(std::string_view text, bool trusted) {
  return load(text, trusted);
}

std::string rule_stamps() {
  std::string out;
  for (const auto* file = kRuleFiles; !file->first.empty(); ++file)
    if (file->first.ends_with(".rules"))
      for (const RewriteRule& rule : parse_rules(file->second)) out += stamp_of(rule) + "\n";
  return out;
}

}  // namespace tokamak
