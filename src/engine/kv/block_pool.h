#pragma once
// The KV blocks of one group: which are free, which are in use, and which have valid content.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tokamak {

// A block by index and generation: a handle that is kept after its release is detected.
struct BlockHandle {
  int32_t index = -1;
  uint32_t generation = 0;
  bool valid() const { return index >= 0; }
  bool operator==(const BlockHandle&) const = default;
};

enum class BlockState : uint8_t {
  kFree,
  kReserved,  // belongs to a sequence; none of its slots is computed
  kFilling,   // its first slots are computed
  kReady,     // all its slots are computed
};

// The order in which unused content is evicted: low priority first, then the least recently used,
// then the end of a prefix before its beginning.
struct Retention {
  int32_t priority = 0;
  Nanos expires = kNever;  // from then on the priority is 0
  uint64_t tick = 0;       // of the last use
  int32_t depth = 0;       // within its prefix
};

// The place of a block in the prefix index.
struct IndexPlace {
  int32_t node = -1, part = 0;
};

// Owned by KvCache, used by the engine's thread. Bookkeeping only: it never touches the content. No
// allocation after construction (except for blocks with an expiry). O(1) per block in use, O(log
// blocks) for cached ones. A block is free, or used by sequences, or cached: in the prefix index
// and used by no sequence. The block that was freed last is taken first.
class BlockPool {
 public:
  explicit BlockPool(int64_t blocks);

  int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached_blocks() const { return static_cast<int64_t>(heap_.size()); }
  int64_t available() const { return free_blocks() + cached_blocks(); }

  BlockHandle take();               // kReserved, one reference; TK_CHECK if none is free
  void retain(BlockHandle handle);  // one more reference (shared prefixes, forks)
  // One reference less. Without references it becomes cached if it is in the index, else free.
  void release(BlockHandle handle, const Retention& retention = {});
  void set_state(BlockHandle handle, BlockState state);  // of a block in use

  void index(BlockHandle handle, IndexPlace place);  // it was added to the prefix index
  void unindex(BlockHandle handle);                  // it was removed; frees it if cached
  bool indexed(BlockHandle handle) const { return block(handle).place.node >= 0; }
  IndexPlace place(BlockHandle handle) const { return block(handle).place; }
  bool cached(BlockHandle handle) const { return block(handle).heap_at >= 0; }
  BlockHandle next_victim() const;  // of the cached blocks; there must be one
  void expire(Nanos now);           // ends priorities that have expired

  BlockState state(BlockHandle handle) const { return block(handle).state; }
  uint64_t last_use(BlockHandle handle) const { return block(handle).retention.tick; }
  int32_t references(BlockHandle handle) const { return block(handle).references; }

 private:
  struct Block {
    uint32_t generation = 0;
    int32_t references = 0;
    BlockState state = BlockState::kFree;
    bool expiry_queued = false;
    IndexPlace place;
    int32_t heap_at = -1;  // in heap_
    Retention retention;
  };
  const Block& block(BlockHandle handle) const;  // TK_CHECKs index and generation
  Block& block(BlockHandle handle);
  void free(int32_t index);
  bool before(int32_t a, int32_t b) const;  // a is evicted before b
  void sift_up(size_t at);
  void sift_down(size_t at);
  void put(size_t at, int32_t index);
  void leave_heap(Block& b);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::vector<int32_t> heap_;                            // cached blocks, the next victim first
  std::vector<std::pair<Nanos, BlockHandle>> expiries_;  // heap, soonest first
};

}  // namespace tokamak
