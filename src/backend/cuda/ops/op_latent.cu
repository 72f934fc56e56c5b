// Attention over a compressed cache (latent attention with its matrices absorbed): a key is 512
// values of plane c and 64 of plane kr, and its value is the same 512. All heads share the keys, so
// a block multiplies 16 heads of a row with them on tensor cores. Keys and values are 16-bit,
// scores and sums f32, weights are rounded to the cache's type.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

template <bool half>
struct LatentBlock {
  static constexpr int kChunksC = kLatentC / 8, kChunksE = kLatentE / 8;  // of 16 bytes
  static constexpr int kChunks = kChunksC + kChunksE;
  static constexpr int kCopies = kLatentKeys * kChunks / kLatentThreads;
  static constexpr int kColumns = kLatentC / (kLatentThreads / kWarp);  // values of a warp
  const AttendArgs& a;
  uint8_t *queries, *tiles;  // [16][c, e], two tiles of [32][c, e]; chunks swizzled
  float* scores;             // [16][32]
  int warp, lane, row, head, sequence, first_own, own_rows, length, own_slot;
  int64_t entry = 0;  // of the key with the lane's number: where it is in plane c
  int64_t entry_e = 0;
  float out[kColumns / 8][4] = {};
  float peak[2] = {-INFINITY, -INFINITY}, mass[2] = {};

  TK_DEVICE LatentBlock(const AttendArgs& args, uint8_t* shared) : a(args) {
    queries = shared;
    tiles = queries + kLatentHeads * kChunks * 16;
    scores = reinterpret_cast<float*>(tiles + 2 * kLatentKeys * kChunks * 16);
    warp = static_cast<int>(threadIdx.x / kWarp);
    lane = static_cast<int>(threadIdx.x % kWarp);
    row = a.first_row + static_cast<int>(blockIdx.y);
    head = static_cast<int>(blockIdx.x) * kLatentHeads;
    sequence = a.seq[row];
    first_own = a.q_start[sequence];
    own_rows = a.q_start[sequence + 1] - first_own;
    length = a.kv_len[sequence];
    own_slot = a.slot[row];
  }
  TK_DEVICE static uint32_t pack(float x, float y) {
    return half ? half_pair(x, y) : brain_pair(x, y);
  }
  // Chunks of plane kr follow those of plane c.
  TK_DEVICE static uint8_t* chunk_of(uint8_t* rows, int r, int chunk) {
    return rows + (r * kChunks + (chunk ^ (r & 7))) * 16;
  }
  TK_DEVICE uint8_t* tile_of(int buffer) const {
    return tiles + buffer * kLatentKeys * kChunks * 16;
  }
  // Heads after the last are the last once more, and are not stored.
  TK_DEVICE int64_t head_of(int h) const { return head + h < a.heads ? head + h : a.heads - 1; }

