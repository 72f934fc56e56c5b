// Mixture of experts: routing, rows sorted by expert, products of each expert with its rows, their
// weighted sum; and a matrix per head. Grids are made for the most rows and experts that there can
// be: a block finds its expert by the offsets, and those that have nothing to do leave. Only the
// weights of experts that have rows are read.
#include "backend/cuda/ops/linear_tile.cuh"
#include "backend/cuda/ops/mma_tile.cuh"

namespace tokamak::cuda {

// Routing: a warp per token. Scores are f64, as on the host: both choose the same experts.
TK_DEVICE double warp_top(double x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    double other = lane_xor(x, d);
    x = other > x ? other : x;
  }
  return x;
}
TK_DEVICE double warp_total(double x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += lane_xor(x, d);
  return x;
}

TK_DEVICE void score_experts(const RouteArgs& a, const void* logits, int64_t at, double* scores) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (a.sigmoid) {
    for (int e = lane; e < a.experts; e += kWarp)
      scores[e] = 1 / (1 + exp(-static_cast<double>(load(logits, a.tx, at + e))));
    return;
  }
  double top = -INFINITY, sum = 0;
  for (int e = lane; e < a.experts; e += kWarp) {
    const double x = load(logits, a.tx, at + e);
    top = x > top ? x : top;
  }
  top = warp_top(top);
  for (int e = lane; e < a.experts; e += kWarp)
    sum += scores[e] = exp(static_cast<double>(load(logits, a.tx, at + e)) - top);
  sum = warp_total(sum);
  for (int e = lane; e < a.experts; e += kWarp) scores[e] /= sum;
}

// Removes the worst groups; of equal ones the last. `group`: memory for their scores.
TK_DEVICE void keep_groups(const RouteArgs& a, double* choice, double* group) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), size = a.experts / a.groups;
  for (int g = lane; g < a.groups; g += kWarp) {
    double first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      const double x = choice[i];
      if (x > first) {
        second = first;
        first = x;
      } else if (x > second) {
        second = x;
      }
    }
    group[g] = a.sigmoid && size > 1 ? first + second : first;
  }
  sync_warp();
  if (lane == 0)
    for (int left = a.groups; left > a.used_groups; --left) {
      double worst = INFINITY;
      int at = 0;
      for (int g = 0; g < a.groups; ++g)
        if (group[g] != -INFINITY && group[g] <= worst) {
          worst = group[g];
          at = g;
        }
      group[at] = -INFINITY;
    }
  sync_warp();
  for (int e = lane; e < a.experts; e += kWarp)
    if (group[e / size] == -INFINITY) choice[e] = -INFINITY;
  sync_warp();
}

// The expert with the largest choice, of equal ones the first; 0 if there is none.
TK_DEVICE int best_expert(const double* choice, int experts) {
  double top = -INFINITY;
  int at = experts;
  for (int e = static_cast<int>(threadIdx.x % kWarp); e < experts; e += kWarp)
    if (choice[e] > top) {
      top = choice[e];
      at = e;
    }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const double other = lane_xor(top, d);
    const int its = lane_xor(at, d);
    if (other > top || (other == top && its < at)) {
      top = other;
      at = its;
    }
  }
  return at < experts ? at : 0;
}

// Dynamic shared memory: scores, choices and scores of groups of each warp.
TK_KERNEL(op_moe_route, RouteArgs, kTileThreads) {
  TK_DYNAMIC_SHARED(double, shared);
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kTileWarps + warp;
  if (row >= a.rows) return;
  double* scores = shared + warp * (2 * a.experts + a.groups);
  double* choice = scores + a.experts;
  score_experts(a, a.logits, row * a.experts, scores);
  for (int e = lane; e < a.experts; e += kWarp)
    choice[e] = a.bias ? scores[e] + static_cast<double>(load(a.bias, a.tb, e)) : scores[e];
  sync_warp();
  if (a.used_groups < a.groups) keep_groups(a, choice, choice + a.experts);
  double sum = 0;
  for (int k = 0; k < a.used; ++k) {
    const int best = best_expert(choice, a.experts);
    sum += scores[best];
    sync_warp();
    if (lane == 0) {
      a.chosen[row * a.used + k] = best;
      choice[best] = -INFINITY;
    }
    sync_warp();
  }
  for (int k = lane; k < a.used; k += kWarp) {
    double weight = scores[a.chosen[row * a.used + k]];
    if (a.normalize) weight /= sum;
    store_wide(a.weights, a.tw, row * a.used + k, weight * a.scale);
  }
}

