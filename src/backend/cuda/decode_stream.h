#pragma once
// Host side of the persistent decode kernel: writes its program and launches steps.
#include <cstdint>
#include <span>
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
  bool cache_f16 = false;  // keys and values are f16 instead of bf16
  float score_scale = 0;   // 0: 1 / sqrt(head_dim)
  int qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Weights of one product. Types other than bf16 are packed (decode_pack.h).
struct DecodeMatrix {
  DeviceAddress data = 0;
  DeviceAddress scales = 0;  // kFp8: float [rows]
  DecodeWeight type = DecodeWeight::kBf16;
};

// Device addresses; vectors are bf16. Zero where a model has none.
struct LayerWeights {
  DeviceAddress attention_gains, mlp_gains, query_gains, key_gains, qkv_bias;
  DecodeMatrix qkv;            // [qkv_rows, hidden]: queries, keys, values
  DecodeMatrix out;            // [hidden, heads * head_dim]
  DecodeMatrix gate_up;        // [2 * mlp, hidden]: gate and up in alternating rows, or
  DeviceAddress up;            // of bf16: [mlp, hidden], where gate_up has the gates alone; else 0
  DecodeMatrix down;           // [hidden, mlp]
  DeviceAddress keys, values;  // cache, [page, kv head, slot, head_dim]
};
struct DecoderWeights {
  DeviceAddress embedding = 0, final_gains = 0, frequencies = 0;
  DecodeMatrix head;
  std::vector<LayerWeights> layers;
};

// A variant of the kernel. Its name says the same: see decode_stream.cu. group: query heads per
// key/value head, rounded up to a power of two. batch: 1, or kMaxBatch for 2 to kMaxBatch
// sequences.
struct DecodeVariant {
  int head_dim = 128, group = 4, batch = 1, slots = 5, producers = 2;
  DecodeWeight type = DecodeWeight::kBf16;  // of all weights
  std::string name() const;
  int threads() const { return (kDecodeWarps + producers) * 32; }
  // Dynamic shared memory for a shape; what decode_context.cuh lays out.
  int shared_bytes(const DecoderShape& shape) const;
  // Quarters of tiles that may be loading at a time: a trade of bandwidth against waiting.
  int in_flight(const DecoderShape& shape) const;
  static DecodeVariant of(const DecoderShape& shape, int batch, DecodeWeight type);
};

// Where the values of a step are, as offsets into one buffer.
struct DecodeWorkspace {
  size_t after_attention, after_mlp, qkv, attention, activated, partials, candidates, logits;
  size_t bytes;
  DecodeWorkspace(const DecoderShape& shape, int max_batch, int blocks);
};

// Throws kUnsupported where the kernel cannot run this model on this number of blocks.
void check_decode_model(const DecoderShape& shape, const DecoderWeights& weights, int max_batch,
                        int blocks);
std::vector<DecodeInstruction> make_decode_program(const DecoderShape& shape,
                                                   const DecoderWeights& weights,
                                                   const DecodeWorkspace& workspace,
                                                   DeviceAddress workspace_at);

// What a step reads and writes; 0: what the stream itself has.
struct DecodeStep {
  DeviceAddress state = 0;      // DecodeState [batch]
  DeviceAddress embedding = 0;  // bf16, a row for each DecodeState::token
  DeviceAddress logits = 0;     // float [batch, vocab]
};

// One model on one device. Steps run in the order of their launches; the token that a step chooses
// for a sequence is the sequence's input of the next.
class DecodeStream {
 public:
  DecodeStream(const Device& device, const void* cubin, const DecoderShape& shape,
               const DecoderWeights& weights, int max_batch);
  // Throws kUnsupported where it cannot be created; only the types of the weights matter.
  // multiprocessors, shared_memory: of the device.
  static void check_fits(int multiprocessors, int shared_memory, const DecoderShape& shape,
                         const DecoderWeights& weights, int max_batch);
  int blocks() const { return blocks_; }
  int instructions() const { return instructions_; }
  // Measurements: DecodeVariant::in_flight() of all kernels.
  void set_in_flight(int quarters) { in_flight_ = quarters; }
  void set_state(int sequence, int32_t token, int32_t position);
  // A step of sampling.size() sequences: one launch, or two where the head has another type than
  // the layers. pages: their page tables, `page_stride` apart.
  // Asynchronous unless there are more sequences than in the step before and an odd number of
  // layers. profile: [blocks, instructions, kProfileFields] ticks, or 0.
  void launch(Handle stream, DeviceAddress pages, int page_stride,
              std::span<const DecodeSampling> sampling, DeviceAddress profile = 0,
              const DecodeStep& step = {});
  // Waits for steps with the stream's own states; throws as check_step().
  std::vector<DecodeState> finish(Handle stream);
  // `first`: the state of the first sequence after the last step, which is done. Throws kInternal
  // when it gave up, and makes the stream usable again.
  void check_step(const DecodeState& first);
  uint64_t bytes() const { return workspace_.bytes() + state_.bytes(); }
  std::vector<float> logits(int sequence) const;
  void set_timeout_ms(int ms) { timeout_ms_ = ms; }
  // Tests: the readers of an instruction then wait for values that never come. -1: no more.
  void corrupt_tag(int instruction);

 private:
  struct Kernel {
    DecodeVariant variant;
    int shared_bytes = 0;
    Handle function = nullptr;
  };
  Kernel load_kernel(int batch, DecodeWeight type) const;
  void launch_part(Handle stream, const Kernel& kernel, DecodeLaunch& launch, int first, int end);
  void restart();  // no value of an earlier step survives

  DecoderShape shape_;
  DecoderWeights weights_;
  int max_batch_, blocks_, instructions_ = 0, in_flight_ = 0, timeout_ms_ = 1000;
  DecodeWorkspace layout_;
  KernelModule module_;
  Kernel layers_[2], head_[2];  // of one sequence, of several
  Buffer workspace_, state_;
  std::vector<DecodeInstruction> program_;
  uint32_t step_ = 0;
  int last_batch_ = 0;  // sequences whose values are in the phase of `step_`
};

}  // namespace tokamak::cuda
