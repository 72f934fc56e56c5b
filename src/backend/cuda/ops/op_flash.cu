// Attention of many rows of a sequence over the paged cache, on tensor cores: 128 rows of one head
// per block, 64 keys at a time, with a running softmax. Keys and values are 16-bit; scores and sums
// are f32, weights are rounded to the cache's type. Tiles of keys begin at absolute positions, so
// a row has the same bits however a prompt is cut.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

constexpr int kFlashBuffers = 2;
constexpr float kLog2E = 1.44269504f;

// The rows of a block: of one sequence, one head.
struct FlashTile {
  int sequence = 0, first = 0, rows = 0, head = 0, kv_head = 0;
  TK_DEVICE bool find(const AttendArgs& a) {
    // The last tiles of a sequence have the most keys and come first.
    int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    for (; sequence < a.sequences; ++sequence) {
      int from = a.q_start[sequence], count = a.q_start[sequence + 1] - from;
      int tiles = (count + kFlashRows - 1) / kFlashRows;
      if (tile < tiles) {
        first = from + tile * kFlashRows;
        rows = count - tile * kFlashRows < kFlashRows ? count - tile * kFlashRows : kFlashRows;
        head = static_cast<int>(blockIdx.y);
        kv_head = head / (a.heads / a.value.heads);
        return true;
      }
      tile -= tiles;
    }
    return false;
  }
};

template <int d, bool half>
struct FlashBlock {
  static constexpr int kChunks = d / 8;  // of 16 bytes in a row
  static constexpr int kTileBytes = kFlashKeys * d * 2;
  static constexpr int kCopies = kFlashKeys * kChunks / kFlashThreads;  // of a thread and tile
  const AttendArgs& a;
  FlashTile tile;
  uint8_t* shared;  // [buffer][keys, values][kFlashKeys][d], chunks swizzled
  int warp, lane, length;
  uint32_t q[d / 16][4];
  float out[d / 8][4] = {};
  float peak[2] = {-INFINITY, -INFINITY}, mass[2] = {};
  int limit[2];     // the last key that a lane's two rows see
  int least, most;  // of the warp's rows
  int blocks_per_tile;
  struct Place {
    int block, inside;  // block of the tile, bytes from its start
  } place[kCopies];

  TK_DEVICE FlashBlock(const AttendArgs& args, const FlashTile& t, uint8_t* memory)
      : a(args), tile(t), shared(memory) {
    warp = static_cast<int>(threadIdx.x / kWarp);
    lane = static_cast<int>(threadIdx.x % kWarp);
    length = a.kv_len[tile.sequence];
    blocks_per_tile = kFlashKeys / a.view.block_size;
    for (int i = 0; i < 2; ++i) limit[i] = a.slot[row_of(i)];
    least = a.slot[tile.first + (warp * 16 < tile.rows ? warp * 16 : tile.rows - 1)];
    most = a.slot[tile.first + (warp * 16 + 15 < tile.rows ? warp * 16 + 15 : tile.rows - 1)];
    load_queries();
  }
  // Rows after the last are the last once more, and are not stored.
  TK_DEVICE int row_of(int i) const {
    int row = warp * 16 + lane / 4 + 8 * i;
    return tile.first + (row < tile.rows ? row : tile.rows - 1);
  }
  TK_DEVICE static uint32_t pack(float x, float y) {
    return half ? half_pair(x, y) : brain_pair(x, y);
  }
  TK_DEVICE void load_queries() {
#pragma unroll
    for (int k = 0; k < d / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int64_t at =
            (int64_t{row_of(i % 2)} * a.heads + tile.head) * d + k * 16 + i / 2 * 8 + lane % 4 * 2;
        q[k][i] = pack(load(a.q, a.tq, at), load(a.q, a.tq, at + 1));
      }
  }

