// KvCache and the prefix index: lookup of cached prefixes, and indexing of computed content.
#include <algorithm>

#include "base/error.h"
#include "engine/kv/kv_cache.h"

namespace tokamak {

// --- looking up

// The nodes of the longest match, with or without blocks; the last one may match partly.
void KvCache::walk(std::string_view salt, std::span<const int32_t> ids, int64_t most) {
  walk_.clear();
  walk_whole_ = walk_tokens_ = 0;
  PrefixNode node = index_ ? index_->find_root(salt) : kNoPrefixNode;
  if (node == kNoPrefixNode) return;
  auto unit = static_cast<size_t>(unit_);
  while (walk_tokens_ < most && ids.size() >= unit) {
    PrefixNode next = index_->child(node, ids.first(unit));
    if (next == kNoPrefixNode) break;
    walk_.push_back(node = next);
    ids = ids.subspan(unit);
    walk_tokens_ += unit_;
  }
  walk_whole_ = std::ssize(walk_);
  if (walk_tokens_ >= most || ids.empty()) return;
  auto near = index_->nearest(node, ids.first(std::min(unit, ids.size())));
  if (near.node == kNoPrefixNode) return;
  walk_.push_back(near.node);
  walk_tokens_ += near.common;
}

// The last logical block of from .. to-1 that the matched nodes do not have; -1: they have all.
int64_t KvCache::last_hole(size_t g, int64_t from, int64_t to) const {
  if (from >= to) return -1;
  int32_t parts = index_->parts(g);
  for (int64_t i = to; i-- > from;)
    if (!index_->block(walk_[static_cast<size_t>(i / parts)], g, static_cast<int32_t>(i % parts))
             .valid())
      return i;
  return -1;
}

void KvCache::find_prefix(std::string_view salt, std::span<const int32_t> ids, int64_t most,
                          PrefixHit& hit) {
  hit.tokens = 0;
  hit.wait = false;
  hit.groups.resize(groups_.size());
  walk(salt, ids, most);
  int64_t length = std::min(walk_tokens_, most);
  // With a missing block, every length whose queries see it is impossible, so the next length to
  // try ends where that block begins.
  for (bool again = true; again;) {
    again = false;
    if (length % unit_ < std::max<int64_t>(1, unit_ / 4)) length -= length % unit_;
    for (size_t g = 0; g < groups_.size() && !again; ++g) {
      int64_t size = groups_[g].block_size;
      int64_t hole =
          last_hole(g, first_visible(groups_[g], length) / size, (length + size - 1) / size);
      again = hole >= 0;
      if (again) length = hole * size;
    }
  }
  hit.tokens = length;
  bool more = most - length >= std::max<int64_t>(1, unit_ / 4);
  for (int64_t u = length / unit_; u < walk_whole_ && more && !hit.wait; ++u)
    hit.wait = index_->producers(walk_[static_cast<size_t>(u)]) > 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    PrefixHit::Group& out = hit.groups[g];
    out.blocks.clear();
    out.cached = 0;
    int64_t size = groups_[g].block_size;
    out.first = first_visible(groups_[g], length) / size;
    out.shared = std::max<int64_t>(0, length / size - out.first);
    int32_t parts = length > 0 ? index_->parts(g) : 1;
    for (int64_t i = out.first; i * size < length; ++i) {
      out.blocks.push_back(
          index_->block(walk_[static_cast<size_t>(i / parts)], g, static_cast<int32_t>(i % parts)));
      out.cached += pools_[g].cached(out.blocks.back()) ? 1 : 0;
    }
  }
}

void KvCache::find_fork(const SequenceBlocks& from, int64_t tokens, PrefixHit& hit) const {
  hit.wait = false;
  hit.groups.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g)
    if (first_visible(groups_[g], tokens) / groups_[g].block_size < from.tables[g].dropped)
      tokens = 0;
  hit.tokens = tokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    PrefixHit::Group& out = hit.groups[g];
    int64_t size = groups_[g].block_size;
    out.first = first_visible(groups_[g], tokens) / size;
    out.shared = std::max<int64_t>(0, tokens / size - out.first);
    out.cached = 0;
    const auto& blocks = from.tables[g].blocks;
    out.blocks.assign(blocks.begin() + (tokens > 0 ? out.first : 0),
                      blocks.begin() + (tokens + size - 1) / size);
  }
}

// --- starting from it

