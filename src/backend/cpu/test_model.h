#pragma once
// A small decoder with random weights, written as a PlanSet by hand, for tests of the executable.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/weight_store.h"
#include "base/error.h"
#include "base/rng.h"
#include "tensor/block_formats.h"
#include "tensor/plane.h"

namespace tokamak::cpu {

// The first of a backend's kernels for single ops that takes these operands.
inline const KernelDesc* kernel_for(std::span<const KernelDesc> kernels, std::string_view op,
                                    std::span<const DType> operands) {
  for (const KernelDesc& k : kernels) {
    KernelPattern pattern = parse_pattern(k.pattern);
    if (!pattern.region && kernel_matches(pattern, op, operands)) return &k;
  }
  return nullptr;
}

// The same plans with the kernels of another backend for single ops.
inline PlanSet plans_for(const Backend& backend, PlanSet set) {
  std::vector<KernelEntry> kernels;
  for (Plan& plan : set.plans)
    for (KernelCall& call : plan.calls) {
      std::vector<DType> dtypes;
      for (const CallArg& arg : call.in) dtypes.push_back(arg.dtype);
      const KernelDesc* kernel = kernel_for(backend.kernels(), call.op, dtypes);
      TK_CHECK(kernel, "{}", call.op);
      if (kernel->scratch) call.scratch = kernel->scratch({});
      set.scratch_bytes = std::max(set.scratch_bytes, call.scratch);
      for (const CallArg& arg : call.in)
        if (arg.kind == CallArg::Kind::kWeight && arg.dims.size() >= 2)
          set.weights[arg.index].layout = kernel->weight_layout;
      call.kernel = 0;
      while (call.kernel < kernels.size() && kernels[call.kernel].name != kernel->name)
        ++call.kernel;
      if (call.kernel == kernels.size())
        kernels.push_back({kernel->name, kernel->abi, kernel->numeric_class});
    }
  set.kernels = std::move(kernels);
  return set;
}

struct TestModelOptions {
  std::vector<DType> weights = {DType::kQ4_0};  // used in turn
  DType kv = DType::kF16;
  bool quantize = true;  // activations where the weight allows it
  bool bf16 = false;     // activations rounded to bf16, with weights other than f32
  int64_t window = 0;    // of the second layer
  double softcap = 0;
  bool tree_mask = false;  // attention reads `mask`
  int64_t max_tokens = 256, layers = 2, hidden = 256, ffn = 512, vocab = 300, heads = 8,
          kv_heads = 2;
};

// Builds one plan "step"; every value has its own place in the arena.
class TestModel {
 public:
  explicit TestModel(const TestModelOptions& o) : options_(o) {
    plans.model = "test";
    plans.symbols = {{"T", 1, o.max_tokens, 1}, {"B", 1, 8, 1}, {"R", 1, o.max_tokens, 1}};
    if (o.tree_mask) plans.symbols.push_back({"M", 1, o.max_tokens, 1});
    plans.groups = {{"full", 0, 16}, {"window", o.window, 16}};
    plans.vocab = o.vocab;
    plans.hidden = o.hidden;
    plans.layers = o.layers;
    plans.plans.emplace_back().function = "step";
    for (const SymbolDecl& s : plans.symbols)
      plans.plans[0].guard.push_back({s.name, s.lo, s.hi, 1});
    build();
    plans.plans[0].arena_bytes = plans.arena_bytes = arena_;
    plans = plans_for(*make_cpu_backend({1, {}, 0}), std::move(plans));
  }

  PlanSet plans;
  WeightTable weights;

 private:
  static SymExpr sym(const char* name) { return SymExpr::symbol(name); }

