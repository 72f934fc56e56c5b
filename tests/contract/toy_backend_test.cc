// A backend in one file: what a new device has to bring. It has two kernels, an interpreter of
// single ops and a fused kernel (a norm before matrices that share it) with its own pattern and
// cost. The compiler is not told about it: patterns are matched, regions made and kernels chosen
// from what kernels() says, and the plans run to the reference's logits.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "backend/common/weights.h"
#include "base/error.h"
#include "compile/fuse/report.h"
#include "compile/open_model.h"
#include "loop/evaluate.h"
#include "ops/meaning.h"
#include "tensor/block_formats.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

// Good for few rows: a start, and then every row at a time.
double fused_cost(const KernelDesc&, const KernelWork& work, const Machine&) {
  return 1e-6 + 1e-6 * work.m;
}
double free_cost(const KernelDesc&, const KernelWork&, const Machine&) { return 0; }
uint64_t inside_bytes(const KernelWork& work) { return static_cast<uint64_t>(work.inside_bytes); }
double op_cost(const KernelDesc&, const KernelWork&, const Machine&) { return 3e-6; }

class ToyExecutable final : public Executable {
 public:
  ToyExecutable(const PlanSet& plans, const WeightSource& source, const LoadOptions& options,
                std::map<std::string, int>& runs)
      : plans_(plans), binder_(plans_, options.blocks, options.max_rows), runs_(runs) {
    for (const SymbolDecl& s : plans_.symbols) symbols_.push_back(s.name);
    for (const WeightEntry& entry : plans_.weights) {
      LoadedTensor t = load_weight(entry, source);
      std::vector<float>& to = weights_.emplace_back(static_cast<size_t>(t.view.elements()));
      decode_row(t.view.dtype, t.view.bytes.data(), to.data(), t.view.elements());
    }
    for (const StateEntry& entry : plans_.states) {
      State& state = states_.emplace_back();
      state.slots = options.blocks[entry.group] * plans_.groups[entry.group].block_size;
      for (const PlaneEntry& plane : entry.planes) {
        int64_t width = 1;
        for (int64_t d : plane.dims) width *= d;
        state.data.emplace_back(static_cast<size_t>(state.slots * width));
        state.planes.push_back({plane.name, state.data.back().data(), width, plane.dims});
      }
    }
    arena_.resize(plans_.arena_bytes / sizeof(float) + 1);
    scratch_.resize(plans_.scratch_bytes / sizeof(float));
  }

  Ticket submit(const StepInputs& step) override {
    result_.clear();
    auto index = static_cast<size_t>(binder_.bind(step));
    for (size_t i = 0; i < symbols_.size(); ++i) values_[symbols_[i]] = binder_.symbols()[i];
    const Plan& plan = plans_.plans[index];
    for (const KernelCall& call : plan.calls) {
      const std::string& kernel = plans_.kernels[call.kernel].name;
      ++runs_[plan.function + " " + kernel];
      if (kernel == "toy.norm_linears")
        run_norm_linears(call);
      else
        run_op(call);
    }
    for (const PlanOutput& output : plan.outputs)
      if (output.name == "logits") {
        Operand<float> o = operand(output.arg);
        result_.logits.assign(o.tensor.f, o.tensor.f + o.tensor.elements());
      }
    Sampler::skip(binder_.phase(), result_);
    return 1;
  }
  void collect(Ticket, StepResult& out) override { std::swap(out, result_); }
  const MemoryLedger& memory() const override { return ledger_; }

 private:
  struct State {
    std::vector<std::vector<float>> data;
    std::vector<StateRef<float>::Plane> planes;
    int64_t slots = 0;
  };

  Operand<float> operand(const CallArg& arg) {
    Operand<float> out;
    std::vector<int64_t>& dims = dims_.emplace_back();
    for (const SymExpr& e : arg.dims) dims.push_back(e.eval(values_));
    out.tensor.dims = dims;
    switch (arg.kind) {
      case CallArg::Kind::kArena:
        out.tensor.f = arena_.data() + arg.offset / sizeof(float);
        if (arg.dtype == DType::kI32) {
          out.tensor.i = reinterpret_cast<int32_t*>(out.tensor.f);
          out.tensor.f = nullptr;
        }
        break;
      case CallArg::Kind::kWeight:
        out.tensor.f = weights_[arg.index].data();
        break;
      case CallArg::Kind::kInput:
        out.tensor.i =
            const_cast<int32_t*>(static_cast<const int32_t*>(binder_.input(arg.index).data));
        break;
      case CallArg::Kind::kState:
        out.state = {states_[arg.index].planes, states_[arg.index].slots};
        break;
      case CallArg::Kind::kView: {
        const StepInputs::Table& table = binder_.inputs().tables[arg.index];
        out.view = {table.blocks.data(), table.stride, plans_.groups[arg.index].block_size};
        break;
      }
    }
    return out;
  }

  void run_op(const KernelCall& call) {
    std::vector<Operand<float>> in, out;
    dims_.clear();
    for (const CallArg& a : call.in) in.push_back(operand(a));
    for (const CallArg& a : call.out) out.push_back(operand(a));
    find_op(call.op)->f32({in, out, call.attrs});
  }

