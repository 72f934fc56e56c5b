#pragma once
// The program of the persistent decode kernel, as the host writes it and the device reads it. One
// launch of decode_stream.cu runs one decode step of one sequence: every block works on every
// instruction, and weights and cached keys and values stream through shared memory ahead of use.
//
// Values between instructions carry their own readiness. A tagged word is a bf16 in the high half
// and a 16-bit tag in the low half; a tagged pair is a float and a 32-bit tag. A reader polls until
// the tag is the one it expects, so there is no barrier between blocks.
#include <cstdint>

namespace tokamak::cuda {

constexpr int kMaxInstructions = 800;  // in constant memory
constexpr int kMaxOwnedRows = 8;       // rows of the residual stream that one warp keeps
constexpr int kMaxGroup = 8;           // query heads per key/value head
constexpr int kProfileFields = 5;      // per instruction: four timestamps, ticks in the ring

struct alignas(8) TaggedPair {
  uint32_t bits, tag;
};

enum class DecodeOp : uint32_t {
  kMatvec,   // output[rows] = weights[rows, width] * input[width]
  kAttend,   // q/k norm, rotation, append to the cache, partial attention of one block
  kCombine,  // partial results of all blocks -> attention output
};

// How a kMatvec reads its input and what it does with its sums.
enum DecodeFlags : uint32_t {
  kFromEmbedding = 1,  // the input is the embedding of the step's token, not tagged words
  kNormInput = 2,      // RMSNorm of the input with `gains`
  kGated = 4,          // rows 2i and 2i+1 are gate and up: output[i] = silu(gate) * up
  kAddResidual = 8,    // adds to the residual stream, which the owning warp keeps in registers
  kToLogits = 16,      // output goes to the logits and takes part in sampling
};

struct DecodeInstruction {
  DecodeOp op;
  uint32_t flags;
  const void* weights;    // kMatvec: bf16 [rows, width]. kAttend: keys, [page, kv head, slot, d]
  const void* values;     // kAttend: values, laid out like the keys
  const void* gains;      // kMatvec: bf16 [width]. kAttend: bf16 [d] of the queries, or null
  const void* gains_k;    // kAttend: bf16 [d] of the keys, or null
  const void* bias;       // kMatvec: bf16 [rows], or null
  const uint32_t* input;  // tagged words
  uint32_t* output;       // tagged words
  int32_t width, rows;
  int32_t tag_in, tag_out;  // relative to DecodeLaunch::tag_base
};

// Device memory that lives across steps: a step reads the first two and advances them.
struct DecodeState {
  int32_t token;     // input of the step
  int32_t position;  // of that token; so many positions are cached
  int32_t chosen;    // output of the last step; -1: a logit was not finite
  uint32_t error;    // 0, or 1 + the instruction that waited until the deadline
};

struct DecodeLaunch {
  DecodeState* state;
  const void* embedding;        // bf16 [vocab, hidden]
  const int32_t* pages;         // page table of the sequence
  const float* frequencies;     // [head_dim / 2]
  TaggedPair* partials;         // tagged pairs, [heads, splits, head_dim + 1]
  TaggedPair* candidates;       // tagged pairs, [blocks, 3]: score (two halves), token
  float* logits;                // [vocab]
  int32_t* tokens;              // where the chosen token goes, or null
  unsigned long long* profile;  // [blocks, instructions, kProfileFields] ticks, or null
  unsigned long long timeout_ns;
  uint64_t seed;
  float temperature;  // <= 0: greedy
  int32_t choice;
  uint32_t tag_base;
  int32_t instructions;
  int32_t in_flight;  // quarters of tiles that may be loading at a time
  int32_t hidden, heads, kv_heads, page_size, vocab;
  float eps, score_scale, rope_scale;
  uint32_t rope_interleaved;  // pairs are (2i, 2i+1) instead of (i, i + d/2)
};

}  // namespace tokamak::cuda
