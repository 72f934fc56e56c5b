#pragma once
// A producer warp: streams what the block will need through the ring, across instructions.
#include "backend/cuda/decode_context.cuh"

namespace tokamak::cuda {

template <class C>
class DecodeProducer {
 public:
  __device__ DecodeProducer(const DecodeLaunch& launch, DecodeShared<C>& shared, int producer)
      : launch_(launch),
        ring_(shared.ring, producer, launch.in_flight),
        consumer_(ring_.consumer()) {
    serves_ = consumer_ < C::kWarps;
    ring_.timed = opaque(launch.profile != nullptr && producer == 0);
  }

  __device__ void run(const AttendWork& attend) {
#pragma unroll 1
    for (int k = launch_.first; k < launch_.end; ++k) {
      const DecodeInstruction& in = decode_program[k];
      bool alive = true;
      if (in.op == DecodeOp::kMatvec) alive = stream_rows(in);
      if (in.op == DecodeOp::kAttend) alive = stream_cache(in, attend);
      if (ring_.timed) note_waits(k);
      if (!alive) break;
    }
    ring_.drain();
  }
  // The consumer that the calling lane serves, or 0.
  __device__ int consumer() const { return serves_ ? consumer_ : 0; }

 private:
  __device__ void note_waits(int instruction) {
    const int block = static_cast<int>(blockIdx.x);
    if (threadIdx.x % 32 == 0) {
      *profile_entry(launch_, block, instruction, kWaitRoom) = ring_.room_wait;
      *profile_entry(launch_, block, instruction, kWaitCopies) = ring_.copy_wait;
    }
    ring_.room_wait = ring_.copy_wait = 0;
  }
  __device__ bool stream_rows(const DecodeInstruction& in) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    MatvecWork work(in, block, blocks, consumer());
    const auto bytes = static_cast<uint32_t>(decode_chunk_bytes(in.type, work.width));
    const bool rows = decode_16_bits(in.type), parts_outside = work.part_major<C>(in);
    // Gate and up in matrices of their own: every second consumer reads the other one.
    const bool split = rows && in.values;
    // Distances in bytes from chunk to chunk, part to part and tile to tile.
    const int64_t chunk = rows ? static_cast<int64_t>(in.width) * 2 : bytes;
    const int64_t part =
        rows ? static_cast<int64_t>(bytes) : static_cast<int64_t>(bytes) * C::kWarps;
    const int64_t tile = rows ? chunk * (C::kWarps >> split) : part * work.parts;
    const void* weights = split && consumer() % 2 ? in.values : in.weights;
    const char* start =
        static_cast<const char*>(weights) + block * tile + (consumer() >> split) * chunk;
    const int inner = parts_outside ? work.tiles : work.parts;
    const int64_t next_tile = tile * blocks;
    const int64_t inner_step = parts_outside ? next_tile : part;
    const int64_t outer_step = parts_outside ? part : next_tile;
    // Rows of the last tile may be missing; packed weights have them all.
    const int row = block * C::kWarps + consumer();
    const uint64_t policy = read_once_policy();
    int done = 0;
    const char* from = start;
#pragma unroll 1
    for (int left = work.tiles * work.parts, outer = 0; left > 0; --left) {
      const int turn = parts_outside ? done : outer;
      bool has = serves_ && (!rows || row + turn * blocks * C::kWarps < in.rows);
      if (!ring_.tile(has, bytes, [&](uint32_t to, uint32_t barrier) {
            bulk_copy_once(to, from, bytes, barrier, policy);
          }))
        return false;
      from += inner_step;
      if (++done < inner) continue;
      done = 0;
      ++outer;
      start += outer_step;
      from = start;
    }
    return true;
  }

  __device__ bool stream_cache(const DecodeInstruction& in, const AttendWork& work) {
    constexpr uint32_t kBytes = kGroupPositions * C::kHead * 2;
#pragma unroll 1
    for (int tile = 0; tile < work.tiles; ++tile) {
      int group = work.group(tile);
      bool has = serves_ && group < work.groups;
      int64_t from = 0;
      if (has)
        from = cache_offset(launch_, work.sequence, group * kGroupPositions, work.head, C::kHead);
      const uint16_t *keys = static_cast<const uint16_t*>(in.weights) + from,
                     *values = static_cast<const uint16_t*>(in.values) + from;
      if (!ring_.tile(has, 2 * kBytes, [&](uint32_t to, uint32_t barrier) {
            bulk_copy(to, keys, kBytes, barrier);
            bulk_copy(to + kBytes, values, kBytes, barrier);
          }))
        return false;
    }
    return true;
  }

  const DecodeLaunch& launch_;
  RingProducer<C> ring_;
  int consumer_;
  bool serves_;
};

}  // namespace tokamak::cuda
