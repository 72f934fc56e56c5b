// Attention of many rows of a sequence over the paged cache, on tensor cores: 128 rows of one head
// per block, 64 keys at a time, with a running softmax. Keys and values are 16-bit; scores and sums
// are f32, weights are rounded to the cache's type. Tiles of keys begin at absolute positions, so
// a row has the same bits however a prompt is cut. With a mask (a tree of drafts), it says which of
// its sequence's rows a row sees, and the keys may be divided among blocks (op_attend_join).
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

// A warp has kFlashWarpRows rows: what it reads of keys and values serves two products.
template <int d, bool half, bool masked>
struct FlashBlock {
  static constexpr int kParts = kFlashWarpRows / 16;  // rows of a warp that one product takes
  static constexpr int kSome = 32;                    // keys whose scores a lane has at a time
  static constexpr int kChunks = d / 8;               // of 16 bytes in a row
  static constexpr int kTileBytes = kFlashKeys * d * 2;
  static constexpr int kCopies = kFlashKeys * kChunks / kFlashThreads;  // of a thread and tile
  const AttendArgs& a;
  FlashTile tile;
  uint8_t* shared;  // [kFlashRows][d], [buffer][keys, values][kFlashKeys][d], chunks swizzled
  int warp, lane, length, block_shift, entry = 0;
  float out[kParts][d / 8][4] = {};
  float peak[kParts][2], mass[kParts][2] = {};
  int limit[kParts][2];  // the last key that a lane's rows see
  int least, most;       // of the warp's rows; masked: the last older key, the last of all
  int own_rows = 0;      // masked: of the sequence

