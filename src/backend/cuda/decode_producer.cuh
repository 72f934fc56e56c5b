#pragma once
// A producer warp: streams what the block will need through the ring, across instructions.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeProducer {
 public:
  __device__ explicit DecodeProducer(DecodeThread<C>& t)
      : t_(t),
        ring_(t.shared.ring, t.warp - C::kWarps, t.launch.in_flight),
        consumer_(ring_.consumer()) {}

  __device__ void run() {
#pragma unroll 1
    for (int k = 0; k < t_.launch.instructions; ++k) {
      const DecodeInstruction& in = decode_program[k];
      bool alive = true;
      if (in.op == DecodeOp::kMatvec) alive = stream_rows(in);
      if (in.op == DecodeOp::kAttend) alive = stream_cache(in);
      if (!alive) break;
    }
    ring_.drain();
  }

 private:
  __device__ bool stream_rows(const DecodeInstruction& in) {
    MatvecWork<C> work(in);
    int tiles = work.tiles(t_.block, t_.all_warps());
    int row_unit = consumer_ * t_.blocks + t_.block, chunk = 0;
    const uint32_t bytes = work.elements * 2;
    const int chunks = work.unit * work.parts;  // of a unit: consecutive in memory
    const int64_t stride = static_cast<int64_t>(in.width) * work.unit * 2;
    const char* unit = static_cast<const char*>(in.weights) + row_unit * stride;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      bool has = consumer_ < C::kWarps && row_unit < work.units;
      const char* from = unit + chunk * bytes;
      if (!ring_.tile(has, bytes,
                      [&](uint32_t to, uint32_t barrier) { bulk_copy(to, from, bytes, barrier); }))
        return false;
      if (++chunk < chunks) continue;
      chunk = 0;
      row_unit += t_.all_warps();
      unit += t_.all_warps() * stride;
    }
    return true;
  }

  __device__ bool stream_cache(const DecodeInstruction& in) {
    AttendWork work(t_.block, t_.blocks, t_.launch.kv_heads, t_.position);
    int tiles = work.tiles(C::kWarps);
    constexpr uint32_t kBytes = kGroupPositions * C::kHead * 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      int group = work.group(tile, consumer_, C::kWarps);
      bool has = consumer_ < C::kWarps && group < work.groups;
      int64_t from = 0;
      if (has) from = cache_offset(t_.launch, group * kGroupPositions, work.head, C::kHead);
      const Bf16 *keys = static_cast<const Bf16*>(in.weights) + from,
                 *values = static_cast<const Bf16*>(in.values) + from;
      if (!ring_.tile(has, 2 * kBytes, [&](uint32_t to, uint32_t barrier) {
            bulk_copy(to, keys, kBytes, barrier);
            bulk_copy(to + kBytes, values, kBytes, barrier);
          }))
        return false;
    }
    return true;
  }

  DecodeThread<C>& t_;
  RingProducer<C> ring_;
  int consumer_;
};

}  // namespace tokamak::cuda
