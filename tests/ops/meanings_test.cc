// Every op against values computed by numpy (tools/make_op_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ops/golden_cases.h"

namespace tokamak::testing {
namespace {

template <class S>
void expect_near(const std::vector<S>& got, const std::vector<S>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // infinities too
    double scale = std::max(1.0, std::fabs(static_cast<double>(want[i])));
    ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]), tolerance * scale)
        << "element " << i;
  }
}

template <class S>
void run_cases(double tolerance) {
  for (const Value& c : load_cases().as_array()) {
    SCOPED_TRACE(c.at("name").as_string());
    std::vector<Tensor<S>> inputs;
    for (const Value& v : c.at("in").as_array()) inputs.push_back(to_tensor<S>(v));
    // Float inputs are rounded, and quantisation and truncation jump: those are compared in double.
    const std::string& op = c.at("op").as_string();
    if (std::is_same_v<S, float> && (op == "quantize" || op == "cast")) continue;
    auto outputs = evaluate<S>(op, std::move(inputs), c.at("attrs"));
    const Value::Array& expected = c.at("out").as_array();
    ASSERT_EQ(outputs.size(), expected.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      Tensor<S> want = to_tensor<S>(expected[i]);
      EXPECT_EQ(outputs[i].dims, want.dims);
      EXPECT_EQ(outputs[i].i, want.i);
      expect_near(outputs[i].f, want.f, tolerance);
      ASSERT_EQ(outputs[i].planes.size(), want.planes.size());
      for (size_t p = 0; p < want.planes.size(); ++p)
        expect_near(outputs[i].planes[p].f, want.planes[p].f, tolerance);
    }
  }
}

TEST(Meanings, DoubleEqualsNumpy) { run_cases<double>(1e-13); }
TEST(Meanings, FloatIsCloseToNumpy) { run_cases<float>(1e-5); }

TEST(Meanings, EveryOpHasACase) {
  std::set<std::string, std::less<>> covered;
  for (const Value& c : load_cases().as_array()) covered.insert(c.at("op").as_string());
  for (const OpDef* op : all_ops())
    if (op->tier != Tier::kStructural && op->tier != Tier::kRegion) {
      EXPECT_TRUE(covered.contains(op->name)) << op->name;
    }
}

TEST(Meanings, NanIsNotLost) {
  auto nan = values<float>({2}, {NAN, 1});
  auto one = values<float>({2}, {1, NAN});
  for (const char* op : {"add", "maximum", "minimum"})
    for (float x : eval<float>(op, {nan, one}).f) EXPECT_TRUE(std::isnan(x)) << op;
  EXPECT_TRUE(std::isnan(eval<float>("reduce_max", {one}, attrs({{"axis", 0}})).f[0]));
  EXPECT_TRUE(std::isnan(eval<float>("relu", {nan}).f[0]));
}

TEST(Meanings, WrongIndicesAreErrors) {
  auto table = values<float>({2, 1}, {1, 2});
  EXPECT_THROW(eval<float>("embed", {integers<float>({1}, {2}), table}), Error);
  EXPECT_THROW(eval<float>("gather", {table, integers<float>({1}, {2})}), Error);
}

// An op accumulates in double: a float sum would lose all of the small terms.
TEST(Meanings, FloatSumsAreRoundedOnce) {
  std::vector<float> x(1 + 4096, 0x1p-25f), w(1 + 4096, 1.0f);
  x[0] = 1.0f;
  int64_t n = 1 + 4096;
  auto y = eval<float>("linear", {values<float>({1, n}, x), values<float>({1, n}, w)});
  EXPECT_EQ(y.f[0], 1.0f + 4096 * 0x1p-25f);
}

}  // namespace
}  // namespace tokamak::testing
