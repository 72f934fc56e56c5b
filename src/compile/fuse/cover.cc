// Dynamic programming over the order of the nodes: the first node that is not covered yet is
// covered next, alone or by a candidate that begins with it. Which of the following nodes are
// covered already is a mask of a few bits, because regions are short and transformer blocks narrow.
#include "compile/fuse/cover.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr size_t kMostMasks = 4096, kFewestMasks = 16;  // states kept per node
constexpr size_t kStepBudget = 10'000'000;              // of one search
constexpr int kSearches = 8;  // to find parts that do not wait for each other

struct CoverStep {
  double cost;
  uint64_t before;  // mask at the node before
  int candidate;    // taken there; -1: the node alone, -2: it was covered
};
using CoverStates = std::unordered_map<uint64_t, CoverStep>;

// Keeps the cheapest state of equal masks; ties go to the earlier candidate, so that the result
// does not depend on the order of the table.
void relax(CoverStates& states, uint64_t mask, CoverStep step) {
  auto [it, fresh] = states.emplace(mask, step);
  if (fresh) return;
  CoverStep& have = it->second;
  if (step.cost < have.cost ||
      (step.cost == have.cost && (step.candidate < have.candidate ||
                                  (step.candidate == have.candidate && step.before < have.before))))
    have = step;
}

class CoverSearch {
 public:
  CoverSearch(const FusionGraph& graph, const std::vector<Candidate>& candidates,
              const std::vector<double>& single, const std::vector<bool>& banned)
      : graph_(graph), candidates_(candidates), single_(single) {
    by_first_.resize(graph.fn().nodes().size());
    size_t steps = by_first_.size();
    for (size_t i = 0; i < candidates.size(); ++i)
      if (!banned[i] && candidates[i].cost < candidates[i].single_cost) {
        by_first_[candidates[i].nodes.front()].push_back(i);
        ++steps;
      }
    masks_ = std::clamp(kStepBudget / std::max<size_t>(1, steps), kFewestMasks, kMostMasks);
  }

  Cover run() {
    size_t count = by_first_.size();
    std::vector<CoverStates> at(count + 1);
    at[0][0] = {0, 0, -1};
    Cover cover;
    for (size_t node = 0; node < count; ++node) {
      cover.exact = !trim(at[node], node) && cover.exact;
      cover.states += at[node].size();
      for (const auto& [mask, step] : at[node]) advance(node, mask, step.cost, at[node + 1]);
    }
    TK_CHECK(at[count].size() == 1, "cover: {} ends", at[count].size());
    uint64_t mask = 0;
    cover.cost = at[count].at(0).cost;
    for (size_t node = count; node-- > 0;) {
      const CoverStep& step = at[node + 1].at(mask);
      if (step.candidate >= 0) cover.chosen.push_back(static_cast<size_t>(step.candidate));
      mask = step.before;
    }
    std::reverse(cover.chosen.begin(), cover.chosen.end());
    return cover;
  }

 private:
  // Drops the worst states beyond the budget. What a state has covered ahead counts for it, at what
  // it would cost alone.
  bool trim(CoverStates& states, size_t node) const {
    if (states.size() <= masks_) return false;
    std::vector<std::pair<double, uint64_t>> order;
    for (const auto& [mask, step] : states) {
      double ahead = 0;
      for (uint64_t rest = mask; rest != 0; rest &= rest - 1)
        ahead += single_[node + static_cast<size_t>(std::countr_zero(rest))];
      order.emplace_back(step.cost - ahead, mask);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = masks_; i < order.size(); ++i) states.erase(order[i].second);
    return true;
  }

  // Bit i of a mask: node + i is covered.
  void advance(size_t node, uint64_t mask, double cost, CoverStates& next) const {
    if (mask & 1) return relax(next, mask >> 1, {cost, mask, -2});
    relax(next, mask >> 1, {cost + single_[node], mask, -1});
    for (size_t i : by_first_[node]) {
      uint64_t own = 0;
      for (NodeId id : candidates_[i].nodes) own |= uint64_t{1} << (id - node);
      if (own & mask) continue;
      relax(next, (own | mask) >> 1, {cost + candidates_[i].cost, mask, static_cast<int>(i)});
    }
  }

