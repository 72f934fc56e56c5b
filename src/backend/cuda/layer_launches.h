#pragma once
// The launches of a decoder as a whole: what decode_plan.h recognises, for any number of rows, with
// a few kernels between the matrix products instead of one per op. q, k and v are one product, and
// so are gate and up.
#include <memory>

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/kernels.h"

namespace tokamak::cuda {

// Owned by an executable.
class LayerLaunches {
 public:
  // Null where a plan is not such a decoder with bf16 weights. `rows`: the most tokens of a step.
  static std::unique_ptr<LayerLaunches> make(const PlanSet& plans, const Plan& plan,
                                             const DeviceWeights& weights, const KvPool& kv,
                                             const Libraries& libraries, int64_t rows);

  struct Step {
    int64_t tokens = 0, sequences = 0, outputs = 0;
    DeviceAddress ids = 0, pos = 0, seq = 0, slot = 0, q_start = 0, kv_len = 0;
    DeviceAddress out_rows = 0;  // 0: every token has an output
    DeviceAddress logits = 0;
  };
  // Emits a step whose rows are the last tokens of their sequences (StepView::causal).
  void emit(const Step& step, const StepView& view, Scratch scratch, LaunchList& list) const;
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  LayerLaunches(const PlanSet& plans, PlannedDecoder decoder, const DeviceWeights& weights,
                const KvPool& kv, const Libraries& libraries, int64_t rows);
  bool together(std::initializer_list<uint32_t> weights) const;
  void product(LaunchList& list, DeviceAddress x, uint32_t weight, int64_t rows, int64_t n,
               int64_t k, DeviceAddress y, DType out = DType::kBF16) const;
  void add_norm(LaunchList& list, const void* delta, uint32_t norm, DeviceAddress y, int64_t rows,
                DeviceAddress chosen = 0) const;
  void rotate(LaunchList& list, const PlannedLayer& layer, const Step& step,
              const StepView& view) const;
  void attend(LaunchList& list, const PlannedLayer& layer, const Step& step, const StepView& view,
              Scratch scratch) const;
  void embed(LaunchList& list, const Step& step, const StepView& view) const;

  const PlanSet& plans_;
  PlannedDecoder decoder_;
  const DeviceWeights& weights_;
  const KvPool& kv_;
  Libraries libraries_;
  int64_t rows_;
  Buffer memory_;
  // Parts of it.
  DeviceAddress residual_ = 0, normed_ = 0, wide_ = 0, queries_ = 0, attended_ = 0, gated_ = 0,
                delta_ = 0;
};

}  // namespace tokamak::cuda
