// The persistent decode kernel: interprets a list of instructions (decode_program.h).
// Hopper only: bulk copies and their barriers.
#include <cuda_fp16.h>

#include "backend/cuda/decode_attend.cuh"
#include "backend/cuda/decode_matvec.cuh"
#include "backend/cuda/decode_producer.cuh"

namespace tokamak::cuda {
namespace {

// A thread keeps the values of the residual stream that it will write in every layer.
template <class C>
__device__ void load_residual(DecodeThread<C>& t) {
  const int tile_rows = t.launch.residual_tile_rows;
  const int rounds = OutputPlace<C>::rounds(tile_rows);
#pragma unroll
  for (int i = 0; i < kMaxOwnedRows; ++i) {
    OutputPlace<C> place(i % rounds * C::kConsumers + static_cast<int>(threadIdx.x), tile_rows);
    int row = place.global_row(i / rounds * C::kFlush, tile_rows, t.block, t.blocks);
    if (place.tile >= C::kFlush || place.sequence >= t.launch.batch || row >= t.launch.hidden)
      continue;
    int64_t token = t.launch.state[place.sequence].token;
    t.residual[i] = __bfloat162float(
        static_cast<const Bf16*>(t.launch.embedding)[token * t.launch.hidden + row]);
  }
}

__device__ bool better(double score, int token, double best_score, int best_token) {
  return score > best_score || (score == best_score && token < best_token);
}

__device__ void best_of_warp(double& score, int& token) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    double other = __shfl_xor_sync(kAllLanes, score, d);
    int id = __shfl_xor_sync(kAllLanes, token, d);
    if (better(other, id, score, token)) {
      score = other;
      token = id;
    }
  }
}

// The best candidate of every block, found by one warp of the first block.
template <class C>
__device__ void collect_blocks(DecodeThread<C>& t, uint32_t tag) {
  double score = -INFINITY;
  int token = 0x7fffffff;
  const int sequence = t.warp;
#pragma unroll 1
  for (int b = t.lane; b < t.blocks; b += 32) {
    const TaggedPair* from = t.launch.candidates + (sequence * t.blocks + b) * 3;
    TaggedPair part[3] = {};
    t.poll_all(
        part, [from](TaggedPair& p, int j, bool wanted) { load_pair(p, from + j, wanted); },
        [tag](TaggedPair p, int) { return p.tag == tag; });
    double other = __hiloint2double(static_cast<int>(part[1].bits), static_cast<int>(part[0].bits));
    if (better(other, static_cast<int>(part[2].bits), score, token)) {
      score = other;
      token = static_cast<int>(part[2].bits);
    }
  }
  best_of_warp(score, token);
  if (t.lane != 0 || t.shared.ring.is_dead()) return;
  DecodeState& state = t.launch.state[sequence];
  state.token = max(token, 0);
  state.chosen = token;
  state.position = t.shared.position[sequence] + 1;
}

constexpr int kNotFinite = -2;  // DecodeState::chosen between two launches of a step

struct Candidate {
  double score;
  int token, sequence;
};

// Warp s has sequence s.
template <class C>
__device__ void choose_tokens(DecodeThread<C>& t) {
  auto* all = reinterpret_cast<Candidate*>(t.scratch);
  sync_consumers<C>();  // the instruction before has read its sums
  OutputPlace<C> place(static_cast<int>(threadIdx.x), decode_tile_rows(C::kType));
  all[threadIdx.x] = {t.best_score, t.best_token, place.sequence};
  sync_consumers<C>();
  if (t.warp >= t.launch.batch) return;
  double score = -INFINITY;
  int token = 0x7fffffff;
#pragma unroll 1
  for (int i = t.lane; i < C::kConsumers; i += 32)
    if (all[i].sequence == t.warp && better(all[i].score, all[i].token, score, token)) {
      score = all[i].score;
      token = all[i].token;
    }
  best_of_warp(score, token);
  if (t.shared.not_finite[t.warp]) {
    score = INFINITY;
    token = -1;
  }
  uint32_t tag = t.tag(0);
  if (t.lane < 3) {
    uint32_t bits = t.lane == 0   ? static_cast<uint32_t>(__double2loint(score))
                    : t.lane == 1 ? static_cast<uint32_t>(__double2hiint(score))
                                  : static_cast<uint32_t>(token);
    store_pair(t.launch.candidates + (t.warp * t.blocks + t.block) * 3 + t.lane, bits, tag);
  }
  if (t.block == 0) collect_blocks(t, tag);
}

template <class C>
__device__ __forceinline__ bool multiply(DecodeThread<C>& t, const DecodeInstruction& in) {
  if constexpr (C::kType == DecodeWeight::kK4)
    if (in.type == DecodeWeight::kK8) return DecodeMatvec<C, DecodeWeight::kK8>(t, in).run();
  return DecodeMatvec<C, C::kType>(t, in).run();
}

