// Every op runs on the cpu backend and agrees with its definition: the cases of tests/golden/ops,
// which every op has (tests/ops/meanings_test.cc), as graphs of one op.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "compile/simplify/check_backend.h"
#include "graph/graph.h"
#include "ops/golden_cases.h"
#include "ops/op.h"

namespace tokamak {
namespace {

using testing::load_cases;
using testing::Tensor;
using testing::to_tensor;

constexpr double kTolerance = 2e-5;  // of kernels in f32, relative to values above 1

Type type_of(const Tensor<float>& t) {
  TensorType type{t.dtype, {}};
  for (int64_t d : t.dims) type.dims.push_back({fmt::format("x{}", type.dims.size()), d, false});
  return Type::of(std::move(type));
}

// Whether a step of one op can return it: the backend stores f32 and i32, states belong to a model,
// and extents that only the device knows have no shape to compare.
bool is_plain(const Type& t) {
  return t.kind == Type::Kind::kTensor &&
         (t.tensor.dtype == DType::kF32 || t.tensor.dtype == DType::kI32) &&
         std::none_of(t.tensor.dims.begin(), t.tensor.dims.end(),
                      [](const Dim& d) { return d.bound; });
}

// Compares the outputs of a case that can be compared; false: there are none.
bool run_case(const Value& golden, Backend& backend) {
  Module module("one_op");
  Function& f = module.add_function("f");
  EvalInputs<float> inputs;
  std::vector<Ref> in;
  for (const Value& v : golden.at("in").as_array()) {
    Tensor<float> t = to_tensor<float>(v);
    if (!t.planes.empty() || !t.table.empty()) return false;
    std::string name = fmt::format("in{}", in.size());
    in.push_back(f.add_input(name, type_of(t)));
    inputs.tensors[name] = {t.dims, t.f, t.i, t.dtype == DType::kI32};
  }
  std::vector<Ref> out = f.add_multi(golden.at("op").as_string(), in, golden.at("attrs"));
  std::map<std::string, Tensor<float>> want;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!is_plain(f.type(out[i]))) continue;
    std::string name = fmt::format("out{}", i);
    Tensor<float> t = to_tensor<float>(golden.at("out").as_array()[i]);
    if (t.f.empty()) t.f.assign(t.i.begin(), t.i.end());
    bool integer = f.tensor(out[i]).dtype == DType::kI32;
    f.set_result(name, integer ? f.add("cast", {out[i]}, Value::Object{{"dtype", "f32"}}) : out[i]);
    want[name] = std::move(t);
  }
  for (const auto& [name, t] : want) {
    std::vector<float> got = run_on_backend(f, inputs, name, backend);
    EXPECT_EQ(got.size(), t.f.size()) << name;
    for (size_t i = 0; i < got.size() && i < t.f.size(); ++i) {
      if (got[i] == t.f[i] || (std::isnan(got[i]) && std::isnan(t.f[i]))) continue;
      EXPECT_NEAR(got[i], t.f[i], kTolerance * std::max(1.0f, std::fabs(t.f[i])))
          << name << " element " << i;
    }
  }
  return !want.empty();
}

TEST(EveryOp, RunsOnTheCpuAsItIsDefined) {
  auto backend = make_backend("cpu", {2, {}});
  std::set<std::string, std::less<>> seen;
  for (const Value& golden : load_cases().as_array()) {
    SCOPED_TRACE(golden.at("name").as_string());
    try {
      if (run_case(golden, *backend)) seen.insert(golden.at("op").as_string());
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  for (const OpDef* op : all_ops()) {
    if (op->tier == Tier::kStructural || op->tier == Tier::kRegion) continue;
    // These cannot run alone: models and tests/ops run them.
    bool elsewhere = op->reads_state || op->writes_state || op->name == "quantize";
    EXPECT_NE(seen.contains(op->name), elsewhere) << op->name;
  }
}

}  // namespace
}  // namespace tokamak