// A block per expert: it counts the entries of the experts before it, then finds its own in order.
TK_KERNEL(op_moe_sort, SortArgs, kElementThreads) {
  constexpr int kWarps = kElementThreads / kWarp;
  __shared__ int counts[2][kWarps];
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp, warp = thread / kWarp;
  int before = 0, all = 0;
  for (int i = thread; i < a.entries; i += kElementThreads) {
    const int id = a.experts[i];
    before += id >= 0 && id < expert;
    all += id >= 0 && id < a.count;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    before += lane_xor(before, d);
    all += lane_xor(all, d);
  }
  if (lane == 0) counts[0][warp] = before, counts[1][warp] = all;
  sync_block();
  before = all = 0;
  for (int w = 0; w < kWarps; ++w) before += counts[0][w], all += counts[1][w];
  if (thread == 0) a.offsets[expert] = before;
  if (thread == 0 && expert == a.count - 1) a.offsets[a.count] = all;
  for (int i = all + expert * kElementThreads + thread; i < a.entries;
       i += a.count * kElementThreads)
    a.source[i] = -1;
  int turn = 0;
  for (int first = 0; first < a.entries; first += kElementThreads, turn ^= 1) {
    const int i = first + thread;
    const bool mine = i < a.entries && a.experts[i] == expert;
    const unsigned found = warp_ballot(mine);
    sync_block();  // counts may still be read
    if (lane == 0) counts[turn][warp] = bit_count(found);
    sync_block();
    int at = before;
    for (int w = 0; w < kWarps; ++w) {
      before += counts[turn][w];
      if (w < warp) at += counts[turn][w];
    }
    if (mine) a.source[at + bit_count(found & ((1u << lane) - 1))] = i;
  }
}

// A block per row.
TK_KERNEL(op_moe_rows, DispatchArgs, kElementThreads) {
  const int source = a.source[blockIdx.x];
  const int64_t from = source / a.used * a.d, to = int64_t{blockIdx.x} * a.d;
  if (a.vectors) {
    const int64_t words = a.d * a.element / 16;
    const auto* x =
        reinterpret_cast<const Words4*>(static_cast<const uint8_t*>(a.x)) + source / a.used * words;
    auto* y = reinterpret_cast<Words4*>(a.y) + int64_t{blockIdx.x} * words;
    for (int64_t i = threadIdx.x; i < words; i += kElementThreads)
      y[i] = source < 0 ? Words4{0, 0, 0, 0} : x[i];
    return;
  }
  for (int64_t i = threadIdx.x; i < a.d; i += kElementThreads)
    store(a.y, a.ty, to + i, source < 0 ? 0.0f : load(a.x, a.tx, from + i));
}

struct GroupTile {  // some rows of one group
  int group, first, rows;
};

// The tile with this number, of tiles of `size` rows of each group in turn; without rows: there is
// none. All lanes of the warp take part.
template <int size>
TK_DEVICE GroupTile find_tile(const int32_t* offsets, int groups, int tile) {
  constexpr int kEach = 4;  // groups of a lane
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int before = 0;
  for (int from = 0; from < groups; from += kWarp * kEach) {
    int start[kEach + 1], tiles[kEach], own = 0;
#pragma unroll
    for (int i = 0; i <= kEach; ++i) {
      const int g = from + lane * kEach + i;
      start[i] = offsets[g < groups ? g : groups];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) own += tiles[i] = (start[i + 1] - start[i] + size - 1) / size;
    int sum = own;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int below = lane_up(sum, d);
      if (lane >= d) sum += below;
    }
    int rest = tile - (before + sum - own);
    const unsigned found = warp_ballot(rest >= 0 && rest < own);
    if (found != 0) {
      GroupTile t = {0, 0, 0};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (rest >= 0 && rest < tiles[i]) {
          const int first = start[i] + rest * size, left = start[i + 1] - first;
          t = {from + lane * kEach + i, first, left < size ? left : size};
        }
        rest -= tiles[i];
      }
      const int owner = first_bit(found);
      return {lane_from(t.group, owner), lane_from(t.first, owner), lane_from(t.rows, owner)};
    }
    before += lane_from(sum, kWarp - 1);
  }
  return {0, 0, 0};
}