  TK_DEVICE void load_queries() {
    for (int i = static_cast<int>(threadIdx.x); i < kLatentHeads * kChunks; i += kLatentThreads) {
      const int h = i / kChunks, chunk = i % kChunks;
      float v[8];
      load8(a.q, a.tq, (int64_t{blockIdx.y} * a.heads + head_of(h)) * a.d + chunk * 8, v);
      *reinterpret_cast<Words4*>(chunk_of(queries, h, chunk)) = {
          pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
    }
  }
  TK_DEVICE void find_keys(int first) {
    const int key = first + lane;
    if (key >= length) return;
    const int block = a.view.table[int64_t{sequence} * a.view.stride + key / a.view.block_size];
    const int offset = key % a.view.block_size;
    entry = block * a.key[0].block_bytes + int64_t{offset} * (kLatentC * 2);
    entry_e = block * a.key[1].block_bytes + int64_t{offset} * (kLatentE * 2);
  }
  // Keys after the last are set to zero: the memory there may hold anything.
  TK_DEVICE void fetch(int first, int buffer) {
    find_keys(first);
    uint8_t* tile = tile_of(buffer);
#pragma unroll 3
    for (int i = 0; i < kCopies; ++i) {
      const int index = i * kLatentThreads + static_cast<int>(threadIdx.x);
      const int key = index / kChunks, chunk = index % kChunks;
      const bool exists = first + key < length;
      const int64_t c = lane_from(entry, key % kWarp), e = lane_from(entry_e, key % kWarp);
      const uint8_t* from = chunk < kChunksC
                                ? a.key[0].base + (exists ? c : 0) + chunk * 16
                                : a.key[1].base + (exists ? e : 0) + (chunk - kChunksC) * 16;
      copy16(chunk_of(tile, key, chunk), from, exists);
    }
    copies_begin();
  }
  TK_DEVICE bool is_seen(int key) const {
    if (key >= length) return false;
    const int own = key - (length - own_rows);
    if (own < 0) return true;
    if (a.mask) return own < a.mask_width && a.mask[int64_t{row} * a.mask_width + own] != 0;
    return a.slot[first_own + own] <= own_slot;
  }

  // Keys [begin, end), tiles of 32 from a multiple of 32 on.
  TK_DEVICE void run(int begin, int end) {
    if (begin >= end) return;
    fetch(begin, 0);
    load_queries();
    int buffer = 0;
    for (int first = begin; first < end; first += kLatentKeys, buffer ^= 1) {
      if (first + kLatentKeys < end) {
        fetch(first + kLatentKeys, buffer ^ 1);
        copies_wait<1>();
      } else {
        copies_wait<0>();
      }
      sync_block();
      multiply_keys(tile_of(buffer));
      sync_block();
      add_values(tile_of(buffer), warp_ballot(is_seen(first + lane)));
      sync_block();
    }
  }
  // Each warp computes the scores of 8 keys for all heads.
  TK_DEVICE void multiply_keys(uint8_t* tile) {
    float sum[4] = {};
#pragma unroll 6
    for (int chunk = 0; chunk < kChunks; chunk += 4) {  // 32 values
      uint32_t q[2][4], k[4];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        load_matrices(q[j], chunk_of(queries, lane % 16, chunk + 2 * j + lane / 16));
      load_matrices(k, chunk_of(tile, warp * 8 + lane % 8, chunk + lane / 8));
      mma_16bit<half>(sum, q[0], k[0], k[1]);
      mma_16bit<half>(sum, q[1], k[2], k[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[(lane / 4 + i / 2 * 8) * kLatentKeys + warp * 8 + lane % 4 * 2 + i % 2] =
          sum[i] * a.scale;
  }
  // Every warp turns all scores into weights; each adds its columns of the values.
  TK_DEVICE void add_values(uint8_t* tile, unsigned seen) {
    float weight[2][kLatentKeys / 16][4];  // of rows lane / 4 and lane / 4 + 8
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = peak[i];
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int key = k * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
          const float score = scores[(lane / 4 + 8 * i) * kLatentKeys + key];
          weight[i][k][j] = seen >> key & 1 ? score : -INFINITY;
          top = fmaxf(top, weight[i][k][j]);
        }
      top = fmaxf(top, lane_xor(top, 1));
      top = fmaxf(top, lane_xor(top, 2));
      const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet
      const float rescale = fast_exp(peak[i] - base);
      peak[i] = top;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += weight[i][k][j] = fast_exp(weight[i][k][j] - base);
      mass[i] = mass[i] * rescale + sum;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        out[n][2 * i] *= rescale;
        out[n][2 * i + 1] *= rescale;
      }
    }
#pragma unroll
    for (int k = 0; k < kLatentKeys / 16; ++k) {
      uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[i] = pack(weight[i % 2][k][i / 2 * 2], weight[i % 2][k][i / 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        uint32_t b[4];  // 16 keys, 16 values of each
        load_matrices_transposed(
            b, chunk_of(tile, k * 16 + lane % 16, warp * (kColumns / 8) + n + lane / 16));
        mma_16bit<half>(out[n], p, b[0], b[1]);
        mma_16bit<half>(out[n + 1], p, b[2], b[3]);
      }
    }
  }
  // partial: peak, mass and sums of this part of the keys; else results.
  TK_DEVICE void store_heads(bool split) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = mass[i];
      total += lane_xor(total, 1);
      total += lane_xor(total, 2);
      const int h = head + lane / 4 + 8 * i;
      if (h >= a.heads) continue;
      const int64_t at = int64_t{blockIdx.y} * a.heads + h;
      float* to = a.partial + (at * a.segments + blockIdx.z) * (a.dv + 2);
      if (split && warp == 0 && lane % 4 == 0) to[0] = peak[i], to[1] = total;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = warp * kColumns + n * 8 + lane % 4 * 2 + j;
          const float sum = out[n][2 * i + j];
          if (split)
            to[2 + column] = sum;
          else
            store(a.y, a.ty, at * a.dv + column, total == 0 ? 0.0f : sum / total);
        }
    }
  }
};

template <bool half>
TK_DEVICE void attend_heads(const AttendArgs& args) {
  TK_DYNAMIC_SHARED(uint8_t, memory);
  LatentBlock<half> block(args, memory);
  const int begin = static_cast<int>(blockIdx.z) * args.part_keys;
  const int end = args.part_keys > 0 && begin + args.part_keys < block.length
                      ? begin + args.part_keys
                      : block.length;
  block.run(begin, end);
  block.store_heads(args.part_keys > 0);
}

TK_KERNEL_RESIDENT(op_latent_f16, AttendArgs, kLatentThreads, 2) { attend_heads<true>(a); }
TK_KERNEL_RESIDENT(op_latent_bf16, AttendArgs, kLatentThreads, 2) { attend_heads<false>(a); }

}  // namespace tokamak::cuda