void KvCache::start(SequenceBlocks& seq, std::string_view salt, std::span<const int32_t> ids,
                    const PrefixHit& hit) {
  // First all blocks are retained, then new ones are taken, because that may evict blocks.
  for (size_t g = 0; g < hit.groups.size() && hit.tokens > 0; ++g)
    for (BlockHandle h : hit.groups[g].blocks) pools_[g].retain(h);
  for (size_t g = 0; g < hit.groups.size() && hit.tokens > 0; ++g) {
    const PrefixHit::Group& from = hit.groups[g];
    SequenceBlocks::Table& table = seq.tables[g];
    auto shared = from.blocks.begin() + from.shared;
    table.blocks.assign(static_cast<size_t>(from.first), BlockHandle{});
    table.dropped = from.first;
    table.blocks.insert(table.blocks.end(), from.blocks.begin(), shared);
    if (shared == from.blocks.end()) continue;
    BlockHandle mine = take(g);
    table.blocks.push_back(mine);
    seq.copies.push_back({{static_cast<uint32_t>(g), shared->index, mine.index}, *shared});
    ++copied_;
  }
  seq.copies_sent = false;
  seq.capacity = hit.tokens;
  if (!index_) return;
  seq.root = index_->root(salt);
  seq.settled = hit.tokens / unit_;
  PrefixNode node = seq.root;
  for (int64_t u = 0; (u + 1) * unit_ <= std::ssize(ids); ++u) {
    auto tokens = ids.subspan(static_cast<size_t>(u * unit_), static_cast<size_t>(unit_));
    PrefixNode next = index_->child(node, tokens);
    node = next == kNoPrefixNode ? index_->add_child(node, tokens) : next;
    seq.path.push_back(node);
    if (u >= seq.settled) index_->add_producer(node);
  }
  index_->pin(node);
}

void KvCache::drop_copies(SequenceBlocks& seq) {
  for (const SequenceBlocks::Copy& c : seq.copies)
    pools_[c.blocks.group].release(c.source, retention(seq, 0));
  seq.copies.clear();
}

// --- indexing content

void KvCache::index_units(SequenceBlocks& seq, int64_t units, std::span<const int32_t> ids) {
  for (; seq.settled < units; ++seq.settled) {
    auto u = static_cast<size_t>(seq.settled);
    if (u < seq.path.size()) {
      index_->remove_producer(seq.path[u]);
    } else {
      PrefixNode tip = seq.path.empty() ? seq.root : seq.path.back();
      auto tokens = ids.subspan(u * static_cast<size_t>(unit_), static_cast<size_t>(unit_));
      PrefixNode next = index_->child(tip, tokens);
      if (next == kNoPrefixNode) next = index_->add_child(tip, tokens);
      index_->pin(next);
      index_->unpin(tip);
      seq.path.push_back(next);
    }
    PrefixNode node = seq.path[u];
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (int32_t part = 0; part < index_->parts(g); ++part) {
        int64_t i = seq.settled * index_->parts(g) + part;
        if (i < seq.tables[g].dropped || index_->block(node, g, part).valid()) continue;
        BlockHandle h = seq.tables[g].blocks[static_cast<size_t>(i)];
        if (pools_[g].indexed(h)) continue;
        index_->set_block(node, g, part, h);
        pools_[g].index(h, {node, part});
      }
    }
  }
}

void KvCache::leave_index(SequenceBlocks& seq) {
  if (seq.root == kNoPrefixNode) return;
  for (auto u = static_cast<size_t>(seq.settled); u < seq.path.size(); ++u)
    index_->remove_producer(seq.path[u]);
  PrefixNode tip = seq.path.empty() ? seq.root : seq.path.back();
  index_->unpin(tip);
  index_->prune(tip);
  seq.path.clear();
  seq.root = kNoPrefixNode;
  seq.settled = 0;
}

void KvCache::forget(std::string_view salt, std::span<const int32_t> ids) {
  walk(salt, ids, std::ssize(ids));
  for (auto u = static_cast<size_t>(walk_whole_); u-- > 0;) {
    const PrefixNode node = walk_[u];
    std::vector<PrefixNode> children;
    index_->children(node, children);
    bool used = !children.empty() || index_->producers(node) > 0;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (int32_t part = 0; part < index_->parts(g); ++part)
        if (BlockHandle h = index_->block(node, g, part); h.valid())
          used = used || !pools_[g].cached(h);
    if (used) return;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (int32_t part = 0; part < index_->parts(g); ++part)
        if (BlockHandle h = index_->block(node, g, part); h.valid()) {
          index_->set_block(node, g, part, {});
          pools_[g].unindex(h);
        }
    index_->prune(node);
  }
}

void KvCache::evict(size_t group) {
  BlockHandle victim = pools_[group].next_victim();
  IndexPlace place = pools_[group].place(victim);
  auto drop = [&](size_t g, int32_t part, BlockHandle h) {
    index_->set_block(place.node, g, part, {});
    pools_[g].unindex(h);
    ++evicted_;
  };
  drop(group, place.part, victim);
  // Without a block of a group that has no window, the other blocks of the node are useless.
  for (size_t g = 0; g < groups_.size() && groups_[group].window == 0; ++g)
    for (int32_t part = 0; part < index_->parts(g); ++part)
      if (BlockHandle h = index_->block(place.node, g, part); h.valid() && pools_[g].cached(h))
        drop(g, part, h);
  index_->prune(place.node);
}

}  // namespace tokamak