TK_DEVICE int64_t plain_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }
TK_DEVICE const void* elements_after(const void* p, DType type, int64_t n) {
  return static_cast<const uint8_t*>(p) + n * plain_bytes(type);
}
TK_DEVICE void* elements_after(void* p, DType type, int64_t n) {
  return static_cast<uint8_t*>(p) + n * plain_bytes(type);
}

// Rows that belong to no group are 0; `columns`: of the block.
TK_DEVICE void clear_rest(const GroupedArgs& a, int columns) {
  const LinearArgs& p = a.product;
  if (blockIdx.y != 0) return;
  const int64_t first = int64_t{blockIdx.x} * columns;
  const int64_t width = p.n - first < columns ? p.n - first : columns;
  const int64_t begin = a.offsets[a.groups];
  for (int64_t i = threadIdx.x; i < (p.rows - begin) * width; i += blockDim.x)
    store(p.y, p.ty, (begin + i / width) * p.n + first + i % width, 0.0f);
}

// The product of one group as one of plain matrices.
TK_DEVICE LinearArgs group_product(const GroupedArgs& a, const GroupTile& t) {
  LinearArgs p = a.product;
  p.x = static_cast<const uint8_t*>(p.x) + t.first * p.x_row_bytes;
  p.w += t.group * p.n * p.w_row_bytes;
  if (p.bias) p.bias = elements_after(p.bias, p.tb, t.group * p.n);
  p.y = elements_after(p.y, p.ty, t.first * p.n);
  p.rows = t.rows;
  return p;
}

struct OneTile {  // the rows are those of the block
  TK_DEVICE int64_t first(int) const { return 0; }
  TK_DEVICE int64_t y_row(const LinearArgs& p) const { return p.n; }
};
struct HeadRows {
  int64_t step;
  TK_DEVICE int64_t first(int rows) const { return int64_t{blockIdx.y} * rows; }
  TK_DEVICE int64_t y_row(const LinearArgs&) const { return step; }
};

template <WeightKind kind, int rows, int columns, bool bytes>
TK_DEVICE void grouped_tile(const GroupedArgs& a) {
  clear_rest(a, columns * kTileWarps);
  const GroupTile t = find_tile<rows>(a.offsets, a.groups, static_cast<int>(blockIdx.y));
  if (t.rows == 0) return;
  const LinearArgs p = group_product(a, t);
  if constexpr (bytes)
    linear_bytes_tile<kind, rows, columns>(p, OneTile());
  else
    linear_tile<kind, rows, columns>(p, OneTile());
}

TK_DEVICE LinearArgs head_product(const HeadsArgs& a) {
  const int64_t head = blockIdx.z;
  LinearArgs p = a.product;
  p.x = elements_after(p.x, p.tx, head * a.x_head);
  p.w += head * p.n * p.w_row_bytes;
  p.y = elements_after(p.y, p.ty, head * a.y_head);
  return p;
}
template <WeightKind kind, int rows, int columns>
TK_DEVICE void head_tile(const HeadsArgs& a) {
  linear_tile<kind, rows, columns>(head_product(a), HeadRows{a.heads * a.y_head});
}

// bf16 weights and values, on tensor cores: x_row and y_row are from one row to the next.
struct MatrixPart {
  const uint16_t *x, *w;
  const void* bias;
  void* y;
  int64_t rows, n, k, x_row, y_row;
  DType tb, ty;
  TK_DEVICE MatrixPart(const LinearArgs& p, int64_t x_step, int64_t y_step)
      : x(static_cast<const uint16_t*>(p.x)),
        w(reinterpret_cast<const uint16_t*>(p.w)),
        bias(p.bias),
        y(p.y),
        rows(p.rows),
        n(p.n),
        k(p.k),
        x_row(x_step),
        y_row(y_step),
        tb(p.tb),
        ty(p.ty) {}
  TK_DEVICE const uint16_t* x_at(int64_t row) const {  // of the lane
    return x + (row < rows ? row : rows - 1) * x_row + 8 * place_of_lane().t;
  }
  TK_DEVICE void store_sum(int64_t column, int64_t row, float sum) const {
    if (column >= n || row >= rows) return;
    if (bias) sum += load(bias, tb, column);
    store(y, ty, row * y_row + column, sum);
  }
};

