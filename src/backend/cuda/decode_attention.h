#pragma once
// Attention of one query position per sequence over a paged cache, for batches. Every block gets an
// equal share of all cached positions of the batch, whatever the lengths, so that memory is read at
// full speed; partial results meet in a second kernel.
#include <cstdint>

namespace tokamak::cuda {

constexpr int kAttentionMaxBatch = 1024;

// Two blocks share a multiprocessor where their registers fit: one computes while the other begins
// or ends a head. group: query heads per key/value head.
constexpr int attention_resident(int group) { return group <= 4 ? 2 : 1; }
constexpr int attention_slots(int group) { return group <= 4 ? 2 : 5; }  // of the ring
constexpr int attention_producers(int group) { return 4 / attention_resident(group); }
constexpr int attention_threads(int group) { return 256 + 32 * attention_producers(group); }

struct AttentionLaunch {
  const void* queries;     // bf16 [batch, heads, head_dim]
  const void* keys;        // [page, kv head, slot, head_dim]
  const void* values;      // like keys
  const int32_t* pages;    // [batch, page_stride]
  const int32_t* lengths;  // [batch]: positions to attend to
  float* partials;         // [attention_partials(...), group, head_dim + 1]
  void* output;            // bf16 [batch, heads, head_dim]
  int32_t batch, heads, kv_heads, page_size, page_stride;
  int32_t blocks;     // of the first kernel
  int32_t in_flight;  // quarters of tiles that may be loading at a time
  float scale;
  uint32_t cache_f16;  // keys and values are f16 instead of bf16
};

// Rows of AttentionLaunch::partials. Block c and the p-th (sequence, kv head) pair share row c + p.
constexpr int64_t attention_partials(int batch, int kv_heads, int blocks) {
  return static_cast<int64_t>(batch) * kv_heads + blocks;
}

}  // namespace tokamak::cuda
