#pragma once
// A model loaded on the CPU.
#include <vector>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "backend/cpu/eager.h"
#include "backend/cpu/exec.h"

namespace tokamak::cpu {

// Owns packed weights, cache, arena and scratch. Every call of every plan is prepared at load; a
// step only evaluates extents (when the shape changed), sets input pointers and runs. submit() does
// the whole step on the caller's thread and the pool's, so one step is in flight at most.
class CpuExecutable final : public Executable {
 public:
  CpuExecutable(const PlanSet& plans, const WeightSource& weights, const LoadOptions& options,
                const KernelTable& kernels, std::shared_ptr<ThreadPool> pool);
  Ticket submit(const StepInputs& step) override;
  void collect(Ticket ticket, StepResult& out) override;
  const MemoryLedger& memory() const override { return ledger_; }
  const DispatchStats& dispatch() const override { return binder_.stats(); }

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
    std::unique_ptr<Op> op;
    std::vector<Tensor> in, out;
  };
  struct Prepared {
    std::vector<Call> calls;
    std::vector<Extents> extents;
    std::vector<InputUse> inputs;
    std::vector<int64_t> shape;    // symbol values the extents are set for
    int logits = -1, hidden = -1;  // indices into outputs
    std::vector<Tensor> outputs;
    std::vector<std::vector<CompiledExpr>> output_dims;
    std::unique_ptr<EagerValues> eager;  // null: values lie in the arena
  };

  void prepare(const Plan& plan, Prepared& out);
  Tensor resolve(const CallArg& arg, const std::vector<std::string>& order,
                 std::vector<CompiledExpr>& dims, bool& symbolic) const;
  void share_angles(Prepared& p) const;
  void set_shape(Prepared& p);
  const int32_t* input_data(uint32_t input, const StepInputs& step) const;
  void run(const StepInputs& step);
  void finish(const StepInputs& step, Prepared& p);

  PlanSet plans_;
  const bool eager_;
  CallProfile* const profile_;
  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Weight> weights_;
  KvStore kv_;
  StepBinder binder_;
  Sampler sampler_;
  Buffer arena_, scratch_;
  StepContext context_;
  std::vector<Prepared> prepared_;
  std::vector<int32_t> ids_;
  StepResult result_;
  std::exception_ptr error_;
  Ticket last_ = 0;
  MemoryLedger ledger_;
};

}  // namespace tokamak::cpu
