// The persistent decode kernel: interprets a list of instructions (decode_program.h).
#include "backend/cuda/decode_attend.cuh"
#include "backend/cuda/decode_matvec.cuh"
#include "backend/cuda/decode_producer.cuh"

namespace tokamak::cuda {
namespace {

// A warp keeps the rows of the residual stream that it will write in every layer.
template <class C>
__device__ void load_residual(DecodeThread<C>& t) {
  const Bf16* row = static_cast<const Bf16*>(t.launch.embedding) +
                    static_cast<int64_t>(t.launch.state->token) * t.launch.hidden;
#pragma unroll
  for (int i = 0; i < kMaxOwnedRows / 4; ++i) {
    int r = t.global_warp() + (4 * i + t.lane / 8) * t.all_warps();
    t.residual[i] = r < t.launch.hidden ? __bfloat162float(row[r]) : 0;
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

// The best candidate of every block, found by the first block.
template <class C>
__device__ void collect_blocks(DecodeThread<C>& t, uint32_t tag) {
  double score = -INFINITY;
  int token = 0x7fffffff;
  auto ready = [tag](TaggedPair p) { return p.tag == tag; };
#pragma unroll 1
  for (int b = t.lane; b < t.blocks; b += 32) {
    const TaggedPair* from = t.launch.candidates + b * 3;
    TaggedPair part[3] = {load_pair(from), load_pair(from + 1), load_pair(from + 2)};
    t.poll_all(
        part, [from](int j) { return load_pair(from + j); }, ready);
    double other = __hiloint2double(static_cast<int>(part[1].bits), static_cast<int>(part[0].bits));
    if (better(other, static_cast<int>(part[2].bits), score, token)) {
      score = other;
      token = static_cast<int>(part[2].bits);
    }
  }
  best_of_warp(score, token);
  if (t.lane != 0 || t.shared.ring.is_dead()) return;
  t.launch.state->token = max(token, 0);
  t.launch.state->chosen = token;
  t.launch.state->position = t.position + 1;
  if (t.launch.tokens) *t.launch.tokens = token;
}

template <class C>
__device__ void choose_token(DecodeThread<C>& t) {
  best_of_warp(t.best_score, t.best_token);
  if (t.lane == 0) {
    t.shared.best_scores[t.warp] = t.best_score;
    t.shared.best_tokens[t.warp] = t.best_token;
  }
  sync_consumers<C>();
  if (t.warp != 0) return;
  double score = t.lane < C::kWarps ? t.shared.best_scores[t.lane] : -INFINITY;
  int token = t.lane < C::kWarps ? t.shared.best_tokens[t.lane] : 0x7fffffff;
  best_of_warp(score, token);
  uint32_t tag = t.tag(0);
  if (t.lane < 3) {
    uint32_t bits = t.lane == 0   ? static_cast<uint32_t>(__double2loint(score))
                    : t.lane == 1 ? static_cast<uint32_t>(__double2hiint(score))
                                  : static_cast<uint32_t>(token);
    store_pair(t.launch.candidates + t.block * 3 + t.lane, bits, tag);
  }
  if (t.block == 0) collect_blocks(t, tag);
}

// False when the step is dead.
template <class C>
__device__ bool consume(DecodeThread<C>& t) {
  load_residual(t);
#pragma unroll 1
  for (int k = 0; k < t.launch.instructions; ++k) {
    const DecodeInstruction& in = decode_program[k];
    t.index = k;
    t.mark(0);
    if (in.op == DecodeOp::kMatvec) {
      if (!DecodeMatvec<C>(t, in).run()) return false;
    } else if (in.op == DecodeOp::kAttend) {
      if (!DecodeAttend<C>(t, in).run()) return false;
    } else {
      combine_partials(t, in);
    }
    t.mark(3);
    t.mark_ring_wait();
  }
  choose_token(t);
  return !t.shared.ring.is_dead();
}

template <class C>
__device__ void decode_step(const DecodeLaunch& launch) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<C>*>(memory);
  const int warp = threadIdx.x / 32;
  DecodeThread<C> t{.launch = launch,
                    .shared = shared,
                    .input = memory + sizeof shared,
                    .warp = warp,
                    .lane = static_cast<int>(threadIdx.x % 32),
                    .block = static_cast<int>(blockIdx.x),
                    .blocks = static_cast<int>(gridDim.x),
                    .position = launch.state->position,
                    .ring = RingConsumer<C>(shared.ring, warp, now_ns() + launch.timeout_ns)};
  if (threadIdx.x == 0) shared.ring.init();
  __syncthreads();
  if (t.warp >= C::kWarps) {
    DecodeProducer<C>(t).run();
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < C::kHead / 2; i += C::kConsumers) {
    double sine, cosine, scale = launch.rope_scale;
    sincos(static_cast<double>(t.position) * static_cast<double>(launch.frequencies[i]), &sine,
           &cosine);
    shared.rope[i] =
        make_float2(static_cast<float>(cosine * scale), static_cast<float>(sine * scale));
  }
  // The first barrier of the consumers comes before the first use of the rotations.
  if (!consume(t)) atomicCAS(&launch.state->error, 0u, static_cast<uint32_t>(t.index) + 1);
}

}  // namespace
}  // namespace tokamak::cuda

// decode_stream_<head size>_<group>_<warps>x<chunk KB>_<slots>_<producers>
#define TK_DECODE_STREAM(head, group, warps, chunk_kb, slots, producers)                     \
  extern "C" __global__ void __launch_bounds__(warps * 32 + producers * 32, 1)               \
      decode_stream_##head##_##group##_##warps##x##chunk_kb##_##slots##_##producers(         \
          const __grid_constant__ tokamak::cuda::DecodeLaunch launch) {                      \
    tokamak::cuda::decode_step<                                                              \
        tokamak::cuda::DecodeConfig<head, group, warps, slots, chunk_kb * 1024, producers>>( \
        launch);                                                                             \
  }

TK_DECODE_STREAM(128, 1, 8, 4, 6, 2)
TK_DECODE_STREAM(128, 2, 8, 4, 6, 4)
TK_DECODE_STREAM(128, 2, 8, 4, 6, 2)
TK_DECODE_STREAM(128, 2, 8, 4, 6, 1)
TK_DECODE_STREAM(128, 4, 8, 4, 6, 4)
TK_DECODE_STREAM(128, 4, 8, 4, 6, 2)
TK_DECODE_STREAM(128, 4, 8, 4, 6, 1)
TK_DECODE_STREAM(128, 8, 8, 4, 5, 2)
TK_DECODE_STREAM(64, 8, 8, 4, 6, 2)
