// Groups of nodes that a backend's region kernels take. Groups are grown as far as a kernel's
// pattern reaches (from its anchors up and down, or from any node for Loop IR); whether the kernel
// takes a group is decided by the matcher of compile/planner/kernels.h.
#include <algorithm>
#include <set>

#include "base/hash.h"
#include "compile/fuse/fusion_graph.h"
#include "graph/attrs.h"

namespace tokamak {
namespace {

using Nodes = std::vector<NodeId>;

constexpr size_t kMaxSubsets = 4;    // anchors of one operand whose subsets are all looked at
constexpr size_t kMaxChain = 12;     // ops before an anchor
constexpr size_t kMaxFollowers = 6;  // ops after an anchor
constexpr size_t kMaxLoopOps = 8;
constexpr size_t kMaxGroups = 64;        // of Loop IR that start at one node
constexpr size_t kGroupBudget = 20'000;  // of Loop IR in a function

class CandidateFinder {
 public:
  CandidateFinder(const FusionGraph& graph, const KernelSet& kernels)
      : graph_(graph), fn_(graph.fn()), kernels_(kernels) {
    for (const Node& node : fn_.nodes()) {
      Hash128 hash;
      hash.add(node.op->name);
      if (is_region(node)) hash.add(node.attrs.get_string("body", ""));
      hash_value(node.attrs, hash);
      for (const Type& t : node.outputs) hash.add(t.text());
      node_hash_.push_back(hash.low());
    }
  }

  std::vector<Candidate> run() {
    for (const KernelSet::Entry& entry : kernels_.entries()) {
      entry_ = &entry;
      if (!entry.pattern.region) continue;
      if (entry.pattern.kind == KernelPattern::Anchor::kLoop)
        find_loops();
      else
        find_anchors();
    }
    return std::move(out_);
  }

 private:
  const KernelPattern& pattern() const { return entry_->pattern; }
  std::string_view op(NodeId id) const { return fn_.node(id).op->name; }

  // --- Whether the kernel takes a group; equal groups of other layers are matched once ---

  uint64_t group_hash(const Nodes& nodes, const std::vector<Ref>& in,
                      const std::vector<Ref>& out) const {
    Hash128 hash;
    for (NodeId id : nodes) {
      hash.add(node_hash_[id]);
      const Node& node = fn_.node(id);
      for (Ref r : node.inputs) {
        auto inside = std::lower_bound(nodes.begin(), nodes.end(), r.node);
        auto outside = std::find(in.begin(), in.end(), r);
        if (inside != nodes.end() && *inside == r.node)
          hash.add(static_cast<uint64_t>(inside - nodes.begin()) * 16 + r.output);
        else
          hash.add(uint64_t{1} << 32 | static_cast<uint64_t>(outside - in.begin()));
      }
    }
    for (Ref r : in) {
      hash.add(fn_.type(r).text());
      hash.add(uint64_t{is_weight(fn_.node(r.node))});
    }
    for (Ref r : out) {
      auto at = std::lower_bound(nodes.begin(), nodes.end(), r.node) - nodes.begin();
      hash.add(static_cast<uint64_t>(at) * 16 + r.output);
    }
    return hash.low() ^ hash.high();
  }

  // The parts of the group's nodes, or nothing.
  const std::vector<OpWork::Part>* match(const Nodes& nodes) {
    if (nodes.back() - nodes.front() > kMaxSpan || nodes.size() > kMaxRegionOps) return nullptr;
    if (!graph_.convex(nodes)) return nullptr;
    std::vector<Ref> in = graph_.inputs_of(nodes), out = graph_.outputs_of(nodes);
    auto [it, fresh] = matched_.try_emplace({entry_->kernel, group_hash(nodes, in, out)});
    if (fresh) {
      std::vector<bool> weights;
      for (Ref r : in) weights.push_back(is_weight(fn_.node(r.node)));
      Function body = graph_.body_of(nodes, in, out);
      if (auto m = kernels_.match(*entry_, body, weights); m && m->parts.size() == nodes.size())
        it->second = std::move(m->parts);
    }
    return it->second ? &*it->second : nullptr;
  }

