// Ops over rows: norms, softmax, rotation, quantisation of activations.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

constexpr int kRowWarps = kRowThreads / kWarp;

// The sum over the block, in every thread; the order depends on the block only.
TK_DEVICE float block_sum(float x) {
  __shared__ float parts[kRowWarps];
  x = warp_sum(x);
  sync_block();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  sync_block();
  float sum = 0;
  for (int i = 0; i < kRowWarps; ++i) sum += parts[i];
  return sum;
}
TK_DEVICE float block_max(float x) {
  __shared__ float parts[kRowWarps];
  x = warp_max(x);
  sync_block();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  sync_block();
  float best = parts[0];
  for (int i = 1; i < kRowWarps; ++i) best = fmaxf(best, parts[i]);
  return best;
}

TK_KERNEL(op_rms_norm, NormArgs, kRowThreads) {
  int64_t row = int64_t{blockIdx.x} * a.n;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads) {
    float x = load(a.x, a.tx, row + i);
    sum += x * x;
  }
  float factor = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(a.n) + a.eps);
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads)
    store(a.y, a.ty, row + i, load(a.x, a.tx, row + i) * factor * load(a.w, a.tw, i));
}

TK_KERNEL(op_layer_norm, NormArgs, kRowThreads) {
  int64_t row = int64_t{blockIdx.x} * a.n;
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads) sum += load(a.x, a.tx, row + i);
  float mean = block_sum(sum) / static_cast<float>(a.n);
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads) {
    float x = load(a.x, a.tx, row + i) - mean;
    squares += x * x;
  }
  float factor = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(a.n) + a.eps);
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads) {
    float y = (load(a.x, a.tx, row + i) - mean) * factor * load(a.w, a.tw, i);
    store(a.y, a.ty, row + i, a.bias ? y + load(a.bias, a.tb, i) : y);
  }
}

TK_KERNEL(op_softmax, NormArgs, kRowThreads) {
  int64_t row = int64_t{blockIdx.x} * a.n;
  float peak = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads)
    peak = fmaxf(peak, load(a.x, a.tx, row + i));
  peak = block_max(peak);
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads)
    sum += expf(load(a.x, a.tx, row + i) - peak);
  float factor = 1.0f / block_sum(sum);
  for (int64_t i = threadIdx.x; i < a.n; i += kRowThreads)
    store(a.y, a.ty, row + i, expf(load(a.x, a.tx, row + i) - peak) * factor);
}

// A block per row of tokens. Angles and rotation are computed in double, angles once for all heads:
// dynamic shared memory holds their sines and cosines.
TK_KERNEL(op_rope, RopeArgs, kRowThreads) {
  TK_DYNAMIC_SHARED(double, angles);
  int64_t row = int64_t{blockIdx.x} * a.heads * a.d;
  for (int64_t j = threadIdx.x; j < a.half; j += kRowThreads) {
    double angle =
        static_cast<double>(a.pos[blockIdx.x]) * static_cast<double>(load(a.frequencies, a.tf, j));
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    angles[2 * j] = sine * a.scale;
    angles[2 * j + 1] = cosine * a.scale;
  }
  sync_block();
  for (int64_t i = threadIdx.x; i < a.heads * a.half; i += kRowThreads) {
    int64_t j = i % a.half, at = row + i / a.half * a.d + j;
    double s = angles[2 * j], c = angles[2 * j + 1];
    double x = load(a.x, a.tx, at), y = load(a.x, a.tx, at + a.half);
    store_wide(a.y, a.ty, at, x * c - y * s);
    store_wide(a.y, a.ty, at + a.half, y * c + x * s);
  }
  int64_t rest = a.d - 2 * a.half;  // values of each head that are not rotated
  for (int64_t i = threadIdx.x; i < a.heads * rest; i += kRowThreads) {
    int64_t at = row + i / rest * a.d + 2 * a.half + i % rest;
    store(a.y, a.ty, at, load(a.x, a.tx, at));
  }
}

// A warp per block of 32 values.
TK_KERNEL(op_quantize, QuantizeArgs, kRowThreads) {
  int64_t block = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarp;
  if (block >= a.blocks) return;
  unsigned lane = threadIdx.x % kWarp;
  float x = load(a.x, a.tx, block * 32 + lane);
  float scale = warp_max(fabsf(x)) / 127.0f;
  float q = scale == 0 ? 0.0f : fminf(fmaxf(rintf(x / scale), -127.0f), 127.0f);
  float total = warp_sum(q);
  uint8_t* y = a.y + block * 40;
  y[8 + lane] = static_cast<uint8_t>(static_cast<int8_t>(q));
  if (lane == 0) {
    reinterpret_cast<float*>(y)[0] = scale;
    reinterpret_cast<float*>(y)[1] = scale * total;
  }
}

}  // namespace tokamak::cuda
