#pragma once
// A graph over vectors in which greedy walks find near neighbours (hierarchical navigable small
// world). Higher scores are nearer.
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace tokamak {

constexpr int32_t kHnswLinks = 16;  // per node and upper level; twice as many on the lowest

// The graph as it is in memory or in a file. Node i has slots offsets[i] .. offsets[i + 1] - 1 of
// `links`: first those of level 0, then of each upper level it is on; -1 is an unused slot.
struct HnswView {
  std::span<const uint64_t> offsets;  // nodes + 1
  std::span<const int32_t> links;
  int32_t entry = -1;  // a node of the highest level

  int64_t nodes() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int32_t levels(int32_t node) const;  // that the node is on
  std::span<const int32_t> neighbours(int32_t node, int32_t level) const;
};

struct HnswGraph {
  std::vector<uint64_t> offsets;
  std::vector<int32_t> links;
  int32_t entry = -1;
  HnswView view() const { return {offsets, links, entry}; }
};

using Scored = std::pair<float, int32_t>;  // score, node

// The graph of `nodes` vectors. score(a, b): how near two of them are. The same vectors give the
// same graph.
HnswGraph build_hnsw(int32_t nodes, const std::function<float(int32_t, int32_t)>& score);

// The `width` best nodes that a walk finds, best first. score(node): how near it is to the query.
std::vector<Scored> search_hnsw(const HnswView& graph, int32_t width,
                                const std::function<float(int32_t)>& score);

// Every link names a node, offsets fit the links, and the entry exists.
bool hnsw_is_valid(const HnswView& graph);

}  // namespace tokamak
