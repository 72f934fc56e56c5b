#include "text/index/hnsw.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/rng.h"

namespace tokamak {
namespace {

constexpr int32_t kBuildWidth = 128;  // candidates for the links of a new node
constexpr int32_t kMostLevels = 12;

int32_t slots_of(int32_t level) { return level == 0 ? 2 * kHnswLinks : kHnswLinks; }

// The best `width` nodes of a level that a walk from `start` reaches, best first.
std::vector<Scored> search_level(const HnswView& graph, std::vector<Scored> start, int32_t width,
                                 int32_t level, const std::function<float(int32_t)>& score,
                                 std::vector<uint32_t>& seen, uint32_t stamp) {
  std::priority_queue<Scored> next;                                       // best first
  std::priority_queue<Scored, std::vector<Scored>, std::greater<>> best;  // worst first
  auto add = [&](Scored s) {
    next.push(s);
    best.push(s);
    if (std::ssize(best) > width) best.pop();
  };
  for (const Scored& s : start) {
    seen[static_cast<size_t>(s.second)] = stamp;
    add(s);
  }
  while (!next.empty()) {
    Scored at = next.top();
    next.pop();
    if (std::ssize(best) >= width && at.first < best.top().first) break;
    for (int32_t n : graph.neighbours(at.second, level)) {
      if (n < 0) break;
      if (std::exchange(seen[static_cast<size_t>(n)], stamp) == stamp) continue;
      float s = score(n);
      if (std::ssize(best) < width || s > best.top().first) add({s, n});
    }
  }
  std::vector<Scored> out(best.size());
  for (size_t i = out.size(); i-- > 0; best.pop()) out[i] = best.top();
  return out;
}

class HnswBuilder {
 public:
  HnswBuilder(int32_t nodes, const std::function<float(int32_t, int32_t)>& score)
      : score_(score), seen_(static_cast<size_t>(nodes)) {
    Rng rng(20261116);
    graph_.offsets = {0};
    for (int32_t i = 0; i < nodes; ++i) {
      double draw = std::max(rng.uniform(0, 1), 1e-12);
      auto extra = static_cast<int32_t>(-std::log(draw) / std::log(double{kHnswLinks}));
      int32_t levels = 1 + std::min(extra, kMostLevels - 1);
      graph_.offsets.push_back(graph_.offsets.back() +
                               static_cast<uint64_t>((levels + 1) * kHnswLinks));
    }
    graph_.links.assign(graph_.offsets.back(), -1);
  }

  HnswGraph build() {
    for (int32_t i = 0; i < std::ssize(seen_); ++i) insert(i);
    return std::move(graph_);
  }

 private:
  std::span<int32_t> slots(int32_t node, int32_t level) {
    size_t first = graph_.offsets[static_cast<size_t>(node)] +
                   static_cast<size_t>(level == 0 ? 0 : (level + 1) * kHnswLinks);
    return std::span(graph_.links).subspan(first, static_cast<size_t>(slots_of(level)));
  }

  void insert(int32_t node) {
    HnswView view = graph_.view();
    int32_t levels = view.levels(node);
    if (graph_.entry < 0) {
      graph_.entry = node;
      return;
    }
    auto near = [&](int32_t other) { return score_(node, other); };
    int32_t top = view.levels(graph_.entry);
    std::vector<Scored> found = {{near(graph_.entry), graph_.entry}};
    for (int32_t level = top - 1; level >= 0; --level) {
      int32_t width = level < levels ? kBuildWidth : 1;
      found = search_level(view, std::move(found), width, level, near, seen_, ++stamp_);
      if (level < levels) connect(node, level, found);
    }
    if (levels > top) graph_.entry = node;
  }

  void connect(int32_t node, int32_t level, const std::vector<Scored>& found) {
    std::vector<int32_t> chosen = choose(found, kHnswLinks);
    std::copy(chosen.begin(), chosen.end(), slots(node, level).begin());
    for (int32_t other : chosen) link_back(other, node, level);
  }

