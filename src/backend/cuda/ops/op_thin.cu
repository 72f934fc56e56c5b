// Products of few rows with bf16 weights, which read each weight once and start to do so before the
// launch that computes the rows is done. A block multiplies `tile` rows of the weights with a part
// of k: weights and values go through a ring of stages in shared memory, and each warp has 32
// values of k of a stage and some of the tile's rows. The sums of the warps are added in order.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// kBatch: rows of the values, padded. kChunk: values of k in a stage.
template <int kBatch, int kChunk>
struct ThinProduct {
  static constexpr int kColumns = kBatch / 8;  // of eight rows, for a product of tensor cores
  static constexpr int kDepth = kChunk / 32;   // warps along k
  static constexpr int kAcross = kThinWarps / kDepth;
  static constexpr int kTiles = thin_warp_tiles(kBatch);     // of 16 weights' rows, most of a warp
  static constexpr int kVectors = kChunk / 8;                // of 16 bytes in a row of a stage
  static constexpr int kCopyRows = kThinThreads / kVectors;  // that all threads copy at a time
  static constexpr int kWeightCopies = 16 * kTiles * kAcross / kCopyRows;
  static constexpr int kValueCopies = (kBatch + kCopyRows - 1) / kCopyRows;
  const ThinArgs& a;
  uint8_t* shared;
  int64_t first_k;
  int warp, lane, depth, across, tiles;
  float sum[kTiles][kColumns][4] = {};
  uint32_t weights_at[kWeightCopies] = {}, values_at = 0, wanted = 0, exists = 0;
  int to = 0;

  TK_DEVICE ThinProduct(const ThinArgs& args, uint8_t* memory) : a(args), shared(memory) {
    warp = static_cast<int>(threadIdx.x / kWarp);
    lane = static_cast<int>(threadIdx.x % kWarp);
    depth = warp % kDepth;
    across = warp / kDepth;
    tiles = a.tile / 16;
    first_k = int64_t{blockIdx.y} * a.part;
  }
  TK_DEVICE uint8_t* stage(int i) const {
    return shared + (i % kThinStages) * ((a.tile + kBatch) * kChunk * 2);
  }
  // Odd rows have the halves of 128 bytes exchanged: eight lanes read all banks.
  TK_DEVICE static int offset_of(int row, int vector) {
    return row * (kChunk * 2) + (vector ^ (row & 1) << 2) * 16;
  }
  // The weights' row that a row of the tile is; tiles of gates and of what they gate alternate.
  TK_DEVICE int64_t weight_row(int row) const {
    if (!a.gated) return int64_t{blockIdx.x} * a.tile + row;
    int64_t gate = int64_t{blockIdx.x} * (a.tile / 2) + row / 32 * 16 + row % 16;
    return gate < a.n / 2 ? gate + row / 16 % 2 * (a.n / 2) : a.n;
  }
  // Where this thread's copies come from and go to: the same places of every stage.
  TK_DEVICE void find_places() {
    const int row = static_cast<int>(threadIdx.x) / kVectors;
    const int vector = static_cast<int>(threadIdx.x) % kVectors;
    to = offset_of(row, vector);
#pragma unroll
    for (int c = 0; c < kWeightCopies; ++c) {
      const int64_t from = weight_row(row + c * kCopyRows);
      if (row + c * kCopyRows >= a.tile) continue;
      wanted |= 1u << c;
      if (from >= a.n) continue;
      exists |= 1u << c;
      weights_at[c] = static_cast<uint32_t>(from * a.k + first_k + vector * 8);
    }
    values_at = static_cast<uint32_t>(row * a.k + first_k + vector * 8);
  }
  TK_DEVICE void fetch_weights(int i) const {
    uint8_t* rows = stage(i) + to;
#pragma unroll
    for (int c = 0; c < kWeightCopies; ++c)
      if (wanted >> c & 1)
        copy16(rows + c * (kCopyRows * kChunk * 2), a.w + (weights_at[c] + i * kChunk),
               exists >> c & 1);
  }
  TK_DEVICE void fetch_values(int i) const {
    uint8_t* rows = stage(i) + a.tile * kChunk * 2 + to;
    const int row = static_cast<int>(threadIdx.x) / kVectors;
#pragma unroll
    for (int c = 0; c < kValueCopies; ++c) {
      if (row + c * kCopyRows >= kBatch) continue;
      const bool valid = row + c * kCopyRows < a.rows;
      const uint32_t at = values_at +
                          static_cast<uint32_t>(c * kCopyRows) * static_cast<uint32_t>(a.k) +
                          i * kChunk;
      copy16(rows + c * (kCopyRows * kChunk * 2), a.x + (valid ? at : 0), valid);
    }
  }

