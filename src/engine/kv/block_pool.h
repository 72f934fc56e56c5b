#pragma once
// The KV blocks of one group: who is free, who is in use and what can be trusted.
#include <cstdint>
#include <vector>

namespace tokamak {

// A block by index and generation: a handle kept beyond its release does not match any more.
struct BlockHandle {
  int32_t index = -1;
  uint32_t generation = 0;
  bool valid() const { return index >= 0; }
  bool operator==(const BlockHandle&) const = default;
};

enum class BlockState : uint8_t {
  kFree,
  kReserved,  // belongs to a sequence; nothing in it is proven
  kFilling,   // its first slots are proven produced
  kReady,     // all of it is proven produced
};

// Owned by KvCache, used by the engine's thread. Bookkeeping only: never sees bytes. O(1) per
// block, no allocation after construction. The block freed last is given out first.
class BlockPool {
 public:
  explicit BlockPool(int64_t blocks);

  int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }

  BlockHandle take();                // kReserved, one reference; TK_CHECK if none is free
  void retain(BlockHandle handle);   // one more reference (shared prefixes, forks)
  void release(BlockHandle handle);  // one less; the last one frees it
  void set_state(BlockHandle handle, BlockState state);  // of a block in use

  BlockState state(BlockHandle handle) const { return block(handle).state; }
  int32_t references(BlockHandle handle) const { return block(handle).references; }

 private:
  struct Block {
    uint32_t generation = 0;
    int32_t references = 0;
    BlockState state = BlockState::kFree;
  };
  const Block& block(BlockHandle handle) const;  // TK_CHECKs index and generation
  Block& block(BlockHandle handle);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
};

}  // namespace tokamak