  // A node with too many links keeps the best choice of them.
  void link_back(int32_t from, int32_t to, int32_t level) {
    std::span<int32_t> links = slots(from, level);
    auto free = std::find(links.begin(), links.end(), -1);
    if (free != links.end()) {
      *free = to;
      return;
    }
    std::vector<Scored> all = {{score_(from, to), to}};
    for (int32_t n : links) all.emplace_back(score_(from, n), n);
    std::sort(all.begin(), all.end(), std::greater<>());
    std::vector<int32_t> chosen = choose(all, slots_of(level));
    std::fill(links.begin(), links.end(), -1);
    std::copy(chosen.begin(), chosen.end(), links.begin());
  }

  // Candidates that are not nearer to a chosen one than to the node itself: links in all
  // directions. If there are too few of them, the nearest others follow.
  std::vector<int32_t> choose(const std::vector<Scored>& candidates, int32_t most) const {
    std::vector<int32_t> out, rest;
    for (const auto& [s, n] : candidates) {
      if (std::ssize(out) == most) return out;
      bool apart = std::all_of(out.begin(), out.end(),
                               [&, s = s, n = n](int32_t other) { return score_(n, other) < s; });
      (apart ? out : rest).push_back(n);
    }
    for (int32_t n : rest) {
      if (std::ssize(out) == most) break;
      out.push_back(n);
    }
    return out;
  }

  const std::function<float(int32_t, int32_t)>& score_;
  HnswGraph graph_;
  std::vector<uint32_t> seen_;
  uint32_t stamp_ = 0;
};

}  // namespace

int32_t HnswView::levels(int32_t node) const {
  auto n = static_cast<size_t>(node);
  return static_cast<int32_t>((offsets[n + 1] - offsets[n]) / kHnswLinks) - 1;
}

std::span<const int32_t> HnswView::neighbours(int32_t node, int32_t level) const {
  size_t first = offsets[static_cast<size_t>(node)] +
                 static_cast<size_t>(level == 0 ? 0 : (level + 1) * kHnswLinks);
  return links.subspan(first, static_cast<size_t>(slots_of(level)));
}

HnswGraph build_hnsw(int32_t nodes, const std::function<float(int32_t, int32_t)>& score) {
  return HnswBuilder(nodes, score).build();
}

std::vector<Scored> search_hnsw(const HnswView& graph, int32_t width,
                                const std::function<float(int32_t)>& score) {
  if (graph.entry < 0) return {};
  std::vector<uint32_t> seen(static_cast<size_t>(graph.nodes()));
  std::vector<Scored> found = {{score(graph.entry), graph.entry}};
  uint32_t stamp = 0;
  for (int32_t level = graph.levels(graph.entry) - 1; level >= 0; --level)
    found =
        search_level(graph, std::move(found), level == 0 ? width : 1, level, score, seen, ++stamp);
  return found;
}

bool hnsw_is_valid(const HnswView& graph) {
  int64_t nodes = graph.nodes();
  if (nodes < 0 || graph.offsets[0] != 0 || graph.offsets.back() != graph.links.size())
    return false;
  for (int64_t i = 0; i < nodes; ++i) {
    uint64_t first = graph.offsets[static_cast<size_t>(i)],
             end = graph.offsets[static_cast<size_t>(i) + 1];
    if (end <= first || (end - first) % kHnswLinks != 0 || (end - first) / kHnswLinks < 2 ||
        (end - first) / kHnswLinks > kMostLevels + 1)
      return false;
  }
  if (nodes == 0) return graph.entry == -1;
  if (graph.entry < 0 || graph.entry >= nodes) return false;
  // A link of a level leads to a node of that level.
  for (int64_t i = 0; i < nodes; ++i)
    for (int32_t level = 0; level < graph.levels(static_cast<int32_t>(i)); ++level)
      for (int32_t n : graph.neighbours(static_cast<int32_t>(i), level))
        if (n < -1 || n >= nodes || (n >= 0 && graph.levels(n) <= level)) return false;
  return true;
}

}  // namespace tokamak
