// ssm_scan and gated_delta for sequences with many rows, a chunk of rows at a time, on tensor
// cores. With G the running sum of the logarithms of a head's decays in a chunk, S the state before
// it and q, k the vectors of a row (c and b of ssm_scan):
//   y[i] = exp(G[i]) S q[i] + sum over j <= i of exp(G[i] - G[j]) (q[i] . k[j]) u[j]
//   S'   = exp(G[last]) S + sum over j of exp(G[last] - G[j]) u[j] k[j]^T
// where u[j] = dt x[j], or of gated_delta the solution of a triangular system:
//   u[i] = rate[i] (v[i] - exp(G[i]) S k[i] - sum over j < i of exp(G[i] - G[j]) (k[i] . k[j])
//   u[j])
// q and k are bf16. States, u and weights are f32 and enter products as the sum of two bf16
// numbers, so that results differ from those row by row by less than 1e-5 of their size.
#include "backend/cuda/ops/number.cuh"
#include "backend/cuda/ops/sequence_rows.cuh"

namespace tokamak::cuda {

using Brain = uint16_t;

// A 16-bit matrix in shared memory, as two planes whose sum it is (or one).
struct Planes {
  Brain *high, *low;
  int stride;
  TK_DEVICE void put(int row, int column, float x) const {
    const Brain h = brain_bits(x);
    high[row * stride + column] = h;
    low[row * stride + column] = brain_bits(x - brain_value(h));
  }
};

struct ChunkMemory {
  Brain *keys, *queries;  // [rows][state]
  Planes state;           // [width][state]
  Planes weights;         // [rows][rows]: of u in y
  Planes u, kept;         // [width][rows]; kept: times what is left of it after the chunk
  float *sums, *rates;    // [rows]: G; dt or rate
  float *lower, *right;   // gated_delta: [rows][rows + 1], [rows][width + 1]
  TK_DEVICE explicit ChunkMemory(uint8_t* at) {
    auto take = [&](int bytes) {
      uint8_t* begin = at;
      at += bytes;
      return begin;
    };
    auto plane = [&](int bytes) { return reinterpret_cast<Brain*>(take(bytes)); };
    keys = plane(kChunkVectorBytes / 2);
    queries = plane(kChunkVectorBytes / 2);
    state = {plane(kChunkStateBytes / 2), plane(kChunkStateBytes / 2), kChunkStateStride};
    for (Planes* p : {&weights, &u, &kept})
      *p = {plane(kChunkPlaneBytes), plane(kChunkPlaneBytes), kChunkRowStride};
    sums = reinterpret_cast<float*>(take(kChunkNumberBytes / 2));
    rates = reinterpret_cast<float*>(take(kChunkNumberBytes / 2));
    lower = reinterpret_cast<float*>(take(kChunkSolveBytes / 2));
    right = reinterpret_cast<float*>(take(kChunkSolveBytes / 2));
  }
};
constexpr int kSolveStride = kChunkRows + 1;

// c[16, 8 * tiles] += a[16, k] b[8 * tiles, k]^T, by a warp; k: a multiple of 16.
template <int tiles>
TK_DEVICE void multiply_rows(float (&c)[tiles][4], const Brain* a, int a_stride, const Brain* b,
                             int b_stride, int k) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  a += (lane % 16) * a_stride + lane / 16 * 8;
  b += (lane % 8 + lane / 16 * 8) * b_stride + lane / 8 % 2 * 8;
  for (int i = 0; i < k; i += 16) {
    uint32_t left[4];
    load_matrices(left, a + i);
#pragma unroll
    for (int t = 0; t < tiles; t += 2) {
      uint32_t right[4];
      load_matrices(right, b + t * 8 * b_stride + i);
      mma_bf16(c[t], left, right[0], right[1]);
      mma_bf16(c[t + 1], left, right[2], right[3]);
    }
  }
}
// The same with b[k, 8 * tiles].
template <int tiles>
TK_DEVICE void multiply_columns(float (&c)[tiles][4], const Brain* a, int a_stride, const Brain* b,
                                int b_stride, int k) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  a += (lane % 16) * a_stride + lane / 16 * 8;
  b += (lane % 16) * b_stride + lane / 16 * 8;
  for (int i = 0; i < k; i += 16) {
    uint32_t left[4];
    load_matrices(left, a + i);
#pragma unroll
    for (int t = 0; t < tiles; t += 2) {
      uint32_t right[4];
      load_matrices_transposed(right, b + i * b_stride + t * 8);
      mma_bf16(c[t], left, right[0], right[1]);
      mma_bf16(c[t + 1], left, right[2], right[3]);
    }
  }
}

// Calls f(row, column, value) for a lane's part of c, whose first row and column are given.
template <int tiles, class F>
TK_DEVICE void each_value(float (&c)[tiles][4], int row, int column, const F& f) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int t = 0; t < tiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f(row + lane / 4 + i / 2 * 8, column + t * 8 + lane % 4 * 2 + i % 2, c[t][i]);
}

