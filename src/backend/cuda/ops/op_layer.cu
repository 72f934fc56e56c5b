// What a decoder layer does between its matrix products, a few ops in one kernel. Values are
// rounded where the plan stores them.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// The sum over a block, in every thread.
template <int kThreads>
TK_DEVICE float norm_sum(float x) {
  constexpr int kWarps = kThreads / kWarp;
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

TK_DEVICE void load4(const void* p, DType type, int64_t i, float (&out)[4]) {
  if (type == DType::kF32) {
    const Vec4 v = *reinterpret_cast<const Vec4*>(static_cast<const float*>(p) + i);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else if (type == DType::kBF16) {
    const auto v = *reinterpret_cast<const Words2*>(static_cast<const uint16_t*>(p) + i);
    out[0] = bits_float(v.x << 16), out[1] = bits_float(v.x & 0xffff0000u);
    out[2] = bits_float(v.y << 16), out[3] = bits_float(v.y & 0xffff0000u);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = load(p, type, i + j);
  }
}

// Four columns of the residual stream with what is added to it, at each of kKept places that are
// kStep apart. The sums of kAtOnce blocks at all places are asked for together: each wait is as
// long as the rest of the kernel. blocks: whose sums they are.
template <int kStep, int kKept, int kAtOnce>
TK_DEVICE void load_residual(const AddNormArgs& a, int64_t row, int start,
                             const int (&blocks)[kKept], float (&v)[kKept][4]) {
  const int64_t from = row * a.n + start;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    v[k][0] = v[k][1] = v[k][2] = v[k][3] = 0;
    if (start + k * kStep < a.n) load4(a.residual, DType::kF32, from + k * kStep, v[k]);
  }
  if (!a.delta && !a.sums.planes) return;
  float add[kKept][4] = {};
  if (a.delta) {
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (start + k * kStep < a.n) load4(a.delta, DType::kBF16, from + k * kStep, add[k]);
  } else {
    const uint16_t* planes = a.sums.planes + row * a.sums.pitch() + few_rows_place(start);
    constexpr int kNextPair = few_rows_place(2);
    int most = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) most = blocks[k] > most ? blocks[k] : most;
#pragma unroll 1
    for (int first = 0; first < most; first += kAtOnce, planes += kAtOnce * a.sums.plane) {
      uint32_t part[kKept][kAtOnce][2];
#pragma unroll
      for (int k = 0; k < kKept; ++k)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            part[k][i][pair] = first + i < blocks[k]
                                   ? *reinterpret_cast<const uint32_t*>(
                                         planes + i * a.sums.plane + k * kStep + pair * kNextPair)
                                   : 0;
#pragma unroll
      for (int k = 0; k < kKept; ++k)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            add[k][2 * pair] += bits_float(part[k][i][pair] << 16);
            add[k][2 * pair + 1] += bits_float(part[k][i][pair] & 0xffff0000u);
          }
    }
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int j = 0; j < 4; ++j) v[k][j] += add[k][j];
}

// residual += delta, then y = rms_norm(residual). A block per row. kKept: times four values that a
// thread keeps; the others it reads again.
template <int kThreads, int kKept, int kAtOnce>
TK_DEVICE void add_norm(const AddNormArgs& a) {
  constexpr int kStep = 4 * kThreads;
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
    const int i = start + k * kStep;
    blocks[k] = blocks_at(i);
    if (k < kEarly && i < n) load4(a.w, a.tw, i, gains[k % kEarly]);
  }
  wait_for_earlier();
  float kept[kKept][4], more[1][4], squares = 0;
  load_residual<kStep, kKept, kAtOnce>(a, from, start, blocks, kept);
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int j = 0; j < 4; ++j) squares += kept[k][j] * kept[k][j];
  for (int i = start + kKept * kStep; i < n; i += kStep) {
    load_residual<kStep, 1, kAtOnce>(a, from, i, {blocks_at(i)}, more);
#pragma unroll
    for (int j = 0; j < 4; ++j) squares += more[0][j] * more[0][j];
  }
  const float factor = 1.0f / sqrtf(norm_sum<kThreads>(squares) / static_cast<float>(n) + a.eps);
  auto put = [&](int i, float(&v)[4], float(&w)[4]) {
    // Chosen rows may repeat: their sums are not stored.
    if ((a.delta || a.sums.planes) && !a.rows)
      *reinterpret_cast<Vec4*>(a.residual + from * n + i) = {v[0], v[1], v[2], v[3]};
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = v[j] * factor * w[j];
    *reinterpret_cast<Words2*>(a.y + static_cast<int64_t>(blockIdx.x) * n + i) = {
        brain_pair(w[0], w[1]), brain_pair(w[2], w[3])};
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = start + k * kStep;
    if (i >= n) break;
    if (k >= kEarly) load4(a.w, a.tw, i, gains[k % kEarly]);
    put(i, kept[k], gains[k % kEarly]);
  }
  for (int i = start + kKept * kStep; i < n; i += kStep) {
    load_residual<kStep, 1, kAtOnce>(a, from, i, {blocks_at(i)}, more);
    load4(a.w, a.tw, i, gains[0]);
    put(i, more[0], gains[0]);
  }
}

// The name gives the longest row; longer rows use the last kernel. Half of the registers are left
// to the product that follows, which starts beside it; the last one needs them.
TK_KERNEL_RESIDENT(op_add_norm_2048, AddNormArgs, 512, 2) { add_norm<512, 1, 8>(a); }
TK_KERNEL_RESIDENT(op_add_norm_4096, AddNormArgs, 512, 2) { add_norm<512, 2, 4>(a); }
TK_KERNEL(op_add_norm_8192, AddNormArgs, 1024) { add_norm<1024, 2, 4>(a); }

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
  wait_for_earlier();
  int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i < a.rows * a.half) {
    double angle = double(a.pos[i / a.half]) * double(a.frequencies[i % a.half]);
    a.turns[2 * i] = static_cast<float>(cos(angle) * double(a.scale));
    a.turns[2 * i + 1] = static_cast<float>(sin(angle) * double(a.scale));
  }
}

