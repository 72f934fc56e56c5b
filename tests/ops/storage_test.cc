// Results stored as f16 and bf16: an op computes wide and rounds exactly once, to the nearest
// number of the type, whatever its inputs are stored in.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/rng.h"
#include "ops/golden_cases.h"

namespace tokamak::testing {
namespace {

constexpr DType kNarrow[] = {DType::kF16, DType::kBF16};

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

TEST(Storage, RoundsToTheNearest) {
  Rng rng(7);
  for (DType dtype : kNarrow) {
    auto expect = [&](double x) {
      ASSERT_TRUE(same(round_to_dtype(dtype, x), nearest(dtype, x)))
          << dtype_name(dtype) << " of " << fmt::format("{:a}", x);
    };
    for (double x : {0.0, -0.0, 1.0, 65504.0, 65519.999, 65520.0, 65536.0, 1e300, -1e300, 3.39e38,
                     3.4e38, 0x1p-24, 0x1p-25, 0x1.0000001p-25, 0x1p-133, 0x1p-134, 1e-300, 1e-46})
      expect(x), expect(-x);
    expect(INFINITY);
    expect(-INFINITY);
    EXPECT_TRUE(std::isnan(round_to_dtype(dtype, NAN)));
    for (int i = 0; i < 200000; ++i) {
      // Every second one is at or next to the middle of two numbers, closer than f32 can resolve.
      int scale = static_cast<int>(rng.below(300)) - 150;
      double x = std::ldexp(rng.normal(), scale);
      if (i % 2) {
        double low = nearest(dtype, x),
               high = nearest(dtype, std::nextafter(low, INFINITY) * 1.006);
        x = (low + high) / 2 * (1 + (static_cast<double>(rng.below(3)) - 1) * 0x1p-40);
      }
      expect(x);
      if (HasFatalFailure()) return;
    }
  }
}

// Just above the middle of 1 and the next bf16 number: rounding to f32 first would give the middle,
// and then the even neighbour.
TEST(Storage, IsNotRoundedTwice) {
  auto a = values<float>({1}, {1.00390625f}), tiny = values<float>({1}, {0x1p-40f});
  EXPECT_EQ(eval<float>("add", {a, tiny}, attrs({{"out", "bf16"}})).f[0], 1.0078125f);
  EXPECT_EQ(eval<float>("add", {a, tiny}).f[0], 1.00390625f);
  auto half = values<float>({1}, {1.00048828125f});
  EXPECT_EQ(eval<float>("add", {half, tiny}, attrs({{"out", "f16"}})).f[0], 1.0009765625f);
}

// Float inputs rounded to `dtype`, as they would be when a node has stored them.
std::vector<Tensor<float>> stored_inputs(const Value& c, DType dtype) {
  std::vector<Tensor<float>> inputs;
  for (const Value& v : c.at("in").as_array()) {
    Tensor<float> t = to_tensor<float>(v);
    for (float& x : t.f) x = static_cast<float>(nearest(dtype, x));
    if (t.dtype == DType::kF32) t.dtype = dtype;
    inputs.push_back(std::move(t));
  }
  return inputs;
}

std::vector<Tensor<double>> widened(const std::vector<Tensor<float>>& inputs) {
  std::vector<Tensor<double>> out;
  for (const Tensor<float>& t : inputs) {
    Tensor<double> w;
    w.dims = t.dims;
    w.f.assign(t.f.begin(), t.f.end());
    w.i = t.i;
    w.table = t.table;
    w.stride = t.stride;
    w.block_size = t.block_size;
    w.dtype = t.dtype;
    for (const Plane<float>& p : t.planes)
      w.planes.push_back({p.name, p.dims, {p.f.begin(), p.f.end()}});
    out.push_back(std::move(w));
  }
  return out;
}

// Every op with a storage type, over all of its cases: the result has the bits of the result in
// double, rounded once.
TEST(Storage, EveryOpRoundsOnce) {
  std::set<std::string, std::less<>> covered;
  size_t narrower = 0, values = 0;
  for (const Value& c : load_cases().as_array()) {
    const OpDef* op = find_op(c.at("op").as_string());
    bool integers = c.at("out").as_array()[0].has("i");
    if (!op->storage || integers) continue;
    covered.insert(std::string(op->name));
    for (DType in : {DType::kF32, DType::kF16, DType::kBF16})
      for (DType out : kNarrow) {
        SCOPED_TRACE(fmt::format("{}, {} in, {} out", c.at("name").as_string(), dtype_name(in),
                                 dtype_name(out)));
        std::vector<Tensor<float>> inputs = stored_inputs(c, in);
        std::vector<Tensor<double>> wide =
            evaluate<double>(op->name, widened(inputs), c.at("attrs"));
        Attrs stored = c.at("attrs");
        stored.set("out", dtype_name(out));
        std::vector<Tensor<float>> got = evaluate<float>(op->name, inputs, stored);
        EXPECT_EQ(got[0].dtype, out);
        ASSERT_EQ(got[0].f.size(), wide[0].f.size());
        for (size_t i = 0; i < got[0].f.size(); ++i, ++values) {
          ASSERT_TRUE(same(got[0].f[i], nearest(out, wide[0].f[i])))
              << i << ": " << got[0].f[i] << " of " << wide[0].f[i];
          narrower += static_cast<float>(wide[0].f[i]) != got[0].f[i];
        }
        for (size_t o = 1; o < got.size(); ++o) EXPECT_EQ(got[o].i, wide[o].i);
      }
  }
  for (const OpDef* op : all_ops()) EXPECT_EQ(op->storage, covered.contains(op->name)) << op->name;
  EXPECT_GT(narrower, values / 2);  // else nothing was rounded
}

// Over double too: a value of type f16 is an f16 number, so that a cast to f16 does not change it.
TEST(Storage, TheOracleRoundsToo) {
  auto x = values<double>({2}, {1.0 / 3, 1e5});
  auto stored = eval<double>("neg", {x}, attrs({{"out", "f16"}}));
  EXPECT_EQ(stored.f, (std::vector<double>{nearest(DType::kF16, -1.0 / 3), -INFINITY}));
  EXPECT_EQ(eval<double>("cast", {stored}, attrs({{"dtype", "f16"}})).f, stored.f);
}

}  // namespace
}  // namespace tokamak::testing
