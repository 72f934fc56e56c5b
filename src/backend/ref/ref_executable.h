#pragma once
// Runs plans by the meaning of their ops. Weights and states are float32 in memory (states rounded
// to their plane's type when written); values between ops are in an arena at the plan's offsets and
// in their planned types, so that a mistake in the memory plan shows.
#include <exception>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "loop/program.h"
#include "ops/op.h"

namespace tokamak {

// Owned by the caller of load(); used by one thread. submit() runs the whole step, except the
// choice of masked outputs.
class RefExecutable final : public Executable {
 public:
  RefExecutable(const PlanSet& plans, const WeightSource& weights, const LoadOptions& options);
  Ticket submit(const StepInputs& step) override;
  void collect(Ticket ticket, StepResult& out) override;
  void set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) override;
  int32_t drafted(Ticket ticket, int32_t output) override;
  void set_adapter(int32_t slot, const WeightSource& tensors) override;
  uint64_t block_bytes(uint32_t group) const override;
  Ticket read_blocks(uint32_t group, std::span<const int32_t> blocks,
                     std::span<std::byte> bytes) override;
  Ticket write_blocks(uint32_t group, std::span<const int32_t> blocks,
                      std::span<const std::byte> bytes) override;
  void wait(Ticket ticket) override;
  const MemoryLedger& memory() const override { return memory_; }
  const DispatchStats& dispatch() const override { return binder_.stats(); }

 private:
  struct Weight {
    std::vector<float> f;
    std::vector<int32_t> i;
  };
  struct State {
    std::vector<std::vector<float>> data;        // per plane
    std::vector<StateRef<float>::Plane> planes;  // views of it
    StateRef<float> ref() { return {planes, slots}; }
    int64_t slots = 0;
  };
  // A call with everything resolved that does not depend on the step.
  struct Argument {
    const CallArg* arg;
    std::vector<CompiledExpr> extents;
    std::vector<int64_t> dims;     // of this step
    std::vector<float> converted;  // values that are not float32 in the arena
  };
  // A value inside a region.
  struct RegionValue {
    std::vector<CompiledExpr> extents;
    std::vector<int64_t> dims;
    std::vector<float> f;
    std::vector<int32_t> i;
  };
  struct Call {
    const KernelCall* call;
    const OpDef* op;
    std::vector<Argument> in, out;
    const Region* region = nullptr;        // of a fused region, instead of the op
    std::vector<RegionValue> values = {};  // of the region
  };
  struct LoadedPlan {
    std::vector<Call> calls;
    std::vector<Argument> outputs;
  };

  void load_weights(const WeightSource& weights, const LoadOptions& options);
  void make_states(const LoadOptions& options);
  LoadedPlan load_plan(const Plan& plan) const;
  Argument load_argument(const CallArg& arg) const;
  Call load_region(const KernelCall& call) const;

  void run(const StepInputs& step, StepResult& out);
  void run_phase(const StepInputs& step, size_t phase, StepResult& out);
  void run_sample(const SampleTable& table, SampleTokens& out);
  void finish_phase(LoadedPlan& plan, const Plan& entry, bool want_hidden, StepResult& out);
  void copy_blocks(const StepInputs& step);
  void move_slots(const StepInputs& step);
  // Each plane's part of each block, in the order in which transfers have them.
  template <class F>
  void visit_blocks(uint32_t group, std::span<const int32_t> blocks, F&& visit);
  void run_call(Call& call, const StepInputs& step);
  void bind_dims(Argument& argument);
  Operand<float> bind(Argument& argument, const StepInputs& step, bool is_output);
  std::byte* arena_at(const Argument& argument);
  void run_region(Call& call, std::span<const Operand<float>> in,
                  std::span<const Operand<float>> out);
  void run_anchor(Call& call, const RegionPiece& piece, std::vector<Operand<float>>& values);
  static void round_planes(const StateEntry& state, std::span<Operand<float>> in,
                           std::vector<std::vector<float>>& rounded);
  void store(Call& call);
  const float* output(LoadedPlan& plan, const Plan& entry, std::string_view name, int64_t width,
                      int64_t rows);
  std::span<const float> layer_logits(LoadedPlan& plan, const Plan& entry);
  StepTensor named_output(const std::string& name, Argument& argument);

  PlanSet plans_;
  CallProfile* const profile_;
  std::vector<std::string> symbols_;
  std::vector<Weight> weights_;
  std::vector<State> states_;
  std::vector<LoadedPlan> loaded_;
  std::unique_ptr<std::byte[]> arena_;
  // While the function "sample" runs: its inputs, the values of its symbols and its own arena,
  // since the logits stay in the other.
  const SampleTable* sampling_ = nullptr;
  std::vector<int64_t> sample_symbols_;
  std::vector<std::byte> sample_arena_;
  StepBinder binder_;
  std::optional<Sampler> sampler_;  // absent when the model has no vocabulary
  MemoryLedger memory_;

  Ticket next_ = 1, pending_ = 0;  // the step that is not collected; 0: none
  StepResult result_;
  std::exception_ptr error_;
};

}  // namespace tokamak
