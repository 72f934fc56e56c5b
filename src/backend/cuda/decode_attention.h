#pragma once
// Attention of one query position per sequence over a paged cache, for batches. Every block gets an
// equal share of all cached positions of the batch, whatever the lengths, so that memory is read at
// full speed. The last of the blocks that share a head adds up their partial results.
#include <cstddef>
#include <cstdint>

#include "backend/cuda/host_device.h"
#include "backend/cuda/tensor_map.h"

namespace tokamak::cuda {

constexpr int kAttentionMaxBatch = 1024;

// Two blocks share a multiprocessor: one computes while the other begins or ends a head.
constexpr int kAttentionResident = 2;
constexpr int kAttentionWarps = 4, kAttentionProducers = 2;  // of a block: that compute, that load
constexpr int kAttentionThreads = 32 * (kAttentionWarps + kAttentionProducers);
constexpr int kAttentionSlots = 2;       // of the ring of tiles
constexpr int kAttentionPositions = 16;  // of a page: a multiple

// Where a block begins, and how many places it has in all.
struct AttentionShare {
  int32_t sequence, head;
  int32_t of, length;  // places of that head; positions
  int32_t place, places;
  int32_t unused[2];
};

// The shares of a batch's blocks, made once for all layers.
struct AttentionTable {
  const int32_t* lengths;
  int64_t* first;          // [batch + 1]: first place of each sequence; then their number
  AttentionShare* shares;  // [blocks]
  int32_t batch, kv_heads, blocks;
};
constexpr int kAttentionTableThreads = 256;
constexpr size_t kAttentionShareBytes = (kAttentionMaxBatch + 2) * sizeof(int64_t);  // offset
constexpr size_t attention_table_bytes(int blocks) {
  return kAttentionShareBytes + static_cast<size_t>(blocks) * sizeof(AttentionShare);
}

struct AttentionLaunch {
  TensorMap keys, values;  // [page, kv head, slot, head_dim]; copies of kAttentionPositions
  const void* queries;     // bf16 [batch, heads, head_dim]
  const int32_t* pages;    // [batch, page_stride]
  const int32_t* lengths;  // [batch]: positions to attend to
  const int64_t* first;    // as in AttentionTable
  const AttentionShare* shares;
  float* partials;  // [attention_partials(...), group, attention_partial_row(head_dim)]
  uint32_t* done;   // [batch, kv_heads]: parts that are written; zero before and after
  void* output;     // bf16 [batch, heads, head_dim]
  int32_t batch, heads, kv_heads, page_size, page_stride;
  int32_t blocks;
  int32_t in_flight;  // quarters of tiles that may be loading at a time
  float scale;
  uint32_t cache_f16;  // keys and values are f16 instead of bf16
};

// The number of blocks for a number of (sequence, kv head) pairs, at most `most`. It is slightly
// smaller if each block then has whole pairs, or each pair whole blocks, for equal lengths.
constexpr int attention_blocks(int64_t pairs, int most) {
  const int64_t each = (pairs + most - 1) / most;
  const int64_t even = pairs > most ? (pairs + each - 1) / each : most / pairs * pairs;
  return static_cast<int>(even >= most * 15 / 16 ? even : most);
}

// Dynamic shared memory of the kernel, which checks this: ring, queries, peaks and masses,
// sums, a flag.
constexpr int attention_shared_bytes(int head_dim) {
  constexpr int kMostHeads = 8;  // per key/value head
  auto align = [](int bytes, int to) { return (bytes + to - 1) / to * to; };
  const int tile = kAttentionWarps * kAttentionPositions * head_dim * 4;
  int bytes = align(kAttentionSlots * (tile + 40) + 4, 128);
  bytes += kMostHeads * ((head_dim + 8) * 2 + 2 * kAttentionWarps * 4);
  return align(bytes + kAttentionWarps * kMostHeads * (head_dim + 4) * 4 + 1, 1024);
}

// A partial result: sums, base-2 logarithm of the mass; the next one is aligned.
TK_HOST_DEVICE constexpr int attention_partial_row(int head_dim) { return head_dim + 4; }
// Rows of AttentionLaunch::partials. Block c and the p-th (sequence, kv head) pair share row c + p.
constexpr int64_t attention_partials(int batch, int kv_heads, int blocks) {
  return static_cast<int64_t>(batch) * kv_heads + blocks;
}

}  // namespace tokamak::cuda
