// Ops with a state per sequence, and low-rank products that each row selects. Rows of a sequence
// are computed in order; the state is f32 after every row, so that a sequence has the same bits
// however its rows are divided among steps.
#include "backend/cuda/ops/number.cuh"
#include "backend/cuda/ops/sequence_rows.cuh"

namespace tokamak::cuda {

// A thread per channel and kConvRows rows of a sequence. Only the first of these read the state,
// and their threads replace it.
TK_KERNEL(op_causal_conv, ConvArgs, kElementThreads) {
  const int64_t c = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (c >= a.channels) return;
  const SequenceRows s(a.sequences, static_cast<int>(blockIdx.y));
  const int older = a.taps - 1;
  // Row r of the sequence, counted from its first of this step; before it: of the state.
  auto row = [&](int r) {
    if (r >= 0) return load(a.x, a.tx, (int64_t{s.first} + r) * a.channels + c);
    return s.begins ? 0.0f : s.state[(older + r) * a.channels + c];
  };
  const int begin = s.first + static_cast<int>(blockIdx.z) * kConvRows;
  const int end = begin + kConvRows < s.end ? begin + kConvRows : s.end;
  for (int i = begin; i < end; ++i) {
    float sum = 0;
    if (!s.padding) {
      if (a.bias) sum = load(a.bias, a.tb, c);
      for (int j = 0; j < a.taps; ++j)
        sum = fmaf(load(a.w, a.tw, c * a.taps + j), row(i - s.first - older + j), sum);
    }
    store(a.y, a.ty, i * a.channels + c, sum);
  }
  if (s.padding || s.first == s.end || blockIdx.z > 0) return;
  // In ascending order: a row of the state is only replaced by a later one.
  for (int j = 0; j < older; ++j) s.state[j * a.channels + c] = row(s.end - s.first - older + j);
}

// What a row of a sequence brings to a row of a head's matrix. A lane has one number per part of a
// vector, 0 after its end.
struct ScanInput {
  float wide, first, second;                    // numbers of the head
  float vector[kScanParts], other[kScanParts];  // of its group
};

// A warp per row of a head's matrix [width, n]; its lanes hold the row. Inputs of the next row are
// asked for before this row is computed: the sums over lanes take as long as they need to come.
template <class Load, class Step>
TK_DEVICE void scan_rows(const ScanArgs& a, const Load& load_input, const Step& step) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t at = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarp;
  if (at >= int64_t{a.heads} * a.width) return;
  const SequenceRows s(a.sequences, static_cast<int>(blockIdx.y));
  const int head = static_cast<int>(at / a.width), group = head / (a.heads / a.groups);
  float state[kScanParts];
#pragma unroll
  for (int i = 0; i < kScanParts; ++i) {
    const int n = i * kWarp + lane;
    state[i] = s.padding || s.begins || n >= a.n ? 0.0f : s.state[at * a.n + n];
  }
  auto place = [&](int64_t row) { return row * a.heads * a.width + at; };
  auto input_of = [&](int64_t row) {
    return load_input(row * a.heads + head, (row * a.groups + group) * a.n, place(row));
  };
  ScanInput next{};
  if (!s.padding && s.first < s.end) next = input_of(s.first);
  for (int64_t row = s.first; row < s.end; ++row) {
    const ScanInput now = next;
    if (!s.padding && row + 1 < s.end) next = input_of(row + 1);
    const float sum = s.padding ? 0.0f : step(now, head, state);
    if (lane == 0) store(a.y, a.ty, place(row), sum);
  }
  if (s.padding || s.first == s.end) return;
#pragma unroll
  for (int i = 0; i < kScanParts; ++i)
    if (i * kWarp + lane < a.n) s.state[at * a.n + i * kWarp + lane] = state[i];
}

TK_DEVICE void load_vector(const ScanArgs& a, int input, int64_t from, float (&to)[kScanParts]) {
#pragma unroll
  for (int i = 0; i < kScanParts; ++i) {
    const int n = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
    to[i] = n < a.n ? load(a.in[input], a.type[input], from + n) : 0.0f;
  }
}

// Inputs: x, dt, a, b, c.
TK_KERNEL(op_ssm_scan, ScanArgs, kTileThreads) {
  scan_rows(
      a,
      [&](int64_t number, int64_t vectors, int64_t y) {
        ScanInput in{};
        in.first = load(a.in[1], a.type[1], number);
        in.wide = load(a.in[0], a.type[0], y);
        load_vector(a, 3, vectors, in.vector);
        load_vector(a, 4, vectors, in.other);
        return in;
      },
      [&](const ScanInput& in, int head, float(&state)[kScanParts]) {
        const float dt = in.first, input = dt * in.wide;
        const bool own = a.decays > 1;
        float decay = own ? 0.0f : expf(dt * load(a.in[2], a.type[2], head));
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kScanParts; ++i) {
          const int n = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
          if (own && n < a.n) decay = expf(dt * load(a.in[2], a.type[2], int64_t{head} * a.n + n));
          state[i] = fmaf(state[i], decay, input * in.vector[i]);
          sum = fmaf(state[i], in.other[i], sum);
        }
        return warp_sum(sum);
      });
}

// Inputs: q, k, v, decay, rate.
TK_KERNEL(op_gated_delta, ScanArgs, kTileThreads) {
  scan_rows(
      a,
      [&](int64_t number, int64_t vectors, int64_t y) {
        ScanInput in{};
        in.first = load(a.in[3], a.type[3], number);
        in.second = load(a.in[4], a.type[4], number);
        in.wide = load(a.in[2], a.type[2], y);
        load_vector(a, 1, vectors, in.vector);
        load_vector(a, 0, vectors, in.other);
        return in;
      },
      [&](const ScanInput& in, int, float(&state)[kScanParts]) {
        const float kept = expf(in.first);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kScanParts; ++i) sum = fmaf(state[i], in.vector[i], sum);
        const float error = in.wide - kept * warp_sum(sum);
        const float change = in.second * error;
        sum = 0;
#pragma unroll
        for (int i = 0; i < kScanParts; ++i) {
          state[i] = fmaf(state[i], kept, change * in.vector[i]);
          sum = fmaf(state[i], in.other[i], sum);
        }
        return warp_sum(sum);
      });
}

// Part of a row's result; every block computes the inner values for itself. Sums are f64, as there
// are few products. Dynamic shared memory: the inner values.
TK_KERNEL(op_lora, LoraArgs, kElementThreads) {
  TK_DYNAMIC_SHARED(double, inner);
  const int64_t row = blockIdx.y, slot = a.adapter[row];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const bool used = slot >= 0 && slot < a.slots;
  for (int r = warp; used && r < a.rank; r += kElementThreads / kWarp) {
    double sum = 0;
    for (int64_t i = lane; i < a.k; i += kWarp)
      sum += static_cast<double>(load(a.x, a.tx, row * a.k + i)) *
             static_cast<double>(load(a.a, a.ta, (slot * a.rank + r) * a.k + i));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += lane_xor(sum, d);
    if (lane == 0) inner[r] = sum;
  }
  sync_block();
  const int64_t begin = int64_t{blockIdx.x} * kLoraColumns;
  for (int64_t j = begin + threadIdx.x; j < a.n && j < begin + kLoraColumns; j += kElementThreads) {
    double sum = 0;
    for (int r = 0; used && r < a.rank; ++r)
      sum += inner[r] * static_cast<double>(load(a.b, a.tb, (slot * a.n + j) * a.rank + r));
    store_wide(a.y, a.ty, row * a.n + j, sum);
  }
}

}  // namespace tokamak::cuda
