#include "graph/rewrite.h"

#include <algorithm>
#include <tuple>

#include "base/channels.h"
#include "base/error.h"
#include "graph/rebuild.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

// Sums and products with their operands exchanged are one value (not so maximum: of 0 and -0 it
// gives the first).
class Commuted {
 public:
  // The node that is already equal to `r`, or `r` itself.
  Ref find(const Function& fn, Ref r) {
    const Node& node = fn.node(r.node);
    if (node.inputs.size() != 2 || (node.op->name != "add" && node.op->name != "mul")) return r;
    auto order = [](Ref x) { return std::pair(x.node, x.output); };
    auto a = order(node.inputs[0]), b = order(node.inputs[1]);
    auto [it, fresh] = known_.emplace(std::tuple(node.op, std::min(a, b), std::max(a, b)), r);
    return !fresh && same_extents(fn.type(it->second), fn.type(r)) ? it->second : r;
  }

 private:
  using Place = std::pair<NodeId, uint32_t>;
  std::map<std::tuple<const OpDef*, Place, Place>, Ref> known_;
};

constexpr size_t kMaxProvenance = 8;
constexpr int kMaxDepth = 32;  // of replacements inside replacements

std::vector<std::string> extended(std::vector<std::string> provenance, std::string text) {
  if (provenance.size() >= kMaxProvenance) provenance.erase(provenance.begin() + 1);
  if (provenance.empty() || provenance.back() != text) provenance.push_back(std::move(text));
  return provenance;
}

}  // namespace

Rewriter::Rewriter(Module& module, const std::vector<const RewriteRule*>& rules,
                   RewriteOptions options)
    : module_(module), options_(options) {
  for (const RewriteRule* rule : rules) by_root_[rule->root_op()].push_back(rule);
}

std::optional<Ref> Rewriter::fire(Function& to, const RewriteRule& rule, Ref r,
                                  const std::string& name) {
  std::optional<RuleMatch> match = match_rule(rule, to, r, uses_);
  if (!match) return std::nullopt;
  std::string at = node_label(*from_, place_);
  // Replacements nest: the outer one continues with its own provenance.
  std::vector<std::string> outside = std::move(provenance_);
  provenance_ = extended(to.node(r.node).provenance, fmt::format("rule {} @ {}", rule.name, at));
  to.set_provenance(provenance_);
  std::optional<Ref> made = build_replacement(rule, *match, module_, to, name,
                                              [&](Ref inner) { return simplify(to, inner, {}); });
  provenance_ = std::move(outside);
  to.set_provenance(provenance_);
  if (!made || *made == r) return std::nullopt;
  TK_CHECK(same_extents(to.type(*made), to.type(r)), "rule {} makes {} of {}", rule.name,
           to.type(*made).text(), to.type(r).text());
  ++stats_.fired;
  ++stats_.per_rule[rule.name];
  stats_.last_rule = rule.name;
  stats_.last_place =
      fmt::format("{} ({}{}{})", at, to.node(r.node).op->name, name.empty() ? "" : ", ", name);
  if (log::channel_enabled("rewrite"))
    log::channel("rewrite", fmt::format("{}: {} at {}", to.name(), rule.name, stats_.last_place));
  return made;
}

// Fires rules at `r` until none does. Nodes are hash-consed, so coming back to a value that was
// already replaced is a cycle.
Ref Rewriter::simplify(Function& to, Ref r, const std::string& name) {
  if (depth_ >= kMaxDepth) return r;
  ++depth_;
  std::vector<Ref> seen = {r};
  std::vector<std::string> fired;
  for (bool again = true; again;) {
    again = false;
    auto rules = by_root_.find(to.node(r.node).op);
    if (rules == by_root_.end()) break;
    for (const RewriteRule* rule : rules->second) {
      if (stats_.fired >= options_.stop_after) break;
      if (stats_.fired >= options_.budget) {
        stats_.exhausted = true;
        break;
      }
      std::optional<Ref> made = fire(to, *rule, r, name);
      if (!made) continue;
      fired.push_back(rule->name);
      if (std::find(seen.begin(), seen.end(), *made) != seen.end()) {
        stats_.cycles.push_back(fmt::format("{}", fmt::join(fired, ", ")));
        break;
      }
      seen.push_back(*made);
      r = *made;
      again = true;
      break;
    }
  }
  --depth_;
  return r;
}

bool Rewriter::round(Function& function) {
  size_t before = stats_.fired;
  std::vector<int> old_uses(function.nodes().size(), 0);
  std::vector<bool> needed = needed_nodes(function);
  for (NodeId id = 0; id < function.nodes().size(); ++id)
    if (needed[id])
      for (Ref in : function.node(id).inputs) ++old_uses[in.node];
  for (const Function::Result& r : function.results()) ++old_uses[r.ref.node];

  from_ = &function;
  std::unordered_map<NodeId, int> uses;  // of nodes of the new function that replace old ones
  std::unordered_map<std::string, int> weight_uses;
  for (NodeId id = 0; id < function.nodes().size(); ++id)
    if (const Node& node = function.node(id); node.op->name == "weight")
      weight_uses[node.attrs.at("name").as_string()] = old_uses[id];
  uses_ = [&](Ref r) {
    if (const Node& node = building_->node(r.node); node.op->name == "weight") {
      auto it = weight_uses.find(node.attrs.at("name").as_string());
      return it == weight_uses.end() ? -1 : it->second;
    }
    auto it = uses.find(r.node);
    return it == uses.end() ? -1 : it->second;
  };
  Commuted commuted;
  const Node* first = function.nodes().data();
  rebuild(module_, function, [&](Function& to, const Node& node, const std::vector<Ref>& inputs) {
    place_ = static_cast<NodeId>(&node - first);
    building_ = &to;
    provenance_ = node.provenance;
    std::vector<Ref> out = copy_node(to, node, inputs);
    if (!node.op->writes_state)
      for (Ref& r : out) r = commuted.find(to, simplify(to, r, node.name));
    for (Ref r : out) uses[r.node] += old_uses[place_];
    return out;
  });
  uses_ = nullptr;
  return stats_.fired != before;
}

RewriteStats Rewriter::run(Function& function) {
  stats_ = {};
  while (stats_.rounds < options_.rounds) {
    ++stats_.rounds;
    if (!round(function) || stats_.exhausted || !stats_.cycles.empty()) break;
  }
  rebuild(module_, function, [](Function& to, const Node& node, const std::vector<Ref>& in) {
    return copy_node(to, node, in);
  });
  return std::move(stats_);
}

}  // namespace tokamak
