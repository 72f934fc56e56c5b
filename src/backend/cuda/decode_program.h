#pragma once
// The program of the persistent decode kernel, as the host writes it and the device reads it. One
// launch of decode_stream.cu runs one decode step of one to eight sequences: every block works on
// every instruction, and weights and cached keys and values stream through shared memory ahead of
// use.
//
// Values between instructions carry their own readiness, so there is no barrier between blocks. A
// value is a bf16 with the phase, one bit that changes from one write of a buffer to the next, in
// place of its second exponent bit (device.cuh). A reader polls until the phase is the one it
// expects. A tagged pair is a float and a 32-bit tag.
#include <cstdint>

#include "backend/cuda/host_device.h"

namespace tokamak::cuda {

constexpr int kMaxInstructions = 740;  // in constant memory
constexpr int kMaxBatch = 8;           // sequences of a step
constexpr int kMaxOwnedRows = 4;       // values of the residual stream that one thread keeps
constexpr int kMaxGroup = 8;           // query heads per key/value head
constexpr int kDecodeWarps = 8;        // consumers of a block

// What a profile has per instruction. Times of the first consumer: it begins, has its input, has
// met the others after the last tile, is done. Then ticks that it waits for weights and for the
// other consumers, and that the first producer waits for room in the ring and for earlier copies.
enum ProfileField {
  kBegin,
  kHasInput,
  kHasSums,
  kDone,
  kWaitWeights,
  kWaitConsumers,
  kWaitRoom,
  kWaitCopies,
  kProfileFields
};

struct alignas(8) TaggedPair {
  uint32_t bits, tag;
};

enum class DecodeOp : uint32_t {
  kMatvec,   // output[b, rows] = weights[rows, width] * input[b, width]
  kAttend,   // q/k norm, rotation, append to the cache, partial attention of one block
  kCombine,  // partial results of all blocks -> attention output
};

// Weights of one kMatvec. All but those of 16 bits are packed by decode_pack.h.
enum class DecodeWeight : uint16_t {
  kBf16,  // [rows, width], as stored
  kFp8,   // E4M3 with one float per row
  kQ8,    // Q8_0: blocks of 32 with a half as scale
  kQ4,    // Q4_0: likewise
  kF16,   // like kBf16
  kK4,    // four bits; blocks of 32 with a scale and an offset (decode_segments.h)
  kK8,    // eight bits; likewise, with a scale for each half of a block
};

// How a kMatvec reads its input and what it does with its sums.
enum DecodeFlags : uint32_t {
  kFromEmbedding = 1,  // the input is the embedding of the step's tokens
  kNormInput = 2,      // RMSNorm of the input with `gains`
  kGated = 4,          // rows 2i and 2i+1 are gate and up: output[i] = silu(gate) * up
  kAddResidual = 8,    // adds to the residual stream, which the owning thread keeps in a register
  kToLogits = 16,      // output goes to the logits and takes part in sampling
};

struct DecodeInstruction {
  DecodeOp op;
  uint32_t flags;
  DecodeWeight type;
  uint16_t parts;       // kMatvec: equal parts of the width, see decode_parts()
  const void* weights;  // kMatvec: see `type`. kAttend: keys, [page, kv head, slot, d]
  const void* values;   // kMatvec: float [rows] of kFp8; 16 bits and kGated: the rows of up, where
                        // `weights` has those of gate alone. kAttend: values, like the keys
  const void* gains;    // kMatvec: bf16 [width]. kAttend: bf16 [d] of the queries, or null
  const void* gains_k;  // kAttend: bf16 [d] of the keys, or null
  const void* bias;     // kMatvec: bf16 [rows], or null
  const uint16_t* input;  // [b, width]
  uint16_t* output;       // [b, rows]
  int32_t width, rows;
  int32_t tag_in, tag_out;  // relative to DecodeLaunch::tag_base; the phase is the lowest bit
};

TK_HOST_DEVICE constexpr bool decode_16_bits(DecodeWeight type) {
  return type == DecodeWeight::kBf16 || type == DecodeWeight::kF16;
}
// Chunks of up to 16 segments of 32 elements, not eight.
TK_HOST_DEVICE constexpr bool decode_four_bits(DecodeWeight type) {
  return type == DecodeWeight::kQ4 || type == DecodeWeight::kK4;
}
TK_HOST_DEVICE constexpr bool decode_integers(DecodeWeight type) {
  return decode_four_bits(type) || type == DecodeWeight::kQ8 || type == DecodeWeight::kK8;
}
// The type that a kernel is made for; it takes all weights of that type.
TK_HOST_DEVICE constexpr DecodeWeight decode_kernel_type(DecodeWeight type) {
  return type == DecodeWeight::kK8 ? DecodeWeight::kK4 : type;
}
// Bytes of the numbers and of the scales of a packed segment: 16 rows of 32 elements.
TK_HOST_DEVICE constexpr int decode_number_bytes(DecodeWeight type) {
  return decode_four_bits(type) ? 256 : 512;
}
TK_HOST_DEVICE constexpr int decode_scale_bytes(DecodeWeight type) {
  switch (type) {
    case DecodeWeight::kQ8:
    case DecodeWeight::kQ4:
      return 32;
    case DecodeWeight::kK4:
      return 64;
    case DecodeWeight::kK8:
      return 96;
    default:
      return 0;
  }
}
// Rows of a tile: what a block works on at a time.
TK_HOST_DEVICE constexpr int decode_tile_rows(DecodeWeight type) {
  return decode_16_bits(type) ? 8 : 16;
}
// Bytes of one consumer's chunk: 16 bits: one row of a part; else 16 rows of an eighth of a part.
TK_HOST_DEVICE constexpr int decode_chunk_bytes(DecodeWeight type, int part_width) {
  if (decode_16_bits(type)) return part_width * 2;
  return part_width / 256 * (decode_number_bytes(type) + decode_scale_bytes(type));
}
// Bytes that a chunk may have: a multiple of 128, or copies to every second chunk are slow.
TK_HOST_DEVICE constexpr int decode_chunk_room(DecodeWeight type) {
  if (decode_kernel_type(type) == DecodeWeight::kK4) return 5120;
  return type == DecodeWeight::kQ4 ? 4608 : type == DecodeWeight::kQ8 ? 4352 : 4096;
}
// The fewest equal parts of a width whose chunks fit in the ring; 0 where there are none. The eight
// consumers divide the segments of a part among them; those of packed weights get equal shares.
TK_HOST_DEVICE constexpr int decode_parts(DecodeWeight type, int width) {
  const int unit = decode_16_bits(type) ? 32 : decode_four_bits(type) ? 512 : 256;
  for (int parts = 1; parts <= width / unit; ++parts)
    if (width % (parts * unit) == 0 &&
        decode_chunk_bytes(type, width / parts) <= decode_chunk_room(type))
      return parts;
  return 0;
}

// Device memory that lives across steps, one per sequence: a step reads the first two and advances
// them.
struct DecodeState {
  int32_t token;     // input of the step
  int32_t position;  // of that token; earlier positions are cached
  int32_t chosen;    // output of the last step; -1: a value or a logit was not finite
  uint32_t error;    // of the first: 0, or 1 + the instruction that waited until the deadline
};

struct DecodeSampling {
  uint64_t seed = 0;
  float temperature = 0;  // <= 0: greedy
  int32_t choice = 0;
};

struct DecodeLaunch {
  DecodeState* state;           // [batch]
  const void* embedding;        // bf16 [vocab, hidden]
  const int32_t* pages;         // page tables, [batch, page_stride]
  const float* frequencies;     // [head_dim / 2]
  TaggedPair* partials;         // [batch, heads, splits, head_dim + 1]
  TaggedPair* candidates;       // [batch, blocks, 3]: score (two halves), token
  float* logits;                // [batch, vocab]
  unsigned long long* profile;  // [blocks, instructions, kProfileFields] ticks, or null
  unsigned long long timeout_ns;
  DecodeSampling sampling[kMaxBatch];
  uint32_t tag_base;
  int32_t batch, page_stride, instructions;
  int32_t first, end;          // instructions of this launch; the last launch of a step samples
  int32_t in_flight;           // quarters of tiles that may be loading at a time
  int32_t residual_tile_rows;  // decode_tile_rows() of the instructions with kAddResidual
  int32_t hidden, heads, kv_heads, page_size, vocab;
  float eps, score_scale, rope_scale;
  uint32_t rope_interleaved;  // pairs are (2i, 2i+1) instead of (i, i + d/2)
  uint32_t cache_f16;         // keys and values are f16 instead of bf16
};

}  // namespace tokamak::cuda
