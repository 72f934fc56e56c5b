// What a decoder layer does between its matrix products, a few ops in one kernel. Values are
// rounded where the plan stores them.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// The sum over a block of kNormThreads, in every thread.
TK_DEVICE float norm_sum(float x) {
  constexpr int kWarps = kNormThreads / kWarp;
  __shared__ float parts[kWarps];
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  sync_block();
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += parts[i];
  return sum;
}

TK_DEVICE void store8(uint16_t* to, const float (&v)[8]) {
  Words4 w;
  uint32_t* words[4] = {&w.x, &w.y, &w.z, &w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *words[i] = brain_bits(v[2 * i]) | uint32_t{brain_bits(v[2 * i + 1])} << 16;
  *reinterpret_cast<Words4*>(to) = w;
}

// Eight columns from `column` on, a multiple of eight, rounded as the product's result is.
TK_DEVICE void load8(const FewRowsSums& s, int64_t n, int64_t row, int64_t column, float (&v)[8]) {
  const int count = s.shares.of_column(static_cast<int>(column));
  const float* from = s.planes + row * n + column;
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = 0;
#pragma unroll 2
  for (int p = 0; p < count; ++p, from += s.plane) {
    float part[8];
    load8(from, DType::kF32, 0, part);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += part[j];
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = brain_value(brain_bits(v[j]));
}

// residual += delta, then y = rms_norm(residual). A block per row.
TK_KERNEL(op_add_norm, AddNormArgs, kNormThreads) {
  constexpr int kKept = 2;  // times eight values that a thread keeps; the others it reads again
  constexpr int64_t kStep = kNormThreads * 8;
  const int64_t row = blockIdx.x, from = a.rows ? a.rows[row] : row, start = threadIdx.x * 8;
  float* residual = a.residual + from * a.n;
  allow_next();
  prefetch(static_cast<const char*>(a.w) + start * (a.tw == DType::kF32 ? 4 : 2));
  wait_for_earlier();
  auto sum_at = [&](int64_t i, float(&v)[8]) {
    load8(residual, DType::kF32, i, v);
    if (!a.delta && !a.sums.planes) return;
    float add[8];
    if (a.delta)
      load8(a.delta, DType::kBF16, from * a.n + i, add);
    else
      load8(a.sums, a.n, from, i, add);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += add[j];
  };
  float kept[kKept][8], squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (start + k * kStep >= a.n) break;
    sum_at(start + k * kStep, kept[k]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += kept[k][j] * kept[k][j];
  }
  for (int64_t i = start + kKept * kStep; i < a.n; i += kStep) {
    float v[8];
    sum_at(i, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
  }
  const float factor = 1.0f / sqrtf(norm_sum(squares) / static_cast<float>(a.n) + a.eps);
  auto put = [&](int64_t i, float(&v)[8]) {
    // Chosen rows may repeat: their sums are not stored.
    if ((a.delta || a.sums.planes) && !a.rows) {
      *reinterpret_cast<Vec4*>(residual + i) = {v[0], v[1], v[2], v[3]};
      *reinterpret_cast<Vec4*>(residual + i + 4) = {v[4], v[5], v[6], v[7]};
    }
    float w[8];
    load8(a.w, a.tw, i, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = v[j] * factor * w[j];
    store8(a.y + row * a.n + i, w);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (start + k * kStep >= a.n) break;
    put(start + k * kStep, kept[k]);
  }
  for (int64_t i = start + kKept * kStep; i < a.n; i += kStep) {
    float v[8];
    sum_at(i, v);
    put(i, v);
  }
}

// silu(gate) * up; a row has the gates, then what they gate.
TK_KERNEL(op_gate, GateArgs, kElementThreads) {
  allow_next();
  wait_for_earlier();
  int64_t vectors = a.n / 8, step = int64_t{gridDim.x} * kElementThreads;
  for (int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x; i < a.rows * vectors;
       i += step) {
    int64_t row = i / vectors, at = i % vectors * 8;
    float gate[8], up[8];
    load8(a.x, DType::kBF16, row * 2 * a.n + at, gate);
    load8(a.x, DType::kBF16, row * 2 * a.n + a.n + at, up);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = gate[j] / (1.0f + expf(-gate[j])) * up[j];
    store8(a.y + row * a.n + at, gate);
  }
}

// What the positions of a step's rows are turned by, for all layers.
TK_KERNEL(op_rope_turns, TurnArgs, kElementThreads) {
  int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i < a.rows * a.half) {
    double angle = double(a.pos[i / a.half]) * double(a.frequencies[i % a.half]);
    a.turns[2 * i] = static_cast<float>(cos(angle) * double(a.scale));
    a.turns[2 * i + 1] = static_cast<float>(sin(angle) * double(a.scale));
  }
}

// The pairs of a lane; what is read for pairs after the last is not used.
template <int pairs>
TK_DEVICE void load_turns(const RotateArgs& a, int row, float (&cosine)[pairs],
                          float (&sine)[pairs]) {
#pragma unroll
  for (int p = 0; p < pairs; ++p) {
    int i = static_cast<int>(threadIdx.x % kWarp) + p * kWarp, half = a.d / 2;
    const float* turn = a.turns + (int64_t{row} * half + (i < half ? i : 0)) * 2;
    cosine[p] = turn[0];
    sine[p] = turn[1];
  }
}

// The pairs of a lane of a head that begins at `from`; 0 after the last.
template <int pairs>
TK_DEVICE void load_head(const RotateArgs& a, int64_t from, int head, float (&x)[pairs][2]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), half = a.d / 2;
  const int shares = a.sums.planes ? a.sums.shares.of_column(head * a.d) : 0;
  const float* planes = a.sums.planes ? a.sums.planes + from + lane : nullptr;
#pragma unroll
  for (int p = 0; p < pairs; ++p) x[p][0] = x[p][1] = 0;
#pragma unroll 4
  for (int s = 0; s < shares; ++s, planes += a.sums.plane)
#pragma unroll
    for (int p = 0; p < pairs; ++p)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (lane + p * kWarp < half) x[p][j] += planes[p * kWarp + j * half];
#pragma unroll
  for (int p = 0; p < pairs; ++p)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (a.sums.planes)
        x[p][j] = brain_value(brain_bits(x[p][j]));
      else if (lane + p * kWarp < half)
        x[p][j] = brain_value(a.x[from + lane + p * kWarp + j * half]);
    }
}

// Norm of a head, rotation; queries to q, keys and values to the cache. A warp per token and head;
// a lane has pairs (i, i + d / 2).
TK_KERNEL(op_rotate_append, RotateArgs, kLayerThreads) {
  constexpr int kMostPairs = 2;  // of a lane: heads up to 128
  int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % kWarp);
  int half = a.d / 2, heads = a.heads + 2 * a.kv_heads, slot = a.slot[row];
  allow_next();
  int64_t block =
      slot < 0 ? 0 : a.view.table[int64_t{a.seq[row]} * a.view.stride + slot / a.view.block_size];
  wait_for_earlier();
  float cosine[kMostPairs], sine[kMostPairs];
  load_turns(a, row, cosine, sine);
  const int head = static_cast<int>(blockIdx.y * (kLayerThreads / kWarp) + threadIdx.x / kWarp);
  if (head < heads) {
    const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
    int64_t from = (int64_t{row} * heads + head) * a.d;
    float x[kMostPairs][2], squares = 0;
    load_head(a, from, head, x);
#pragma unroll
    for (int p = 0; p < kMostPairs; ++p) squares += x[p][0] * x[p][0] + x[p][1] * x[p][1];
    squares = warp_sum(squares);
    const void* gains = query ? a.query_gains : value ? nullptr : a.key_gains;
    float factor = 1.0f / sqrtf(squares / static_cast<float>(a.d) + a.eps);
    uint8_t* base = value ? a.value.base : a.key.base;
    int kv_head = head - a.heads - (value ? a.kv_heads : 0);
    auto* cache = reinterpret_cast<uint16_t*>(base + block * a.key.block_bytes) +
                  (int64_t{kv_head} * a.view.block_size + slot % a.view.block_size) * a.d;
#pragma unroll
    for (int p = 0; p < kMostPairs; ++p) {
      int i = lane + p * kWarp;
      if (i >= half) continue;
      float u = x[p][0], v = x[p][1];
      if (gains) {
        u = brain_value(brain_bits(u * factor * load(gains, a.tg, i)));
        v = brain_value(brain_bits(v * factor * load(gains, a.tg, i + half)));
      }
      if (!value) {
        float turned = u * cosine[p] - v * sine[p];
        v = v * cosine[p] + u * sine[p];
        u = turned;
      }
      if (query) {
        int64_t to = (int64_t{row} * a.heads + head) * a.d + i;
        a.q[to] = brain_bits(u);
        a.q[to + half] = brain_bits(v);
      } else if (slot >= 0) {
        store(cache, a.key.type, i, brain_value(brain_bits(u)));
        store(cache, a.key.type, i + half, brain_value(brain_bits(v)));
      }
    }
  }
}

}  // namespace tokamak::cuda
