#pragma once
// A backend in one file: what a new device has to bring. It runs single ops and regions of a norm
// with matrices; which kernels it lists, with which patterns, guards, layouts and costs, a test
// chooses. The compiler is not told about it.
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/common/sampler.h"
#include "backend/common/step_binding.h"
#include "backend/common/weights.h"
#include "base/error.h"
#include "loop/evaluate.h"
#include "ops/meaning.h"
#include "tensor/block_formats.h"

namespace tokamak {

// Runs single ops as they are defined, and regions of a norm with matrices as one kernel; one whose
// name ends with "_slow" takes ten milliseconds longer, more than other load on the machine
// changes.
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
      if (kernel.ends_with("_slow")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (call.region >= 0)
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
  using Runs = std::map<std::string, int>;  // "function kernel" -> calls
  explicit ToyBackend(std::vector<KernelDesc> kernels, Runs* runs = nullptr)
      : kernels_(std::move(kernels)), runs_(runs ? *runs : own_runs_) {}
  std::string_view name() const override { return "toy"; }
  std::string isa() const override { return "toy"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    need_kernels(plans, kernels_, name());
    return std::make_unique<ToyExecutable>(plans, weights, options, runs_);
  }

 private:
  std::vector<KernelDesc> kernels_;
  Runs own_runs_;
  Runs& runs_;
};

}  // namespace tokamak
