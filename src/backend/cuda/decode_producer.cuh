#pragma once
// The producer warp: streams what the block will need through the ring, across instructions.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeProducer {
 public:
  __device__ explicit DecodeProducer(DecodeThread<C>& t) : t_(t), ring_(t.shared.ring) {}

  __device__ void run() {
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
  // Lane w serves consumer w.
  __device__ bool stream_rows(const DecodeInstruction& in) {
    MatvecWork<C> work(in);
    int tiles = work.tiles(t_.block, t_.all_warps());
    int row_unit = t_.lane * t_.blocks + t_.block, row = 0, part = 0;
    uint32_t bytes = work.elements * 2;
    const Bf16* weights = static_cast<const Bf16*>(in.weights);
    for (int tile = 0; tile < tiles; ++tile) {
      bool has = t_.lane < C::kWarps && row_unit < work.units;
      uint32_t full = ring_.begin_tile(__popc(__ballot_sync(kAllLanes, has)) * bytes);
      if (!full) return false;
      if (has) {
        const Bf16* from = weights + (static_cast<int64_t>(row_unit) * work.unit + row) * in.width +
                           part * work.elements;
        bulk_copy(ring_.chunk(t_.lane), from, bytes, full);
        if (++part == work.parts) {
          part = 0;
          if (++row == work.unit) {
            row = 0;
            row_unit += t_.all_warps();
          }
        }
      }
      ring_.end_tile();
    }
    return true;
  }

  __device__ bool stream_cache(const DecodeInstruction& in) {
    AttendWork work(t_.block, t_.blocks, t_.launch.kv_heads, t_.position);
    int tiles = work.tiles(C::kWarps);
    constexpr uint32_t kBytes = kGroupPositions * C::kHead * 2;
    for (int tile = 0; tile < tiles; ++tile) {
      int group = work.group(tile, t_.lane, C::kWarps);
      bool has = t_.lane < C::kWarps && group < work.groups;
      int64_t from = 0;
      if (has) from = cache_offset(t_.launch, group * kGroupPositions, work.head, C::kHead);
      uint32_t full = ring_.begin_tile(__popc(__ballot_sync(kAllLanes, has)) * 2 * kBytes);
      if (!full) return false;
      if (has) {
        uint32_t to = ring_.chunk(t_.lane);
        bulk_copy(to, static_cast<const Bf16*>(in.weights) + from, kBytes, full);
        bulk_copy(to + kBytes, static_cast<const Bf16*>(in.values) + from, kBytes, full);
      }
      ring_.end_tile();
    }
    return true;
  }

  DecodeThread<C>& t_;
  RingProducer<C> ring_;
};

}  // namespace tokamak::cuda
