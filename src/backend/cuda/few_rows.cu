// Products of few rows (few_rows.h): weights stream through a ring of stages in shared memory, and
// groups of four warps multiply them on the tensor cores with the values as the narrow operand.
// Weights that are not bf16 become so in registers, just before they are multiplied.
// Hopper only: tensor copies and products of warp groups.
#include "backend/cuda/few_rows.h"

#include "backend/cuda/device.cuh"
#include "backend/cuda/few_rows_blocks.cuh"
#include "backend/cuda/few_rows_product.cuh"

namespace tokamak::cuda {
namespace {

constexpr int kGroupBytes = 64 * 128;  // of 16-bit weights: what four warps multiply
constexpr unsigned long long kTimeoutNs = 1'000'000'000;  // a bug must not hang the device

template <DType kType_, int kRows_>  // of weights; of values
struct FewRowsConfig {
  static constexpr DType kType = kType_;
  static constexpr int kRows = kRows_;
  static constexpr FewRowsType kOfType = *few_rows_type(kType);
  static constexpr FewRowsStages kSums = few_rows_stages(kOfType, kRows);
  static constexpr bool kDecoded = kType != DType::kBF16, kBlocks = kOfType.blocks();
  static constexpr int kBoxes = kOfType.columns / kFewRowsWidth;
  static constexpr int kStages = kSums.weights, kValueStages = kSums.values;
  static constexpr int kWeightBytes = kOfType.stage_bytes(), kValueBytes = kSums.value_bytes;
  static_assert(kValueBytes % 1024 == 0 && kWeightBytes % 1024 == 0);
};

template <class C>
struct FewRowsShared {
  unsigned char* stages;
  uint64_t* barriers;