  CallArg input(const char* name, std::vector<SymExpr> dims) {
    for (uint32_t i = 0; i < plans.inputs.size(); ++i)
      if (plans.inputs[i].name == name) return {CallArg::Kind::kInput, i, 0, DType::kI32, dims};
    plans.inputs.push_back({name, DType::kI32, dims});
    return {CallArg::Kind::kInput, static_cast<uint32_t>(plans.inputs.size() - 1), 0, DType::kI32,
            dims};
  }
  CallArg weight(const std::string& name, DType dtype, std::vector<int64_t> dims, double scale,
                 double shift = 0) {
    int64_t row = dims.back(), rows = 1;
    for (size_t i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
    std::vector<float> values(static_cast<size_t>(row));
    size_t row_bytes = dtype_bytes(dtype, row);
    std::vector<std::byte> bytes(row_bytes * static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (float& v : values) v = static_cast<float>(rng_.normal() * scale + shift);
      encode_row(dtype, values.data(), bytes.data() + static_cast<size_t>(r) * row_bytes, row);
    }
    weights.add(name, dtype, dims, std::move(bytes));
    WeightEntry entry{name,         dtype, dims,
                      {{name}, {}}, {},    dims.size() == 2 ? matrix_layout(dtype) : ""};
    plans.weights.push_back(entry);
    std::vector<SymExpr> extents(dims.begin(), dims.end());
    return {CallArg::Kind::kWeight, static_cast<uint32_t>(plans.weights.size() - 1), 0, dtype,
            extents};
  }
  DType next_type() { return options_.weights[used_++ % options_.weights.size()]; }

  CallArg call(const std::string& op, std::vector<CallArg> in, std::vector<SymExpr> dims,
               Value attrs = Value::object(), DType dtype = DType::kF32) {
    TensorType type{dtype, {}};
    for (const SymExpr& d : dims) type.dims.push_back({"", d, false});
    CallArg out{CallArg::Kind::kArena, values_++, arena_, dtype, dims};
    arena_ += (static_cast<uint64_t>(type.bytes().upper(plans.symbols)) + 63) / 64 * 64;
    push(op, std::move(in), out, std::move(attrs));
    return out;
  }
  void push(const std::string& op, std::vector<CallArg> in, CallArg out, Value attrs) {
    plans.plans[0].calls.push_back({.op = op,
                                    .attrs = std::move(attrs),
                                    .in = std::move(in),
                                    .out = {std::move(out)},
                                    .label = op});
  }
  static CallArg reshaped(CallArg arg, std::vector<SymExpr> dims) {
    arg.dims = std::move(dims);
    return arg;
  }

  CallArg linear(const CallArg& x, const std::string& name, int64_t n, bool bias = false) {
    int64_t k = *x.dims.back().constant();
    DType type = next_type();
    CallArg w = weight(name, type, {n, k}, 1.0 / std::sqrt(static_cast<double>(k)));
    std::vector<CallArg> in = {x, w};
    bool rounded = options_.bf16 && type != DType::kF32;
    if (rounded || (options_.quantize && is_block_type(type))) {
      DType to = rounded ? DType::kBF16 : DType::kQ8A;
      Value attrs = Value::object();
      attrs.set("format", dtype_name(to));
      in[0] = call("quantize", {x}, x.dims, attrs, to);
    }
    if (bias) in.push_back(weight(name + ".bias", DType::kF16, {n}, 0.1));
    std::vector<SymExpr> dims = x.dims;
    dims.back() = n;
    return call("linear", in, dims);
  }
  CallArg norm(const CallArg& x, const std::string& name) {
    Value attrs = Value::object();
    attrs.set("eps", 1e-5);
    return call("rms_norm", {x, weight(name, DType::kF32, {options_.hidden}, 0.1, 1.0)}, x.dims,
                attrs);
  }
  CallArg rope(const CallArg& x) {
    if (frequencies_.dims.empty()) {
      int64_t half = options_.hidden / options_.heads / 2;
      WeightEntry entry{"freq", DType::kF32, {half}, {}, {}, ""};
      for (int64_t i = 0; i < half; ++i)
        entry.constant.push_back(
            std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
      plans.weights.push_back(entry);
      frequencies_ = {CallArg::Kind::kWeight,
                      static_cast<uint32_t>(plans.weights.size() - 1),
                      0,
                      DType::kF32,
                      {half}};
    }
    return call("rope", {x, input("pos", {sym("T")}), frequencies_}, x.dims);
  }

  CallArg attention(const CallArg& x, int64_t layer) {
    int64_t hd = options_.hidden / options_.heads;
    auto group = static_cast<uint32_t>(layer % 2 == 1 && options_.window > 0);
    std::string prefix = "l" + std::to_string(layer) + ".";
    SymExpr t = sym("T");
    CallArg q = reshaped(linear(x, prefix + "q", options_.hidden, true), {t, options_.heads, hd});
    CallArg k =
        reshaped(linear(x, prefix + "k", options_.kv_heads * hd), {t, options_.kv_heads, hd});
    CallArg v =
        reshaped(linear(x, prefix + "v", options_.kv_heads * hd), {t, options_.kv_heads, hd});
    q = rope(q), k = rope(k);
    PlaneEntry plane{"k",
                     options_.kv,
                     {options_.kv_heads, hd},
                     plane_bytes(options_.kv, std::vector<int64_t>{options_.kv_heads, hd})};
    StateEntry state{prefix + "kv", group, false, {plane, plane}};
    state.planes[1].name = "v";
    plans.states.push_back(state);
    CallArg s{
        CallArg::Kind::kState, static_cast<uint32_t>(plans.states.size() - 1), 0, DType::kF32, {}};
    CallArg view{CallArg::Kind::kView, group, 0, DType::kF32, {}};
    CallArg seq = input("seq", {t}), slot = input("slot", {t});
    push("append", {s, view, seq, slot, k, v}, s, Value::object());
    Value attrs = Value::object();
    attrs.set("scale", 1.0 / std::sqrt(static_cast<double>(hd)));
    if (group == 1) attrs.set("window", options_.window);
    if (options_.softcap > 0) attrs.set("softcap", options_.softcap);
    std::vector<CallArg> in = {q,
                               s,
                               view,
                               input("pos", {t}),
                               seq,
                               slot,
                               input("q_start", {sym("B") + 1}),
                               input("kv_len", {sym("B")})};
    if (options_.tree_mask) in.push_back(input("mask", {t, sym("M")}));
    CallArg y = call("attend", in, {t, options_.heads, hd}, attrs);
    return linear(reshaped(y, {t, options_.hidden}), prefix + "o", options_.hidden);
  }

  void build() {
    SymExpr t = sym("T"), r = sym("R");
    CallArg table = weight("embd", next_type(), {options_.vocab, options_.hidden}, 1.0);
    CallArg x = call("embed", {input("ids", {t}), table}, {t, options_.hidden});
    for (int64_t l = 0; l < options_.layers; ++l) {
      std::string prefix = "l" + std::to_string(l) + ".";
      x = call("add", {x, attention(norm(x, prefix + "n1"), l)}, x.dims);
      CallArg h = norm(x, prefix + "n2");
      CallArg gate = linear(h, prefix + "gate", options_.ffn),
              up = linear(h, prefix + "up", options_.ffn);
      gate = call("silu", {gate}, gate.dims);
      CallArg m = call("mul", {gate, up}, up.dims);
      x = call("add", {x, linear(m, prefix + "down", options_.hidden)}, x.dims);
    }
    CallArg rows = call("gather", {x, input("out_rows", {r})}, {r, options_.hidden});
    CallArg hidden = norm(rows, "norm");
    plans.plans[0].outputs = {{"logits", linear(hidden, "head", options_.vocab)},
                              {"hidden", hidden}};
  }

  TestModelOptions options_;
  Rng rng_{11};
  size_t used_ = 0;
  uint32_t values_ = 0;
  uint64_t arena_ = 0;
  CallArg frequencies_;
};

// One sequence of the test: tokens, blocks, and how far it has come.
struct TestSequence {
  std::vector<int32_t> tokens;
  int32_t first_block = 0, done = 0, row = 0;
  std::vector<std::vector<float>> logits;  // per position
};

// Adds the next `count` tokens of a sequence to a step that returns the logits of every row.
inline void add_to_step(StepInputs& step, const TestSequence& s, int32_t count) {
  if (step.q_start.empty()) step.q_start.push_back(0);
  auto b = static_cast<int32_t>(step.kv_len.size());
  for (int32_t i = 0; i < count; ++i) {
    step.out_rows.push_back(static_cast<int32_t>(step.ids.size()));
    step.samples.push_back({SampleRow::Mode::kHidden, -1, 0, 0, 0, nullptr});
    step.ids.push_back(s.tokens[static_cast<size_t>(s.done + i)]);
    step.pos.push_back(s.done + i);
    step.slot.push_back(s.done + i);
    step.seq.push_back(b);
  }
  step.q_start.push_back(static_cast<int32_t>(step.ids.size()));
  step.kv_len.push_back(s.done + count);
  step.row.push_back(s.row);
  step.return_logits = true;
}
// Fills the block tables of all groups: blocks in reverse, so that logical and physical order
// differ.
inline void set_tables(StepInputs& step, const std::vector<const TestSequence*>& sequences,
                       size_t groups, int32_t stride) {
  step.tables.resize(groups);
  for (StepInputs::Table& t : step.tables) {
    t.stride = stride;
    t.blocks.clear();
    for (const TestSequence* s : sequences)
      for (int32_t i = 0; i < stride; ++i) t.blocks.push_back(s->first_block + stride - 1 - i);
  }
}

}  // namespace tokamak::cpu
