#pragma once
// Maps tokens to blocks: a tree over whole units of tokens, one root per salt. A unit is the least
// common multiple of the groups' block sizes, so that a node has whole blocks of every group.
// Lookups compare tokens, not hashes.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/kv/block_pool.h"

namespace tokamak {

using PrefixNode = int32_t;
constexpr PrefixNode kNoPrefixNode = -1;

// Owned by KvCache, engine thread only. It does not count references; the pools decide what may be
// evicted. Children are kept in the order of their tokens (a treap of siblings): finding one, or
// the one with the most tokens in common, costs O(log children). Memory is reused; it grows only
// when the tree has more nodes than ever before.
class PrefixIndex {
 public:
  // blocks_per_unit: of each group. `nodes`: room made in advance.
  PrefixIndex(int32_t unit, std::vector<int32_t> blocks_per_unit, size_t nodes);

  int32_t unit() const { return unit_; }
  PrefixNode find_root(std::string_view salt) const;
  PrefixNode root(std::string_view salt);  // created if it does not exist

  // `tokens` are one unit.
  PrefixNode child(PrefixNode parent, std::span<const int32_t> tokens) const;
  PrefixNode add_child(PrefixNode parent, std::span<const int32_t> tokens);  // must not exist
  // The child that begins with most of `tokens` (at least one).
  struct Near {
    PrefixNode node = kNoPrefixNode;
    int32_t common = 0;
  };
  Near nearest(PrefixNode parent, std::span<const int32_t> tokens) const;

  BlockHandle block(PrefixNode node, size_t group, int32_t part) const {
    return blocks_[slot(node, group, part)];
  }
  void set_block(PrefixNode node, size_t group, int32_t part, BlockHandle block);  // invalid: none
  int32_t parts(size_t group) const { return parts_[group]; }
  size_t groups() const { return parts_.size(); }

  // A node exists while it has children, blocks, pins or producers. Producers are sequences that
  // are computing its content.
  void pin(PrefixNode node) { ++at(node).pins; }
  void unpin(PrefixNode node) { --at(node).pins; }
  void add_producer(PrefixNode node) { ++at(node).producers; }
  void remove_producer(PrefixNode node) { --at(node).producers; }
  int32_t producers(PrefixNode node) const { return at(node).producers; }
  // Removes the node, and then its ancestors, while nothing keeps them.
  void prune(PrefixNode node);

  int32_t depth(PrefixNode node) const { return at(node).depth; }  // units before it
  std::span<const int32_t> tokens(PrefixNode node) const {
    return {tokens_.data() + static_cast<size_t>(node * int64_t{unit_}),
            static_cast<size_t>(unit_)};
  }
  void children(PrefixNode node, std::vector<PrefixNode>& out) const;  // appends, in order
  const std::map<std::string, PrefixNode, std::less<>>& roots() const { return roots_; }
  size_t nodes() const { return nodes_.size() - free_.size(); }  // with roots

 private:
  struct Node {
    PrefixNode parent = kNoPrefixNode, children = kNoPrefixNode;
    PrefixNode left = kNoPrefixNode, right = kNoPrefixNode;  // among its siblings
    int32_t depth = -1;
    int32_t pins = 0, producers = 0, held = 0;
  };
  Node& at(PrefixNode node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(PrefixNode node) const { return nodes_[static_cast<size_t>(node)]; }
  size_t slot(PrefixNode node, size_t group, int32_t part) const {
    return static_cast<size_t>(node) * stride_ + static_cast<size_t>(first_part_[group] + part);
  }
  PrefixNode make(PrefixNode parent);
  int compare(std::span<const int32_t> tokens, PrefixNode node) const;  // <0: before the node
  int32_t common(std::span<const int32_t> tokens, PrefixNode node) const;
  PrefixNode insert(PrefixNode tree, PrefixNode node);
  PrefixNode erase(PrefixNode tree, PrefixNode node);
  PrefixNode merge(PrefixNode left, PrefixNode right);
  void split(PrefixNode tree, std::span<const int32_t> tokens, PrefixNode& left, PrefixNode& right);

  int32_t unit_;
  std::vector<int32_t> parts_, first_part_;
  size_t stride_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;      // [node, unit]
  std::vector<BlockHandle> blocks_;  // [node, stride]
  std::vector<PrefixNode> free_;
  std::map<std::string, PrefixNode, std::less<>> roots_;
  std::unordered_map<PrefixNode, std::string> salts_;  // of roots
};

}  // namespace tokamak
