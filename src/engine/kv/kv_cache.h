#pragma once
// The blocks of sequences: one table per sequence and group, and the state of their content.
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// The block tables of one sequence. Owned by the Sequence, changed by KvCache only.
struct SequenceBlocks {
  struct Table {
    std::vector<BlockHandle> blocks;  // by logical block; invalid: fell out of the window
    int64_t dropped = 0;              // number of entries at the start that are invalid
  };
  struct Copy {
    BlockCopy blocks;
    BlockHandle source;  // kept until the step that copies it commits
  };
  std::vector<Table> tables;  // one per group
  int64_t capacity = 0;       // slots there are blocks for
  std::vector<Copy> copies;   // to be done by the next step, or by one in flight
  bool copies_sent = false;

  // Its place in the prefix index: a node per unit of its known tokens.
  PrefixNode root = kNoPrefixNode;
  std::vector<PrefixNode> path;
  int64_t settled = 0;  // units found or committed; this sequence computes the later ones
  int32_t priority = 0;
  Nanos ttl = kNever;
};

// Cached content that a sequence can start with. Reused between lookups.
struct PrefixHit {
  int64_t tokens = 0;  // slots that are valid in all groups
  bool wait = false;   // another sequence is computing more of it
  struct Group {
    int64_t first = 0;                // first logical block that the sequence can see
    std::vector<BlockHandle> blocks;  // from `first` on; the last may be covered partly
    int64_t cached = 0;               // of them: used by no sequence yet
    int64_t shared = 0;               // of them: fully covered, so not copied
  };
  std::vector<Group> groups;
};

// Owned by EngineCore, used by its thread. Allocation is all or nothing over the groups; a sequence
// wastes less than one block per group. Released blocks can be taken again at once, so the caller
// must know that no step in flight uses them. With a prefix index, computed content can be found
// until its block is reused.
class KvCache {
 public:
  KvCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks,
          bool prefix_cache = false);

  void set_time(Nanos now);  // ends expired retention

  // The longest cached prefix of `ids` with at most `most` tokens. A partly shared block is copied
  // when at least a quarter of a unit is shared.
  void find_prefix(std::string_view salt, std::span<const int32_t> ids, int64_t most,
                   PrefixHit& hit);
  // Drops cached content of `ids` from its end on, as far as nothing else continues or uses it.
  void forget(std::string_view salt, std::span<const int32_t> ids);
  // The first `tokens` slots of another sequence, which has computed them; hit.tokens is 0 if some
  // of them have left its window.
  void find_fork(const SequenceBlocks& from, int64_t tokens, PrefixHit& hit) const;

  // Makes tables that can grow to `slots` without an allocation. They have no blocks yet.
  void open(SequenceBlocks& seq, int64_t slots) const;
  // After open: shares the hit's blocks, copies the last one if it is covered partly (the caller
  // has made sure that a block is available), and records that the rest of `ids` is being computed.
  void start(SequenceBlocks& seq, std::string_view salt, std::span<const int32_t> ids,
             const PrefixHit& hit);

  // Blocks for slots 0 .. slots-1 in every group; false, and nothing changed, if a group has too
  // few.
  bool reserve(SequenceBlocks& seq, int64_t slots);
  // Slots 0 .. slots-1 have been computed from `ids` (which may be shorter; later slots are not
  // indexed): marks blocks, indexes whole units, and drops blocks that no later query can see.
  void commit(SequenceBlocks& seq, int64_t slots, std::span<const int32_t> ids);
  // Releases the blocks after slots 0 .. slots-1.
  void truncate(SequenceBlocks& seq, int64_t slots);
  void release(SequenceBlocks& seq);

  // The most blocks that a sequence of `slots` has at a time, if at most `chunk` slots are added at
  // once.
  int64_t most_blocks(size_t group, int64_t slots, int64_t chunk) const;
  // Blocks of the sequence in a group.
  static int64_t held(const SequenceBlocks& seq, size_t group) {
    const SequenceBlocks::Table& t = seq.tables[group];
    return static_cast<int64_t>(t.blocks.size()) - t.dropped;
  }

  size_t groups() const { return groups_.size(); }
  const GroupEntry& group(size_t g) const { return groups_[g]; }
  const BlockPool& pool(size_t g) const { return pools_[g]; }
  const PrefixIndex* index() const { return index_.get(); }
  int64_t unit() const { return unit_; }
  int64_t total_blocks() const;
  int64_t free_blocks() const;             // used by no sequence: empty or cached
  int64_t cached_blocks() const;           // of them: with content
  uint64_t tick() const { return tick_; }  // grows when sequences release blocks
  int64_t evicted() const { return evicted_; }
  int64_t copied() const { return copied_; }
  bool all_free() const { return free_blocks() == total_blocks(); }

 private:
  BlockHandle take(size_t group);  // evicts a cached block if none is free
  void evict(size_t group);
  Retention retention(const SequenceBlocks& seq, int64_t depth) const;
  int64_t last_hole(size_t group, int64_t from, int64_t to) const;
  void walk(std::string_view salt, std::span<const int32_t> ids, int64_t most);
  void index_units(SequenceBlocks& seq, int64_t units, std::span<const int32_t> ids);
  void leave_index(SequenceBlocks& seq);
  void drop_copies(SequenceBlocks& seq);

  std::vector<GroupEntry> groups_;
  std::vector<BlockPool> pools_;
  int64_t unit_ = 1;
  std::unique_ptr<PrefixIndex> index_;
  std::vector<PrefixNode> walk_;  // of the last lookup
  int64_t walk_whole_ = 0;        // nodes of it whose tokens all match
  int64_t walk_tokens_ = 0;       // tokens that match
  uint64_t tick_ = 0;
  Nanos now_ = 0;
  int64_t evicted_ = 0, copied_ = 0;
};

// The first slot that a query at `slot` or later can see.
int64_t first_visible(const GroupEntry& group, int64_t slot);
// The same bound as KvCache::most_blocks, before there is a cache.
int64_t most_blocks(const GroupEntry& group, int64_t slots, int64_t chunk);

}  // namespace tokamak
