#pragma once
// Decode steps of a loaded model by the persistent kernel (decode_stream.h).
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launches.h"
#include "plan/step.h"

namespace tokamak::cuda {

// Owned by an executable. bf16 matrices are those of the other kernels; quantised ones, which the
// kernel reads in another order, are kept a second time.
class StreamDecoder {
 public:
  // What it stands on, all of which outlives it.
  struct Model {
    const Device& device;
    const PlanSet& plans;
    const DeviceWeights& weights;
    const KvPool& kv;
    const KernelLibrary& kernels;
    const DeviceStream& stream;
  };
  // For the plans that name the launch (kStream or kStreamFp8); null where none does. Throws
  // kUnsupported where this device cannot run it, kResourceExhausted where its memory is too small.
  static std::unique_ptr<StreamDecoder> make(const Model& model, LaunchKind kind);
  // bytes() of what make() returns for both kinds, about.
  static uint64_t bytes_for(const PlanSet& plans);

  uint32_t group() const { return decoder_.group; }
  // Whether the kernel can run a step of the decode function: few sequences, each with one more
  // token at its end.
  bool takes(const StepInputs& step) const;

  struct Batch {
    std::span<const DecodeSampling> sampling;  // one per sequence
    DeviceAddress state = 0;                   // make_states() on the device
    DeviceAddress ids = 0;                     // i32 [batch]
    DeviceAddress logits = 0;                  // f32 [batch, vocab]
    ViewArgs view;                             // of group()
  };
  void make_states(std::span<const int32_t> ids, std::span<const int32_t> pos,
                   DecodeState* to) const;
  void launch(const DeviceStream& stream, const Batch& batch);
  // Throws when the step gave up. `first`: the first of its states, after it.
  void check_step(const DecodeState& first) { stream_->check_step(first); }
  uint64_t bytes() const;

 private:
  StreamDecoder(const Model& model, PlannedDecoder decoder, int max_batch);
  void load();
  DecodeMatrix matrix(DecodeWeight type, const std::vector<uint32_t>& parts, bool alternate);
  DecodeMatrix expanded(uint32_t weight);  // as bf16
  DecodeMatrix joined(DecodeWeight type, const std::vector<uint32_t>& parts, size_t bytes);
  DeviceAddress vectors(const std::vector<uint32_t>& parts, const std::vector<int>& lengths);
  void embed(const DeviceStream& stream, const Batch& batch);

  const Model model_;
  PlannedDecoder decoder_;
  int max_batch_;
  Buffer vectors_;  // norms and biases as bf16
  size_t vectors_used_ = 0;
  std::vector<Buffer> packed_;
  // An embedding table that is not bf16: its address, and the rows that the step reads.
  DeviceAddress embedding_ = 0;
  Buffer embedded_;
  std::unique_ptr<DecodeStream> stream_;
  LaunchList embed_;  // fills embedded_ for the last batch's ids
  DeviceAddress embed_ids_ = 0;
  size_t embed_rows_ = 0;
};

}  // namespace tokamak::cuda