  const FusionGraph& graph_;
  const std::vector<Candidate>& candidates_;
  const std::vector<double>& single_;
  std::vector<std::vector<size_t>> by_first_;
  size_t masks_ = kMostMasks;
};

}  // namespace

std::vector<int> parts_of(const FusionGraph& graph, const std::vector<Candidate>& candidates,
                          const std::vector<size_t>& chosen) {
  std::vector<int> part(graph.fn().nodes().size(), -1);
  for (size_t i : chosen)
    for (NodeId id : candidates[i].nodes) part[id] = static_cast<int>(i);
  return part;
}

std::vector<std::vector<NodeId>> ordered_parts(const FusionGraph& graph,
                                               const std::vector<Candidate>& candidates,
                                               const std::vector<size_t>& chosen,
                                               std::vector<size_t>* stuck) {
  const Function& fn = graph.fn();
  std::vector<int> part = parts_of(graph, candidates, chosen);
  // A part is known by its last node: in the order of these, ties never happen.
  auto key = [&](NodeId id) {
    return part[id] < 0 ? id : candidates[static_cast<size_t>(part[id])].nodes.back();
  };
  std::vector<size_t> waits(fn.nodes().size());
  std::vector<std::vector<NodeId>> releases(fn.nodes().size());
  std::vector<std::vector<NodeId>> members(fn.nodes().size());
  size_t parts = 0;
  for (NodeId id = 0; id < fn.nodes().size(); ++id) {
    if (!graph.needed(id) || fn.node(id).op->tier == Tier::kStructural) continue;
    parts += key(id) == id;
    members[key(id)].push_back(id);
    for (Ref r : fn.node(id).inputs) {
      if (graph.structural(r) || key(r.node) == key(id) || !graph.needed(r.node)) continue;
      releases[key(r.node)].push_back(key(id));
      ++waits[key(id)];
    }
  }
  std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>> ready;
  for (NodeId id = 0; id < fn.nodes().size(); ++id)
    if (!members[id].empty() && waits[id] == 0) ready.push(id);
  std::vector<std::vector<NodeId>> out;
  while (!ready.empty()) {
    NodeId id = ready.top();
    ready.pop();
    out.push_back(members[id]);
    for (NodeId next : releases[id])
      if (--waits[next] == 0) ready.push(next);
  }
  if (out.size() == parts) return out;
  if (stuck)
    for (size_t i : chosen)
      if (waits[candidates[i].nodes.back()] > 0) stuck->push_back(i);
  return {};
}

Cover cheapest_cover(const FusionGraph& graph, const std::vector<Candidate>& candidates,
                     const std::vector<double>& single) {
  std::vector<bool> banned(candidates.size(), false);
  auto gain = [&](size_t i) { return candidates[i].single_cost - candidates[i].cost; };
  for (int search = 1;; ++search) {
    Cover cover = CoverSearch(graph, candidates, single, banned).run();
    while (true) {
      std::vector<size_t> stuck;
      if (cover.chosen.empty() || !ordered_parts(graph, candidates, cover.chosen, &stuck).empty())
        return cover;
      // Each region is valid alone, together they wait for each other: the least useful ones go.
      std::stable_sort(stuck.begin(), stuck.end(),
                       [&](size_t a, size_t b) { return gain(a) < gain(b); });
      size_t count = search <= 4 ? 1 : (stuck.size() + 7) / 8;
      for (size_t i = 0; i < count; ++i) banned[stuck[i]] = true;
      if (search < kSearches) break;
      cover.exact = false;  // enough searching: what is stuck stays apart
      std::erase_if(cover.chosen, [&](size_t i) { return banned[i]; });
    }
  }
}

}  // namespace tokamak
