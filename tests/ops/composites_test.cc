// A composite op is equal to its body of primitives; ops over the finite field are exact.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "ops/evaluate.h"

namespace tokamak::testing {
namespace {

using T = Tensor<double>;

T random(std::vector<int64_t> dims, uint64_t seed, double scale = 1.0) {
  Rng rng(seed);
  size_t n = 1;
  for (int64_t d : dims) n *= static_cast<size_t>(d);
  std::vector<double> f(n);
  for (double& x : f) x = rng.normal() * scale;
  return values<double>(std::move(dims), std::move(f));
}

T op(std::string_view name, std::vector<T> in, Attrs a = Attrs::object()) {
  return eval<double>(name, std::move(in), a);
}
T scalar(double x) { return values<double>({}, {x}); }
T last(std::string_view reduce, T x) { return op(reduce, {x}, attrs({{"axis", -1}, {"keep", 1}})); }

void expect_same(const T& a, const T& b) {
  ASSERT_EQ(a.dims, b.dims);
  for (size_t i = 0; i < a.f.size(); ++i)
    ASSERT_NEAR(a.f[i], b.f[i], 1e-12 * std::max(1.0, std::fabs(b.f[i]))) << i;
}

TEST(Composites, RmsNorm) {
  T x = random({5, 33}, 1, 3), w = random({33}, 2);
  T mean = last("reduce_mean", op("square", {x}));
  T body = op("mul", {op("mul", {x, op("rsqrt", {op("add", {mean, scalar(1e-6)})})}), w});
  expect_same(op("rms_norm", {x, w}, attrs({{"eps", 1e-6}})), body);
}

TEST(Composites, LayerNorm) {
  T x = random({4, 29}, 3, 2), w = random({29}, 4), bias = random({29}, 5);
  T centred = op("sub", {x, last("reduce_mean", x)});
  T variance = last("reduce_mean", op("square", {centred}));
  T normal = op("mul", {centred, op("rsqrt", {op("add", {variance, scalar(1e-5)})})});
  T body = op("add", {op("mul", {normal, w}), bias});
  expect_same(op("layer_norm", {x, w, bias}, attrs({{"eps", 1e-5}})), body);
}

TEST(Composites, Softmax) {
  T x = random({6, 17}, 6, 20);
  T e = op("exp", {op("sub", {x, last("reduce_max", x)})});
  expect_same(op("softmax", {x}), op("div", {e, last("reduce_sum", e)}));
}

TEST(Composites, Activations) {
  T x = random({200}, 7, 4);
  expect_same(op("silu", {x}), op("mul", {x, op("sigmoid", {x})}));
  T half = op("scale", {x}, attrs({{"value", 0.5}}));
  T erf = op("erf", {op("scale", {x}, attrs({{"value", std::sqrt(0.5)}}))});
  expect_same(op("gelu", {x}, attrs({{"approximate", "none"}})),
              op("mul", {half, op("add", {erf, scalar(1)})}));
  T cubic = op("scale", {op("mul", {x, op("square", {x})})}, attrs({{"value", 0.044715}}));
  T inner = op("scale", {op("add", {x, cubic})}, attrs({{"value", std::sqrt(2 / M_PI)}}));
  expect_same(op("gelu", {x}, attrs({{"approximate", "tanh"}})),
              op("mul", {half, op("add", {op("tanh", {inner}), scalar(1)})}));
  T capped = op("tanh", {op("scale", {x}, attrs({{"value", 1 / 3.0}}))});
  expect_same(op("softcap", {x}, attrs({{"cap", 3.0}})),
              op("scale", {capped}, attrs({{"value", 3.0}})));
}

TEST(Composites, Rope) {
  constexpr int64_t kTokens = 4, kHalf = 3;
  T x = random({kTokens, 2, 8}, 8);
  T pos = integers<double>({kTokens}, {0, 1, 17, 300});
  T inv_freq = values<double>({kHalf}, {1, 0.1, 0.01});
  auto part = [&](int from, int to) {
    return op("slice", {x}, attrs({{"axis", 2}, {"start", from}, {"end", to}}));
  };
  T column =
      op("reshape", {op("cast", {pos}, attrs({{"dtype", "f32"}}))},
         attrs({{"dims", Value::Array{kTokens, 1, 1}}, {"axes", Value::Array{"t", "h", "d"}}}));
  T angle = op("mul", {column, inv_freq});
  T c = op("scale", {op("cos", {angle})}, attrs({{"value", 1.5}}));
  T s = op("scale", {op("sin", {angle})}, attrs({{"value", 1.5}}));
  T a = part(0, 3), b = part(3, 6);
  T first = op("sub", {op("mul", {a, c}), op("mul", {b, s})});
  T second = op("add", {op("mul", {b, c}), op("mul", {a, s})});
  T body = op("concat", {first, second, part(6, 8)}, attrs({{"axis", 2}}));
  expect_same(op("rope", {x, pos, inv_freq}, attrs({{"scale", 1.5}})), body);
}

TEST(Composites, Linear) {
  T x = random({2, 3, 21}, 9), w = random({6, 21}, 10), bias = random({6}, 11);
  T flipped = op("transpose", {w}, attrs({{"perm", Value::Array{1, 0}}}));
  expect_same(op("linear", {x, w, bias}), op("add", {op("matmul", {x, flipped}), bias}));
}

Tensor<Field> random_field(std::vector<int64_t> dims, uint64_t seed) {
  Rng rng(seed);
  size_t n = 1;
  for (int64_t d : dims) n *= static_cast<size_t>(d);
  std::vector<Field> f(n);
  for (Field& x : f) x = Field(static_cast<int64_t>(rng.next_u64() >> 3));
  return values<Field>(std::move(dims), std::move(f));
}

TEST(FieldTest, Arithmetic) {
  Field a(123456789012345), b(-77), p(static_cast<int64_t>(Field::kPrime));
  EXPECT_EQ(p, Field(0));
  EXPECT_EQ(a + b - a, b);
  EXPECT_EQ(Field(-1) * Field(-1), Field(1));
  EXPECT_EQ(a / b * b, a);
  EXPECT_EQ(Field::from_double(0.75) * Field(4), Field(3));
  EXPECT_EQ(Field::from_double(-2.5), Field(-5) / Field(2));
  EXPECT_EQ(Field::from_double(0x1p80), Field(2).power(80));
  EXPECT_EQ(Field::from_double(0.0), Field(0));
  EXPECT_THROW(a / Field(0), Error);
}

// Identities that floats satisfy only approximately: products associate, and a mean times n is the
// sum.
TEST(FieldTest, LinearAlgebraIsExact) {
  auto x = random_field({3, 5}, 1), w = random_field({4, 5}, 2), v = random_field({6, 4}, 3);
  auto in_steps = eval<Field>("linear", {eval<Field>("linear", {x, w}), v});
  auto folded = eval<Field>("linear", {x, eval<Field>("matmul", {v, w})});
  EXPECT_EQ(in_steps.f, folded.f);
  auto mean = eval<Field>("reduce_mean", {x}, attrs({{"axis", 1}}));
  auto sum = eval<Field>("reduce_sum", {x}, attrs({{"axis", 1}}));
  EXPECT_EQ(eval<Field>("scale", {mean}, attrs({{"value", 5.0}})).f, sum.f);
}

TEST(FieldTest, FragmentIsDeclared) {
  for (const char* name : {"add", "mul", "div", "linear", "matmul", "embed", "moe_combine"})
    EXPECT_NE(find_op(name)->field, nullptr) << name;
  for (const char* name : {"exp", "maximum", "softmax", "attend", "compare", "quantize"})
    EXPECT_EQ(find_op(name)->field, nullptr) << name;
}

}  // namespace
}  // namespace tokamak::testing
