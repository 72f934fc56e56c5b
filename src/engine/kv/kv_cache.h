#pragma once
// The blocks of sequences: one table per sequence and group.
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_pool.h"
#include "plan/plan.h"

namespace tokamak {

// The block tables of one sequence. Owned by the Sequence, changed by KvCache only.
struct SequenceBlocks {
  struct Table {
    std::vector<BlockHandle> blocks;  // by logical block; invalid: fell out of the window
    int64_t dropped = 0;              // the first so many entries are invalid
  };
  std::vector<Table> tables;  // one per group
  int64_t capacity = 0;       // slots there are blocks for
};

// Owned by EngineCore, used by its thread. Allocation is all or nothing over the groups; a sequence
// wastes less than one block per group. Blocks given back here are free at once: the caller
// knows whether a step in flight still refers to them.
class KvCache {
 public:
  KvCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks);

  // Makes tables that can grow to `slots` without an allocation; holds no blocks yet.
  void open(SequenceBlocks& seq, int64_t slots) const;

  // Blocks for slots 0 .. slots-1 in every group; false, and nothing changed, if a group has too
  // few.
  bool reserve(SequenceBlocks& seq, int64_t slots);
  // Slots 0 .. slots-1 are proven produced: marks blocks, drops those that no later query can see.
  void commit(SequenceBlocks& seq, int64_t slots);
  // Gives back the blocks that hold nothing of slots 0 .. slots-1.
  void truncate(SequenceBlocks& seq, int64_t slots);
  void release(SequenceBlocks& seq);

  // Most blocks a sequence of `slots` holds at a time, when at most `chunk` slots are added at
  // once.
  int64_t most_blocks(size_t group, int64_t slots, int64_t chunk) const;
  // Blocks the sequence holds in a group.
  static int64_t held(const SequenceBlocks& seq, size_t group) {
    const SequenceBlocks::Table& t = seq.tables[group];
    return static_cast<int64_t>(t.blocks.size()) - t.dropped;
  }

  size_t groups() const { return groups_.size(); }
  const GroupEntry& group(size_t g) const { return groups_[g]; }
  const BlockPool& pool(size_t g) const { return pools_[g]; }
  int64_t total_blocks() const;
  int64_t free_blocks() const;
  bool all_free() const { return free_blocks() == total_blocks(); }

 private:
  std::vector<GroupEntry> groups_;
  std::vector<BlockPool> pools_;
};

// The first slot that a query at `slot` or behind it can see.
int64_t first_visible(const GroupEntry& group, int64_t slot);
// The same bound as KvCache::most_blocks, before there is a cache.
int64_t most_blocks(const GroupEntry& group, int64_t slots, int64_t chunk);

}  // namespace tokamak
