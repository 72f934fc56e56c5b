#pragma once
// A model loaded on a GPU.
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_pool.h"
#include "backend/cuda/launch.h"

namespace tokamak::cuda {

// Owns weights, cache, arena and scratch on the device. submit() copies the step's inputs in one
// piece, launches the plan's calls on one stream and returns; collect() waits for the logits and
// chooses tokens on the host. The launches of a plan are prepared when its shape changes; a shape
// that repeats is captured as a graph. Used by one thread at a time; one step is in flight at most.
class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const PlanSet& plans, const WeightSource& weights, const LoadOptions& options);
  ~CudaExecutable() override;
  Ticket submit(const StepInputs& step) override;
  void collect(Ticket ticket, StepResult& out) override;
  void set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) override;
  uint64_t block_bytes(uint32_t group) const override { return kv_.block_bytes(group); }
  Ticket read_blocks(uint32_t group, std::span<const int32_t> blocks,
                     std::span<std::byte> bytes) override;
  Ticket write_blocks(uint32_t group, std::span<const int32_t> blocks,
                      std::span<const std::byte> bytes) override;
  void wait(Ticket ticket) override;
  const MemoryLedger& memory() const override { return ledger_; }
  const DispatchStats& dispatch() const override { return binder_.stats(); }
  // For tools and tests.
  int64_t graph_launches() const { return graph_launches_; }

 private:
  struct Argument {
    const CallArg* arg;
    std::vector<CompiledExpr> extents;
  };
  struct Call {
    const KernelCall* call;
    const CudaKernel* kernel;
    std::vector<Argument> in, out;
  };
  // A shape at which a plan has run lately.
  struct Shaped {
    explicit Shaped(const KernelLibrary& kernels) : launches(kernels) {}
    LaunchList launches;
    std::unique_ptr<StepGraph> graph;
    int64_t runs = 0, last_run = 0;
  };
  struct Prepared {
    std::vector<Call> calls;
    std::vector<Argument> outputs;
    std::vector<uint32_t> inputs, groups;  // that its calls read
    std::map<std::vector<int64_t>, std::unique_ptr<Shaped>> shapes;
  };
  // Values that leave the device, in pinned memory.
  struct Fetched {
    size_t output;  // of the plan
    size_t at;      // in fetched_
    int64_t elements;
  };
  // A phase that was launched: what choosing its tokens needs.
  struct Launched {
    bool active = false;
    uint32_t plan = 0;
    StepInputs phase;
    std::vector<int32_t> ids;
    int32_t first_output = 0, first_sequence = 0;
    std::vector<int64_t> symbols;  // without padding
    std::vector<Fetched> fetched;
  };

  Prepared prepare(const Plan& plan) const;
  Argument resolve(const CallArg& arg) const;
  Tensor tensor_of(const Argument& argument, std::span<const int64_t> symbols) const;
  void run_phase(const StepInputs& step, size_t phase);
  void stage_inputs(const Prepared& p);
  Shaped& shape(Prepared& p);
  void launch(Prepared& p, uint32_t plan);
  void fetch(const Prepared& p, uint32_t plan);
  void keep_phase(uint32_t plan);
  void finish_phase();
  std::span<const float> floats(const Fetched& f, DType dtype);

  PlanSet plans_;
  CallProfile* const profile_;
  Device device_;
  DeviceStream stream_;
  KernelLibrary kernels_;
  DeviceWeights weights_;
  KvPool kv_;
  StepBinder binder_;
  std::optional<Sampler> sampler_;  // absent when the model has no vocabulary
  std::vector<std::string> symbols_;
  Buffer arena_, scratch_, inputs_;
  PinnedBuffer staged_, fetched_;
  DeviceEvent begin_, end_;
  std::vector<Prepared> prepared_;

  // Of the step being bound.
  std::vector<DeviceAddress> input_at_;  // by input of the PlanSet
  StepView view_;
  std::vector<int64_t> key_;

  Launched launched_;
  std::vector<std::pair<int32_t, std::vector<uint32_t>>> masks_;
  std::vector<float> converted_;
  StepResult result_;
  std::exception_ptr error_;
  Ticket next_ = 1, pending_ = 0;  // the step that is not collected; 0: none
  int64_t runs_ = 0, graph_launches_ = 0;
  const bool graphs_;
  MemoryLedger ledger_;
};

}  // namespace tokamak::cuda