// Up to 8 rows: a warp per part of k, 16 results of each row in a block.
TK_DEVICE void multiply_few(const MatrixPart& p) {
  __shared__ float parts[kMmaParts][kRowsA * kRowsB];
  constexpr int kAhead = 4;  // weights are loaded before they are used
  const Place l = place_of_lane();
  const int part = static_cast<int>(threadIdx.x / kWarp);
  const int64_t first = int64_t{blockIdx.x} * kRowsA;
  const RowsOfA rows(p.w, p.n, p.k, first);
  const uint16_t* x = p.x_at(l.g);
  float sum[4] = {};
  int64_t k = part_begin(p.k, part);
  const int64_t end = part_begin(p.k, part + 1);
  for (; k + kAhead * kMmaChunk <= end; k += kAhead * kMmaChunk) {
    FragmentA fragments[kAhead];
    Words4 b[kAhead][1];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      fragments[i] = rows.load(k + i * kMmaChunk);
      b[i][0] = *reinterpret_cast<const Words4*>(x + k + i * kMmaChunk);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) multiply<1>(sum, fragments[i], b[i]);
  }
  for (; k < end; k += kMmaChunk) {
    const Words4 b[1] = {*reinterpret_cast<const Words4*>(x + k)};
    multiply<1>(sum, rows.load(k), b);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[part][(2 * l.t + i % 2) * kRowsA + l.g + i / 2 * 8] = sum[i];
  sync_block();
  for (int i = static_cast<int>(threadIdx.x); i < kRowsA * kRowsB; i += kMmaThreads) {
    float total = parts[0][i];
    for (int j = 1; j < kMmaParts; ++j) total += parts[j][i];
    p.store_sum(first + i % kRowsA, i / kRowsA, total);
  }
}

// 64 x 128 results of a block from row `first` on: 8 warps of 32 x 32, each over all of k. The same
// additions as above.
TK_DEVICE void multiply_many(const MatrixPart& p, int64_t first) {
  constexpr int kA = 2, kGroups = 4;
  const Place l = place_of_lane();
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int64_t n = int64_t{blockIdx.x} * kMmaTileN + warp % 2 * (kA * kRowsA);
  const int64_t m = first + warp / 2 * (kGroups * kRowsB);
  if (m >= p.rows || n >= p.n) return;
  const RowsOfA upper(p.w, p.n, p.k, n), lower(p.w, p.n, p.k, n + kRowsA);
  const uint16_t* x[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) x[g] = p.x_at(m + g * kRowsB + l.g);
  float total[kA][kGroups][4] = {};
  for (int part = 0; part < kMmaParts; ++part) {
    float sum[kA][kGroups][4] = {};
#pragma unroll 2
    for (int64_t k = part_begin(p.k, part); k < part_begin(p.k, part + 1); k += kMmaChunk) {
      const FragmentA fragments[kA] = {upper.load(k), lower.load(k)};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const Words4 b[1] = {*reinterpret_cast<const Words4*>(x[g] + k)};
#pragma unroll
        for (int i = 0; i < kA; ++i) multiply<1>(sum[i][g], fragments[i], b);
      }
    }
#pragma unroll
    for (int i = 0; i < kA; ++i)
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          total[i][g][j] = part == 0 ? sum[i][g][j] : total[i][g][j] + sum[i][g][j];
  }
#pragma unroll
  for (int i = 0; i < kA; ++i)
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        p.store_sum(n + i * kRowsA + l.g + j / 2 * 8, m + g * kRowsB + 2 * l.t + j % 2,
                    total[i][g][j]);
}

TK_KERNEL(op_grouped_mma_few, GroupedArgs, kMmaThreads) {
  clear_rest(a, kRowsA);
  const GroupTile t = find_tile<kRowsB>(a.offsets, a.groups, static_cast<int>(blockIdx.y));
  if (t.rows > 0) multiply_few(MatrixPart(group_product(a, t), a.product.k, a.product.n));
}
TK_KERNEL(op_grouped_mma_many, GroupedArgs, kMmaThreads) {
  clear_rest(a, kMmaTileN);
  const GroupTile t = find_tile<kMmaTileM>(a.offsets, a.groups, static_cast<int>(blockIdx.y));
  if (t.rows > 0) multiply_many(MatrixPart(group_product(a, t), a.product.k, a.product.n), 0);
}