// A lane turns columns i = 2 * lane and the next, each with the one that is half a head further:
// x[first or second half][i or i + 1]. Lanes after the last column read those of lane 0.
using LaneColumns = float[2][2];
TK_DEVICE int lane_column(const RotateArgs& a) {
  const int i = static_cast<int>(threadIdx.x % kWarp) * 2;
  return i < a.d / 2 ? i : 0;
}

// Columns of a head of a row, with the bias. blocks: whose sums they are, 0 where the product has
// joined them.
TK_DEVICE void load_head(const RotateArgs& a, int row, int head, int blocks,
                         const LaneColumns& bias, LaneColumns& x) {
  constexpr int kAtOnce = 6;  // blocks whose sums are asked for together
  const int half = a.d / 2, column = head * a.d + lane_column(a);
  auto add = [](uint32_t pair, float(&to)[2]) {
    to[0] += bits_float(pair << 16);
    to[1] += bits_float(pair & 0xffff0000u);
  };
  auto pair_at = [](const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); };
  x[0][0] = x[0][1] = x[1][0] = x[1][1] = 0;
  if (blocks == 0) {
    const uint16_t* from = a.x + int64_t{row} * (a.heads + 2 * a.kv_heads) * a.d + column;
    add(pair_at(from), x[0]);
    add(pair_at(from + half), x[1]);
  }
  const uint16_t* planes = blocks ? a.sums.planes + int64_t{row} * a.sums.pitch() : nullptr;
  const int places[2] = {few_rows_place(column), few_rows_place(column + half)};
#pragma unroll 1
  for (int first = 0; first < blocks; first += kAtOnce, planes += kAtOnce * a.sums.plane) {
    uint32_t part[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        part[i][j] = first + i < blocks ? pair_at(planes + i * a.sums.plane + places[j]) : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) add(part[i][j], x[j]);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int k = 0; k < 2; ++k) x[j][k] = brain_value(brain_bits(x[j][k] + bias[j][k]));
}

// The same columns of the head that begins at `from` in a weight; `other` where there is none.
TK_DEVICE void load_columns(const RotateArgs& a, const void* weight, DType type, int from,
                            float other, LaneColumns& x) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      x[j][k] = weight ? load(weight, type, from + lane_column(a) + j * (a.d / 2) + k) : other;
}

// Norm of a head, rotation; queries to q, keys and values to the cache. A warp per token and head.
// What does not depend on earlier launches comes before the wait.
TK_KERNEL(op_rotate_append, RotateArgs, kLayerThreads) {
  int row = static_cast<int>(blockIdx.x);
  int half = a.d / 2, heads = a.heads + 2 * a.kv_heads, slot = a.slot[row];
  const int head = static_cast<int>(blockIdx.y * (kLayerThreads / kWarp) + threadIdx.x / kWarp);
  const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
  allow_next();
  int64_t block =
      slot < 0 ? 0 : a.view.table[int64_t{a.seq[row]} * a.view.stride + slot / a.view.block_size];
  const void* gains = query ? a.query_gains : value ? nullptr : a.key_gains;
  const void* biases = query ? a.query_bias : value ? a.value_bias : a.key_bias;
  const int kv_head = head - a.heads - (value ? a.kv_heads : 0);
  LaneColumns gain, bias;
  load_columns(a, gains, a.tg, 0, 1, gain);
  load_columns(a, head < heads ? biases : nullptr, a.tb, (query ? head : kv_head) * a.d, 0, bias);
  const int blocks = a.sums.planes && head < heads ? a.sums.shares.of_column(head * a.d) : 0;
  wait_for_earlier();
  const int i = lane_column(a);
  const Vec4 turns = *reinterpret_cast<const Vec4*>(a.turns + (int64_t{row} * half + i) * 2);
  if (head >= heads) return;
  LaneColumns x;
  load_head(a, row, head, blocks, bias, x);
  const bool active = static_cast<int>(threadIdx.x % kWarp) * 2 < half;
  float squares = x[0][0] * x[0][0] + x[0][1] * x[0][1] + x[1][0] * x[1][0] + x[1][1] * x[1][1];
  squares = warp_sum(active ? squares : 0);
  if (gains) {
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(a.d) + a.eps);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int k = 0; k < 2; ++k) x[j][k] = brain_value(brain_bits(x[j][k] * factor * gain[j][k]));
  }
  const float cosine[2] = {turns.x, turns.z}, sine[2] = {turns.y, turns.w};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (value) continue;
    const float u = x[0][k], v = x[1][k];
    x[0][k] = u * cosine[k] - v * sine[k];
    x[1][k] = v * cosine[k] + u * sine[k];
  }
  if (!active || (!query && slot < 0)) return;
  uint16_t* to = a.q + (int64_t{row} * a.heads + head) * a.d;
  if (!query)
    to = reinterpret_cast<uint16_t*>((value ? a.value.base : a.key.base) +
                                     block * a.key.block_bytes) +
         (int64_t{kv_head} * a.view.block_size + slot % a.view.block_size) * a.d;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t pair = brain_pair(x[j][0], x[j][1]);
    if (!query && a.key.type == DType::kF16)
      pair = half_pair(bits_float(pair << 16), bits_float(pair & 0xffff0000u));
    *reinterpret_cast<uint32_t*>(to + i + j * half) = pair;
  }
}

}  // namespace tokamak::cuda
