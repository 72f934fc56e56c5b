#include "engine/kv/kv_cache.h"

#include <algorithm>

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
  // A chunk sees window - 1 slots before it; both ends may lie inside a block.
  return std::min(all, blocks_for(group.window - 1 + chunk, group.block_size) + 1);
}

KvCache::KvCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks)
    : groups_(groups.begin(), groups.end()) {
  if (groups.size() != blocks.size())
    fail(ErrorCode::kInvalidArgument, "{} block counts for {} KV groups", blocks.size(),
         groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].block_size < 1 || groups[g].window < 0 || blocks[g] < 1)
      fail(ErrorCode::kInvalidArgument, "KV group {}: {} blocks of {} tokens, window {}",
           groups[g].name, blocks[g], groups[g].block_size, groups[g].window);
    pools_.emplace_back(blocks[g]);
  }
}

void KvCache::open(SequenceBlocks& seq, int64_t slots) const {
  TK_CHECK(seq.capacity == 0, "the sequence holds {} slots", seq.capacity);
  seq.tables.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g)
    seq.tables[g].blocks.reserve(static_cast<size_t>(blocks_for(slots, groups_[g].block_size)));
}

bool KvCache::reserve(SequenceBlocks& seq, int64_t slots) {
  if (slots <= seq.capacity) return true;
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto have = static_cast<int64_t>(seq.tables[g].blocks.size());
    if (blocks_for(slots, groups_[g].block_size) - have > pools_[g].free_blocks()) return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto& blocks = seq.tables[g].blocks;
    auto want = static_cast<size_t>(blocks_for(slots, groups_[g].block_size));
    while (blocks.size() < want) blocks.push_back(pools_[g].take());
  }
  seq.capacity = slots;
  return true;
}

void KvCache::commit(SequenceBlocks& seq, int64_t slots) {
  TK_CHECK(slots <= seq.capacity, "commit of {} slots, {} reserved", slots, seq.capacity);
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    int64_t size = groups_[g].block_size;
    // From the end: blocks before one that is ready are ready (or dropped).
    for (int64_t i = blocks_for(slots, size); i-- > table.dropped;) {
      BlockHandle h = table.blocks[static_cast<size_t>(i)];
      if (pools_[g].state(h) == BlockState::kReady) break;
      pools_[g].set_state(h, (i + 1) * size <= slots ? BlockState::kReady : BlockState::kFilling);
    }
    int64_t dead = first_visible(groups_[g], slots) / size;
    for (; table.dropped < dead; ++table.dropped) {
      BlockHandle& h = table.blocks[static_cast<size_t>(table.dropped)];
      pools_[g].release(h);
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
      pools_[g].release(table.blocks.back());
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
  for (size_t g = 0; g < seq.tables.size(); ++g) {
    SequenceBlocks::Table& table = seq.tables[g];
    for (auto i = static_cast<size_t>(table.dropped); i < table.blocks.size(); ++i)
      pools_[g].release(table.blocks[i]);
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
  for (const BlockPool& p : pools_) n += p.free_blocks();
  return n;
}

}  // namespace tokamak