  __device__ explicit FewRowsShared(unsigned char* memory) {
    const uint32_t at = shared_address(memory), past = (1024 - at % 1024) % 1024;
    stages = memory + past;
    barriers = reinterpret_cast<uint64_t*>(stages + C::kStages * C::kWeightBytes +
                                           C::kValueStages * C::kValueBytes);
  }
  __device__ uint32_t weights(int stage) const {
    return shared_address(stages + stage * C::kWeightBytes);
  }
  __device__ uint32_t values(int stage) const {
    return weights(C::kStages) + stage * C::kValueBytes;
  }
  __device__ uint32_t weights_full(int stage) const { return shared_address(barriers + stage); }
  __device__ uint32_t empty(int stage) const {  // the unit with these weights is done
    return shared_address(barriers + C::kStages + stage);
  }
  __device__ uint32_t values_full(int stage) const {
    return shared_address(barriers + 2 * C::kStages + stage);
  }
  __device__ void init() const {  // by one thread; a barrier of the block has to follow
    for (int s = 0; s < C::kStages; ++s) {
      barrier_init(weights_full(s), C::kOfType.copied_by_threads() ? C::kOfType.copiers() : 1);
      barrier_init(empty(s), kFewRowsMultipliers / 32);
    }
    for (int s = 0; s < C::kValueStages; ++s) barrier_init(values_full(s), 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
};

// Units of work: a tile at a step of its width. A block has those from first_unit(block) to the
// next block's.
__device__ __forceinline__ int first_unit(const FewRowsArgs& a, int block) {
  const FewRowsShares& s = a.sums.shares;
  const int of_tile = a.whole_tiles ? 1 : s.steps;  // pieces that a block has a number of
  return static_cast<int>(static_cast<int64_t>(s.tiles) * of_tile * block / s.blocks) *
         (s.steps / of_tile);
}

// All lines of a tile, from a column on.
__device__ __forceinline__ void copy_tile(const FewRowsArgs& a, uint32_t to, int column, int tile,
                                          uint32_t full) {
  if (a.gated)
    tensor_copy_4d(to, &a.w, column, tile * (a.lines / 2 / kFewRowsTurn), full);
  else
    tensor_copy<true>(to, &a.w, column, tile * a.lines, full);
}

// The weights, by one thread.
template <class C>
__device__ void load_weights(const FewRowsArgs& a, const FewRowsShared<C>& shared) {
  const int steps = a.sums.shares.steps, begin = first_unit(a, blockIdx.x);
  const int end = first_unit(a, blockIdx.x + 1);
  RingPlace<C::kStages> place, landed;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit, place.next()) {
    if (unit - begin >= C::kStages) wait_barrier(shared.empty(place.stage), place.phase ^ 1);
    if (unit - begin >= a.in_flight) {
      wait_barrier(shared.weights_full(landed.stage), landed.phase);
      landed.next();
    }
    const uint32_t full = shared.weights_full(place.stage), to = shared.weights(place.stage);
    const int tile = unit / steps, step = unit % steps;
    barrier_expect(full, a.lines * C::kOfType.pitch);
    constexpr int kCopies = C::kBlocks ? 1 : C::kBoxes;
    constexpr int kWidth = C::kBlocks ? C::kOfType.bytes / 2 : kFewRowsWidth;  // of two bytes each
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_tile(a, to + i * 2 * kGroupBytes, (step * kCopies + i) * kWidth, tile, full);
  }
}

// The row of the matrix that is line `line` of a tile.
__device__ __forceinline__ int row_of_line(const FewRowsArgs& a, int tile, int line) {
  if (!a.gated) return min(tile * a.lines + line, a.w_rows - 1);
  const int turn = line / kFewRowsTurn;
  const int row = tile * (a.lines / 2) + turn / 2 * kFewRowsTurn + line % kFewRowsTurn;
  return min(row, a.n - 1) + turn % 2 * a.n;
}

// The same by all copiers, from the multiple of 16 bytes that a row's step begins at or after.
template <class C>
__device__ void copy_weights(const FewRowsArgs& a, const FewRowsShared<C>& shared, int thread) {
  constexpr int kPitch = C::kOfType.pitch, kPieces = (14 + C::kOfType.bytes + 15) / 16;
  static_assert(C::kOfType.bytes % 2 == 0 && kPieces * 16 <= kPitch);
  const int steps = a.sums.shares.steps, begin = first_unit(a, blockIdx.x);
  const int end = first_unit(a, blockIdx.x + 1);
  RingPlace<C::kStages> place;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit, place.next()) {
    if (unit - begin >= C::kStages) wait_barrier(shared.empty(place.stage), place.phase ^ 1);
    const int tile = unit / steps, past = unit % steps * C::kOfType.bytes;
    const uint32_t to = shared.weights(place.stage);
#pragma unroll 4
    for (int i = thread; i < kFewRowsTile * kPieces; i += C::kOfType.copiers()) {
      const int line = i / kPieces, piece = i % kPieces * 16;
      const int64_t begin = static_cast<int64_t>(row_of_line(a, tile, line)) * a.row_bytes + past;
      if (piece < static_cast<int>(begin % 16) + C::kOfType.bytes)
        copy_16_bytes(to + line * kPitch + piece, a.bytes + begin / 16 * 16 + piece);
    }
    copies_arrive(shared.weights_full(place.stage));
  }
  copies_wait_all();
}

// The values, by another thread: they are short of room, so it must not wait for weights.
template <class C>
__device__ void load_values(const FewRowsArgs& a, const FewRowsShared<C>& shared) {
  const int steps = a.sums.shares.steps, begin = first_unit(a, blockIdx.x);
  const int end = first_unit(a, blockIdx.x + 1);
  prefetch_map(&a.x);
  wait_for_earlier();
  RingPlace<C::kValueStages> place;
  RingPlace<C::kStages> done;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit, place.next()) {
    if (unit - begin >= C::kValueStages) {
      wait_barrier(shared.empty(done.stage), done.phase);
      done.next();
    }
    const uint32_t full = shared.values_full(place.stage);
    barrier_expect(full, C::kValueBytes);
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box)
      tensor_copy<false>(shared.values(place.stage) + box * C::kRows * 128, &a.x,
                         (unit % steps * C::kBoxes + box) * kFewRowsWidth, 0, full);
  }
}

// All warps that multiply: each has 16 lines of a tile.
template <class C>
class FewRowsConsumer {
 public:
  __device__ FewRowsConsumer(const FewRowsArgs& a, const FewRowsShared<C>& shared)
      : a_(a), shared_(shared), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {}

  __device__ void run() {
    const FewRowsShares& shares = a_.sums.shares;
    const int end = first_unit(a_, blockIdx.x + 1);
    bool waited = false;
#pragma unroll 1
    for (int unit = first_unit(a_, blockIdx.x); unit < end;) {
      const int tile = unit / shares.steps, step = unit % shares.steps;
      const int count = min(shares.steps - step, end - unit);
      // A long division: before the values are there.
      const uint32_t plane = opaque(blockIdx.x - static_cast<uint32_t>(shares.first_of(tile)));
      if (!waited) wait_for_earlier();
      waited = true;
      multiply(tile, step, count);
      unit += count;
      if (a_.sums.planes) {
        leave_sums(tile, a_.sums.planes + plane * a_.sums.plane);
      } else if (step > 0) {
        leave_part();
      } else {
        if (count < shares.steps) add_parts(shares.last_of(tile));
        write(tile);
      }
    }
  }

