#include "engine/kv/prefix_index.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {
namespace {

// The treap's heap order: any fixed hash of the id.
uint32_t weight(PrefixNode node) {
  auto x = static_cast<uint32_t>(node) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  return x ^ (x >> 13);
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t unit, std::vector<int32_t> blocks_per_unit, size_t nodes)
    : unit_(unit), parts_(std::move(blocks_per_unit)) {
  for (int32_t p : parts_) {
    first_part_.push_back(static_cast<int32_t>(stride_));
    stride_ += static_cast<size_t>(p);
  }
  nodes_.reserve(nodes);
  free_.reserve(nodes);
  tokens_.reserve(nodes * static_cast<size_t>(unit));
  blocks_.reserve(nodes * stride_);
}

PrefixNode PrefixIndex::make(PrefixNode parent) {
  PrefixNode id = kNoPrefixNode;
  if (free_.empty()) {
    id = static_cast<PrefixNode>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(nodes_.size() * static_cast<size_t>(unit_));
    blocks_.resize(nodes_.size() * stride_);
  } else {
    id = free_.back();
    free_.pop_back();
    at(id) = {};
  }
  at(id).parent = parent;
  at(id).depth = parent == kNoPrefixNode ? -1 : at(parent).depth + 1;
  return id;
}

PrefixNode PrefixIndex::find_root(std::string_view salt) const {
  auto it = roots_.find(salt);
  return it == roots_.end() ? kNoPrefixNode : it->second;
}

PrefixNode PrefixIndex::root(std::string_view salt) {
  if (PrefixNode there = find_root(salt); there != kNoPrefixNode) return there;
  PrefixNode id = make(kNoPrefixNode);
  roots_.emplace(salt, id);
  salts_.emplace(id, salt);
  return id;
}

int PrefixIndex::compare(std::span<const int32_t> tokens, PrefixNode node) const {
  auto mine = this->tokens(node);
  for (size_t i = 0; i < mine.size(); ++i)
    if (tokens[i] != mine[i]) return tokens[i] < mine[i] ? -1 : 1;
  return 0;
}

PrefixNode PrefixIndex::child(PrefixNode parent, std::span<const int32_t> tokens) const {
  PrefixNode n = at(parent).children;
  while (n != kNoPrefixNode) {
    int order = compare(tokens, n);
    if (order == 0) return n;
    n = order < 0 ? at(n).left : at(n).right;
  }
  return kNoPrefixNode;
}

void PrefixIndex::children(PrefixNode node, std::vector<PrefixNode>& out) const {
  std::vector<PrefixNode> above;
  PrefixNode n = at(node).children;
  while (n != kNoPrefixNode || !above.empty()) {
    for (; n != kNoPrefixNode; n = at(n).left) above.push_back(n);
    n = above.back();
    above.pop_back();
    out.push_back(n);
    n = at(n).right;
  }
}

int32_t PrefixIndex::common(std::span<const int32_t> tokens, PrefixNode node) const {
  auto mine = this->tokens(node);
  size_t n = std::min(tokens.size(), mine.size());
  return static_cast<int32_t>(
      std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n), mine.begin())
          .first -
      tokens.begin());
}

// In token order, the child with the most tokens in common is next to the place of `tokens`, and
// all its neighbours are on the path to that place.
PrefixIndex::Near PrefixIndex::nearest(PrefixNode parent, std::span<const int32_t> tokens) const {
  Near best;
  PrefixNode n = at(parent).children;
  while (n != kNoPrefixNode) {
    int32_t same = common(tokens, n);
    if (same > best.common) best = {n, same};
    auto i = static_cast<size_t>(same);
    if (i == tokens.size() || i == static_cast<size_t>(unit_)) break;
    n = tokens[i] < this->tokens(n)[i] ? at(n).left : at(n).right;
  }
  return best;
}

PrefixNode PrefixIndex::add_child(PrefixNode parent, std::span<const int32_t> tokens) {
  TK_CHECK(static_cast<int32_t>(tokens.size()) == unit_ && child(parent, tokens) == kNoPrefixNode,
           "{} tokens are not one unit, or the child exists already", tokens.size());
  PrefixNode id = make(parent);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + id * int64_t{unit_});
  at(parent).children = insert(at(parent).children, id);
  return id;
}

PrefixNode PrefixIndex::insert(PrefixNode tree, PrefixNode node) {
  if (tree == kNoPrefixNode) return node;
  if (weight(node) > weight(tree)) {
    PrefixNode left = kNoPrefixNode, right = kNoPrefixNode;
    split(tree, tokens(node), left, right);
    at(node).left = left;
    at(node).right = right;
    return node;
  }
  PrefixNode& side = compare(tokens(node), tree) < 0 ? at(tree).left : at(tree).right;
  side = insert(side, node);
  return tree;
}

// Splits into the nodes before and after `tokens`, which are not in the tree.
void PrefixIndex::split(PrefixNode tree, std::span<const int32_t> tokens, PrefixNode& left,
                        PrefixNode& right) {
  if (tree == kNoPrefixNode) {
    left = right = kNoPrefixNode;
  } else if (compare(tokens, tree) < 0) {
    split(at(tree).left, tokens, left, at(tree).left);
    right = tree;
  } else {
    split(at(tree).right, tokens, at(tree).right, right);
    left = tree;
  }
}

PrefixNode PrefixIndex::merge(PrefixNode left, PrefixNode right) {
  if (left == kNoPrefixNode) return right;
  if (right == kNoPrefixNode) return left;
  if (weight(left) > weight(right)) {
    at(left).right = merge(at(left).right, right);
    return left;
  }
  at(right).left = merge(left, at(right).left);
  return right;
}

PrefixNode PrefixIndex::erase(PrefixNode tree, PrefixNode node) {
  TK_CHECK(tree != kNoPrefixNode, "node {} is not among its siblings", node);
  if (tree == node) return merge(at(node).left, at(node).right);
  PrefixNode& side = compare(tokens(node), tree) < 0 ? at(tree).left : at(tree).right;
  side = erase(side, node);
  return tree;
}

void PrefixIndex::set_block(PrefixNode node, size_t group, int32_t part, BlockHandle block) {
  BlockHandle& there = blocks_[slot(node, group, part)];
  at(node).held += (block.valid() ? 1 : 0) - (there.valid() ? 1 : 0);
  there = block;
}

void PrefixIndex::prune(PrefixNode node) {
  while (node != kNoPrefixNode) {
    const Node& n = at(node);
    if (n.children != kNoPrefixNode || n.pins > 0 || n.producers > 0 || n.held > 0) return;
    PrefixNode parent = n.parent;
    if (parent != kNoPrefixNode) {
      at(parent).children = erase(at(parent).children, node);
    } else {
      auto it = salts_.find(node);
      roots_.erase(it->second);
      salts_.erase(it);
    }
    free_.push_back(node);
    node = parent;
  }
}

}  // namespace tokamak
