// What a decoder layer does between its matrix products, a few ops in one kernel. Values are
// rounded where the plan stores them.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// The sum over a block of kLayerThreads, in every thread.
TK_DEVICE float layer_sum(float x) {
  constexpr int kWarps = kLayerThreads / kWarp;
  __shared__ float parts[kWarps];
  x = warp_sum(x);
  sync_block();
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

// Eight values of what products have left in parts, rounded as if it had been stored.
TK_DEVICE void load_parts8(const float* parts, int64_t stride, int count, int64_t at,
                           float (&out)[8]) {
  load8(parts, DType::kF32, at, out);
  for (int p = 1; p < count; ++p) {
    float more[8];
    load8(parts, DType::kF32, p * stride + at, more);
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] += more[j];
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = brain_value(brain_bits(out[j]));
}
TK_DEVICE void load_delta8(const AddNormArgs& a, int64_t at, float (&out)[8]) {
  if (a.delta)
    load8(a.delta, DType::kBF16, at, out);
  else
    load_parts8(a.parts, a.part_stride, a.part_count, at, out);
}

// residual += delta, then y = rms_norm(residual). A block per row.
TK_KERNEL(op_add_norm, AddNormArgs, kLayerThreads) {
  wait_for_earlier();
  int64_t row = blockIdx.x, from = a.rows ? a.rows[row] : row;
  float* residual = a.residual + from * a.n;
  float squares = 0;
  for (int64_t i = threadIdx.x * 8; i < a.n; i += kLayerThreads * 8) {
    float v[8];
    load8(residual, DType::kF32, i, v);
    if (a.delta || a.parts) {
      float add[8];
      load_delta8(a, from * a.n + i, add);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += add[j];
      if (!a.rows) {
        *reinterpret_cast<Vec4*>(residual + i) = {v[0], v[1], v[2], v[3]};
        *reinterpret_cast<Vec4*>(residual + i + 4) = {v[4], v[5], v[6], v[7]};
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
  }
  float factor = 1.0f / sqrtf(layer_sum(squares) / static_cast<float>(a.n) + a.eps);
  for (int64_t i = threadIdx.x * 8; i < a.n; i += kLayerThreads * 8) {
    float v[8], w[8];
    load8(residual, DType::kF32, i, v);
    load8(a.w, a.tw, i, w);
    if ((a.delta || a.parts) && a.rows) {  // of chosen rows, which may repeat: not stored
      float add[8];
      load_delta8(a, from * a.n + i, add);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += add[j];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = v[j] * factor * w[j];
    store8(a.y + row * a.n + i, v);
  }
}

// silu(gate) * up; a row has the gates, then what they gate.
TK_KERNEL(op_gate, GateArgs, kElementThreads) {
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

TK_DEVICE float head_value(const RotateArgs& a, int64_t at) {
  if (a.x) return brain_value(a.x[at]);
  float sum = a.parts[at];
  for (int p = 1; p < a.part_count; ++p) sum += a.parts[p * a.part_stride + at];
  return brain_value(brain_bits(sum));
}

// Norm of a head, rotation; queries to q, keys and values to the cache. A warp per token and head;
// a lane has pairs (i, i + d / 2).
TK_KERNEL(op_rotate_append, RotateArgs, kLayerThreads) {
  constexpr int kMostPairs = 2;  // of a lane: heads up to 128
  int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % kWarp);
  int half = a.d / 2, heads = a.heads + 2 * a.kv_heads, slot = a.slot[row];
  allow_next();
  wait_for_earlier();
  int64_t block =
      slot < 0 ? 0 : a.view.table[int64_t{a.seq[row]} * a.view.stride + slot / a.view.block_size];
  const int head = static_cast<int>(blockIdx.y * (kLayerThreads / kWarp) + threadIdx.x / kWarp);
  if (head < heads) {
    const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
    int64_t from = (int64_t{row} * heads + head) * a.d;
    float x[kMostPairs][2], squares = 0;
#pragma unroll
    for (int p = 0; p < kMostPairs; ++p)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int i = lane + p * kWarp;
        x[p][j] = i < half ? head_value(a, from + i + j * half) : 0;
        squares += x[p][j] * x[p][j];
      }
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
        const float* turn = a.turns + (int64_t{row} * half + i) * 2;
        float cosine = turn[0], sine = turn[1];
        float turned = u * cosine - v * sine;
        v = v * cosine + u * sine;
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
