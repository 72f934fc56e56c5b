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

struct alignas(8) FourBrains {
  uint32_t low, high;
};
TK_DEVICE void load4(const void* p, DType type, int64_t i, float (&out)[4]) {
  if (type == DType::kF32) {
    const Vec4 v = *reinterpret_cast<const Vec4*>(static_cast<const float*>(p) + i);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else if (type == DType::kBF16) {
    const auto v = *reinterpret_cast<const FourBrains*>(static_cast<const uint16_t*>(p) + i);
    out[0] = bits_float(v.low << 16), out[1] = bits_float(v.low & 0xffff0000u);
    out[2] = bits_float(v.high << 16), out[3] = bits_float(v.high & 0xffff0000u);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = load(p, type, i + j);
  }
}

// Four columns of the residual stream with what is added to it, at each of kKept places that are
// kNormStep apart. The sums of kAtOnce blocks at all places are asked for together: each wait is as
// long as the rest of the kernel. blocks: whose sums they are; they are rounded as the product's
// result is.
template <int kKept, int kAtOnce>
TK_DEVICE void load_residual(const AddNormArgs& a, int64_t row, int start,
                             const int (&blocks)[kKept], float (&v)[kKept][4]) {
  const int64_t from = row * a.n + start;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    v[k][0] = v[k][1] = v[k][2] = v[k][3] = 0;
    if (start + k * kNormStep < a.n) load4(a.residual, DType::kF32, from + k * kNormStep, v[k]);
  }
  if (!a.delta && !a.sums.planes) return;
  float add[kKept][4] = {};
  if (a.delta) {
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (start + k * kNormStep < a.n) load4(a.delta, DType::kBF16, from + k * kNormStep, add[k]);
  } else {
    int most = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) most = blocks[k] > most ? blocks[k] : most;
#pragma unroll 1
    for (int first = 0; first < most; first += kAtOnce) {
      Vec4 part[kKept][kAtOnce];
#pragma unroll
      for (int k = 0; k < kKept; ++k)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          part[k][i] = first + i < blocks[k]
                           ? *reinterpret_cast<const Vec4*>(a.sums.planes + from + k * kNormStep +
                                                            (first + i) * a.sums.plane)
                           : Vec4{0, 0, 0, 0};
#pragma unroll
      for (int k = 0; k < kKept; ++k)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const Vec4& p = part[k][i];
          add[k][0] += p.x, add[k][1] += p.y, add[k][2] += p.z, add[k][3] += p.w;
        }
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) add[k][j] = brain_value(brain_bits(add[k][j]));
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int j = 0; j < 4; ++j) v[k][j] += add[k][j];
}

// residual += delta, then y = rms_norm(residual). A block per row. kKept: times four values that a
// thread keeps; the others it reads again.
template <int kKept, int kAtOnce>
TK_DEVICE void add_norm(const AddNormArgs& a) {
  constexpr int kEarly = kKept < 2 ? kKept : 2;  // places whose gains are read before the wait
  const int n = static_cast<int>(a.n), start = static_cast<int>(threadIdx.x) * 4;
  const int64_t from = a.rows ? a.rows[blockIdx.x] : static_cast<int64_t>(blockIdx.x);
  allow_next();
  auto blocks_at = [&](int i) { return a.sums.planes && i < n ? a.sums.shares.of_column(i) : 0; };
  // Before the wait: long divisions, and loads that depend on nothing.
  int blocks[kKept];
  float gains[kEarly][4] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = start + k * kNormStep;
    blocks[k] = blocks_at(i);
    if (k < kEarly && i < n) load4(a.w, a.tw, i, gains[k % kEarly]);
  }
  wait_for_earlier();
  float kept[kKept][4], more[1][4], squares = 0;
  load_residual<kKept, kAtOnce>(a, from, start, blocks, kept);
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int j = 0; j < 4; ++j) squares += kept[k][j] * kept[k][j];
  for (int i = start + kKept * kNormStep; i < n; i += kNormStep) {
    load_residual<1, kAtOnce>(a, from, i, {blocks_at(i)}, more);
#pragma unroll
    for (int j = 0; j < 4; ++j) squares += more[0][j] * more[0][j];
  }
  const float factor = 1.0f / sqrtf(norm_sum(squares) / static_cast<float>(n) + a.eps);
  auto put = [&](int i, float(&v)[4], float(&w)[4]) {
    // Chosen rows may repeat: their sums are not stored.
    if ((a.delta || a.sums.planes) && !a.rows)
      *reinterpret_cast<Vec4*>(a.residual + from * n + i) = {v[0], v[1], v[2], v[3]};
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = v[j] * factor * w[j];
    *reinterpret_cast<FourBrains*>(a.y + static_cast<int64_t>(blockIdx.x) * n + i) = {
        brain_bits(w[0]) | uint32_t{brain_bits(w[1])} << 16,
        brain_bits(w[2]) | uint32_t{brain_bits(w[3])} << 16};
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = start + k * kNormStep;
    if (i >= n) break;
    if (k >= kEarly) load4(a.w, a.tw, i, gains[k % kEarly]);
    put(i, kept[k], gains[k % kEarly]);
  }
  for (int i = start + kKept * kNormStep; i < n; i += kNormStep) {
    load_residual<1, kAtOnce>(a, from, i, {blocks_at(i)}, more);
    load4(a.w, a.tw, i, gains[0]);
    put(i, more[0], gains[0]);
  }
}

