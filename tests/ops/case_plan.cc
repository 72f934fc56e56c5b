#include "ops/case_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/evaluate.h"
#include "tensor/block_formats.h"
#include "tensor/plane.h"

namespace tokamak::testing {
namespace {

using Kind = Arg::Kind;
constexpr int64_t kBlockSize = 16;

int64_t product(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// For types without an encoder: random blocks, redrawn until the values have a usual magnitude.
void random_block(DType dtype, Rng& rng, std::byte* block) {
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<float> values(info.block_elements);
  for (;;) {
    for (size_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(rng.below(256));
    decode_row(dtype, block, values.data(), info.block_elements);
    float peak = 0;
    bool finite = true;
    for (float x : values) {
      finite = finite && std::isfinite(x);
      peak = std::max(peak, std::fabs(x));
    }
    if (finite && peak > 0.01f && peak < 10.0f) return;
  }
}

std::vector<std::byte> random_weight(const Arg& arg, Rng& rng) {
  int64_t n = product(arg.dims);
  std::vector<std::byte> bytes(dtype_bytes(arg.dtype, n));
  if (!can_encode(arg.dtype)) {
    const DTypeInfo& info = dtype_info(arg.dtype);
    for (size_t at = 0; at < bytes.size(); at += info.block_bytes)
      random_block(arg.dtype, rng, bytes.data() + at);
    return bytes;
  }
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = static_cast<float>(rng.normal());
  if (arg.name == "identity")
    for (int64_t i = 0; i < n; ++i)
      values[static_cast<size_t>(i)] = i / arg.dims[1] == i % arg.dims[1] ? 1.0f : 0.0f;
  encode_row(arg.dtype, values.data(), bytes.data(), n);
  return bytes;
}

class Builder {
 public:
  Builder(const OpCase& c, const Backend& backend) : case_(c), backend_(backend) {}

  CasePlan build(int repeat) {
    for (size_t b = 0; b < case_.batch.own.size(); ++b)
      total_tokens_ += case_.batch.own[b] + case_.batch.older[b];
    PlanSet& set = out_.plans;
    set.model = case_.name;
    set.backend = std::string(backend_.name());
    set.symbols = {
        {"T", 1, total_tokens_, 1}, {"B", 1, 64, 1}, {"R", 1, total_tokens_, 1}, {"M", 0, 64, 1}};
    set.hidden = product(case_.out);
    Plan& plan = set.plans.emplace_back();
    plan.function = "step";
    plan.guard = {{"T", 1, total_tokens_, 1}, {"B", 1, 64, 1}};
    make_state();
    make_calls(repeat);
    plan.arena_bytes = set.arena_bytes = arena_;
    if (!out_.supported) return std::move(out_);  // encoding weights takes most of the time
    for (const auto& [name, arg] : random_weights_)
      out_.weights.add(name, arg.dtype, arg.dims, random_weight(arg, rng_));
    make_steps();
    if (case_.perf) count_cost();
    out_.options.max_rows = 64;
    return std::move(out_);
  }

 private:
  static SymExpr symbol(const char* name) { return SymExpr::symbol(name); }
  static std::vector<SymExpr> rows_of(const std::vector<int64_t>& dims) {
    std::vector<SymExpr> out = {symbol("T")};
    for (int64_t d : dims) out.emplace_back(d);
    return out;
  }

  static Value stored_as(DType dtype, Value attrs) {
    if (dtype == DType::kF16 || dtype == DType::kBF16) attrs.set(kStorageAttr, dtype_name(dtype));
    return attrs;
  }

  CallArg new_value(DType dtype, std::vector<SymExpr> dims) {
    TensorType type{dtype, {}};
    for (const SymExpr& d : dims) type.dims.push_back({"", d, false});
    CallArg arg{CallArg::Kind::kArena, values_++, arena_, dtype, std::move(dims)};
    auto bytes = static_cast<uint64_t>(type.bytes().upper(out_.plans.symbols));
    arena_ += (bytes + 63) / 64 * 64;
    return arg;
  }

  // ref runs every region with the kernel of loops.
  bool takes_region(const KernelPattern& pattern, const Region& region) const {
    if (pattern.kind == KernelPattern::Anchor::kLoop)
      return region.whole_program() || backend_.name() == "ref";
    auto matches = [&](const RegionPiece& piece) {
      std::vector<DType> dtypes;
      for (uint32_t value : piece.in) dtypes.push_back(region.values[value].tensor.dtype);
      return piece.op == pattern.op && kernel_matches(pattern, piece.op, dtypes);
    };
    return pattern.region && std::any_of(region.pieces.begin(), region.pieces.end(), matches);
  }

  // What the planner would tell the kernel about its anchors at the plan's largest shape.
  KernelWork work_of(const std::string& op, const std::vector<CallArg>& in,
                     const std::vector<CallArg>& results, const Region* region) const {
    auto anchor = [&](const std::string& name, DType dtype, std::vector<SymExpr> dims) {
      OpWork w;
      w.op = name;
      w.activations = dtype;
      int64_t elements = 1, last = 1;
      for (const SymExpr& d : dims) elements *= last = d.upper(out_.plans.symbols);
      w.in_elements = static_cast<double>(elements);
      w.rows = static_cast<double>(elements / last);
      return w;
    };
    KernelWork work;
    if (!region) {
      work.ops = {in.empty() ? OpWork{op} : anchor(op, in[0].dtype, in[0].dims)};
      if (op == "lora") count_flops(in, results, work.ops[0]);
      return work;
    }
    for (const RegionPiece& piece : region->pieces) {
      if (!piece.is_anchor()) continue;
      const TensorType& x = region->values[piece.in[0]].tensor;
      std::vector<SymExpr> dims;
      for (const Dim& d : x.dims) dims.push_back(d.extent);
      work.ops.push_back(anchor(piece.op, x.dtype, dims));
    }
    return work;
  }

  void count_flops(const std::vector<CallArg>& in, const std::vector<CallArg>& results,
                   OpWork& work) const {
    auto types = [](const std::vector<CallArg>& args) {
      std::vector<Type> out;
      for (const CallArg& arg : args) {
        TensorType type{arg.dtype, {}};
        for (const SymExpr& d : arg.dims) type.dims.push_back({"x", d, false});
        out.push_back(Type::of(std::move(type)));
      }
      return out;
    };
    const std::vector<SymbolDecl>& symbols = out_.plans.symbols;
    std::vector<Type> from = types(in), to = types(results);
    work.flops = static_cast<double>(find_op(work.op)->flops(from, to).upper(symbols));
    work.elements = static_cast<double>(to[0].tensor.elements().upper(symbols));
  }

  void call(const std::string& op, const Value& attrs, std::vector<CallArg> in,
            std::vector<CallArg> results) {
    std::vector<DType> dtypes;
    for (const CallArg& arg : in) dtypes.push_back(arg.dtype);
    const Region* region = op == "region" ? case_.region.get() : nullptr;
    const KernelDesc* kernel = nullptr;
    for (const KernelDesc& desc : backend_.kernels()) {
      KernelPattern pattern = parse_pattern(desc.pattern);
      bool takes = region ? takes_region(pattern, *region)
                          : !pattern.region && kernel_matches(pattern, op, dtypes);
      if (takes && !kernel && (!attrs.has(kStorageAttr) || desc.stores(results[0].dtype)))
        kernel = &desc;
    }
    if (!kernel) {
      out_.supported = false;
      return;
    }
    for (const CallArg& arg : in)
      if (arg.kind == CallArg::Kind::kWeight && arg.dims.size() >= 2)
        out_.plans.weights[arg.index].layout = kernel->weight_layout;
    auto& kernels = out_.plans.kernels;
    size_t index = 0;
    while (index < kernels.size() && kernels[index].name != kernel->name) ++index;
    if (index == kernels.size())
      kernels.push_back({kernel->name, kernel->abi, kernel->numeric_class});
    if (region && out_.plans.regions.empty()) out_.plans.regions.push_back(*region);
    uint64_t scratch = kernel->scratch ? kernel->scratch(work_of(op, in, results, region)) : 0;
    out_.plans.scratch_bytes = std::max(out_.plans.scratch_bytes, scratch);
    out_.plans.plans[0].calls.push_back({.kernel = static_cast<uint32_t>(index),
                                         .op = op,
                                         .attrs = attrs,
                                         .region = region ? 0 : -1,
                                         .scratch = scratch,
                                         .in = std::move(in),
                                         .out = std::move(results),
                                         .label = op});
  }

  CallArg add_weight(const Arg& arg) {
    std::string name = "w" + std::to_string(out_.plans.weights.size());
    WeightEntry entry{name, arg.dtype, arg.dims, {}, arg.values, ""};
    if (arg.values.empty()) {
      entry.recipe.sources = {name};
      random_weights_.emplace_back(name, arg);
    }
    out_.plans.weights.push_back(entry);
    std::vector<SymExpr> dims(arg.dims.begin(), arg.dims.end());
    return {CallArg::Kind::kWeight, static_cast<uint32_t>(out_.plans.weights.size() - 1), 0,
            arg.dtype, std::move(dims)};
  }

  CallArg add_input(const std::string& name) {
    std::vector<SymExpr> dims = {symbol("T")};
    if (name == "q_start") dims = {symbol("B") + 1};
    if (name == "kv_len") dims = {symbol("B")};
    if (name == "out_rows") dims = {symbol("R")};
    if (name == "mask") dims = {symbol("T"), symbol("M")};
    auto& inputs = out_.plans.inputs;
    size_t index = 0;
    while (index < inputs.size() && inputs[index].name != name) ++index;
    if (index == inputs.size()) inputs.push_back({name, DType::kI32, dims});
    return {CallArg::Kind::kInput, static_cast<uint32_t>(index), 0, DType::kI32, dims};
  }

  // Looks up rows of a table by token id, so that the values are in the arena, as in a model.
  CallArg add_activation(const std::vector<int64_t>& dims, DType dtype = DType::kF32) {
    int64_t width = product(dims);
    CallArg table = add_weight({.kind = Kind::kWeight, .dims = {total_tokens_, width}});
    CallArg x = new_value(dtype, {symbol("T"), width});
    call("embed", stored_as(dtype, Value::object()), {add_input("ids"), table}, {x});
    x.dims = rows_of(dims);
    return x;
  }

  CallArg add_argument(const Arg& arg) {
    switch (arg.kind) {
      case Kind::kActivation:
        return add_activation(arg.dims, arg.dtype);
      case Kind::kQuantized: {
        DType type = arg.dtype == DType::kBF16 ? DType::kBF16 : DType::kQ8A;
        CallArg x = add_activation(arg.dims), q = new_value(type, x.dims);
        call("quantize", Value(Value::Object{{"format", dtype_name(type)}}), {x}, {q});
        return q;
      }
      case Kind::kWeight:
      case Kind::kConstant:
        return add_weight(arg);
      case Kind::kInput:
        return add_input(arg.name);
      case Kind::kState:
        return {CallArg::Kind::kState, 0, 0, DType::kF32, {}};
      case Kind::kView:
        return {CallArg::Kind::kView, 0, 0, DType::kF32, {}};
      case Kind::kResult:
        return results_.at(arg.result);
    }
    TK_CHECK(false);
  }

  void make_state() {
    if (case_.planes.empty()) return;
    out_.plans.groups = {
        {"kv", case_.batch.window, case_.per_sequence ? kSequenceBlock : kBlockSize}};
    StateEntry state;
    state.name = "kv";
    state.per_sequence = case_.per_sequence;
    for (const PlaneSpec& p : case_.planes)
      state.planes.push_back({p.name, p.dtype, p.dims, plane_bytes(p.dtype, p.dims)});
    out_.plans.states = {state};
  }

  void make_earlier() {
    for (const EarlierCall& c : case_.earlier) {
      std::vector<CallArg> in, out;
      for (const Arg& arg : c.in) in.push_back(add_argument(arg));
      for (const Result& r : c.out) out.push_back(new_value(r.dtype, r.dims));
      call(c.op, stored_as(c.out[0].dtype, c.attrs), in, out);
      results_.insert(results_.end(), out.begin(), out.end());
    }
  }

  void make_calls(int repeat) {
    make_earlier();
    if (!case_.planes.empty() && !case_.region && !case_.per_sequence) {
      std::vector<CallArg> in = {add_argument({.kind = Kind::kState}),
                                 add_argument({.kind = Kind::kView}), add_input("seq"),
                                 add_input("slot")};
      for (const PlaneSpec& p : case_.planes) in.push_back(add_activation(p.dims));
      call("append", Value::object(), in, {in[0]});
    }
    std::vector<CallArg> in;
    for (const Arg& arg : case_.in) in.push_back(add_argument(arg));
    std::vector<CallArg> results;
    if (case_.per_sequence) results.push_back(add_argument({.kind = Kind::kState}));
    for (int i = 0; i < case_.outputs && !case_.region && case_.unlike.empty(); ++i)
      results.push_back(new_value(case_.stored, rows_of(case_.out)));
    for (const Result& r : case_.unlike)
      results.push_back(new_value(r.dtype == DType::kF32 ? case_.stored : r.dtype, r.dims));
    if (case_.region)
      for (uint32_t v : case_.region->results) {
        const Type& type = case_.region->values[v];
        std::vector<SymExpr> dims;
        for (const Dim& d : type.tensor.dims) dims.push_back(d.extent);
        results.push_back(type.kind == Type::Kind::kState
                              ? in[0]
                              : new_value(type.tensor.dtype, std::move(dims)));
      }
    Value attrs = stored_as(case_.stored, case_.attrs);
    for (int i = 0; i < repeat; ++i) call(case_.op, attrs, in, results);
    CallArg y = case_.unlike.empty() ? results.back() : results.front();
    y.dims = {symbol("T"), product(case_.out)};
    out_.plans.plans[0].outputs = {{"hidden", y}};
  }

  // First the older tokens of all sequences, then the step under test.
  void make_steps() {
    const BatchSpec& batch = case_.batch;
    bool has_state = !case_.planes.empty();
    int64_t stride = 1;
    for (size_t b = 0; b < batch.own.size() && !case_.per_sequence; ++b)
      stride =
          std::max<int64_t>(stride, (batch.own[b] + batch.older[b] + kBlockSize - 1) / kBlockSize);
    if (has_state) {
      auto sequences = static_cast<int64_t>(batch.own.size());
      blocks_.resize(static_cast<size_t>(sequences * stride));
      std::iota(blocks_.begin(), blocks_.end(), 0);
      for (size_t i = blocks_.size(); i > 1; --i) std::swap(blocks_[i - 1], blocks_[rng_.below(i)]);
      out_.options.blocks = {sequences * stride};
    }
    bool any_older =
        std::any_of(batch.older.begin(), batch.older.end(), [](int32_t n) { return n > 0; });
    if (has_state && any_older) out_.steps.push_back(make_step(false, stride));
    out_.steps.push_back(make_step(true, stride));
  }

  StepInputs make_step(bool last, int64_t stride) const {
    const BatchSpec& batch = case_.batch;
    StepInputs step;
    step.q_start = {0};
    if (!case_.planes.empty())
      step.tables.resize(1), step.tables[0].stride = static_cast<int32_t>(stride);
    int32_t first_id = 0;
    for (size_t b = 0; b < batch.own.size(); ++b) {
      int32_t from = last ? batch.older[b] : 0, to = last ? from + batch.own[b] : batch.older[b];
      int32_t id = first_id;
      first_id += batch.older[b] + batch.own[b];
      if (from == to) continue;
      for (int32_t s = from; s < to; ++s) {
        step.ids.push_back((id + s) * 7 % static_cast<int32_t>(total_tokens_));
        step.pos.push_back(s);
        step.slot.push_back(s);
        step.seq.push_back(static_cast<int32_t>(step.kv_len.size()));
      }
      step.q_start.push_back(static_cast<int32_t>(step.ids.size()));
      step.kv_len.push_back(to);
      step.row.push_back(static_cast<int32_t>(b));
      if (!step.tables.empty())
        for (int64_t j = 0; j < stride; ++j) {
          bool dropped = batch.window > 0 && (j + 1) * kBlockSize <= from - batch.window + 1;
          step.tables[0].blocks.push_back(
              dropped ? -1 : blocks_[b * static_cast<size_t>(stride) + static_cast<size_t>(j)]);
        }
    }
    auto t = static_cast<int32_t>(step.ids.size());
    if (batch.mask_width > 0) {
      step.mask_width =
          last ? batch.mask_width : *std::max_element(batch.older.begin(), batch.older.end());
      step.mask = batch.mask;
      if (!last) {  // plain causal
        step.mask.assign(static_cast<size_t>(t * step.mask_width), 0);
        for (int32_t i = 0; i < t; ++i)
          for (int32_t m = 0;
               m <= i - step.q_start[static_cast<size_t>(step.seq[static_cast<size_t>(i)])]; ++m)
            step.mask[static_cast<size_t>(i * step.mask_width + m)] = 1;
      }
    }
    for (int32_t r = 0; r < t; ++r) {
      step.out_rows.push_back(t - 1 - r);
      step.samples.push_back({SampleRow::Mode::kHidden, -1, 0, 0, 0, nullptr});
    }
    return step;
  }

  void count_cost() {
    const BatchSpec& batch = case_.batch;
    int64_t t = batch.tokens();
    out_.bytes = static_cast<double>(dtype_bytes(case_.stored, t * product(case_.out)) *
                                     static_cast<size_t>(case_.outputs));
    std::vector<Type> in, result;
    for (const Arg& arg : case_.in) {
      std::vector<int64_t> dims = arg.dims;
      bool rows = arg.kind == Kind::kActivation || arg.kind == Kind::kQuantized;
      if (rows) dims.insert(dims.begin(), t);
      DType dtype =
          arg.kind == Kind::kQuantized && arg.dtype != DType::kBF16 ? DType::kQ8A : arg.dtype;
      if (rows || arg.kind == Kind::kWeight)
        out_.bytes += static_cast<double>(dtype_bytes(dtype, product(dims)));
      in.push_back(Type::of(tensor_type(dtype, dims)));
    }
    std::vector<int64_t> dims = case_.out;
    dims.insert(dims.begin(), t);
    result.push_back(Type::of(tensor_type(case_.stored, dims)));
    const OpDef* op = find_op(case_.op);
    SymExpr flops = op && op->flops ? op->flops(in, result) : result[0].tensor.elements();
    out_.flops = static_cast<double>(*flops.constant());
    if (case_.op != "attend") return;
    double keys = 0, cached = 0, per_token = static_cast<double>(kv_bytes_per_token(out_.plans, 0));
    for (size_t b = 0; b < batch.own.size(); ++b) {
      double own = batch.own[b], older = batch.older[b];
      keys += own * older + own * (own + 1) / 2;
      cached += own + older;
    }
    out_.flops *= keys / static_cast<double>(t);
    out_.bytes += cached * per_token;
  }

  const OpCase& case_;
  const Backend& backend_;
  CasePlan out_;
  std::vector<std::pair<std::string, Arg>> random_weights_;  // by name
  Rng rng_{20261115};
  std::vector<CallArg> results_;  // of earlier calls
  std::vector<int32_t> blocks_;
  int64_t total_tokens_ = 0;
  uint64_t arena_ = 0;
  uint32_t values_ = 0;
};

}  // namespace

CasePlan build_case(const OpCase& c, const Backend& backend, int repeat) {
  return Builder(c, backend).build(repeat);
}

std::vector<float> run_case(const CasePlan& plan, Backend& backend) {
  auto executable = backend.load(plan.plans, plan.weights, plan.options);
  std::vector<float> all;
  StepResult result;
  for (const StepInputs& step : plan.steps) {
    executable->collect(executable->submit(step), result);
    all.insert(all.end(), result.hidden.begin(), result.hidden.end());
  }
  return all;
}

}  // namespace tokamak::testing
