#include "engine/kv/block_pool.h"

#include "base/error.h"

namespace tokamak {

BlockPool::BlockPool(int64_t blocks) : blocks_(static_cast<size_t>(blocks)) {
  free_.reserve(blocks_.size());
  for (int64_t i = blocks; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

const BlockPool::Block& BlockPool::block(BlockHandle handle) const {
  TK_CHECK(handle.index >= 0 && handle.index < total(), "block {} of {}", handle.index, total());
  const Block& b = blocks_[static_cast<size_t>(handle.index)];
  TK_CHECK(b.generation == handle.generation && b.state != BlockState::kFree,
           "block {} was given back: generation {}, handle of {}", handle.index, b.generation,
           handle.generation);
  return b;
}

BlockPool::Block& BlockPool::block(BlockHandle handle) {
  return const_cast<Block&>(static_cast<const BlockPool*>(this)->block(handle));
}

BlockHandle BlockPool::take() {
  TK_CHECK(!free_.empty(), "no free block");
  int32_t index = free_.back();
  free_.pop_back();
  Block& b = blocks_[static_cast<size_t>(index)];
  b.state = BlockState::kReserved;
  b.references = 1;
  return {index, b.generation};
}

void BlockPool::retain(BlockHandle handle) { ++block(handle).references; }

void BlockPool::release(BlockHandle handle) {
  Block& b = block(handle);
  if (--b.references > 0) return;
  b.state = BlockState::kFree;
  ++b.generation;
  free_.push_back(handle.index);
}

void BlockPool::set_state(BlockHandle handle, BlockState state) {
  TK_CHECK(state != BlockState::kFree, "block {}: release() frees", handle.index);
  block(handle).state = state;
}

}  // namespace tokamak