  bool add(Nodes nodes, std::string rule) {
    std::sort(nodes.begin(), nodes.end());
    if (!seen_.emplace(entry_->kernel, nodes).second) return true;
    const std::vector<OpWork::Part>* parts = match(nodes);
    if (!parts) return false;
    bool alone = nodes.size() == 1 && !kernels_.of_node(fn_, fn_.node(nodes[0])).empty();
    if (!alone) out_.push_back({std::move(nodes), entry_->kernel, *parts, std::move(rule), 0, 0});
    return true;
  }

  void append_ops(std::string& rule, std::string_view intro, const Nodes& nodes) const {
    if (nodes.empty()) return;
    rule += intro;
    for (NodeId id : nodes) rule += fmt::format(" {}", op(id));
  }

  // --- From anchors ---

  void find_anchors() {
    std::map<Ref, Nodes> by_operand;
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) {
      if (!graph_.is_call(id) || op(id) != pattern().op || fn_.node(id).inputs.empty()) continue;
      if (pattern().several)
        by_operand[fn_.node(id).inputs[0]].push_back(id);
      else
        grow_from({id});
    }
    for (const auto& [operand, nodes] : by_operand) {
      if (nodes.size() > kMaxSubsets) {
        grow_from(nodes);
        continue;
      }
      for (size_t subset = 1; subset < size_t{1} << nodes.size(); ++subset) {
        Nodes chosen;
        for (size_t i = 0; i < nodes.size(); ++i)
          if (subset >> i & 1) chosen.push_back(nodes[i]);
        grow_from(chosen);
      }
    }
  }

  void grow_from(const Nodes& anchors) {
    // Without what precedes and follows: if the kernel refuses this, it refuses the rest as well.
    std::string base = fmt::format("{} {}", anchors.size(), pattern().op);
    if (anchors.size() > 1) base += " of one input";
    Nodes followers = followers_of(anchors);
    for (const Nodes& before : preludes_of(anchors)) {
      for (size_t n = 0; n <= followers.size(); ++n) {
        Nodes after(followers.begin(), followers.begin() + static_cast<std::ptrdiff_t>(n));
        std::string rule = base;
        append_ops(rule, ", after", before);
        append_ops(rule, ", then", after);
        Nodes nodes = anchors;
        nodes.insert(nodes.end(), before.begin(), before.end());
        nodes.insert(nodes.end(), after.begin(), after.end());
        if (!add(std::move(nodes), std::move(rule)) && n == 0) break;
      }
    }
  }

  // What may stand before the anchors: every prefix of the chains that produce their operands, and
  // companions with theirs.
  std::vector<Nodes> preludes_of(const Nodes& anchors) const {
    std::vector<Nodes> out = {{}};
    std::set<Ref> operands;
    for (NodeId id : anchors)
      for (Ref r : fn_.node(id).inputs)
        if (!graph_.structural(r) && operands.insert(r).second) extend(out, chain_of(r, anchors));
    if (pattern().companion.empty()) return out;
    std::vector<Nodes> all = out;
    for (const Nodes& base : out)
      for (NodeId member : base) {
        if (op(member) != pattern().companion) continue;
        for (NodeId other : companions_of(member, base)) {
          Nodes chain = {other};
          Nodes above = chain_of(fn_.node(other).inputs[0], {other});
          chain.insert(chain.end(), above.begin(), above.end());
          for (size_t n = 1; n <= chain.size(); ++n) {
            Nodes more = base;
            more.insert(more.end(), chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(n));
            all.push_back(std::move(more));
          }
        }
        break;
      }
    return all;
  }

  // Every combination of what is there with a prefix of the chain.
  static void extend(std::vector<Nodes>& sets, const Nodes& chain) {
    size_t count = sets.size();
    for (size_t n = 1; n <= chain.size() && sets.size() < 64; ++n)
      for (size_t i = 0; i < count; ++i) {
        Nodes more = sets[i];
        more.insert(more.end(), chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(n));
        sets.push_back(std::move(more));
      }
  }

  // The ops that produce r for these users alone, the nearest first.
  Nodes chain_of(Ref r, Nodes users) const {
    Nodes out;
    std::sort(users.begin(), users.end());
    while (out.size() < kMaxChain) {
      const Node& node = fn_.node(r.node);
      bool ours =
          std::all_of(graph_.consumers(r).begin(), graph_.consumers(r).end(),
                      [&](NodeId c) { return std::binary_search(users.begin(), users.end(), c); });
      if (!pattern().takes_before(node.op->name) || !ours || node.inputs.empty()) break;
      out.push_back(r.node);
      users = {r.node};
      r = node.inputs[0];
    }
    return out;
  }