// False when the step is dead.
template <class C>
__device__ __forceinline__ bool consume(DecodeThread<C>& t) {
  load_residual(t);
#pragma unroll 1
  for (int k = t.launch.first; k < t.launch.end; ++k) {
    const DecodeInstruction& in = decode_program[k];
    t.index = k;
    t.mark(kBegin);
    if (in.op == DecodeOp::kMatvec) {
      if (!multiply(t, in)) return false;
    } else if (in.op == DecodeOp::kAttend) {
      if (!DecodeAttend<C>(t, in).run()) return false;
    } else {
      combine_partials(t, in);
    }
    t.mark(kDone);
    t.mark_waits();
  }
  if (t.launch.end == t.launch.instructions) {
    choose_tokens(t);
  } else {
    sync_consumers<C>();
    if (threadIdx.x < t.launch.batch && t.shared.not_finite[threadIdx.x])
      t.launch.state[threadIdx.x].chosen = kNotFinite;
  }
  return !t.shared.ring.is_dead();
}

template <class C>
__device__ void prepare_block(const DecodeLaunch& launch, DecodeShared<C>& shared) {
  if (threadIdx.x == 0) shared.ring.init();
  if (threadIdx.x < C::kBatch) {
    const int sequence = static_cast<int>(threadIdx.x);
    shared.position[sequence] = sequence < launch.batch ? launch.state[sequence].position : 0;
    shared.not_finite[sequence] =
        sequence < launch.batch && launch.first > 0 && launch.state[sequence].chosen == kNotFinite;
  }
  __syncthreads();
}

template <class C>
__device__ __forceinline__ void decode_step(const DecodeLaunch& launch) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<C>*>(memory);
  const int warp = threadIdx.x / 32, block = blockIdx.x, blocks = gridDim.x;
  const unsigned long long deadline = now_ns() + launch.timeout_ns;
  prepare_block<C>(launch, shared);
  if (warp >= C::kWarps) {
    DecodeProducer<C> producer(launch, shared, warp - C::kWarps);
    producer.run(AttendWork(launch, shared.position, block, blocks, producer.consumer()));
    return;
  }
  if (threadIdx.x % 32 == 0)
    shared.attend[warp] = AttendWork(launch, shared.position, block, blocks, warp);
  DecodeThread<C> t{.launch = launch,
                    .shared = shared,
                    .scratch = memory + sizeof shared,
                    .warp = warp,
                    .lane = static_cast<int>(threadIdx.x % 32),
                    .block = block,
                    .blocks = blocks,
                    .ring = RingConsumer<C>(shared.ring, warp, deadline)};
#pragma unroll 1
  for (int i = threadIdx.x; i < launch.batch * (C::kHead / 2); i += C::kConsumers) {
    const int sequence = i / (C::kHead / 2), pair = i % (C::kHead / 2);
    double sine, cosine, scale = launch.rope_scale;
    sincos(static_cast<double>(shared.position[sequence]) *
               static_cast<double>(launch.frequencies[pair]),
           &sine, &cosine);
    shared.rope[sequence][pair] =
        make_float2(static_cast<float>(cosine * scale), static_cast<float>(sine * scale));
  }
  // The first barrier of the consumers comes before the first use of what is prepared here.
  if (!consume(t)) atomicCAS(&launch.state->error, 0u, static_cast<uint32_t>(t.index) + 1);
}

}  // namespace
}  // namespace tokamak::cuda

// decode_<one or batch>_<type>_<head size>_<group>_<slots>_<producers>
#define TK_DECODE_KERNEL(name, head, group, batch, type, slots, producers)                        \
  extern "C" __global__ void __launch_bounds__((tokamak::cuda::kDecodeWarps + producers) * 32, 1) \
      name(const __grid_constant__ tokamak::cuda::DecodeLaunch launch) {                          \
    tokamak::cuda::decode_step<tokamak::cuda::DecodeConfig<                                       \
        head, group, batch, tokamak::cuda::DecodeWeight::type, slots, producers>>(launch);        \
  }
#define TK_DECODE_TYPE(tag, type, head, group, slots, batch_slots)                                 \
  TK_DECODE_KERNEL(decode_one_##tag##_##head##_##group##_##slots##_2, head, group, 1, type, slots, \
                   2)                                                                              \
  TK_DECODE_KERNEL(decode_batch_##tag##_##head##_##group##_##batch_slots##_2, head, group,         \
                   tokamak::cuda::kMaxBatch, type, batch_slots, 2)
// Slots of 16-bit and 8-bit weights, of Q8_0 and Q4_0, and of several sequences. Chunks of
// K-quants are larger: there is room for four; of several sequences registers would not suffice.
#define TK_DECODE_STREAM(head, group, slots, block_slots, batch_slots) \
  TK_DECODE_TYPE(bf16, kBf16, head, group, slots, batch_slots)         \
  TK_DECODE_TYPE(f16, kF16, head, group, slots, batch_slots)           \
  TK_DECODE_TYPE(fp8, kFp8, head, group, slots, batch_slots)           \
  TK_DECODE_TYPE(q8, kQ8, head, group, block_slots, batch_slots)       \
  TK_DECODE_TYPE(q4, kQ4, head, group, block_slots, batch_slots)       \
  TK_DECODE_KERNEL(decode_one_k_##head##_##group##_4_2, head, group, 1, kK4, 4, 2)

TK_DECODE_STREAM(128, 2, 6, 5, 5)
TK_DECODE_STREAM(128, 4, 6, 5, 5)
TK_DECODE_STREAM(128, 8, 5, 5, 4)
TK_DECODE_STREAM(64, 8, 6, 5, 5)
