#include "engine/kv/block_pool.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace tokamak {
namespace {

bool later(const std::pair<Nanos, BlockHandle>& a, const std::pair<Nanos, BlockHandle>& b) {
  return a.first > b.first;
}

}  // namespace

BlockPool::BlockPool(int64_t blocks) : blocks_(static_cast<size_t>(blocks)) {
  free_.reserve(blocks_.size());
  heap_.reserve(blocks_.size());
  for (int64_t i = blocks; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

const BlockPool::Block& BlockPool::block(BlockHandle handle) const {
  TK_CHECK(handle.index >= 0 && handle.index < total(), "block {} of {}", handle.index, total());
  const Block& b = blocks_[static_cast<size_t>(handle.index)];
  TK_CHECK(b.generation == handle.generation && b.state != BlockState::kFree,
           "block {} was released: generation {}, handle of {}", handle.index, b.generation,
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

void BlockPool::retain(BlockHandle handle) {
  Block& b = block(handle);
  if (b.references++ == 0) leave_heap(b);
}

void BlockPool::release(BlockHandle handle, const Retention& retention) {
  Block& b = block(handle);
  TK_CHECK(b.references > 0, "block {} is not in use", handle.index);
  if (--b.references > 0) return;
  if (b.place.node < 0) return free(handle.index);
  // A higher priority from another use stays: a prefix is kept as long as its continuations.
  Retention r = retention;
  if (r.priority > 0 && b.retention.priority > 0)
    r.expires = std::max(r.expires, b.retention.expires);
  if (r.priority == 0) r.expires = b.retention.expires;
  r.priority = std::max(r.priority, b.retention.priority);
  b.retention = r;
  if (r.priority > 0 && r.expires != kNever && !b.expiry_queued) {
    b.expiry_queued = true;
    expiries_.emplace_back(r.expires, handle);
    std::push_heap(expiries_.begin(), expiries_.end(), later);
  }
  heap_.push_back(handle.index);
  b.heap_at = static_cast<int32_t>(heap_.size()) - 1;
  sift_up(heap_.size() - 1);
}

void BlockPool::free(int32_t index) {
  Block& b = blocks_[static_cast<size_t>(index)];
  uint32_t generation = b.generation + 1;
  b = {};
  b.generation = generation;
  free_.push_back(index);
}

void BlockPool::set_state(BlockHandle handle, BlockState state) {
  TK_CHECK(state != BlockState::kFree, "block {}: release() frees", handle.index);
  Block& b = block(handle);
  TK_CHECK(b.place.node < 0 || state == BlockState::kReady, "block {} is in the index",
           handle.index);
  b.state = state;
}

void BlockPool::index(BlockHandle handle, IndexPlace place) {
  Block& b = block(handle);
  TK_CHECK(b.place.node < 0 && b.state == BlockState::kReady && b.references > 0,
           "block {} cannot be indexed", handle.index);
  b.place = place;
}

void BlockPool::unindex(BlockHandle handle) {
  Block& b = block(handle);
  b.place = {};
  b.retention = {};
  if (b.heap_at < 0) return;
  leave_heap(b);
  free(handle.index);
}

BlockHandle BlockPool::next_victim() const {
  TK_CHECK(!heap_.empty(), "no block is cached");
  int32_t index = heap_.front();
  return {index, blocks_[static_cast<size_t>(index)].generation};
}

void BlockPool::expire(Nanos now) {
  while (!expiries_.empty() && expiries_.front().first <= now) {
    BlockHandle handle = expiries_.front().second;
    std::pop_heap(expiries_.begin(), expiries_.end(), later);
    expiries_.pop_back();
    Block& b = blocks_[static_cast<size_t>(handle.index)];
    if (b.generation != handle.generation) continue;  // the block has been reused
    b.expiry_queued = false;
    Retention& r = b.retention;
    if (r.priority > 0 && r.expires > now && r.expires != kNever) {  // used again since
      b.expiry_queued = true;
      expiries_.emplace_back(r.expires, handle);
      std::push_heap(expiries_.begin(), expiries_.end(), later);
    } else if (r.expires <= now) {
      r.priority = 0;
      r.expires = kNever;
      if (b.heap_at >= 0) sift_up(static_cast<size_t>(b.heap_at));
    }
  }
}

// --- the heap of cached blocks

bool BlockPool::before(int32_t a, int32_t b) const {
  const Retention& x = blocks_[static_cast<size_t>(a)].retention;
  const Retention& y = blocks_[static_cast<size_t>(b)].retention;
  return std::tuple(x.priority, x.tick, -x.depth, a) < std::tuple(y.priority, y.tick, -y.depth, b);
}

void BlockPool::put(size_t at, int32_t index) {
  heap_[at] = index;
  blocks_[static_cast<size_t>(index)].heap_at = static_cast<int32_t>(at);
}

void BlockPool::sift_up(size_t at) {
  int32_t index = heap_[at];
  for (size_t parent = 0; at > 0; at = parent) {
    parent = (at - 1) / 2;
    if (!before(index, heap_[parent])) break;
    put(at, heap_[parent]);
  }
  put(at, index);
}

void BlockPool::sift_down(size_t at) {
  int32_t index = heap_[at];
  while (2 * at + 1 < heap_.size()) {
    size_t child = 2 * at + 1;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], index)) break;
    put(at, heap_[child]);
    at = child;
  }
  put(at, index);
}

void BlockPool::leave_heap(Block& b) {
  if (b.heap_at < 0) return;
  auto at = static_cast<size_t>(b.heap_at);
  b.heap_at = -1;
  int32_t last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  put(at, last);
  sift_up(at);
  sift_down(static_cast<size_t>(blocks_[static_cast<size_t>(last)].heap_at));
}

}  // namespace tokamak