  TK_DEVICE uint8_t* rows_of(int buffer, int plane) const {
    return shared + (buffer * 2 + plane) * kTileBytes;
  }
  TK_DEVICE static uint8_t* chunk_of(uint8_t* rows, int row, int chunk) {
    return rows + row * (d * 2) + (chunk ^ (row & 7)) * 16;
  }
  // A thread copies the same places of every tile of keys, which begins with a block of the cache.
  TK_DEVICE void find_places() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int index = i * kFlashThreads + static_cast<int>(threadIdx.x), row = index / kChunks;
      place[i].block = row / a.view.block_size;
      place[i].inside = (tile.kv_head * a.view.block_size + row % a.view.block_size) * (d * 2) +
                        index % kChunks * 16;
    }
  }
  // Keys after the last are set to zero: the memory there may hold anything.
  TK_DEVICE void fetch(int t, int buffer) {
    const int32_t* table =
        a.view.table + int64_t{tile.sequence} * a.view.stride + t * blocks_per_tile;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int index = i * kFlashThreads + static_cast<int>(threadIdx.x);
      int row = index / kChunks, chunk = index % kChunks;
      const bool exists = t * kFlashKeys + row < length;
      int64_t from = place[i].inside;
      if (exists) from += table[place[i].block] * a.value.block_bytes;
      copy16(chunk_of(rows_of(buffer, 0), row, chunk), a.key[0].base + from, exists);
      copy16(chunk_of(rows_of(buffer, 1), row, chunk), a.value.base + from, exists);
    }
    copies_begin();
  }

  TK_DEVICE void run() {
    int last = tile.first + tile.rows - 1;  // the row that sees most
    int tiles = a.slot[last] / kFlashKeys + 1;
    find_places();
    fetch(0, 0);
    for (int t = 0; t < tiles; ++t) {
      if (t + 1 < tiles) {
        fetch(t + 1, (t + 1) % kFlashBuffers);
        copies_wait<1>();
      } else {
        copies_wait<0>();
      }
      sync_block();
      if (t * kFlashKeys <= most) add_tile(t * kFlashKeys, t % kFlashBuffers);
      sync_block();
    }
    store_rows();
  }

  TK_DEVICE void add_tile(int first, int buffer) {
    float score[kFlashKeys / 8][4] = {};
    uint8_t* keys = rows_of(buffer, 0);
#pragma unroll
    for (int k = 0; k < d / 16; k += 2)
#pragma unroll
      for (int n = 0; n < kFlashKeys / 8; ++n) {
        uint32_t b[4];  // eight keys, 32 values of each
        load_matrices(b, chunk_of(keys, n * 8 + lane % 8, k * 2 + lane / 8));
        mma_16bit<half>(score[n], q[k], b[0], b[1]);
        mma_16bit<half>(score[n], q[k + 1], b[2], b[3]);
      }
    weigh(score, first);
    uint8_t* values = rows_of(buffer, 1);
#pragma unroll
    for (int k = 0; k < kFlashKeys / 16; ++k) {
      const uint32_t weights[4] = {pack(score[2 * k][0], score[2 * k][1]),
                                   pack(score[2 * k][2], score[2 * k][3]),
                                   pack(score[2 * k + 1][0], score[2 * k + 1][1]),
                                   pack(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < d / 8; n += 2) {
        uint32_t b[4];  // 16 keys, 16 values of each
        load_matrices_transposed(b, chunk_of(values, k * 16 + lane % 16, n + lane / 16));
        mma_16bit<half>(out[n], weights, b[0], b[1]);
        mma_16bit<half>(out[n + 1], weights, b[2], b[3]);
      }
    }
  }
  // Scores become weights; what was summed before is scaled to the new peak.
  TK_DEVICE void weigh(float (&score)[kFlashKeys / 8][4], int first) {
    const float scale = a.scale * kLog2E;
    if (first + kFlashKeys - 1 > least) {
#pragma unroll
      for (int n = 0; n < kFlashKeys / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (first + n * 8 + lane % 4 * 2 + j % 2 > limit[j / 2]) score[n][j] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = peak[i];
#pragma unroll
      for (int n = 0; n < kFlashKeys / 8; ++n)
        top = fmaxf(top, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
      top = fmaxf(top, lane_xor(top, 1));
      top = fmaxf(top, lane_xor(top, 2));
      const float base = top == -INFINITY ? 0.0f : top * scale;  // nothing seen yet
      const float rescale = fast_exp2(peak[i] * scale - base);
      peak[i] = top;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kFlashKeys / 8; ++n)
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j)
          sum += score[n][j] = fast_exp2(fmaf(score[n][j], scale, -base));
      mass[i] = mass[i] * rescale + sum;
      if (warp_ballot(rescale != 1.0f) == 0) continue;  // no row of the warp has a new peak
#pragma unroll
      for (int n = 0; n < d / 8; ++n) {
        out[n][2 * i] *= rescale;
        out[n][2 * i + 1] *= rescale;
      }
    }
  }
  TK_DEVICE void store_rows() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mass[i] += lane_xor(mass[i], 1);
      mass[i] += lane_xor(mass[i], 2);
      int row = warp * 16 + lane / 4 + 8 * i;
      if (row >= tile.rows) continue;
      int64_t at = (int64_t{tile.first + row} * a.heads + tile.head) * d + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < d / 8; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) store(a.y, a.ty, at + n * 8 + j, out[n][2 * i + j] / mass[i]);
    }
  }
};

template <int d, bool half>
TK_DEVICE void flash_rows(const AttendArgs& a) {
  TK_DYNAMIC_SHARED(uint8_t, memory);
  FlashTile tile;
  const bool any = tile.find(a);
  wait_for_earlier();
  if (!any) return;
  FlashBlock<d, half>(a, tile, memory).run();
}

TK_KERNEL(op_flash_64_f16, AttendArgs, kFlashThreads) { flash_rows<64, true>(a); }
TK_KERNEL(op_flash_64_bf16, AttendArgs, kFlashThreads) { flash_rows<64, false>(a); }
TK_KERNEL(op_flash_128_f16, AttendArgs, kFlashThreads) { flash_rows<128, true>(a); }
TK_KERNEL(op_flash_128_bf16, AttendArgs, kFlashThreads) { flash_rows<128, false>(a); }

}  // namespace tokamak::cuda