TK_DEVICE MatrixPart head_part(const HeadsArgs& a) {
  return MatrixPart(head_product(a), a.heads * a.x_head, a.heads * a.y_head);
}
TK_KERNEL(op_heads_mma_few, HeadsArgs, kMmaThreads) { multiply_few(head_part(a)); }
TK_KERNEL(op_heads_mma_many, HeadsArgs, kMmaThreads) {
  multiply_many(head_part(a), int64_t{blockIdx.y} * kMmaTileM);
}

#define TK_GROUPED(name, kind, bytes)                           \
  TK_KERNEL(op_grouped_##name##_1, GroupedArgs, kTileThreads) { \
    grouped_tile<kind, 1, 2, bytes>(a);                         \
  }                                                             \
  TK_KERNEL(op_grouped_##name##_4, GroupedArgs, kTileThreads) { \
    grouped_tile<kind, 4, 4, bytes>(a);                         \
  }                                                             \
  TK_KERNEL(op_grouped_##name##_8, GroupedArgs, kTileThreads) { \
    grouped_tile<kind, 8, 4, bytes>(a);                         \
  }
#define TK_HEADS(name, kind)                                                            \
  TK_KERNEL(op_heads_##name##_1, HeadsArgs, kTileThreads) { head_tile<kind, 1, 2>(a); } \
  TK_KERNEL(op_heads_##name##_8, HeadsArgs, kTileThreads) { head_tile<kind, 8, 4>(a); }

TK_GROUPED(q8_0_bytes, WeightKind::kQ8_0, true)
TK_GROUPED(q4_0_bytes, WeightKind::kQ4_0, true)
TK_GROUPED(f32, WeightKind::kF32, false)
TK_GROUPED(f16, WeightKind::kF16, false)
TK_GROUPED(bf16, WeightKind::kBF16, false)
TK_GROUPED(q8_0, WeightKind::kQ8_0, false)
TK_GROUPED(q4_0, WeightKind::kQ4_0, false)
TK_GROUPED(mxfp4, WeightKind::kMXFP4, false)
TK_GROUPED(blocks, WeightKind::kBlocks, false)
TK_HEADS(f32, WeightKind::kF32)
TK_HEADS(f16, WeightKind::kF16)
TK_HEADS(bf16, WeightKind::kBF16)
TK_HEADS(mxfp4, WeightKind::kMXFP4)
TK_HEADS(blocks, WeightKind::kBlocks)

// Where the row of each entry is. Entries without a row keep what was there: readers compare.
TK_KERNEL(op_moe_places, CombineArgs, kElementThreads) {
  const int i = static_cast<int>(blockIdx.x) * kElementThreads + static_cast<int>(threadIdx.x);
  if (i >= a.entries || i >= a.offsets[a.groups]) return;
  const int source = a.source[i];
  if (source >= 0 && source < a.entries) a.places[source] = i;
}

// A block per token. Without `places` it looks for its rows itself.
TK_KERNEL(op_moe_combine, CombineArgs, kElementThreads) {
  __shared__ int row[kMaxUsedExperts];
  __shared__ float weight[kMaxUsedExperts];
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * a.used;
  const int count = a.offsets[a.groups];
  if (thread < a.used) {
    row[thread] = -1;
    weight[thread] = load(a.weights, a.tw, first + thread);
    if (a.places) {
      const int at = a.places[first + thread];
      if (at >= 0 && at < count && a.source[at] == first + thread) row[thread] = at;
    }
  }
  sync_block();
  if (!a.places)
    for (int i = thread; i < count && i < a.entries; i += kElementThreads) {
      const int k = a.source[i] - first;
      if (k >= 0 && k < a.used) row[k] = i;
    }
  sync_block();
  for (int64_t j = thread; j < a.d; j += kElementThreads) {
    float sum = 0;
    for (int k = 0; k < a.used; ++k)
      if (row[k] >= 0) sum = fmaf(weight[k], load(a.x, a.tx, row[k] * a.d + j), sum);
    store(a.y, a.ty, int64_t{blockIdx.x} * a.d + j, sum);
  }
}

}  // namespace tokamak::cuda