// For rows of up to kNormStep values times the number in the name; longer ones take the last, too.
// Half of the registers are left to the product that follows, which starts beside it; the last one
// needs them.
TK_KERNEL_RESIDENT(op_add_norm_1, AddNormArgs, kNormThreads, 2) { add_norm<1, 8>(a); }
TK_KERNEL_RESIDENT(op_add_norm_2, AddNormArgs, kNormThreads, 2) { add_norm<2, 4>(a); }
TK_KERNEL(op_add_norm_4, AddNormArgs, kNormThreads) { add_norm<4, 4>(a); }

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

// The pairs of a lane of a head that begins at `from`; 0 after the last. blocks: whose sums they
// are, 0 where the product has joined them. bias: what is added.
template <int pairs>
TK_DEVICE void load_head(const RotateArgs& a, int64_t from, int blocks,
                         const float (&bias)[pairs][2], float (&x)[pairs][2]) {
  constexpr int kAtOnce = 6;  // blocks whose sums are asked for together
  const int lane = static_cast<int>(threadIdx.x % kWarp), half = a.d / 2;
  const float* planes = a.sums.planes + from + lane;
#pragma unroll
  for (int p = 0; p < pairs; ++p) x[p][0] = x[p][1] = 0;
#pragma unroll 1
  for (int first = 0; first < blocks; first += kAtOnce, planes += kAtOnce * a.sums.plane) {
    float part[kAtOnce][pairs][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int p = 0; p < pairs; ++p)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          part[i][p][j] = first + i < blocks && lane + p * kWarp < half
                              ? planes[i * a.sums.plane + p * kWarp + j * half]
                              : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int p = 0; p < pairs; ++p)
#pragma unroll
        for (int j = 0; j < 2; ++j) x[p][j] += part[i][p][j];
  }
#pragma unroll
  for (int p = 0; p < pairs; ++p)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (blocks == 0 && lane + p * kWarp < half)
        x[p][j] = brain_value(a.x[from + lane + p * kWarp + j * half]);
      x[p][j] = brain_value(brain_bits(x[p][j] + bias[p][j]));
    }
}

// A lane's pairs of the head that begins at `from` in a weight; `other` where there are none.
template <int pairs>
TK_DEVICE void load_pairs(const RotateArgs& a, const void* weight, DType type, int from,
                          float other, float (&x)[pairs][2]) {
#pragma unroll
  for (int p = 0; p < pairs; ++p)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = static_cast<int>(threadIdx.x % kWarp) + p * kWarp;
      x[p][j] = weight && i < a.d / 2 ? load(weight, type, from + i + j * (a.d / 2)) : other;
    }
}

// Norm of a head, rotation; queries to q, keys and values to the cache. A warp per token and head;
// a lane has pairs (i, i + d / 2). What does not depend on earlier launches comes before the wait.
TK_KERNEL(op_rotate_append, RotateArgs, kLayerThreads) {
  constexpr int kMostPairs = 2;  // of a lane: heads up to 128
  int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % kWarp);
  int half = a.d / 2, heads = a.heads + 2 * a.kv_heads, slot = a.slot[row];
  const int head = static_cast<int>(blockIdx.y * (kLayerThreads / kWarp) + threadIdx.x / kWarp);
  const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
  allow_next();
  int64_t block =
      slot < 0 ? 0 : a.view.table[int64_t{a.seq[row]} * a.view.stride + slot / a.view.block_size];
  const void* gains = query ? a.query_gains : value ? nullptr : a.key_gains;
  const void* biases = query ? a.query_bias : value ? a.value_bias : a.key_bias;
  const int kv_head = head - a.heads - (value ? a.kv_heads : 0);
  float gain[kMostPairs][2], bias[kMostPairs][2];
  load_pairs(a, gains, a.tg, 0, 1, gain);
  load_pairs(a, head < heads ? biases : nullptr, a.tb, (query ? head : kv_head) * a.d, 0, bias);
  const int blocks = a.sums.planes && head < heads ? a.sums.shares.of_column(head * a.d) : 0;
  wait_for_earlier();
  float cosine[kMostPairs], sine[kMostPairs];
  load_turns(a, row, cosine, sine);
  if (head < heads) {
    int64_t from = (int64_t{row} * heads + head) * a.d;
    float x[kMostPairs][2], squares = 0;
    load_head(a, from, blocks, bias, x);
#pragma unroll
    for (int p = 0; p < kMostPairs; ++p) squares += x[p][0] * x[p][0] + x[p][1] * x[p][1];
    squares = warp_sum(squares);
    float factor = 1.0f / sqrtf(squares / static_cast<float>(a.d) + a.eps);
    uint8_t* base = value ? a.value.base : a.key.base;
    auto* cache = reinterpret_cast<uint16_t*>(base + block * a.key.block_bytes) +
                  (int64_t{kv_head} * a.view.block_size + slot % a.view.block_size) * a.d;
#pragma unroll
    for (int p = 0; p < kMostPairs; ++p) {
      int i = lane + p * kWarp;
      if (i >= half) continue;
      float u = x[p][0], v = x[p][1];
      if (gains) {
        u = brain_value(brain_bits(u * factor * gain[p][0]));
        v = brain_value(brain_bits(v * factor * gain[p][1]));
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
