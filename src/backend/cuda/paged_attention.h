#pragma once
// Host side of the batched decode attention kernel (decode_attention.h).
#include "backend/cuda/decode_attention.h"
#include "backend/cuda/driver.h"

namespace tokamak::cuda {

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0, page_size = 16;
  int in_flight = 8;  // quarters of tiles of the ring
};

// The table of a batch, kept at `memory`, and where a launch finds it.
AttentionTable attention_table(DeviceAddress memory, const int32_t* lengths, int batch,
                               int kv_heads, int most_blocks);
void set_table(AttentionLaunch& launch, const AttentionTable& table);

// keys, values: planes of `pages` pages.
void set_planes(AttentionLaunch& launch, void* keys, void* values, int64_t pages, int head_dim);

class PagedAttention {
 public:
  // Throws kUnsupported where no kernel fits the shape.
  PagedAttention(const Device& device, const void* cubin, const AttentionShape& shape,
                 int max_batch);
  // Asynchronous. Addresses as in AttentionLaunch.
  struct Batch {
    DeviceAddress queries, keys, values, pages, lengths, output;
    int size, page_stride;
    int64_t plane_pages;  // of keys and values
  };
  void launch(Handle stream, const Batch& batch);

 private:
  AttentionShape shape_;
  int blocks_, max_batch_;
  KernelModule module_;
  Handle kernel_, make_table_;
  Buffer partials_, done_, table_;
};

}  // namespace tokamak::cuda
