#include "engine/kv/kv_cache.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tokamak {
namespace {

int64_t blocks_for(int64_t slots, int64_t size) { return (slots + size - 1) / size; }

}  // namespace

int64_t first_visible(const GroupEntry& group, int64_t slot) {
  return group.window > 0 ? std::max<int64_t>(0, slot - group.window + 1) : 0;
}

int64_t most_blocks(const GroupEntry& group, int64_t slots, int64_t chunk) {
  int64_t all = blocks_for(slots, group.block_size);
  if (group.window <= 0) return all;
  // A chunk sees window - 1 slots before it; both ends may be inside a block.
  return std::min(all, blocks_for(group.window - 1 + chunk, group.block_size) + 1);
}

KvCache::KvCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks,
                 bool prefix_cache)
    : groups_(groups.begin(), groups.end()) {
  if (groups.size() != blocks.size())
    fail(ErrorCode::kInvalidArgument, "{} block counts for {} KV groups", blocks.size(),
         groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].block_size < 1 || groups[g].window < 0 || blocks[g] < 1)
      fail(ErrorCode::kInvalidArgument, "KV group {}: {} blocks of {} tokens, window {}",
           groups[g].name, blocks[g], groups[g].block_size, groups[g].window);
    pools_.emplace_back(blocks[g]);
    unit_ = std::lcm(unit_, groups[g].block_size);
  }
  if (!prefix_cache || groups.empty()) return;
  std::vector<int32_t> parts;
  int64_t nodes = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    parts.push_back(static_cast<int32_t>(unit_ / groups[g].block_size));
    nodes = std::max(nodes, blocks[g] / parts.back() + 64);
  }
  // The index of a large cache grows as the cache fills.
  index_ = std::make_unique<PrefixIndex>(static_cast<int32_t>(unit_), std::move(parts),
                                         static_cast<size_t>(std::min<int64_t>(nodes, 1 << 16)));
}

void KvCache::set_time(Nanos now) {
  now_ = now;
  for (BlockPool& p : pools_) p.expire(now);
}

Retention KvCache::retention(const SequenceBlocks& seq, int64_t depth) const {
  Nanos expires = seq.ttl >= kNever - now_ ? kNever : now_ + seq.ttl;
  return {seq.priority, expires, tick_, static_cast<int32_t>(depth)};
}

BlockHandle KvCache::take(size_t group) {
  if (pools_[group].free_blocks() == 0) evict(group);
  return pools_[group].take();
}

void KvCache::open(SequenceBlocks& seq, int64_t slots) const {
  TK_CHECK(seq.capacity == 0 && seq.path.empty(), "the sequence holds {} slots", seq.capacity);
  seq.tables.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g)
    seq.tables[g].blocks.reserve(static_cast<size_t>(blocks_for(slots, groups_[g].block_size)));
  seq.path.reserve(static_cast<size_t>(slots / unit_));
}

bool KvCache::reserve(SequenceBlocks& seq, int64_t slots) {
  if (slots <= seq.capacity) return true;
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto have = static_cast<int64_t>(seq.tables[g].blocks.size());
    if (blocks_for(slots, groups_[g].block_size) - have > pools_[g].available()) return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto& blocks = seq.tables[g].blocks;
    auto want = static_cast<size_t>(blocks_for(slots, groups_[g].block_size));
    while (blocks.size() < want) blocks.push_back(take(g));
  }
  seq.capacity = slots;
  return true;
}

void KvCache::commit(SequenceBlocks& seq, int64_t slots, std::span<const int32_t> ids) {
  TK_CHECK(slots <= seq.capacity, "commit of {} slots, {} reserved", slots, seq.capacity);
  drop_copies(seq);
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    int64_t size = groups_[g].block_size;
    // From the end: blocks before one that is ready are ready (or dropped).
    for (int64_t i = blocks_for(slots, size); i-- > table.dropped;) {
      BlockHandle h = table.blocks[static_cast<size_t>(i)];
      if (pools_[g].state(h) == BlockState::kReady) break;
      pools_[g].set_state(h, (i + 1) * size <= slots ? BlockState::kReady : BlockState::kFilling);
    }
  }
  if (index_) index_units(seq, std::min<int64_t>(slots, std::ssize(ids)) / unit_, ids);
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    int64_t dead = first_visible(groups_[g], slots) / groups_[g].block_size;
    if (table.dropped < dead) ++tick_;
    for (; table.dropped < dead; ++table.dropped) {
      BlockHandle& h = table.blocks[static_cast<size_t>(table.dropped)];
      pools_[g].release(h, retention(seq, table.dropped));
      h = {};
    }
  }
}

void KvCache::truncate(SequenceBlocks& seq, int64_t slots) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    int64_t size = groups_[g].block_size;
    int64_t keep = blocks_for(slots, size);
    TK_CHECK(first_visible(groups_[g], slots) / size >= table.dropped,
             "slots before {} of group {} fell out of the window", slots, g);
    while (static_cast<int64_t>(table.blocks.size()) > keep) {
      pools_[g].release(table.blocks.back(), retention(seq, std::ssize(table.blocks) - 1));
      table.blocks.pop_back();
    }
    if (keep > table.dropped && keep * size > slots) {
      BlockHandle last = table.blocks.back();
      if (pools_[g].state(last) == BlockState::kReady)
        pools_[g].set_state(last, BlockState::kFilling);
    }
  }
  seq.capacity = std::min(seq.capacity, slots);
}

void KvCache::release(SequenceBlocks& seq) {
  drop_copies(seq);
  if (index_) leave_index(seq);
  ++tick_;
  for (size_t g = 0; g < seq.tables.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    for (auto i = static_cast<size_t>(table.dropped); i < table.blocks.size(); ++i)
      pools_[g].release(table.blocks[i], retention(seq, static_cast<int64_t>(i)));
    table.blocks.clear();
    table.dropped = 0;
  }
  seq.capacity = 0;
}

int64_t KvCache::most_blocks(size_t group, int64_t slots, int64_t chunk) const {
  return tokamak::most_blocks(groups_[group], slots, chunk);
}

int64_t KvCache::total_blocks() const {
  int64_t n = 0;
  for (const BlockPool& p : pools_) n += p.total();
  return n;
}

int64_t KvCache::free_blocks() const {
  int64_t n = 0;
  for (const BlockPool& p : pools_) n += p.available();
  return n;
}

int64_t KvCache::cached_blocks() const {
  int64_t n = 0;
  for (const BlockPool& p : pools_) n += p.cached_blocks();
  return n;
}

}  // namespace tokamak