 private:
  static constexpr int kSums = C::kRows / 2;  // of a thread

  __device__ void multiply(int tile, int first, int count) {  // steps
    int past[2] = {};  // where the lane's rows begin, modulo 16
    if constexpr (C::kOfType.copied_by_threads())
      for (int eight = 0; eight < 2; ++eight)
        past[eight] = row_of_line(a_, tile, line(eight)) % 16 * (a_.row_bytes % 16) % 16;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_[i] = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      wait_barrier(shared_.weights_full(place_.stage), place_.phase);
      wait_barrier(shared_.values_full(of_values_.stage), of_values_.phase);
      if constexpr (C::kDecoded)
        multiply_decoded(past, (first + i) * C::kOfType.bytes);
      else
        multiply_shared();
      products_wait<0>();
      pin(sums_);
      if (lane_ == 0) barrier_arrive(shared_.empty(place_.stage));
      place_.next();
      of_values_.next();
    }
  }
  __device__ uint64_t values_of_box(int box) const {
    return rows_of_box(shared_.values(of_values_.stage) + box * C::kRows * 128);
  }
  // A stage of weights as it is.
  __device__ void multiply_shared() {
    pin(sums_);
    products_begin();
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
      const uint64_t x = values_of_box(box);
      const uint64_t w =
          rows_of_box(shared_.weights(place_.stage) + (box * 2 + warp_ / 4) * kGroupBytes);
#pragma unroll
      for (int k = 0; k < kFewRowsWidth / 16; ++k) wgmma<C::kRows>(sums_, w + k * 2, x + k * 2);
    }
    products_commit();
  }

  // 64 columns of a warp's rows as bf16: four operands of products, of four words each.
  using Operands = uint32_t[16];
  // A stage of weights by way of registers: 64 columns are decoded while those before are
  // multiplied. past, before: places of the lane's rows, and of the stage in them; only what is
  // left modulo 16 counts.
  __device__ void multiply_decoded(const int (&past)[2], int before) {
    Operands w[2];
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
      Operands& now = w[box % 2];
      if constexpr (C::kBlocks)
        decode_blocks(box, past, before, now);
      else
        round_halves(box, now);
      const uint64_t x = values_of_box(box);
      pin(now);
      pin(sums_);
      products_begin();
#pragma unroll
      for (int k = 0; k < kFewRowsWidth / 16; ++k) wgmma<C::kRows>(sums_, now + 4 * k, x + k * 2);
      products_commit();
      products_wait<1>();
    }
  }
  __device__ int line(int eight) const { return 16 * warp_ + 8 * eight + lane_ / 4; }
  __device__ void decode_blocks(int box, const int (&past)[2], int before, Operands& to) const {
    const unsigned char* stage = shared_.stages + place_.stage * C::kWeightBytes;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const unsigned char* row = stage + line(eight) * C::kOfType.pitch;
      if constexpr (C::kOfType.copied_by_threads()) row += (past[eight] + before) % 16;
#pragma unroll
      for (int segment = 0; segment < 2; ++segment) {
        LanePairs pairs;
        lane_of_blocks<C::kType>(row, box * 2 + segment, lane_ % 4 * 2, pairs);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[segment * 8 + j / 2 * 4 + j % 2 * 2 + eight] = pairs[j];
      }
    }
  }
  __device__ void round_halves(int box, Operands& to) const {
    const int row = 16 * warp_ + lane_ % 16;  // that the lane names
    const unsigned char* at =
        shared_.stages + place_.stage * C::kWeightBytes + box * 2 * kGroupBytes + row * 128;
#pragma unroll
    for (int k = 0; k < kFewRowsWidth / 16; ++k) {
      uint32_t halves[4];
      load_matrices(halves, at + ((k * 2 + lane_ / 16) ^ (lane_ % 8)) * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 v = unpack2<true>(halves[j]);
        to[4 * k + j] = pack2(v.x, v.y);
      }
    }
  }

  // The parts of a block: vectors of type V, one of each thread after the other.
  template <class V>
  __device__ V* part(int block) const {
    return reinterpret_cast<V*>(a_.parts +
                                static_cast<int64_t>(block) * (kFewRowsTile * C::kRows)) +
           threadIdx.x;
  }
  __device__ static void sync() {
    asm volatile("barrier.cta.sync 1,%0;" ::"n"(kFewRowsMultipliers) : "memory");
  }
  __device__ uint32_t pair(int i) const { return pack2(sums_[i], sums_[i + 1]); }
  __device__ void leave_part() {
    if (a_.f32) {
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        __stcg(part<float>(blockIdx.x) + i * kFewRowsMultipliers, sums_[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kSums; i += 8)
        __stcg(part<uint4>(blockIdx.x) + i / 8 * kFewRowsMultipliers,
               make_uint4(pair(i), pair(i + 2), pair(i + 4), pair(i + 6)));
    }
    __threadfence();
    sync();
    if (threadIdx.x == 0)
      asm volatile("st.release.gpu.global.u32 [%0],%1;" ::"l"(a_.ready + blockIdx.x), "r"(1u)
                   : "memory");
  }
  // Adds the parts of the blocks after this one, up to `last`.
  __device__ void add_parts(int last) {
    const int first = static_cast<int>(blockIdx.x) + 1;
    bool came = true;
#pragma unroll 1
    for (int block = first + static_cast<int>(threadIdx.x); block <= last;
         block += kFewRowsMultipliers)
      came = came && wait_part(block);
    came = sync_all(came);
#pragma unroll 1
    for (int block = first; block <= last; ++block) {
      if (a_.f32) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          sums_[i] += __ldcg(part<float>(block) + i * kFewRowsMultipliers);
      } else {
#pragma unroll
        for (int i = 0; i < kSums; i += 8)
          add_pairs(i, __ldcg(part<uint4>(block) + i / 8 * kFewRowsMultipliers));
      }
    }
    if (!came) sums_[0] = NAN;  // a timeout must not pass unseen
    sync();
#pragma unroll 1
    for (int block = first + static_cast<int>(threadIdx.x); block <= last;
         block += kFewRowsMultipliers)
      a_.ready[block] = 0;
  }
  __device__ void add_pairs(int first, const uint4& four) {
    const uint32_t pairs[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = unpack2(pairs[i]);
      sums_[first + 2 * i] += v.x;
      sums_[first + 2 * i + 1] += v.y;
    }
  }
  // A barrier; whether x holds in all threads.
  __device__ static bool sync_all(bool x) {
    uint32_t all;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.u32 p,%1,0;\n"
        "barrier.cta.red.and.pred q,1,%2,p;\nselp.u32 %0,1,0,q;\n}"
        : "=r"(all)
        : "r"(static_cast<uint32_t>(x)), "n"(kFewRowsMultipliers)
        : "memory");
    return all != 0;
  }
  // False: it did not come.
  __device__ bool wait_part(int block) const {
    const unsigned long long deadline = now_ns() + kTimeoutNs;
#pragma unroll 1
    for (;;) {
      uint32_t ready;
      asm volatile("ld.acquire.gpu.global.u32 %0,[%1];"
                   : "=r"(ready)
                   : "l"(a_.ready + block)
                   : "memory");
      if (ready) return true;
      if (now_ns() > deadline) return false;
    }
  }

  __device__ void write(int tile) {
    if (warp_ * 16 >= a_.lines) return;  // what it multiplied is not of the tile
    if (a_.f32) return write_floats(tile * a_.lines + warp_ * 16);
    if (!a_.gated) return write_pairs<2>(tile * a_.lines + warp_ * 16);
#pragma unroll
    for (int i = 0; i < kSums; i += 4)
#pragma unroll
      for (int j = 0; j < 2; ++j) sums_[i + j] = gated_value(sums_[i + j], sums_[i + 2 + j]);
    write_pairs<1>(tile * (a_.lines / 2) + warp_ * kFewRowsTurn);
  }

  // Sums: lines lane / 4 and that + 8; values' rows 8 * j + lane % 4 * 2 and the next. Lanes of
  // neighbouring lines exchange, so that each has two neighbours of one row of values, 8 * j +
  // value_row(), and writes them at once.
  __device__ bool odd() const { return lane_ / 4 % 2; }
  __device__ int value_row() const { return lane_ % 4 * 2 + odd(); }
  __device__ uint32_t exchanged(int i) const {
    const uint32_t own = pair(i), other = __shfl_xor_sync(kAllLanes, own, 4);
    return __byte_perm(own, other, odd() ? 0x3276 : 0x5410);
  }
  __device__ void write_floats(int first) const {
    const int row = first + lane_ / 8 * 2;
#pragma unroll
    for (int j = 0; j < C::kRows / 8; ++j)
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const float a = sums_[j * 4 + eight * 2], b = sums_[j * 4 + eight * 2 + 1];
        const float other = __shfl_xor_sync(kAllLanes, odd() ? a : b, 4);
        const int of_values = j * 8 + value_row(), at = row + eight * 8;
        if (of_values < a_.rows && at < a_.n)
          *reinterpret_cast<float2*>(static_cast<float*>(a_.y) + of_values * a_.pitch + at) =
              odd() ? make_float2(other, b) : make_float2(a, other);
      }
  }
  template <int kEights>  // 1: only the first eight rows
  __device__ void write_pairs(int first) const {
    const int row = first + lane_ / 8 * 2;
#pragma unroll
    for (int j = 0; j < C::kRows / 8; ++j)
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        const uint32_t two = exchanged(j * 4 + eight * 2);
        const int of_values = j * 8 + value_row(), at = row + eight * 8;
        auto* to = static_cast<uint16_t*>(a_.y) + of_values * a_.pitch + at;
        if (of_values < a_.rows && at < a_.n) *reinterpret_cast<uint32_t*>(to) = two;
      }
  }
  // In the order of few_rows_place.
  __device__ void leave_sums(int tile, uint16_t* plane) const {
    const int pitch = a_.sums.pitch();
    uint16_t* to = plane + value_row() * pitch + tile * kFewRowsTile + warp_ * 16 + lane_ / 8 * 4;
#pragma unroll
    for (int j = 0; j < C::kRows / 8; ++j, to += 8 * pitch) {
      const uint2 four = make_uint2(exchanged(j * 4), exchanged(j * 4 + 2));
      if (j * 8 + value_row() < a_.rows) *reinterpret_cast<uint2*>(to) = four;
    }
  }

  const FewRowsArgs& a_;
  const FewRowsShared<C>& shared_;
  int lane_, warp_;
  RingPlace<C::kStages> place_;
  RingPlace<C::kValueStages> of_values_;
  float sums_[kSums];
};

