// The KV cache: append, attention, moves of slots.
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/number.cuh"

namespace tokamak::cuda {

// Where a token is in the cache.
struct Slot {
  int block, offset;
};
TK_DEVICE Slot slot_of(const ViewArgs& v, int sequence, int slot) {
  return {v.table[int64_t{sequence} * v.stride + slot / v.block_size], slot % v.block_size};
}
// The row of one token and head, and the row's scale.
TK_DEVICE uint8_t* plane_row(const PlaneArgs& p, Slot slot, int block_size, int head) {
  return p.base + slot.block * p.block_bytes +
         int64_t{head * block_size + slot.offset} * (p.width * p.element);
}
TK_DEVICE float* plane_scale(const PlaneArgs& p, Slot slot, int block_size, int head) {
  return reinterpret_cast<float*>(p.base + slot.block * p.block_bytes + p.scale_at) +
         head * block_size + slot.offset;
}

// A row as int8 with a scale, as quantize_plane_row() in tensor/plane.h.
TK_DEVICE void append_bytes(const void* x, DType type, int64_t at, const PlaneArgs& p, uint8_t* to,
                            float* scale_to) {
  constexpr float kLargest = 3.402823466e38f, kSmallest = 1.175494351e-38f;
  unsigned lane = threadIdx.x % kWarp;
  float peak = 0;
  bool finite = true;
  for (int i = lane; i < p.width; i += kWarp) {
    float v = fabsf(load(x, type, at + i));
    finite = finite && v <= kLargest;
    peak = fmaxf(peak, v);
  }
  finite = warp_ballot(!finite) == 0;
  peak = warp_max(peak);
  float scale = peak / 127.0f;
  bool zero = !finite || scale < kSmallest;
  for (int i = lane; i < p.width; i += kWarp)
    to[i] =
        zero ? 0 : static_cast<uint8_t>(static_cast<int8_t>(rintf(load(x, type, at + i) / scale)));
  if (lane == 0) *scale_to = !finite ? INFINITY - INFINITY : zero ? 0.0f : scale;
}

// A warp per token, plane and head.
TK_KERNEL(op_append, AppendArgs, kTileThreads) {
  int row = static_cast<int>(blockIdx.y);
  int index = static_cast<int>(blockIdx.x * kTileWarps + threadIdx.x / kWarp);
  int slot = a.slot[row];
  if (slot < 0 || index >= a.heads) return;  // padding
  int plane = 0;
  while (index >= a.plane[plane].heads) index -= a.plane[plane++].heads;
  const PlaneArgs& p = a.plane[plane];
  int64_t at = (int64_t{row} * p.heads + index) * p.width;
  Slot place = slot_of(a.view, a.seq[row], slot);
  uint8_t* to = plane_row(p, place, a.view.block_size, index);
  if (p.type == DType::kI8)
    return append_bytes(a.x[plane], a.tx[plane], at, p, to,
                        plane_scale(p, place, a.view.block_size, index));
  for (int i = threadIdx.x % kWarp; i < p.width; i += kWarp)
    store(to, p.type, i, load(a.x[plane], a.tx[plane], at + i));
}

// A block per plane of the group.
TK_KERNEL(op_move_slot, MoveArgs, kTileThreads) {
  const PlaneArgs p = a.planes[blockIdx.x];
  int bytes = p.width * p.element;
  Slot from = {a.from / a.block_size, a.from % a.block_size};
  Slot to = {a.to / a.block_size, a.to % a.block_size};
  for (int i = static_cast<int>(threadIdx.x); i < p.heads * bytes; i += kTileThreads)
    plane_row(p, to, a.block_size, i / bytes)[i % bytes] =
        plane_row(p, from, a.block_size, i / bytes)[i % bytes];
  if (p.type == DType::kI8 && static_cast<int>(threadIdx.x) < p.heads)
    for (int head = static_cast<int>(threadIdx.x); head < p.heads; head += kTileThreads)
      *plane_scale(p, to, a.block_size, head) = *plane_scale(p, from, a.block_size, head);
}

template <DType type>
TK_DEVICE void load_row8(const uint8_t* row, int at, float (&v)[8]) {
  if constexpr (type == DType::kI8)
    unpack_bytes(*reinterpret_cast<const Words2*>(row + at), v);
  else
    load8(row, type, at, v);
}

// The dot product of a query part in shared memory with a stored row. Widths that are not a
// multiple of eight, whose rows are not aligned, are read value by value.
template <DType type>
TK_DEVICE float typed_dot(const float* q, const uint8_t* row, int width) {
  float sum[4] = {};
  if (width % 8 == 0) {
#pragma unroll 4
    for (int i = 0; i < width; i += 8) {
      float v[8];
      load_row8<type>(row, i, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j % 4] = fmaf(q[i + j], v[j], sum[j % 4]);
    }
  } else {
    for (int i = 0; i < width; ++i) {
      float v =
          type == DType::kI8 ? static_cast<float>(static_cast<int8_t>(row[i])) : load(row, type, i);
      sum[0] = fmaf(q[i], v, sum[0]);
    }
  }
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
TK_DEVICE float row_dot(const float* q, const uint8_t* row, const PlaneArgs& p) {
  switch (p.type) {
    case DType::kF32:
      return typed_dot<DType::kF32>(q, row, p.width);
    case DType::kF16:
      return typed_dot<DType::kF16>(q, row, p.width);
    case DType::kBF16:
      return typed_dot<DType::kBF16>(q, row, p.width);
    default:
      return typed_dot<DType::kI8>(q, row, p.width);
  }
}

// What one row sees, and the part of the softmax that one lane or the warp holds.
template <int parts>
struct Flash {
  float peak = -INFINITY, mass = 0, sum[parts] = {};

  TK_DEVICE void rescale(float next) {
    float factor = expf(peak - next);
    peak = next;
    mass *= factor;
#pragma unroll
    for (int i = 0; i < parts; ++i) sum[i] *= factor;
  }
  // Both parts are rescaled to the larger peak; a part without keys changes nothing.
  TK_DEVICE void merge(float other_peak, float other_mass, const float (&other)[parts]) {
    if (other_mass == 0) return;
    float next = fmaxf(peak, other_peak), mine = expf(peak - next), its = expf(other_peak - next);
    peak = next;
    mass = mass * mine + other_mass * its;
#pragma unroll
    for (int i = 0; i < parts; ++i) sum[i] = sum[i] * mine + other[i] * its;
  }
};

struct AttendRow {
  int row, head, sequence, first, own_rows, length, position, own_slot;
};

TK_DEVICE int key_position(const AttendArgs& a, const AttendRow& r, int key) {
  int own = key - (r.length - r.own_rows);  // which of the step's own rows; < 0: older
  return own < 0 ? key : a.pos[r.first + own];
}

TK_DEVICE bool is_visible(const AttendArgs& a, const AttendRow& r, int key) {
  if (key >= r.length) return false;
  int own = key - (r.length - r.own_rows), position = key_position(a, r, key);
  if (a.window > 0 && r.position - position >= a.window) return false;
  return own < 0 || a.mask || a.slot[r.first + own] <= r.own_slot;
}

// The key at a place in the order in which a row adds them; -1: it sees none there. Keys of a
// branch have the places they would have without other branches, so that drafts change no bit.
TK_DEVICE int key_at(const AttendArgs& a, const AttendRow& r, int place) {
  const int older = r.length - r.own_rows;
  int key = place;
  if (a.mask && place >= older) {
    const int32_t* mask = a.mask + int64_t{r.row} * a.mask_width;
    int before = place - older;  // keys of the branch
    for (key = older; key < r.length; ++key)
      if (key - older < a.mask_width && mask[key - older] != 0 && before-- == 0) break;
  }
  return is_visible(a, r, key) ? key : -1;
}

// Adds weight * value of the keys in `all`. The values of several keys are loaded before they are
// used, so that the loads overlap.
template <DType type, int parts>
TK_DEVICE void add_values(const AttendArgs& a, unsigned all, const float* weight,
                          const int64_t* place, float (&sum)[parts]) {
  constexpr int kBatch = parts <= 4 ? 8 : 2;
  int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int first = 0; first < kWarp; first += kBatch) {
    if ((all >> first & ((1u << kBatch) - 1)) == 0) continue;
    float v[kBatch][parts];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      bool seen = (all >> (first + j) & 1) != 0;
      const auto* row = reinterpret_cast<const uint8_t*>(place[first + j]);
#pragma unroll
      for (int i = 0; i < parts; ++i) {
        int at = i * kWarp + lane;
        v[j][i] = 0;
        if (!seen || at >= a.dv) continue;
        v[j][i] = type == DType::kI8 ? static_cast<float>(static_cast<int8_t>(row[at]))
                                     : load(row, type, at);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
#pragma unroll
      for (int i = 0; i < parts; ++i) sum[i] = fmaf(weight[first + j], v[j][i], sum[i]);
  }
}

// 32 keys from `first` on. `weight` and `place` (addresses of values) are the warp's shared memory:
// 32 entries each.
template <int parts>
TK_DEVICE void attend_tile(const AttendArgs& a, const AttendRow& r, int first, const float* q,
                           float* weight, int64_t* place, Flash<parts>& f) {
  unsigned lane = threadIdx.x % kWarp;
  int key = key_at(a, r, first + static_cast<int>(lane));
  bool seen = key >= 0;
  unsigned all = warp_ballot(seen);
  if (all == 0) return;
  float score = -INFINITY;
  Slot slot = {0, 0};
  int group = a.heads / a.value.heads;
  if (seen) {
    slot = slot_of(a.view, r.sequence, key);
    score = 0;
    const float* part = q;
    for (int p = 0; p < a.keys; ++p) {
      const PlaneArgs& plane = a.key[p];
      int head = r.head / (a.heads / plane.heads);
      float dot = row_dot(part, plane_row(plane, slot, a.view.block_size, head), plane);
      if (plane.type == DType::kI8) dot *= *plane_scale(plane, slot, a.view.block_size, head);
      score += dot;
      part += plane.width;
    }
    score *= a.scale;
    if (a.cap > 0) score = a.cap * tanhf(score / a.cap);
    if (a.slopes)
      score -=
          load(a.slopes, a.tl, r.head) * static_cast<float>(r.position - key_position(a, r, key));
  }
  float peak = fmaxf(f.peak, warp_max(score));
  if (peak > f.peak) f.rescale(peak);
  float power = seen ? expf(score - peak) : 0.0f;
  f.mass += warp_sum(power);
  if (seen && a.value.type == DType::kI8)
    power *= *plane_scale(a.value, slot, a.view.block_size, r.head / group);
  weight[lane] = power;
  place[lane] =
      reinterpret_cast<int64_t>(plane_row(a.value, slot, a.view.block_size, r.head / group));
  sync_warp();
  switch (a.value.type) {
    case DType::kF32:
      add_values<DType::kF32, parts>(a, all, weight, place, f.sum);
      break;
    case DType::kF16:
      add_values<DType::kF16, parts>(a, all, weight, place, f.sum);
      break;
    case DType::kBF16:
      add_values<DType::kBF16, parts>(a, all, weight, place, f.sum);
      break;
    default:
      add_values<DType::kI8, parts>(a, all, weight, place, f.sum);
  }
  sync_warp();
}

// A segment of keys at absolute positions, whatever the row sees of it.
template <int parts>
TK_DEVICE Flash<parts> attend_segment(const AttendArgs& a, const AttendRow& r, int segment,
                                      const float* q, float* weight, int64_t* place) {
  Flash<parts> f;
  for (int at = segment * kSegment; at < (segment + 1) * kSegment && at < r.length; at += kWarp)
    attend_tile(a, r, at, q, weight, place, f);
  return f;
}

// What a row's sums are divided by. A sink adds to it as a key without a value does; a row without
// keys gives 0.
template <int parts>
TK_DEVICE float divisor(const AttendArgs& a, int head, const Flash<parts>& f) {
  if (!a.sinks || f.mass == 0) return f.mass;
  return f.mass + expf(load(a.sinks, a.ts, head) - f.peak);
}

// A warp per head and row. Dynamic shared memory: the query, weights and places of each warp.
template <int parts, bool split>
TK_DEVICE void attend_row(const AttendArgs& a) {
  TK_DYNAMIC_SHARED(int64_t, shared);
  int warp = static_cast<int>(threadIdx.x / kWarp);
  unsigned lane = threadIdx.x % kWarp;
  AttendRow r;
  r.head = static_cast<int>(blockIdx.x) * kTileWarps + warp;
  r.row = a.first_row + static_cast<int>(blockIdx.y);
  if (r.head >= a.heads) return;
  int64_t* place = shared + warp * (kWarp + kWarp / 2 + (a.d + 1) / 2);
  auto* weight = reinterpret_cast<float*>(place + kWarp);
  float* q = weight + kWarp;
  int64_t at = int64_t{blockIdx.y} * a.heads + r.head;
  for (int i = static_cast<int>(lane); i < a.d; i += kWarp) q[i] = load(a.q, a.tq, at * a.d + i);
  sync_warp();
  r.sequence = a.seq[r.row];
  r.first = a.q_start[r.sequence];
  r.own_rows = a.q_start[r.sequence + 1] - r.first;
  r.length = a.kv_len[r.sequence];
  r.position = a.pos[r.row];
  r.own_slot = a.slot[r.row];
  if constexpr (split) {
    int segment = static_cast<int>(blockIdx.z);
    Flash<parts> f = attend_segment<parts>(a, r, segment, q, weight, place);
    float* to = a.partial + (at * a.segments + segment) * (a.dv + 2);
    if (lane == 0) to[0] = f.peak, to[1] = f.mass;
#pragma unroll
    for (int i = 0; i < parts; ++i)
      if (i * kWarp + static_cast<int>(lane) < a.dv) to[2 + i * kWarp + lane] = f.sum[i];
  } else {
    int begin = a.window > 0 ? r.position - a.window + 1 : 0;
    int older = r.length - r.own_rows;  // beyond it, positions need not follow the slots
    begin = begin < older ? begin : older;
    Flash<parts> all;
    for (int s = begin > 0 ? begin / kSegment : 0; s * kSegment < r.length; ++s) {
      Flash<parts> f = attend_segment<parts>(a, r, s, q, weight, place);
      all.merge(f.peak, f.mass, f.sum);
    }
    const float mass = divisor(a, r.head, all);
#pragma unroll
    for (int i = 0; i < parts; ++i)
      if (i * kWarp + static_cast<int>(lane) < a.dv)
        store(a.y, a.ty, at * a.dv + i * kWarp + lane, mass == 0 ? 0.0f : all.sum[i] / mass);
  }
}

// Merges the segments of split calls in order: the same bits as one warp for all of them.
template <int parts>
TK_DEVICE void attend_join(const AttendArgs& a) {
  int head = static_cast<int>(blockIdx.x * kTileWarps + threadIdx.x / kWarp);
  int lane = static_cast<int>(threadIdx.x % kWarp);
  if (head >= a.heads) return;
  int64_t at = int64_t{blockIdx.y} * a.heads + head;
  int length = a.kv_len[a.seq[a.first_row + blockIdx.y]];
  Flash<parts> all;
  for (int s = 0; s < a.segments && s * kSegment < length; ++s) {
    const float* from = a.partial + (at * a.segments + s) * (a.dv + 2);
    float sum[parts];
#pragma unroll
    for (int i = 0; i < parts; ++i)
      sum[i] = i * kWarp + lane < a.dv ? from[2 + i * kWarp + lane] : 0.0f;
    all.merge(from[0], from[1], sum);
  }
  const float mass = divisor(a, head, all);
#pragma unroll
  for (int i = 0; i < parts; ++i)
    if (i * kWarp + lane < a.dv)
      store(a.y, a.ty, at * a.dv + i * kWarp + lane, mass == 0 ? 0.0f : all.sum[i] / mass);
}

#define TK_ATTEND(parts)                                                                       \
  TK_KERNEL(op_attend_##parts, AttendArgs, kTileThreads) { attend_row<parts, false>(a); }      \
  TK_KERNEL(op_attend_split_##parts, AttendArgs, kTileThreads) { attend_row<parts, true>(a); } \
  TK_KERNEL(op_attend_join_##parts, AttendArgs, kTileThreads) { attend_join<parts>(a); }

TK_ATTEND(2)
TK_ATTEND(4)
TK_ATTEND(8)
TK_ATTEND(16)

}  // namespace tokamak::cuda