template <bool delta>
struct ChunkBlock {
  // Places of the inputs.
  static constexpr int kQueries = delta ? 0 : 4, kKeys = delta ? 1 : 3, kWide = delta ? 2 : 0;
  static constexpr int kTiles = 4, kStateTiles = 8;
  const ScanArgs& a;
  ChunkMemory m;
  SequenceRows s;
  int thread, warp, head, group, begin, depth;  // begin: of the width; depth: of states, padded
  int row16, column32, column64;                // where the warp's parts of matrices begin
  float state[kStateTiles][4] = {};             // [width][state]

  TK_DEVICE ChunkBlock(const ScanArgs& args, uint8_t* shared)
      : a(args), m(shared), s(args.sequences, static_cast<int>(blockIdx.y)) {
    const int slices = (a.width + kChunkWidth - 1) / kChunkWidth;
    thread = static_cast<int>(threadIdx.x);
    warp = thread / kWarp;
    head = static_cast<int>(blockIdx.x) / slices;
    begin = static_cast<int>(blockIdx.x) % slices * kChunkWidth;
    group = head / (a.heads / a.groups);
    depth = (a.n + 15) / 16 * 16;
    row16 = warp % 4 * 16;
    column32 = warp / 4 * 32;
    column64 = warp / 4 * 64;
  }

  TK_DEVICE int64_t place(int row, int p) const {
    return (int64_t{row} * a.heads + head) * a.width + begin + p;
  }
  // f(value of the state in memory, in registers)
  template <class F>
  TK_DEVICE void each_state(const F& f) {
    each_value(state, row16, column64, [&](int p, int n, float& x) {
      if (begin + p < a.width && n < a.n)
        f(s.state[(int64_t{head} * a.width + begin + p) * a.n + n], x);
    });
  }

  TK_DEVICE void load_vectors(int first, int rows, int input, Brain* to) const {
    constexpr int kPieces = kChunkState / 8;
    const auto* from = static_cast<const Brain*>(a.in[input]);
    for (int i = thread; i < kChunkRows * kPieces; i += kChunkThreads) {
      const int row = i / kPieces, at = i % kPieces * 8;
      const bool exists = row < rows && at < a.n;
      const int64_t place =
          exists ? (int64_t{first + row} * a.groups + group) * a.n + at : int64_t{0};
      copy16(to + row * kChunkStateStride + at, from + place, exists);
    }
  }

