#include "engine/kv/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "engine/kv/kv_cache.h"

namespace tokamak {
namespace {

// One node of the index, without its place in the tree.
PrefixTreeNode node_of(const KvCache& kv, PrefixNode node) {
  const PrefixIndex& index = *kv.index();
  PrefixTreeNode out;
  auto ids = index.tokens(node);
  out.ids.assign(ids.begin(), ids.end());
  out.first = int64_t{index.depth(node)} * index.unit();
  out.producing = index.producers(node) > 0;
  uint64_t last = 0;
  for (size_t group = 0; group < index.groups(); ++group)
    for (int32_t part = 0; part < index.parts(group); ++part) {
      const BlockHandle block = index.block(node, group, part);
      if (!block.valid()) continue;
      const BlockPool& pool = kv.pool(group);
      ++out.blocks;
      out.cached += pool.cached(block);
      out.references = std::max(out.references, pool.references(block));
      if (pool.cached(block)) last = std::max(last, pool.last_use(block));
    }
  if (out.references == 0 && last > 0) out.ended_since = static_cast<int64_t>(kv.tick() - last);
  return out;
}

bool used_alike(const PrefixTreeNode& a, const PrefixTreeNode& b) {
  return a.references == b.references && a.producing == b.producing &&
         a.ended_since == b.ended_since;
}

}  // namespace

PrefixTree prefix_tree(const KvCache& kv, int64_t most) {
  PrefixTree tree;
  const PrefixIndex* index = kv.index();
  if (index == nullptr) return tree;
  tree.unit = index->unit();
  struct Open {
    PrefixNode node;
    int32_t parent;  // in the tree
    bool only;       // child of its parent
  };
  std::vector<Open> open;
  std::vector<PrefixNode> children;
  auto push_children = [&](PrefixNode node, int32_t parent) {
    children.clear();
    index->children(node, children);
    for (size_t i = children.size(); i-- > 0;)
      open.push_back({children[i], parent, children.size() == 1});
  };
  int64_t seen = 0;
  for (const auto& [salt, root] : index->roots()) {
    if (seen == most) break;
    ++seen;
    PrefixTreeNode top;
    top.salt = salt;
    tree.nodes.push_back(std::move(top));
    push_children(root, static_cast<int32_t>(tree.nodes.size()) - 1);
    while (!open.empty() && seen < most) {
      const Open next = open.back();
      open.pop_back();
      ++seen;
      PrefixTreeNode node = node_of(kv, next.node);
      PrefixTreeNode& parent = tree.nodes[static_cast<size_t>(next.parent)];
      int32_t place = next.parent;
      if (next.only && parent.parent >= 0 && used_alike(parent, node)) {
        parent.ids.insert(parent.ids.end(), node.ids.begin(), node.ids.end());
        parent.blocks += node.blocks;
        parent.cached += node.cached;
      } else {
        node.parent = next.parent;
        tree.nodes.push_back(std::move(node));
        place = static_cast<int32_t>(tree.nodes.size()) - 1;
      }
      push_children(next.node, place);
    }
    open.clear();
  }
  tree.left_out = static_cast<int64_t>(index->nodes()) - seen;
  return tree;
}

}  // namespace tokamak
