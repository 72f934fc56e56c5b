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
#include "backend/cuda/sample.h"
#include "backend/cuda/stream_decoder.h"
#include "backend/cuda/table_sampler.h"

namespace tokamak::cuda {

// Owns weights, cache, arena and scratch on the device. submit() copies the step's inputs in one
// piece, launches the plan's calls on one stream and returns; collect() waits for the tokens, or
// for the logits where the host has to choose. The launches of a plan are prepared when its shape
// changes; a shape that repeats is captured as a graph. Graphs of decode steps, which are padded to
// a few sizes, are made when the model is loaded. A step runs in the first of its plan's launches
// (Plan::launches) that takes it, else call by call. Used by one thread at a time.
//
// Two steps may be in flight. The second one is queued on the device at once if the device itself
// chooses the tokens that it continues (may_follow()); else a copy of it is kept and launched when
// the first one is collected.
class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const PlanSet& plans, const WeightSource& weights, const LoadOptions& options);
  ~CudaExecutable() override;
  int max_in_flight() const override { return 2; }
  Ticket submit(const StepInputs& step) override;
  void collect(Ticket ticket, StepResult& out) override;
  void set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) override;
  int32_t drafted(Ticket ticket, int32_t output) override;
  void set_adapter(int32_t slot, const WeightSource& tensors) override;
  uint64_t block_bytes(uint32_t group) const override { return kv_.block_bytes(group); }
  Ticket read_blocks(uint32_t group, std::span<const int32_t> blocks,
                     std::span<std::byte> bytes) override;
  Ticket write_blocks(uint32_t group, std::span<const int32_t> blocks,
                      std::span<const std::byte> bytes) override;
  void wait(Ticket ticket) override;
  const MemoryLedger& memory() const override { return ledger_; }
  const DispatchStats& dispatch() const override { return binder_.stats(); }
  // For tools and tests.
  int64_t graph_launches() const { return dispatch().graphs; }
  int64_t streamed_steps() const { return streamed_steps_; }
  int64_t layered_steps() const { return layered_steps_; }
  int64_t rows_chosen_on_host() const { return host_rows_; }
  int64_t followed_steps() const { return followed_steps_; }  // queued while another ran

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
    bool of_load = false;  // it was made when the model was loaded, and is kept
  };
  enum class OutputKind : uint8_t { kLogits, kLayerLogits, kHidden, kOther };
  // Inputs of a plan that the persistent kernel and the fused layers read, as members of
  // LayerLaunches::Step.
  struct StepInput {
    DeviceAddress LayerLaunches::Step::*to;
    uint32_t input;
  };
  struct Prepared {
    std::vector<Call> calls;
    std::vector<Argument> outputs;
    std::vector<OutputKind> kinds;         // of the outputs
    std::vector<uint32_t> inputs, groups;  // that its calls read
    std::vector<StepInput> step_inputs;
    int logits = -1;  // the output, if it is f32
    std::vector<LaunchKind> launches;
    std::map<std::vector<int64_t>, std::unique_ptr<Shaped>> shapes;
  };
  // Values that leave the device, in pinned memory.
  struct Fetched {
    size_t output;  // of the plan
    size_t at;      // in InFlight::values
    int64_t elements;
  };
  // Who chooses the tokens of a phase.
  enum class Chooser : uint8_t { kHost, kSampleRows, kStream, kTable };
  // A step in flight. Of its phases, the one that was launched last: what choosing its tokens
  // needs.
  struct InFlight {
    Ticket ticket = 0;
    std::optional<StepInputs> waiting;    // it is not launched yet
    bool follows = false;                 // it was queued while another step ran
    PinnedBuffer staged, values, tokens;  // inputs; what leaves the device; those of sample_rows
    DeviceEvent begin, end;
    StepResult result;
    std::exception_ptr error;
    std::vector<std::pair<int32_t, std::vector<uint32_t>>> masks;

    bool active = false;
    StreamDecoder* stream = nullptr;  // the persistent kernel, if it runs the phase
    bool layered = false;             // fused layers run it
    Chooser chooser = Chooser::kHost;
    size_t states_at = 0;  // in `values`
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
  void run(const StepInputs& step);
  void launch_waiting();
  void fail_step();
  void run_phase(const StepInputs& step, size_t phase);
  bool may_follow(const StepInputs& step) const;
  bool resolve_ids(const StepInputs& step);
  InFlight& find(Ticket ticket);
  InFlight& other() { return in_flight_[step_ == &in_flight_[0] ? 1 : 0]; }
  const InFlight& other() const { return in_flight_[step_ == &in_flight_[0] ? 1 : 0]; }
  void choose_path(uint32_t plan);
  bool profiled() const { return profile_ && profile_->on; }
  size_t extra_bytes() const;
  void forget_launches();
  void reserve_tables(const StepInputs& in);
  void place_inputs(const Prepared& p);
  size_t place_table(uint32_t group, size_t at);
  size_t stage_extras(size_t at);
  void stage_inputs(const Prepared& p, bool ids_on_device);
  void launch_stream(const Prepared& p);
  void add_sampling(const Prepared& p, LaunchList& list) const;
  LayerLaunches::Step step_of(const Prepared& p) const;
  DeviceAddress logits_of(const Prepared& p) const;  // 0: the plan has none in f32
  void take_tokens();
  void fetch_logits();
  void choose(const SampleTable& table, SampleTokens& out);
  void choose_on_host(SampleArgs args, const SampleTable& table, int64_t row, SampleTokens& out);
  const float* host_logits();
  Shaped& shape(Prepared& p);
  void forget_shape(Prepared& p);
  void make_graphs();
  void make_graph(uint32_t plan, int64_t sequences, Chooser chooser);
  bool takes_stream(const StreamDecoder& decoder) const;
  bool takes_layers(const Prepared& p) const;
  void make_launches();
  void measure_products();
  void launch(Prepared& p, uint32_t plan);
  void fetch(const Prepared& p);
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
  std::optional<TableSampler> table_sampler_;
  std::optional<Sampler> sampler_;  // absent when the model has no vocabulary
  // What plans name; null: no plan does, or this device has no room for it.
  std::unique_ptr<LayerLaunches> layers_;
  std::unique_ptr<StreamDecoder> streams_[2];  // by LaunchKind
  std::vector<std::string> symbols_;
  Buffer arena_, scratch_, kept_, inputs_;
  struct BlockTable {
    Buffer memory;
    int64_t rows = 0;
    int32_t stride = 0;
  };
  std::vector<BlockTable> tables_;  // by group
  bool remake_graphs_ = false;      // those of load, before the next step that runs alone
  Buffer last_tokens_;              // [max_rows]: the last token that sample_rows chose for a row
  std::vector<Prepared> prepared_;

  // The step that is being bound.
  std::vector<DeviceAddress> input_at_;  // by input of the PlanSet
  StepView view_;
  StageLaunch staging_{};
  std::vector<int64_t> key_;
  DeviceAddress states_ = 0;                                  // of the persistent kernel
  DeviceAddress sampling_ = 0, host_tokens_ = 0, peaks_ = 0;  // of sample_rows
  std::vector<DecodeSampling> stream_sampling_;
  LaunchList own_launches_;             // outside of shapes
  std::vector<int32_t> device_tokens_;  // empty: the host or table_sampler_ chooses
  std::vector<int64_t> left_rows_;      // that table_sampler_ leaves to the host
  std::vector<int32_t> last_ids_;
  std::vector<std::pair<size_t, int32_t>> left_ids_;  // that the device replaces

  InFlight in_flight_[2];
  InFlight* step_ = &in_flight_[0];  // the one being launched or finished
  std::vector<float> converted_;
  Ticket next_ = 1;
  int64_t runs_ = 0, streamed_steps_ = 0, layered_steps_ = 0, host_rows_ = 0, followed_steps_ = 0;
  const bool graphs_;
  const Libraries libraries_;
  MemoryLedger ledger_;
};

}  // namespace tokamak::cuda