  // Nodes of the member's op that share the named operands with it.
  Nodes companions_of(NodeId member, const Nodes& group) const {
    const Node& node = fn_.node(member);
    const std::vector<size_t>& shared = pattern().companion_shares;
    Nodes out;
    for (NodeId id : graph_.consumers(node.inputs[shared[0]])) {
      const Node& other = fn_.node(id);
      if (id == member || other.op != node.op || other.attrs != node.attrs) continue;
      if (std::find(group.begin(), group.end(), id) != group.end()) continue;
      if (std::max(id, member) - std::min(id, member) > kMaxSpan) continue;
      if (std::all_of(shared.begin(), shared.end(),
                      [&](size_t i) { return other.inputs[i] == node.inputs[i]; }))
        out.push_back(id);
    }
    return out;
  }

  // Ops on what the anchors give, in order, as far as they go.
  Nodes followers_of(const Nodes& anchors) const {
    Nodes group = anchors, out;
    for (NodeId id = anchors.front() + 1;
         id < fn_.nodes().size() && id - anchors.front() <= kMaxSpan && out.size() < kMaxFollowers;
         ++id) {
      if (!graph_.is_call(id) || !pattern().takes_after(op(id))) continue;
      const Node& node = fn_.node(id);
      auto inside = [&](Ref r) {
        return std::find(group.begin(), group.end(), r.node) != group.end();
      };
      if (!element_by_element(fn_, node) ||
          std::none_of(node.inputs.begin(), node.inputs.end(), inside))
        continue;
      group.push_back(id);
      out.push_back(id);
    }
    return out;
  }

  // --- Loop IR: connected nodes that lower together ---

  void find_loops() {
    lowers_.clear();
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      lowers_.push_back(graph_.needed(id) && fn_.node(id).op->tier != Tier::kStructural &&
                        match({id}) != nullptr);
    size_t most =
        std::clamp<size_t>(kGroupBudget / std::max<size_t>(1, lowers_.size()), 4, kMaxGroups);
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      if (lowers_[id] && graph_.is_call(id)) grow_loops(id, most);
  }

  // Groups whose first node this is.
  void grow_loops(NodeId first, size_t most) {
    std::set<Nodes> sets = {{first}};
    std::vector<Nodes> queue = {{first}};
    for (size_t at = 0; at < queue.size(); ++at) {
      Nodes nodes = queue[at];
      std::string rule = "loops:";
      append_ops(rule, "", nodes);
      if (!add(nodes, std::move(rule)) || nodes.size() >= kMaxLoopOps) continue;
      for (NodeId member : nodes)
        for (NodeId next : neighbours_of(member)) {
          if (queue.size() >= most || next < first || !lowers_[next]) continue;
          Nodes bigger = nodes;
          auto place = std::lower_bound(bigger.begin(), bigger.end(), next);
          if (place != bigger.end() && *place == next) continue;
          bigger.insert(place, next);
          if (bigger.back() - bigger.front() > kMaxSpan) continue;
          if (sets.insert(bigger).second) queue.push_back(std::move(bigger));
        }
    }
  }

  Nodes neighbours_of(NodeId id) const {
    Nodes out;
    const Node& node = fn_.node(id);
    for (Ref r : node.inputs)
      if (!graph_.structural(r)) out.push_back(r.node);
    for (uint32_t o = 0; o < node.outputs.size(); ++o)
      for (NodeId user : graph_.consumers({id, o})) out.push_back(user);
    return out;
  }

  const FusionGraph& graph_;
  const Function& fn_;
  const KernelSet& kernels_;
  const KernelSet::Entry* entry_ = nullptr;
  std::vector<uint64_t> node_hash_;
  std::vector<bool> lowers_;
  std::map<std::pair<const KernelDesc*, uint64_t>, std::optional<std::vector<OpWork::Part>>>
      matched_;
  std::vector<Candidate> out_;
  std::set<std::pair<const KernelDesc*, Nodes>> seen_;
};

}  // namespace

std::vector<Candidate> enumerate_candidates(const FusionGraph& graph, const KernelSet& kernels) {
  return CandidateFinder(graph, kernels).run();
}

}  // namespace tokamak