  // The prologue is Loop IR; its rows never reach the arena unless they are a result of the region.
  void run_norm_linears(const KernelCall& call) {
    const Region& region = plans_.regions[static_cast<size_t>(call.region)];
    dims_.clear();
    std::vector<Operand<float>> value(region.values.size());
    for (size_t i = 0; i < call.in.size(); ++i) value[i] = operand(call.in[i]);
    for (size_t r = 0; r < region.results.size(); ++r)
      value[region.results[r]] = operand(call.out[r]);
    size_t used = 0;  // of the scratch that the plan reserves for this call
    for (const RegionPiece& piece : region.pieces) {
      if (piece.is_anchor()) {
        multiply(value[piece.in[0]].tensor, value[piece.in[1]].tensor,
                 piece.in.size() > 2 ? value[piece.in[2]].tensor.f : nullptr,
                 value[piece.out[0]].tensor);
        continue;
      }
      std::vector<TensorRef<float>> in, out;
      for (uint32_t v : piece.in) in.push_back(value[v].tensor);
      for (uint32_t v : piece.out) {
        TensorRef<float>& t = value[v].tensor;
        if (!t.f) {
          std::vector<int64_t>& dims = dims_.emplace_back();
          for (const Dim& d : region.values[v].tensor.dims) dims.push_back(d.extent.eval(values_));
          t.dims = dims;
          t.f = scratch_.data() + used;
          used += static_cast<size_t>(t.elements());
          TK_CHECK(used * sizeof(float) <= call.scratch);
        }
        out.push_back(t);
      }
      loop::evaluate_program<float>(*piece.program, values_, in, out);
    }
  }

  static void multiply(const TensorRef<float>& x, const TensorRef<float>& w, const float* bias,
                       const TensorRef<float>& y) {
    int64_t k = w.dims[1], n = w.dims[0], rows = x.elements() / k;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < n; ++c)
        y.f[r * n + c] =
            static_cast<float>(dot<float>(x.f + r * k, w.f + c * k, k) + (bias ? bias[c] : 0.0f));
  }

  const PlanSet plans_;
  StepBinder binder_;
  std::map<std::string, int>& runs_;  // per function and kernel
  std::vector<std::string> symbols_;
  std::map<std::string, int64_t, std::less<>> values_;
  std::vector<std::vector<float>> weights_;
  std::vector<State> states_;
  std::vector<float> arena_, scratch_;
  std::deque<std::vector<int64_t>> dims_;  // of the operands of the current call
  StepResult result_;
  MemoryLedger ledger_;
};

class ToyBackend final : public Backend {
 public:
  explicit ToyBackend(std::map<std::string, int>& runs) : runs_(runs) {}
  std::string_view name() const override { return "toy"; }
  std::string isa() const override { return "toy"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<ToyExecutable>(plans, weights, options, runs_);
  }

 private:
  std::map<std::string, int>& runs_;
  std::vector<KernelDesc> kernels_ = {{.name = "toy.op",
                                       .pattern = "*",
                                       .weight_layout = "",
                                       .numeric_class = "f32, sums in f64",
                                       .cost = op_cost},
                                      {.name = "toy.norm_linears",
                                       .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
                                       .weight_layout = "",
                                       .numeric_class = "",
                                       .cost = fused_cost,
                                       .scratch = inside_bytes},
                                      // For a newer model, which this device is not.
                                      {.name = "toy.norm_linears_2",
                                       .pattern = "[rms_norm] -> linear(f32, weight *, weight *)+",
                                       .weight_layout = "",
                                       .numeric_class = "",
                                       .needs = "toy+v2",
                                       .cost = free_cost}};
};

TEST(Contract, ABackendInOneFileRunsAModel) {
  std::string path = std::string(std::getenv("TOKAMAK_TINY_MODELS")) + "/llama";
  RunnerOptions options;
  options.sequences = 32;
  std::map<std::string, int> runs;
  CompileOptions compile;
  compile.activations = options.activations;
  compile.kv_dtype = options.kv_dtype;
  compile.max_sequences = options.sequences;
  compile.max_tokens = compile.max_logit_rows = options.max_tokens;
  compile.fusion = std::make_shared<FusionReport>();
  auto backend = std::make_unique<ToyBackend>(runs);
  auto source = compile_model(path, *backend, compile, nullptr);
  ModelRunner toy(std::move(source), std::move(backend), options);
  ModelRunner ref(path, options);

  std::vector<int32_t> ids = {3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9};
  EXPECT_EQ(toy.all_logits(0, ids, 5), ref.all_logits(0, ids, 5));
  EXPECT_EQ(toy.decode({{0, {4}}}), ref.decode({{0, {4}}}));
  EXPECT_GT(runs["decode toy.norm_linears"], 0);
  EXPECT_EQ(runs["step toy.norm_linears"], 0);  // many rows: op by op

  EXPECT_EQ(runs["decode toy.norm_linears_2"], 0);
  EXPECT_TRUE(isa_has("toy+v2+v3", "v2+toy"));
  EXPECT_FALSE(isa_has("toy+v22", "v2"));

  // The same function, but more sequences than the fused kernel is good for.
  int fused = runs["decode toy.norm_linears"];
  std::vector<ModelRunner::Part> parts;
  for (int s = 1; s <= 20; ++s) parts.push_back({s, {s}});
  toy.step(parts);
  ref.step(parts);
  EXPECT_EQ(toy.decode(parts), ref.decode(parts));
  EXPECT_EQ(runs["decode toy.norm_linears"], fused);

  // The report says what was chosen against what.
  bool won = false, lost = false;
  for (const KernelChoice& c : compile.fusion->choices) {
    won = won || (c.kernel == "toy.norm_linears" && !c.losers.empty());
    for (const KernelChoice::Loser& l : c.losers)
      lost =
          lost || (l.kernel == "toy.norm_linears" && l.reason == "slower" && l.seconds > c.seconds);
  }
  EXPECT_TRUE(won);
  EXPECT_TRUE(lost);
}

}  // namespace
}  // namespace tokamak