  TK_DEVICE void run() {
    find_places();
    const int stages = static_cast<int>(a.part / kChunk);
    for (int i = 0; i < kThinStages - 1; ++i)
      if (i < stages) fetch_weights(i);
    copies_begin();
    wait_for_earlier();
    for (int i = 0; i < kThinStages - 1; ++i) {
      if (i < stages) fetch_values(i);
      copies_begin();
    }
    for (int i = 0; i < stages; ++i) {
      copies_wait<kThinStages - 2>();
      sync_block();
      if (int next = i + kThinStages - 1; next < stages) {
        fetch_weights(next);
        fetch_values(next);
      }
      copies_begin();
      multiply(i);
    }
    add_warps();
    store_sums();
  }

  TK_DEVICE void multiply(int i) {
    const uint8_t *weights = stage(i), *values = weights + a.tile * kChunk * 2;
    const int vector = depth * 4 + lane % 4;
    Words4 low[kTiles], high[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const int row = (m * kAcross + across) * 16 + lane / 4;
      if (m * kAcross + across >= tiles) break;
      low[m] = *reinterpret_cast<const Words4*>(weights + offset_of(row, vector));
      high[m] = *reinterpret_cast<const Words4*>(weights + offset_of(row + 8, vector));
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const Words4 x =
          *reinterpret_cast<const Words4*>(values + offset_of(n * 8 + lane / 4, vector));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if (m * kAcross + across >= tiles) break;
        const uint32_t first[4] = {low[m].x, high[m].x, low[m].y, high[m].y};
        mma_bf16(sum[m][n], first, x.x, x.y);
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if (m * kAcross + across >= tiles) break;
        const uint32_t second[4] = {low[m].z, high[m].z, low[m].w, high[m].w};
        mma_bf16(sum[m][n], second, x.z, x.w);
      }
    }
  }

  // [warp along k][row of the tile][row of the values]
  TK_DEVICE float* sums_of(int d, int row) const {
    return reinterpret_cast<float*>(shared) + (d * a.tile + row) * (kBatch + 1);
  }
  TK_DEVICE void add_warps() {
    copies_wait<0>();
    sync_block();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const int tile = m * kAcross + across;
      if (tile >= tiles) break;
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums_of(depth, tile * 16 + lane / 4 + j / 2 * 8)[n * 8 + lane % 4 * 2 + j % 2] =
              sum[m][n][j];
    }
    sync_block();
  }
  TK_DEVICE float total(int row, int b) const {
    float t = 0;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) t += sums_of(d, row)[b];
    return t;
  }
  TK_DEVICE void store_sums() const {
    const int results = a.gated ? a.tile / 2 : a.tile;
    for (int at = static_cast<int>(threadIdx.x); at < results * a.rows; at += kThinThreads) {
      const int b = at / results, r = at % results;
      if (a.gated) {
        const int64_t column = int64_t{blockIdx.x} * results + r;
        if (column >= a.n / 2) continue;
        const int row = r / 16 * 32 + r % 16;
        // Rounded as if they were stored.
        float gate = brain_value(brain_bits(total(row, b)));
        float up = brain_value(brain_bits(total(row + 16, b)));
        static_cast<uint16_t*>(a.y)[b * (a.n / 2) + column] =
            brain_bits(gate / (1.0f + expf(-gate)) * up);
        continue;
      }
      const int64_t column = int64_t{blockIdx.x} * a.tile + r;
      if (column >= a.n) continue;
      if (a.wide)
        static_cast<float*>(a.y)[(int64_t{blockIdx.y} * a.rows + b) * a.n + column] = total(r, b);
      else
        static_cast<uint16_t*>(a.y)[b * a.n + column] = brain_bits(total(r, b));
    }
  }
};

template <int kBatch, int kChunk>
TK_DEVICE void thin_product(const ThinArgs& a) {
  TK_DYNAMIC_SHARED(uint8_t, memory);
  allow_next();
  ThinProduct<kBatch, kChunk>(a, memory).run();
}

#define TK_THIN(batch, chunk)                                         \
  TK_KERNEL_PAIR(op_thin_##batch##_##chunk, ThinArgs, kThinThreads) { \
    thin_product<batch, chunk>(a);                                    \
  }
TK_THIN(16, 64)
TK_THIN(16, 128)
TK_THIN(16, 256)
TK_THIN(32, 64)
TK_THIN(32, 128)
TK_THIN(32, 256)
TK_THIN(64, 64)
TK_THIN(64, 128)
TK_THIN(64, 256)

}  // namespace tokamak::cuda