template <class C>
__device__ void few_rows(const FewRowsArgs& a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FewRowsShared<C> shared(memory);
  allow_next();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x < kFewRowsMultipliers)
    FewRowsConsumer<C>(a, shared).run();
  else if (threadIdx.x == kFewRowsMultipliers + C::kOfType.copiers())
    load_values(a, shared);
  else if constexpr (C::kOfType.copied_by_threads()) {
    if (threadIdx.x < kFewRowsMultipliers + C::kOfType.copiers())
      copy_weights(a, shared, static_cast<int>(threadIdx.x) - kFewRowsMultipliers);
  } else if (threadIdx.x == kFewRowsMultipliers) {
    load_weights(a, shared);
  }
}

}  // namespace
}  // namespace tokamak::cuda

// few_rows_<type>_<most rows>
#define TK_FEW_ROWS(name, type, rows)                                                          \
  extern "C" __global__ void __launch_bounds__(                                                \
      tokamak::cuda::few_rows_threads(*tokamak::cuda::few_rows_type(tokamak::DType::type)), 1) \
      few_rows_##name##_##rows(const __grid_constant__ tokamak::cuda::FewRowsArgs a) {         \
    tokamak::cuda::few_rows<tokamak::cuda::FewRowsConfig<tokamak::DType::type, rows>>(a);      \
  }
#define TK_FEW_ROWS_OF(name, type) \
  TK_FEW_ROWS(name, type, 16)      \
  TK_FEW_ROWS(name, type, 32)      \
  TK_FEW_ROWS(name, type, 64)

TK_FEW_ROWS_OF(bf16, kBF16)
TK_FEW_ROWS(bf16, kBF16, 128)
TK_FEW_ROWS_OF(f16, kF16)
TK_FEW_ROWS_OF(q8_0, kQ8_0)
TK_FEW_ROWS_OF(q4_0, kQ4_0)
TK_FEW_ROWS_OF(q4_k, kQ4_K)
TK_FEW_ROWS_OF(q6_k, kQ6_K)
#ifndef TK_FEW_TYPES
TK_FEW_ROWS_OF(q4_1, kQ4_1)
TK_FEW_ROWS_OF(q5_0, kQ5_0)
TK_FEW_ROWS_OF(q5_1, kQ5_1)
TK_FEW_ROWS_OF(q5_k, kQ5_K)
#endif
