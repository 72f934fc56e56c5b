#pragma once
// Decode steps of a loaded model by the persistent kernel (decode_stream.h).
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/kernels.h"
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
  // Null where the kernel cannot run the decode plans of this set on this device. The log says why
  // (level info). fp8: layers of bf16 weights are read as FP8.
  static std::unique_ptr<StreamDecoder> make(const Model& model, int64_t max_rows, bool fp8);
  // bytes() of what make() returns, about.
  static uint64_t bytes_for(const PlanSet& plans, bool fp8);

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
  StreamDecoder(const Model& model, PlannedDecoder decoder, bool fp8, int max_batch);
  // Throws kUnsupported where the kernel cannot run the model, before anything is allocated.
  void check_fits() const;
  void load();
  DecodeMatrix matrix(DecodeWeight type, const std::vector<uint32_t>& parts, bool alternate);
  DecodeMatrix joined(const std::vector<uint32_t>& parts, size_t bytes);
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
