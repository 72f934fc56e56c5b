// The passes that apply rewrite rules, which are in the *.rules files.
#include <algorithm>

#include "base/log.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"
#include "compile/simplify/rules.h"
#include "graph/rewrite.h"

namespace tokamak {
namespace {

void rewrite(Module& module, Function& function, const PassContext& context,
             const std::vector<const RewriteRule*>& rules) {
  RewriteOptions options;
  if (context.firings_left) options.stop_after = *context.firings_left;
  RewriteStats stats = Rewriter(module, rules, options).run(function);
  if (stats.exhausted)
    log::warn("function {}: the budget of {} rewrites ran out", function.name(), options.budget);
  for (const std::string& cycle : stats.cycles)
    log::warn("function {}: rules undo each other: {}", function.name(), cycle);
  if (context.firings_left) {
    *context.firings_left -= stats.fired;
    if (stats.fired > 0 && context.last_firing)
      *context.last_firing = fmt::format("rule {} at {}", stats.last_rule, stats.last_place);
  }
  if (context.timing) {
    context.timing->fired += stats.fired;
    for (const auto& [name, count] : stats.per_rule) context.timing->rules[name] += count;
  }
}

void rewrite_groups(Module& module, Function& function, const PassContext& context,
                    std::initializer_list<std::string_view> groups) {
  std::vector<const RewriteRule*> rules;
  for (std::string_view group : groups)
    for (const RewriteRule& rule : rules_of(group)) rules.push_back(&rule);
  rewrite(module, function, context, rules);
}

}  // namespace

void canonicalize(Module& module, Function& function, const PassContext& context) {
  rewrite_groups(module, function, context, {"canonical"});
}

// Rules compute with constants (the inverse of a table, half of one). The results are folded
// between rounds, because other rules match on values.
void recognize(Module& module, Function& function, const PassContext& context) {
  for (int round = 0; round < 4; ++round) {
    rewrite_groups(module, function, context, {"canonical", "recognize", "algebra"});
    PassTiming folds;
    fold_constants(
        module, function,
        {context.backend, context.options, &folds, context.firings_left, context.last_firing});
    if (context.timing) context.timing->fired += folds.fired;
    if (folds.fired == 0) return;
  }
}

namespace {

// Whether the backend runs all attention of the function as it stands.
bool runs_attention(const Function& function, const Backend& backend) {
  const KernelSet kernels(backend);
  return std::all_of(function.nodes().begin(), function.nodes().end(), [&](const Node& node) {
    return !node.op->reads_state || node.op->writes_state ||
           !kernels.of_node(function, node).empty();
  });
}

}  // namespace

// A prompt may be cheaper with keys and values of each head, which are then computed once for many
// rows.
void absorb_latent(Module& module, Function& function, const PassContext& context) {
  if (context.options.materialized_prefill && function.name() == "step" &&
      runs_attention(function, context.backend))
    return;
  rewrite_groups(module, function, context, {"latent"});
}

void fold_scales(Module& module, Function& function, const PassContext& context) {
  rewrite_groups(module, function, context, {"fold"});
}

void apply_user_rules(Module& module, Function& function, const PassContext& context) {
  std::vector<const RewriteRule*> rules;
  for (const RewriteRule& rule : context.options.rules) rules.push_back(&rule);
  if (!rules.empty()) rewrite(module, function, context, rules);
}

}  // namespace tokamak
