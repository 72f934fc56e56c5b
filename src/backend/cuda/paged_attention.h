#pragma once
// Host side of the batched decode attention kernels (decode_attention.h).
#include "backend/cuda/decode_attention.h"
#include "backend/cuda/driver.h"

namespace tokamak::cuda {

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0, page_size = 16;
  int in_flight = 8;  // quarters of tiles of the ring
};

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
  Handle parts_, join_;
  Buffer partials_;
};

}  // namespace tokamak::cuda