  // Decays and rates of the chunk's rows; rows after the last keep everything and add nothing.
  TK_DEVICE void load_numbers(int first, int rows) const {
    if (warp > 0) return;
    float decay[2], rate[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 2 * thread + i;
      const int64_t at = int64_t{first + row} * a.heads + head;
      const bool exists = row < rows;
      rate[i] = exists ? load(a.in[delta ? 4 : 1], a.type[delta ? 4 : 1], at) : 0.0f;
      decay[i] = !exists ? 0.0f
                 : delta ? load(a.in[3], a.type[3], at)
                         : rate[i] * load(a.in[2], a.type[2], head);
    }
    float sum = decay[0] + decay[1];
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const float other = lane_up(sum, d);
      if (thread >= d) sum += other;
    }
    m.sums[2 * thread] = sum - decay[1];
    m.sums[2 * thread + 1] = sum;
    m.rates[2 * thread] = rate[0];
    m.rates[2 * thread + 1] = rate[1];
  }

  TK_DEVICE float wide(int first, int rows, int row, int p) const {
    if (row >= rows || begin + p >= a.width) return 0.0f;
    return load(a.in[kWide], a.type[kWide], place(first + row, p));
  }
  TK_DEVICE void put_u(int row, int p, float x) const {
    m.u.put(p, row, x);
    m.kept.put(p, row, expf(m.sums[kChunkRows - 1] - m.sums[row]) * x);
  }

  // c += rows of `vectors` times the state.
  TK_DEVICE void multiply_state(float (&c)[kTiles][4], const Brain* vectors) const {
    for (const Brain* plane : {m.state.high, m.state.low})
      multiply_rows(c, vectors + row16 * kChunkStateStride, kChunkStateStride,
                    plane + column32 * kChunkStateStride, kChunkStateStride, depth);
  }

  // The triangular system of gated_delta: m.lower and m.right.
  TK_DEVICE void make_system(int first, int rows) const {
    float c[kTiles][4] = {};
    multiply_rows(c, m.keys + row16 * kChunkStateStride, kChunkStateStride,
                  m.keys + column32 * kChunkStateStride, kChunkStateStride, depth);
    each_value(c, row16, column32, [&](int i, int j, float x) {
      m.lower[i * kSolveStride + j] = j < i ? m.rates[i] * expf(m.sums[i] - m.sums[j]) * x : 0.0f;
    });
    float kept[kTiles][4] = {};
    multiply_state(kept, m.keys);
    each_value(kept, row16, column32, [&](int i, int p, float x) {
      m.right[i * kSolveStride + p] = m.rates[i] * (wide(first, rows, i, p) - expf(m.sums[i]) * x);
    });
  }
  // 16 rows at a time: what earlier ones contribute, by all threads, then a thread per column.
  TK_DEVICE void solve() const {
    constexpr int kStep = 16;
    const int p = thread % kChunkWidth;
    for (int from = 0; from < kChunkRows; from += kStep) {
      for (int i = from + thread / kChunkWidth; from > 0 && i < from + kStep;
           i += kChunkThreads / kChunkWidth) {
        float x = m.right[i * kSolveStride + p];
        for (int j = 0; j < from; ++j)
          x -= m.lower[i * kSolveStride + j] * m.right[j * kSolveStride + p];
        m.right[i * kSolveStride + p] = x;
      }
      sync_block();
      if (thread < kChunkWidth) {
        float solved[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
          float x = m.right[(from + i) * kSolveStride + p];
#pragma unroll
          for (int j = 0; j < i; ++j)
            x -= m.lower[(from + i) * kSolveStride + from + j] * solved[j];
          solved[i] = x;
          m.right[(from + i) * kSolveStride + p] = x;
        }
      }
      sync_block();
    }
  }

  TK_DEVICE void make_weights() const {
    float c[kTiles][4] = {};
    multiply_rows(c, m.queries + row16 * kChunkStateStride, kChunkStateStride,
                  m.keys + column32 * kChunkStateStride, kChunkStateStride, depth);
    each_value(c, row16, column32, [&](int i, int j, float x) {
      m.weights.put(i, j, j <= i ? expf(m.sums[i] - m.sums[j]) * x : 0.0f);
    });
  }
  TK_DEVICE void store_results(int first, int rows) const {
    float c[kTiles][4] = {};
    multiply_state(c, m.queries);
    each_value(c, row16, column32, [&](int i, int, float& x) { x *= expf(m.sums[i]); });
    auto add = [&](const Brain* weights, const Brain* u) {
      multiply_rows(c, weights + row16 * kChunkRowStride, kChunkRowStride,
                    u + column32 * kChunkRowStride, kChunkRowStride, row16 + 16);
    };
    add(m.weights.high, m.u.high);
    add(m.weights.high, m.u.low);
    add(m.weights.low, m.u.high);
    each_value(c, row16, column32, [&](int i, int p, float x) {
      if (i < rows && begin + p < a.width) store(a.y, a.ty, place(first + i, p), x);
    });
  }
  TK_DEVICE void advance_state() {
    const float left = expf(m.sums[kChunkRows - 1]);
    each_value(state, row16, column64, [&](int, int, float& x) { x *= left; });
    if (column64 >= depth) return;
    for (const Brain* plane : {m.kept.high, m.kept.low})
      multiply_columns(state, plane + row16 * kChunkRowStride, kChunkRowStride, m.keys + column64,
                       kChunkStateStride, kChunkRows);
  }

  TK_DEVICE void run_chunk(int first, int rows) {
    sync_block();  // the chunk before is done with the memory
    load_vectors(first, rows, kKeys, m.keys);
    load_vectors(first, rows, kQueries, m.queries);
    copies_begin();
    load_numbers(first, rows);
    each_value(state, row16, column64, [&](int p, int n, float x) { m.state.put(p, n, x); });
    copies_wait<0>();
    sync_block();
    if constexpr (delta) {
      make_system(first, rows);
      sync_block();
      solve();
    }
    for (int i = thread; i < kChunkRows * kChunkWidth; i += kChunkThreads) {
      const int row = i / kChunkWidth, p = i % kChunkWidth;
      put_u(row, p,
            delta ? m.right[row * kSolveStride + p] : m.rates[row] * wide(first, rows, row, p));
    }
    make_weights();
    sync_block();
    store_results(first, rows);
    advance_state();
  }

  TK_DEVICE void run() {
    if (s.padding) {
      for (int64_t i = thread; i < int64_t{s.end - s.first} * kChunkWidth; i += kChunkThreads) {
        const int row = static_cast<int>(i / kChunkWidth), p = static_cast<int>(i % kChunkWidth);
        if (begin + p < a.width) store(a.y, a.ty, place(s.first + row, p), 0.0f);
      }
      return;
    }
    if (s.first == s.end) return;
    if (!s.begins) each_state([](float from, float& x) { x = from; });
    for (int first = s.first; first < s.end; first += kChunkRows)
      run_chunk(first, s.end - first < kChunkRows ? s.end - first : kChunkRows);
    each_state([](float& to, float x) { to = x; });
  }
};

TK_KERNEL(op_ssm_scan_chunks, ScanArgs, kChunkThreads) {
  TK_DYNAMIC_SHARED(uint8_t, shared);
  ChunkBlock<false>(a, shared).run();
}
TK_KERNEL(op_gated_delta_chunks, ScanArgs, kChunkThreads) {
  TK_DYNAMIC_SHARED(uint8_t, shared);
  ChunkBlock<true>(a, shared).run();
}

}  // namespace tokamak::cuda
