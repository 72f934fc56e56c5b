// Fused regions on the CPU against their ops one by one with the same kernels: the same bits, for
// every instruction-set level of this machine.
#include "backend/cpu/exec.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/schedule.h"
#include "base/rng.h"
#include "compile/lower/lower_test_util.h"
#include "compile/lower/region.h"

namespace tokamak::cpu {
namespace {

using testing::first_difference;

// Memory of one value of a body.
struct Held {
  Tensor tensor;
  std::vector<float> f;
  std::vector<int32_t> i;
  std::vector<uint8_t> bytes;
};

// Runs ops as an executable does, without a plan.
class OpRunner {
 public:
  OpRunner(const KernelTable& table, int threads, const SymbolValues& symbols)
      : table_(table), pool_(threads) {
    for (const auto& [name, value] : symbols) {
      decls_.push_back({name, value, value, 1});
      values_.push_back(value);
    }
  }

  // False when no kernel computes the op.
  bool run(std::string_view op, const Value& attrs, std::vector<Tensor> in, std::vector<Tensor> out,
           const Region* region = nullptr) {
    const CpuKernel* kernel = nullptr;
    std::vector<DType> dtypes;
    for (const Tensor& t : in) dtypes.push_back(t.dtype);
    for (const CpuKernel& k : cpu_kernels()) {
      KernelPattern pattern = parse_pattern(k.desc.pattern);
      bool takes = region ? pattern.kind == KernelPattern::Anchor::kLoop
                          : !pattern.region && kernel_matches(pattern, op, dtypes);
      if (takes && !kernel) kernel = &k;
    }
    if (!kernel) return false;
    std::unique_ptr<CpuOp> made = make_op(
        *kernel, {nullptr, op, attrs, in, out, table_, kv_, pool_.size(), op, decls_, region});
    int64_t bytes = made->scratch_bytes() + 64;
    scratch_.assign(static_cast<size_t>(bytes * pool_.size()), 0xee);
    StepContext context{table_, kv_, pool_.size()};
    context.symbols = values_;
    context.scratch = scratch_.data();
    context.scratch_bytes = bytes;
    in.resize(std::max<size_t>(in.size(), 10));
    made->bind(in.data(), out.data(), context);
    for (int step = 0; step < 2; ++step)  // the second must not depend on the first
      run_call(*made, in.data(), out.data(), context, pool_);
    return true;
  }

 private:
  const KernelTable& table_;
  ThreadPool pool_;
  KvStore kv_;
  std::vector<SymbolDecl> decls_;
  std::vector<int64_t> values_;
  std::vector<uint8_t> scratch_;
};

Held make_held(const TensorType& type, const SymbolValues& symbols) {
  Held h;
  h.tensor.dtype = type.dtype;
  h.tensor.rank = type.rank();
  for (int d = 0; d < h.tensor.rank; ++d) h.tensor.dims[d] = type.extent(d).eval(symbols);
  auto n = static_cast<size_t>(h.tensor.elements());
  if (type.dtype == DType::kI32)
    h.i.resize(n);
  else if (is_block_type(type.dtype))
    h.bytes.resize(dtype_bytes(type.dtype, h.tensor.elements()));
  else
    h.f.resize(n, 123.0f);
  return h;
}
Tensor tensor_of_held(Held& h) {
  Tensor t = h.tensor;
  t.data = !h.i.empty()       ? static_cast<void*>(h.i.data())
           : !h.bytes.empty() ? static_cast<void*>(h.bytes.data())
                              : static_cast<void*>(h.f.data());
  return t;
}

class RegionOnCpu {
 public:
  RegionOnCpu(const Function& body, const EvalInputs<float>& inputs)
      : body_(body), inputs_(inputs) {}

  // Results of the ops one by one; false when one has no kernel.
  bool run_ops(OpRunner& runner, std::vector<Held>& results) {
    std::vector<Held> values(body_.nodes().size());
    for (NodeId id = 0; id < values.size(); ++id) {
      const Node& node = body_.node(id);
      values[id] = make_held(node.outputs[0].tensor, inputs_.symbols);
      if (node.op->tier == Tier::kStructural) {
        fill(node, values[id]);
        continue;
      }
      std::vector<Tensor> in;
      for (Ref r : node.inputs) in.push_back(tensor_of_held(values[r.node]));
      if (!runner.run(node.op->name, node.attrs, in, {tensor_of_held(values[id])})) return false;
    }
    for (const Function::Result& r : body_.results()) results.push_back(values[r.ref.node]);
    return true;
  }

  void run_region(OpRunner& runner, const Region& region, std::vector<Held>& results) {
    std::vector<Held> in_values;
    for (NodeId id : body_.inputs()) {
      const Node& node = body_.node(id);
      in_values.push_back(make_held(node.outputs[0].tensor, inputs_.symbols));
      fill(node, in_values.back());
    }
    std::vector<Tensor> in, out;
    for (Held& h : in_values) in.push_back(tensor_of_held(h));
    for (const Function::Result& r : body_.results())
      results.push_back(make_held(body_.tensor(r.ref), inputs_.symbols));
    for (Held& h : results) out.push_back(tensor_of_held(h));
    ASSERT_TRUE(runner.run("region", Value(), in, out, &region));
  }

