// Loading a PlanSet: weights, states and resolved calls.
#include <algorithm>
#include <cstring>

#include "backend/common/weights.h"
#include "backend/ref/ref_executable.h"
#include "base/error.h"
#include "plan/adapter.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

void need_kernel(const KernelEntry& entry, bool region) {
  const KernelEntry own{region ? "ref.loop" : "ref.op", 1, ""};
  if (entry.name != own.name || entry.abi != own.abi)
    fail(
        ErrorCode::kUnsupported,
        "the plan asks for {} (version {}); the ref backend has {} (version {}): compile the model "
        "for ref",
        entry.name, entry.abi, own.name, own.abi);
}

}  // namespace

RefExecutable::RefExecutable(const PlanSet& plans, const WeightSource& weights,
                             const LoadOptions& options)
    : plans_(plans), profile_(options.profile), binder_(plans_, options.blocks, options.max_rows) {
  for (const SymbolDecl& symbol : plans_.symbols) symbols_.push_back(symbol.name);
  load_weights(weights, options);
  make_states(options);
  for (const Plan& plan : plans_.plans) {
    if (plan.arena_bytes > plans_.arena_bytes && plan.function != kSampleFunction)
      fail(ErrorCode::kCorrupt, "plan {} needs {} bytes, the arena has {}", plan.function,
           plan.arena_bytes, plans_.arena_bytes);
    loaded_.push_back(load_plan(plan));
  }
  arena_ = std::make_unique<std::byte[]>(plans_.arena_bytes);
  memory_.arena = plans_.arena_bytes;
  if (plans_.vocab > 0) {
    SampleFunction function;
    if (has_function(plans_, kSampleFunction))
      function = [this](const SampleTable& table, SampleTokens& out) { run_sample(table, out); };
    sampler_.emplace(plans_.vocab, options.max_rows, std::move(function));
    memory_.other = sampler_->bytes();
  }
}

void RefExecutable::load_weights(const WeightSource& source, const LoadOptions& options) {
  uint64_t total = 0, done = 0;
  for (const WeightEntry& entry : plans_.weights) {
    uint64_t elements = 1;
    for (int64_t d : entry.dims) elements *= static_cast<uint64_t>(d);
    total += elements * sizeof(float);
  }
  for (const WeightEntry& entry : plans_.weights) {
    LoadedTensor tensor = load_weight(entry, source);
    auto n = static_cast<size_t>(tensor.view.elements());
    Weight weight;
    if (tensor.view.dtype == DType::kI32) {
      weight.i.resize(n);
      std::memcpy(weight.i.data(), tensor.view.bytes.data(), n * sizeof(int32_t));
    } else {
      weight.f.resize(n);
      decode_row(tensor.view.dtype, tensor.view.bytes.data(), weight.f.data(),
                 static_cast<int64_t>(n));
    }
    memory_.weights += n * sizeof(float);
    weights_.push_back(std::move(weight));
    done += n * sizeof(float);
    if (options.progress) options.progress(done, total);
  }
}

void RefExecutable::set_adapter(int32_t slot, const WeightSource& tensors) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const WeightEntry& entry = plans_.weights[i];
    if (!is_adapter_weight(entry)) continue;
    TK_CHECK(slot >= 0 && slot < entry.dims[0], "slot {} of {}", slot, entry.dims[0]);
    const int64_t rows = entry.dims[1], columns = entry.dims[2];
    float* to = weights_[i].f.data() + slot * rows * columns;
    std::fill_n(to, rows * columns, 0.0f);
    const TensorView* from = tensors.find(entry.name);
    if (!from) continue;
    if (from->dtype != DType::kF32 || from->dims.size() != 2 || from->dims[0] > rows ||
        from->dims[1] > columns)
      fail(ErrorCode::kInvalidArgument, "adapter: matrix {} does not fit a slot of {} x {}",
           entry.name, rows, columns);
    for (int64_t r = 0; r < from->dims[0]; ++r)
      std::memcpy(to + r * columns,
                  from->bytes.data() + static_cast<size_t>(r * from->dims[1]) * sizeof(float),
                  static_cast<size_t>(from->dims[1]) * sizeof(float));
  }
}

void RefExecutable::make_states(const LoadOptions& options) {
  for (const StateEntry& entry : plans_.states) {
    TK_CHECK(entry.group < options.blocks.size(), "state {}", entry.name);
    State state;
    state.slots = options.blocks[entry.group] * plans_.groups[entry.group].block_rows();
    for (const PlaneEntry& plane : entry.planes) {
      int64_t width = 1;
      for (int64_t d : plane.dims) width *= d;
      state.data.emplace_back(static_cast<size_t>(state.slots * width), 0.0f);
      state.planes.push_back({plane.name, state.data.back().data(), width, plane.dims});
      memory_.kv += state.data.back().size() * sizeof(float);
    }
    states_.push_back(std::move(state));
  }
}

RefExecutable::Argument RefExecutable::load_argument(const CallArg& arg) const {
  using Kind = CallArg::Kind;
  size_t limit = arg.kind == Kind::kWeight  ? plans_.weights.size()
                 : arg.kind == Kind::kInput ? plans_.inputs.size()
                 : arg.kind == Kind::kState ? plans_.states.size()
                 : arg.kind == Kind::kView  ? plans_.groups.size()
                                            : SIZE_MAX;
  if (arg.index >= limit)
    fail(ErrorCode::kCorrupt, "an argument names entry {} of a table of {}", arg.index, limit);
  Argument out{&arg, {}, {}, {}};
  for (const SymExpr& extent : arg.dims) out.extents.emplace_back(extent, symbols_);
  out.dims.resize(out.extents.size());
  return out;
}

RefExecutable::LoadedPlan RefExecutable::load_plan(const Plan& plan) const {
  LoadedPlan loaded;
  for (const KernelCall& call : plan.calls) {
    need_kernel(plans_.kernels.at(call.kernel), call.region >= 0);
    if (call.region >= 0) {
      loaded.calls.push_back(load_region(call));
      continue;
    }
    const OpDef* op = find_op(call.op);
    if (!op || !op->f32)
      fail(ErrorCode::kUnsupported, "plan {}: ref cannot run \"{}\"", plan.function, call.op);
    Call entry{&call, op, {}, {}};
    for (const CallArg& arg : call.in) entry.in.push_back(load_argument(arg));
    for (const CallArg& arg : call.out) entry.out.push_back(load_argument(arg));
    loaded.calls.push_back(std::move(entry));
  }
  for (const PlanOutput& output : plan.outputs) loaded.outputs.push_back(load_argument(output.arg));
  return loaded;
}

}  // namespace tokamak