  TK_DEVICE FlashBlock(const AttendArgs& args, const FlashTile& t, uint8_t* memory)
      : a(args), tile(t), shared(memory) {
    warp = static_cast<int>(threadIdx.x / kWarp);
    lane = static_cast<int>(threadIdx.x % kWarp);
    length = a.kv_len[tile.sequence];
    block_shift = 0;  // blocks are powers of two: they divide a tile
    while (1 << block_shift < a.view.block_size) ++block_shift;
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        peak[m][i] = -INFINITY;
        limit[m][i] = a.slot[row_of(warp * kFlashWarpRows + m * 16 + lane / 4 + 8 * i)];
      }
    if constexpr (masked) {
      own_rows = a.q_start[tile.sequence + 1] - a.q_start[tile.sequence];
      least = length - own_rows - 1;
      most = length - 1;
      return;
    }
    least = a.slot[row_of(warp * kFlashWarpRows)];
    most = a.slot[row_of(warp * kFlashWarpRows + kFlashWarpRows - 1)];
  }
  // Whether a lane's row i of part m sees a key that is not older than the step's own rows.
  TK_DEVICE bool sees(int m, int i, int key) const {
    const int own = key - (length - own_rows);
    const int64_t row = row_of(warp * kFlashWarpRows + m * 16 + lane / 4 + 8 * i);
    return own < own_rows && own < a.mask_width && a.mask[row * a.mask_width + own] != 0;
  }
  // Rows after the last are the last once more, and are not stored.
  TK_DEVICE int row_of(int row) const {
    return tile.first + (row < tile.rows ? row : tile.rows - 1);
  }
  TK_DEVICE static uint32_t pack(float x, float y) {
    return half ? half_pair(x, y) : brain_pair(x, y);
  }
  TK_DEVICE void load_queries() {
    for (int i = static_cast<int>(threadIdx.x); i < kFlashRows * kChunks; i += kFlashThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      float v[8];
      load8(a.q, a.tq, (int64_t{row_of(row)} * a.heads + tile.head) * d + chunk * 8, v);
      *reinterpret_cast<Words4*>(chunk_of(shared, row, chunk)) = {
          pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
    }
  }

  TK_DEVICE uint8_t* rows_of(int buffer, int plane) const {
    return shared + kFlashRows * d * 2 + (buffer * 2 + plane) * kTileBytes;
  }
  TK_DEVICE static uint8_t* chunk_of(uint8_t* rows, int row, int chunk) {
    return rows + row * (d * 2) + (chunk ^ (row & 7)) * 16;
  }
  // A tile of keys begins with a block of the cache. Keys after the last are set to zero: the
  // memory there may hold anything.
  TK_DEVICE void fetch(int t, int buffer) {
#pragma unroll 2
    for (int i = 0; i < kCopies; ++i) {
      const int index = i * kFlashThreads + static_cast<int>(threadIdx.x);
      const int row = index / kChunks, chunk = index % kChunks;
      const bool exists = t * kFlashKeys + row < length;
      const int inside = (tile.kv_head << block_shift) + (row & ((1 << block_shift) - 1));
      const int64_t block = lane_from(entry, row >> block_shift);
      const int64_t from =
          inside * (d * 2) + chunk * 16 + (exists ? block * a.value.block_bytes : 0);
      copy16(chunk_of(rows_of(buffer, 0), row, chunk), a.key[0].base + from, exists);
      copy16(chunk_of(rows_of(buffer, 1), row, chunk), a.value.base + from, exists);
    }
    copies_begin();
    find_blocks(t + 1);
  }
  // A lane has the number of one block of the next tile.
  TK_DEVICE void find_blocks(int t) {
    const int block = (t * kFlashKeys >> block_shift) + lane;
    if (lane < kFlashKeys >> block_shift && block << block_shift < length)
      entry = a.view.table[int64_t{tile.sequence} * a.view.stride + block];
  }

  TK_DEVICE void run() {
    int last = tile.first + tile.rows - 1;  // the row that sees most
    int tiles = (masked ? most : a.slot[last]) / kFlashKeys + 1, begin = 0;
    if constexpr (masked) {
      if (a.part_keys > 0) {
        begin = static_cast<int>(blockIdx.z) * (a.part_keys / kFlashKeys);
        const int end = begin + a.part_keys / kFlashKeys;
        tiles = end < tiles ? end : tiles;
        if (begin >= tiles) return store_part();
      }
    }
    find_blocks(begin);
    fetch(begin, begin % kFlashBuffers);
    load_queries();
    for (int t = begin; t < tiles; ++t) {
      if (t + 1 < tiles) {
        fetch(t + 1, (t + 1) % kFlashBuffers);
        copies_wait<1>();
      } else {
        copies_wait<0>();
      }
      sync_block();
#pragma unroll 1
      for (int k = 0; k < kFlashKeys; k += kSome)
        if (t * kFlashKeys + k <= most) add_keys(t * kFlashKeys + k, t % kFlashBuffers, k);
      sync_block();
    }
    masked&& a.part_keys > 0 ? store_part() : store_rows();
  }

  // kSome keys from row `from` of a tile on; `first`: the position of the first of them.
  TK_DEVICE void add_keys(int first, int buffer, int from) {
    float score[kParts][kSome / 8][4] = {};
    uint8_t* keys = rows_of(buffer, 0);
    const int query = warp * kFlashWarpRows + lane % 16;
#pragma unroll
    for (int k = 0; k < d / 16; k += 2) {
      uint32_t q[kParts][2][4];
#pragma unroll
      for (int m = 0; m < kParts; ++m)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          load_matrices(q[m][j], chunk_of(shared, query + m * 16, (k + j) * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < kSome / 8; ++n) {
        uint32_t b[4];  // eight keys, 32 values of each
        load_matrices(b, chunk_of(keys, from + n * 8 + lane % 8, k * 2 + lane / 8));
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
          mma_16bit<half>(score[m][n], q[m][0], b[0], b[1]);
          mma_16bit<half>(score[m][n], q[m][1], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kParts; ++m) weigh(m, score[m], first);
    uint8_t* values = rows_of(buffer, 1);
#pragma unroll
    for (int k = 0; k < kSome / 16; ++k) {
      uint32_t weights[kParts][4];
#pragma unroll
      for (int m = 0; m < kParts; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          weights[m][i] =
              pack(score[m][2 * k + i / 2][i % 2 * 2], score[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < d / 8; n += 2) {
        uint32_t b[4];  // 16 keys, 16 values of each
        load_matrices_transposed(b, chunk_of(values, from + k * 16 + lane % 16, n + lane / 16));
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
          mma_16bit<half>(out[m][n], weights[m], b[0], b[1]);
          mma_16bit<half>(out[m][n + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }
  // Scores become weights; what was summed before is scaled to the new peak.
  TK_DEVICE void weigh(int m, float (&score)[kSome / 8][4], int first) {
    const float scale = a.scale * kLog2E;
    if (first + kSome - 1 > least) {
#pragma unroll
      for (int n = 0; n < kSome / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int key = first + n * 8 + lane % 4 * 2 + j % 2;
          if (masked ? key > least && !sees(m, j / 2, key) : key > limit[m][j / 2])
            score[n][j] = -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = peak[m][i];
#pragma unroll
      for (int n = 0; n < kSome / 8; ++n)
        top = fmaxf(top, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
      top = fmaxf(top, lane_xor(top, 1));
      top = fmaxf(top, lane_xor(top, 2));
      const float base = top == -INFINITY ? 0.0f : top * scale;  // nothing seen yet
      const float rescale = fast_exp2(peak[m][i] * scale - base);
      peak[m][i] = top;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kSome / 8; ++n)
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j)
          sum += score[n][j] = fast_exp2(fmaf(score[n][j], scale, -base));
      mass[m][i] = mass[m][i] * rescale + sum;
      if (warp_ballot(rescale != 1.0f) == 0) continue;  // no row of the warp has a new peak
#pragma unroll
      for (int n = 0; n < d / 8; ++n) {
        out[m][n][2 * i] *= rescale;
        out[m][n][2 * i + 1] *= rescale;
      }
    }
  }
  // Peak, mass and sums of a part of the keys.
  TK_DEVICE void store_part() {
    each_row([&](int m, int i, int64_t at, float total) {
      float* to = a.partial + (at * a.segments + blockIdx.z) * (d + 2);
      if (lane % 4 == 0) to[0] = peak[m][i] * a.scale, to[1] = total;
      each_column([&](int n, int j, int column) { to[2 + column] = out[m][n][2 * i + j]; });
    });
  }
  TK_DEVICE void store_rows() {
    each_row([&](int m, int i, int64_t at, float total) {
      if (masked && total == 0) total = INFINITY;  // a row without keys gives 0
      each_column([&](int n, int j, int column) {
        store(a.y, a.ty, at * d + column, out[m][n][2 * i + j] / total);
      });
    });
  }
  // f(part, half of it, row and head, sum of the row's weights) for the rows of a lane.
  template <class F>
  TK_DEVICE void each_row(const F& f) {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float total = mass[m][i];
        total += lane_xor(total, 1);
        total += lane_xor(total, 2);
        const int row = warp * kFlashWarpRows + m * 16 + lane / 4 + 8 * i;
        if (row < tile.rows) f(m, i, int64_t{tile.first + row} * a.heads + tile.head, total);
      }
  }
  // f(tile of eight columns, one of the lane's two, column)
  template <class F>
  TK_DEVICE void each_column(const F& f) {
#pragma unroll
    for (int n = 0; n < d / 8; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) f(n, j, n * 8 + lane % 4 * 2 + j);
  }
};

template <int d, bool half, bool masked = false>
TK_DEVICE void flash_rows(const AttendArgs& a) {
  TK_DYNAMIC_SHARED(uint8_t, memory);
  FlashTile tile;
  const bool any = tile.find(a);
  wait_for_earlier();
  if (!any) return;
  FlashBlock<d, half, masked>(a, tile, memory).run();
}

TK_KERNEL(op_flash_64_f16, AttendArgs, kFlashThreads) { flash_rows<64, true>(a); }
TK_KERNEL(op_flash_64_bf16, AttendArgs, kFlashThreads) { flash_rows<64, false>(a); }
TK_KERNEL(op_flash_128_f16, AttendArgs, kFlashThreads) { flash_rows<128, true>(a); }
TK_KERNEL(op_flash_128_bf16, AttendArgs, kFlashThreads) { flash_rows<128, false>(a); }
TK_KERNEL(op_flash_masked_64_f16, AttendArgs, kFlashThreads) { flash_rows<64, true, true>(a); }
TK_KERNEL(op_flash_masked_64_bf16, AttendArgs, kFlashThreads) { flash_rows<64, false, true>(a); }
TK_KERNEL(op_flash_masked_128_f16, AttendArgs, kFlashThreads) { flash_rows<128, true, true>(a); }
TK_KERNEL(op_flash_masked_128_bf16, AttendArgs, kFlashThreads) { flash_rows<128, false, true>(a); }

}  // namespace tokamak::cuda
