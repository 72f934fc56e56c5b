#include "backend/cuda/paged_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "backend/cuda/cache_map.h"
#include "backend/cuda/decode_program.h"
#include "base/error.h"

namespace tokamak::cuda {

void set_planes(AttentionLaunch& launch, void* keys, void* values, int64_t pages, int head_dim) {
  const int64_t rows = pages * launch.kv_heads * launch.page_size;
  launch.keys = cache_map(keys, rows, head_dim, kAttentionPositions);
  launch.values = cache_map(values, rows, head_dim, kAttentionPositions);
}

PagedAttention::PagedAttention(const Device& device, const void* cubin, const AttentionShape& shape,
                               int max_batch)
    : shape_(shape),
      blocks_(kAttentionResident * device.multiprocessors()),
      max_batch_(max_batch),
      module_(cubin) {
  if (shape.kv_heads <= 0 || shape.heads % shape.kv_heads != 0 ||
      shape.heads / shape.kv_heads > kMaxGroup)
    fail(ErrorCode::kUnsupported, "decode attention: {} heads on {} key/value heads", shape.heads,
         shape.kv_heads);
  if ((shape.head_dim != 64 && shape.head_dim != 128) || shape.page_size % kAttentionPositions != 0)
    fail(ErrorCode::kUnsupported, "decode attention: heads of {} in pages of {}", shape.head_dim,
         shape.page_size);
  if (max_batch < 1 || max_batch > kAttentionMaxBatch)
    fail(ErrorCode::kUnsupported, "decode attention: {} sequences, at most {} are possible",
         max_batch, kAttentionMaxBatch);
  parts_ = module_.function(fmt::format("decode_attention_{}", shape.head_dim).c_str(),
                            attention_shared_bytes(shape.head_dim));
  join_ = module_.function(fmt::format("decode_attention_join_{}", shape.head_dim).c_str());
  auto rows = static_cast<size_t>(attention_partials(max_batch, shape.kv_heads, blocks_));
  auto heads = static_cast<size_t>(shape.heads / shape.kv_heads);
  partials_ = Buffer(rows * heads * static_cast<size_t>(attention_partial_row(shape.head_dim)) *
                     sizeof(float));
  check(driver().stream_wait(nullptr), "clearing memory");
}

void PagedAttention::launch(Handle stream, const Batch& batch) {
  TK_CHECK(batch.size >= 1 && batch.size <= max_batch_, "a batch of {}", batch.size);
  AttentionLaunch l{};
  l.queries = reinterpret_cast<const void*>(batch.queries);
  l.pages = reinterpret_cast<const int32_t*>(batch.pages);
  l.lengths = reinterpret_cast<const int32_t*>(batch.lengths);
  l.partials = partials_.as<float>();
  l.output = reinterpret_cast<void*>(batch.output);
  l.batch = batch.size;
  l.heads = shape_.heads;
  l.kv_heads = shape_.kv_heads;
  l.page_size = shape_.page_size;
  l.page_stride = batch.page_stride;
  set_planes(l, reinterpret_cast<void*>(batch.keys), reinterpret_cast<void*>(batch.values),
             batch.plane_pages, shape_.head_dim);
  l.blocks = attention_blocks(int64_t{batch.size} * shape_.kv_heads, blocks_);
  l.in_flight = shape_.in_flight;
  l.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  void* arguments[] = {&l};
  check(driver().launch(parts_, static_cast<unsigned>(l.blocks), 1, 1, kAttentionThreads, 1, 1,
                        static_cast<unsigned>(attention_shared_bytes(shape_.head_dim)), stream,
                        arguments, nullptr),
        "launching decode attention");
  const int threads = attention_join_threads(shape_.heads / shape_.kv_heads, shape_.head_dim);
  check(driver().launch(join_, static_cast<unsigned>(batch.size * shape_.kv_heads), 1, 1,
                        static_cast<unsigned>(threads), 1, 1, 0, stream, arguments, nullptr),
        "joining decode attention");
}

}  // namespace tokamak::cuda
