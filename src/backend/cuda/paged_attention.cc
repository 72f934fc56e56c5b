#include "backend/cuda/paged_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "backend/cuda/cache_map.h"
#include "backend/cuda/decode_program.h"
#include "base/error.h"

namespace tokamak::cuda {

AttentionTable attention_table(DeviceAddress memory, const int32_t* lengths, int batch,
                               int kv_heads, int most_blocks) {
  return {lengths,
          reinterpret_cast<int64_t*>(memory),
          reinterpret_cast<AttentionShare*>(memory + kAttentionShareBytes),
          batch,
          kv_heads,
          attention_blocks(int64_t{batch} * kv_heads, most_blocks)};
}

void set_table(AttentionLaunch& launch, const AttentionTable& table) {
  launch.lengths = table.lengths;
  launch.first = table.first;
  launch.shares = table.shares;
  launch.batch = table.batch;
  launch.kv_heads = table.kv_heads;
  launch.blocks = table.blocks;
}

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
  kernel_ = module_.function(fmt::format("decode_attention_{}", shape.head_dim).c_str(),
                             attention_shared_bytes(shape.head_dim));
  auto rows = static_cast<size_t>(attention_partials(max_batch, shape.kv_heads, blocks_));
  auto heads = static_cast<size_t>(shape.heads / shape.kv_heads);
  partials_ = Buffer(rows * heads * static_cast<size_t>(attention_partial_row(shape.head_dim)) *
                     sizeof(float));
  make_table_ = module_.function("decode_attention_table");
  table_ = Buffer(attention_table_bytes(blocks_));
  done_ = Buffer(static_cast<size_t>(max_batch * shape.kv_heads) * sizeof(uint32_t));
  check(driver().stream_wait(nullptr), "clearing memory");
}

void PagedAttention::launch(Handle stream, const Batch& batch) {
  TK_CHECK(batch.size >= 1 && batch.size <= max_batch_, "a batch of {}", batch.size);
  AttentionTable table =
      attention_table(table_.address(), reinterpret_cast<const int32_t*>(batch.lengths), batch.size,
                      shape_.kv_heads, blocks_);
  void* table_arguments[] = {&table};
  check(driver().launch(make_table_, 1, 1, 1, kAttentionTableThreads, 1, 1, 0, stream,
                        table_arguments, nullptr),
        "dividing decode attention");
  AttentionLaunch l{};
  set_table(l, table);
  l.queries = reinterpret_cast<const void*>(batch.queries);
  l.pages = reinterpret_cast<const int32_t*>(batch.pages);
  l.partials = partials_.as<float>();
  l.done = done_.as<uint32_t>();
  l.output = reinterpret_cast<void*>(batch.output);
  l.heads = shape_.heads;
  l.page_size = shape_.page_size;
  l.page_stride = batch.page_stride;
  set_planes(l, reinterpret_cast<void*>(batch.keys), reinterpret_cast<void*>(batch.values),
             batch.plane_pages, shape_.head_dim);
  l.in_flight = shape_.in_flight;
  l.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  void* arguments[] = {&l};
  check(driver().launch(kernel_, static_cast<unsigned>(l.blocks), 1, 1, kAttentionThreads, 1, 1,
                        static_cast<unsigned>(attention_shared_bytes(shape_.head_dim)), stream,
                        arguments, nullptr),
        "launching decode attention");
}

}  // namespace tokamak::cuda
