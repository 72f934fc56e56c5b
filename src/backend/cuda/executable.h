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
#include "backend/cuda/device_sampler.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_pool.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/layer_launches.h"
#include "backend/cuda/stream_decoder.h"

namespace tokamak::cuda {

// Owns weights, cache, arena and scratch on the device. submit() copies the step's inputs in one
// piece, launches the plan's calls on one stream and returns; collect() waits for the tokens, or
// for the logits where the host has to choose. The launches of a plan are prepared when its shape
// changes; a shape that repeats is captured as a graph. Decode steps of a few sequences are one
// launch of the persistent kernel where it fits the model. Used by one thread at a time; one step
// is in flight at most.
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
  int64_t streamed_steps() const { return streamed_steps_; }

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
    bool layered = false;                  // layers_ may run it
    std::map<std::vector<int64_t>, std::unique_ptr<Shaped>> shapes;
  };
  // Values that leave the device, in pinned memory.
  struct Fetched {
    size_t output;  // of the plan
    size_t at;      // in fetched_
    int64_t elements;
  };
  // Who chooses the tokens of a phase.
  enum class Chooser : uint8_t { kHost, kSampleRows, kStream };
  // A phase that was launched: what choosing its tokens needs.
  struct Launched {
    bool active = false;
    bool streamed = false;  // by the persistent kernel
    Chooser chooser = Chooser::kHost;
    size_t states_at = 0, tokens_at = 0;  // in fetched_
    uint32_t plan = 0;
    StepInputs phase;
    std::vector<int32_t> ids;
    int32_t first_output = 0, first_sequence = 0;
    std::vector<int64_t> symbols;  // without padding
    std::vector<Fetched> fetched;
    Fetched late = {};  // logits that are fetched only if the device cannot choose
  };

  Prepared prepare(const Plan& plan) const;
  Argument resolve(const CallArg& arg) const;
  Tensor tensor_of(const Argument& argument, std::span<const int64_t> symbols) const;
  void run_phase(const StepInputs& step, size_t phase);
  void choose_path(uint32_t plan);
  size_t extra_bytes() const;
  void stage_inputs(const Prepared& p);
  void stage_extras(size_t at);
  void launch_stream(const Prepared& p, uint32_t plan);
  void launch_sampling(const Prepared& p, uint32_t plan);
  DeviceAddress logits_of(const Prepared& p, uint32_t plan) const;  // 0: the plan has none in f32
  void take_tokens();
  void fetch_logits();
  void choose(const SampleTable& table, SampleTokens& out);
  Shaped& shape(Prepared& p, uint32_t plan);
  bool takes_layers(const Prepared& p) const;
  bool emit_layers(const Prepared& p, uint32_t plan, LaunchList& list) const;
  void make_layers();
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
  std::unique_ptr<Blas> blas_;
  DeviceWeights weights_;
  KvPool kv_;
  StepBinder binder_;
  std::optional<TokenChooser> host_chooser_;
  std::optional<Sampler> sampler_;          // absent when the model has no vocabulary
  std::unique_ptr<LayerLaunches> layers_;   // null unless the model is a plain decoder
  std::unique_ptr<StreamDecoder> decoder_;  // absent where the persistent kernel does not fit
  std::vector<std::string> symbols_;
  Buffer arena_, scratch_, inputs_;
  PinnedBuffer staged_, fetched_;
  DeviceEvent begin_, end_;
  std::vector<Prepared> prepared_;

  // The step that is being bound.
  std::vector<DeviceAddress> input_at_;  // by input of the PlanSet
  StepView view_;
  std::vector<int64_t> key_;
  DeviceAddress states_ = 0, sampling_ = 0, tokens_ = 0;  // of the persistent kernel, sample_rows
  std::vector<DecodeSampling> stream_sampling_;
  LaunchList sample_launch_;
  std::vector<int32_t> device_tokens_;  // empty: the host chooses

  Launched launched_;
  std::vector<std::pair<int32_t, std::vector<uint32_t>>> masks_;
  std::vector<float> converted_;
  StepResult result_;
  std::exception_ptr error_;
  Ticket next_ = 1, pending_ = 0;  // the step that is not collected; 0: none
  int64_t runs_ = 0, graph_launches_ = 0, streamed_steps_ = 0;
  const bool graphs_;
  const int hopper_blocks_;
  MemoryLedger ledger_;
};

}  // namespace tokamak::cuda