 private:
  void fill(const Node& node, Held& h) const {
    const std::string& name = node.attrs.at("name").as_string();
    if (node.op->name == "constant") {
      const ConstantDecl& c = *body_.module().find_constant(name);
      for (size_t i = 0; i < h.f.size(); ++i) h.f[i] = static_cast<float>(c.values[i]);
      for (size_t i = 0; i < h.i.size(); ++i) h.i[i] = static_cast<int32_t>(c.values[i]);
    } else {
      h.f = inputs_.tensors.at(name).f;
      h.i = inputs_.tensors.at(name).i;
    }
  }
  const Function& body_;
  const EvalInputs<float>& inputs_;
};

void compare_on_cpu(const Function& body, const SymbolValues& symbols, Values kind, int threads) {
  BuiltRegion built = build_region(body);
  ASSERT_TRUE(built) << built.reason;
  Rng rng(static_cast<uint64_t>(symbols.at("T")));
  EvalInputs<float> inputs = convert_inputs<float>(random_inputs(body, symbols, rng, kind));
  for (const KernelTable* table : available_tables()) {
    SCOPED_TRACE(table->name);
    OpRunner runner(*table, threads, inputs.symbols);
    RegionOnCpu region(body, inputs);
    std::vector<Held> want, have;
    ASSERT_TRUE(region.run_ops(runner, want));
    region.run_region(runner, *built.region, have);
    ASSERT_EQ(have.size(), want.size());
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(have[r].i, want[r].i);
      EXPECT_EQ(have[r].bytes, want[r].bytes);
      int64_t at = first_difference(have[r].f, want[r].f);
      ASSERT_EQ(at, -1) << "result " << r << ": " << have[r].f[static_cast<size_t>(at)] << " for "
                        << want[r].f[static_cast<size_t>(at)] << "\n"
                        << region_text(*built.region);
    }
  }
}

TEST(LowerCpu, EveryWidth) {
  for (const testing::BodyCase& c : testing::body_cases())
    for (int64_t columns : {1, 2, 15, 16, 17, 33, 64, 100, 1024, 1027, 2081, 8192, 8224}) {
      SCOPED_TRACE(fmt::format("{} of {} columns", c.name, columns));
      Module m = testing::body_module(c, columns);
      compare_on_cpu(*m.find_function("body"), {{"S", 2}, {"T", columns > 100 ? 2 : 5}},
                     columns % 2 ? Values::kNormal : Values::kMixed, 2);
      if (HasFatalFailure()) return;
    }
}

TEST(LowerCpu, EveryNumberOfRows) {
  for (const testing::BodyCase& c : testing::body_cases()) {
    Module m = testing::body_module(c, 23);
    for (int64_t rows = 1; rows <= 70; rows += rows < 9 ? 1 : 7) {
      SCOPED_TRACE(fmt::format("{} of {} rows", c.name, rows));
      compare_on_cpu(*m.find_function("body"), {{"S", 3}, {"T", rows}}, Values::kNormal,
                     static_cast<int>(1 + rows % 3));
      if (HasFatalFailure()) return;
    }
  }
  Module m = testing::body_module(testing::body_cases()[0], 576);  // enough for several threads
  compare_on_cpu(*m.find_function("body"), {{"S", 3}, {"T", 70}}, Values::kNormal, 3);
  Module wide = testing::body_module(testing::body_cases()[1], 6001);
  compare_on_cpu(*wide.find_function("body"), {{"S", 3}, {"T", 9}}, Values::kNormal, 3);
}

TEST(LowerCpu, NastyValues) {
  for (const testing::BodyCase& c : testing::body_cases()) {
    SCOPED_TRACE(c.name);
    Module m = testing::body_module(c, 37);
    compare_on_cpu(*m.find_function("body"), {{"S", 2}, {"T", 6}}, Values::kNasty, 1);
    if (HasFatalFailure()) return;
  }
}

TEST(LowerCpu, QuantizedResult) {
  Module m = parse_module(R"(module m format 1
symbol T in 1..4096
func body {
  %0 = input x : f32[t=T, d=1088]
  %1 = input y : f32[t=T, d=1088]
  %2 = input w : f32[d=1088]
  %3 = add(%0, %1)
  %4 = rms_norm(%3, %2) {eps=1e-05}
  %5 = quantize(%4) {format="q8a"}
  return sum = %3
  return out = %5
}
func activation {
  %0 = input gate : f32[t=T, d=96]
  %1 = input up : f32[t=T, d=96]
  %2 = silu(%0)
  %3 = mul(%2, %1)
  %4 = quantize(%3) {format="q8a"}
  return out = %4
}
)");
  for (const auto& fn : m.functions)
    for (int64_t rows : {1, 7, 70}) compare_on_cpu(*fn, {{"T", rows}}, Values::kNormal, 2);
}

}  // namespace
}  // namespace tokamak::cpu
