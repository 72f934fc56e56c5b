#pragma once
// A model loaded on the CPU.
#include <vector>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "backend/cpu/audit.h"
#include "backend/cpu/eager.h"
#include "backend/cpu/exec.h"
#include "backend/cpu/schedule.h"
#include "base/clock.h"

namespace tokamak::cpu {

// Owns packed weights, cache, arena and scratch. Every call of every plan is prepared at load; a
// step only evaluates extents (when the shape changed), sets input pointers and runs: all threads
// of the pool walk the calls together, each its part, and wait for each other where the schedule
// says so. submit() does the whole step on the caller's thread and the pool's, so one step is in
// flight at most.
class CpuExecutable final : public Executable {
 public:
  CpuExecutable(const PlanSet& plans, const WeightSource& weights, const LoadOptions& options,
                const KernelTable& kernels, std::shared_ptr<ThreadPool> pool);
  Ticket submit(const StepInputs& step) override;
  void collect(Ticket ticket, StepResult& out) override;
  void set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) override;
  int32_t drafted(Ticket ticket, int32_t output) override;
  bool trace_next(StepTrace* trace) override {
    trace_ = trace;
    return true;
  }
  void set_adapter(int32_t slot, const WeightSource& tensors) override;
  uint64_t block_bytes(uint32_t group) const override { return kv_.block_bytes(group); }
  Ticket read_blocks(uint32_t group, std::span<const int32_t> blocks,
                     std::span<std::byte> bytes) override;
  Ticket write_blocks(uint32_t group, std::span<const int32_t> blocks,
                      std::span<const std::byte> bytes) override;
  void wait(Ticket ticket) override;
  const MemoryLedger& memory() const override { return ledger_; }
  uint64_t untouched_bytes() const override;
  const DispatchStats& dispatch() const override { return binder_.stats(); }
  // The schedule of the plan that ran last, and its context: for tools and tests.
  const ScheduleMaker& scheduler() const { return *prepared_[last_plan_].scheduler; }
  const StepContext& context() const { return context_; }

 private:
  struct Extents {  // of an argument, when any depends on a symbol
    uint32_t call, arg;
    bool output;
    std::vector<CompiledExpr> dims;
  };
  struct InputUse {
    uint32_t call, arg, input;
  };
  struct Call {
    std::unique_ptr<CpuOp> op;
    std::vector<Tensor> in, out;
  };
  struct Prepared {
    std::vector<Call> calls;
    std::vector<Extents> extents;
    std::vector<InputUse> inputs;
    std::vector<int64_t> shape;  // symbol values the extents are set for
    bool shaped = false;         // they are; a plan without symbols has an empty shape
    int logits = -1, hidden = -1, layer_logits = -1;  // indices into outputs
    std::vector<Tensor> outputs;
    std::vector<std::vector<CompiledExpr>> output_dims;
    std::unique_ptr<EagerValues> eager;  // null: values lie in the arena
    // In the order they run: calls of the plan, and those that make angles (which follow them in
    // `calls`).
    std::vector<uint32_t> order;
    std::unique_ptr<ScheduleMaker> scheduler;
  };

  void prepare(const Plan& plan, Prepared& out);
  Tensor resolve(const CallArg& arg, const Buffer& arena, const std::vector<SymbolDecl>& symbols,
                 const std::vector<std::string>& order, std::vector<CompiledExpr>& dims,
                 bool& symbolic) const;
  void share_angles(Prepared& p) const;
  void make_scheduler(const Plan& plan, Prepared& p) const;
  void make_audit();
  void run_sample(const SampleTable& table, SampleTokens& out);
  void set_shape(Prepared& p, std::span<const int64_t> values);
  void run(const StepInputs& step);
  void run_phase(const StepInputs& step, size_t phase);
  void run_calls(Prepared& p, const ThreadSchedule& schedule, uint32_t plan);
  template <typename Recorder>
  void run_together(Prepared& p, const ThreadSchedule& schedule, Recorder recorder);
  void run_one_by_one(Prepared& p, const ThreadSchedule& schedule, uint32_t plan);
  void finish_phase(const Plan& plan, Prepared& p);

  PlanSet plans_;
  const bool eager_;
  CallProfile* const profile_;
  StepTrace* trace_ = nullptr;  // of the next step
  Nanos trace_start_ = 0;
  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Weight> weights_;
  KvStore kv_;
  StepBinder binder_;
  Sampler sampler_;
  // Logits stay in the arena while tokens are chosen.
  Buffer arena_, sample_arena_, scratch_;
  StepContext context_;
  std::unique_ptr<StageAudit> audit_;
  std::vector<Prepared> prepared_;
  std::vector<int64_t> sample_symbols_;
  StepResult result_;
  std::exception_ptr error_;
  Ticket next_ = 1, pending_ = 0;  // the step that is not collected; 0: none
  size_t last_plan_ = 0;
  MemoryLedger ledger_;
};

}  // namespace tokamak::cpu
