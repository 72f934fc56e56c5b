#pragma once
// Host side of the persistent decode kernel: writes its program and launches steps.
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/decode_program.h"
#include "backend/cuda/driver.h"

namespace tokamak::cuda {

struct DecoderShape {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocab = 0;
  int page_size = 16;
  float eps = 1e-5f, rope_scale = 1;
  bool rope_interleaved = false;
  int qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Device addresses; all weights are bf16. Zero where a model has none.
struct LayerWeights {
  DeviceAddress attention_gains, mlp_gains, query_gains, key_gains;
  DeviceAddress qkv, qkv_bias;  // [qkv_rows, hidden]: queries, keys, values
  DeviceAddress out;            // [hidden, heads * head_dim]
  DeviceAddress gate_up;        // [2 * mlp, hidden]: gate and up in alternating rows
  DeviceAddress down;           // [hidden, mlp]
  DeviceAddress keys, values;   // cache, [page, kv head, slot, head_dim]
};
struct DecoderWeights {
  DeviceAddress embedding, final_gains, head, frequencies;
  std::vector<LayerWeights> layers;
};

// A variant of the kernel. Its name says the same: see decode_stream.cu. group: query heads per
// key/value head, rounded up to a power of two.
struct DecodeVariant {
  int head_dim = 128, group = 4, warps = 8, chunk_kb = 4, slots = 6, producers = 2;
  int in_flight = 8;  // quarters of tiles that may be loading at a time
  std::string name() const;
  int threads() const { return (warps + producers) * 32; }
  // Dynamic shared memory for a shape; what decode_context.cuh lays out.
  int shared_bytes(const DecoderShape& shape) const;
  static DecodeVariant of(const DecoderShape& shape);
};

// Where the words and pairs of a step are, as offsets into one buffer.
struct DecodeWorkspace {
  size_t after_attention, after_mlp, qkv, attention, activated, partials, candidates, logits, bytes;
  DecodeWorkspace(const DecoderShape& shape, int blocks);
};

// Throws kUnsupported where the kernel cannot run this shape on so many blocks.
void check_decode_shape(const DecoderShape& shape, const DecodeVariant& variant, int blocks);
std::vector<DecodeInstruction> make_decode_program(const DecoderShape& shape,
                                                   const DecoderWeights& weights,
                                                   const DecodeWorkspace& workspace,
                                                   DeviceAddress workspace_at);

struct DecodeSampling {
  float temperature = 0;  // <= 0: greedy
  uint64_t seed = 0;
  int32_t choice = 0;
};

// One model on one device. Steps run in the order of their launches; the token a step chooses is
// the input of the next.
class DecodeStream {
 public:
  DecodeStream(const Device& device, const void* cubin, const DecoderShape& shape,
               const DecoderWeights& weights, const DecodeVariant& variant);
  int blocks() const { return blocks_; }
  int instructions() const { return instructions_; }
  void set_state(int32_t token, int32_t position);
  // Asynchronous. `profile`: [blocks, instructions, kProfileFields] ticks, or 0.
  void launch(Handle stream, DeviceAddress pages, const DecodeSampling& sampling,
              DeviceAddress profile = 0);
  // Waits; throws kInternal when a step gave up, and makes the stream usable again.
  DecodeState finish(Handle stream);
  std::vector<float> logits() const;
  void set_timeout_ms(int ms) { timeout_ms_ = ms; }
  // Tests: an instruction then waits for a value that never comes.
  void corrupt_tag(int instruction);

 private:
  DecoderShape shape_;
  DecoderWeights weights_;
  DecodeVariant variant_;
  int blocks_, shared_bytes_, instructions_ = 0, timeout_ms_ = 1000;
  DecodeWorkspace layout_;
  Module module_;
  Handle function_ = nullptr;
  Buffer workspace_, state_;
  std::vector<DecodeInstruction> program_;
  uint32_t step_ = 0;
};

}  // namespace tokamak::cuda
