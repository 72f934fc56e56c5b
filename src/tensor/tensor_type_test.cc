#include "tensor/tensor_type.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

TEST(TensorType, TextRoundTrip) {
  for (const char* text :
       {"f32[]", "i32[t=T]", "f32[t=T, d=576]", "q4_k[n=576, k=1536]", "f32[m<=2*T, d=8]",
        "f32[3, T]", "bf16[<=T*k, 4]", "f32[h=min(B, T), r=ceildiv(T, 16)]", "bool[b=B + 1]"}) {
    size_t pos = 0;
    TensorType type = parse_tensor_type(text, pos);
    EXPECT_EQ(pos, std::string_view(text).size());
    EXPECT_EQ(type.text(), text);
  }
  size_t pos = 3;
  EXPECT_EQ(parse_tensor_type("xx f16[ a = 2*3 ,b<= T ] rest", pos).text(), "f16[a=6, b<=T]");
  EXPECT_EQ(pos, 24u);
}

TEST(TensorType, BadText) {
  std::string many = "f32[1";
  for (int i = 0; i < 20; ++i) many += ",1";
  for (const std::string& bad : std::vector<std::string>{
           "", "f33[T]", "f32", "f32[", "f32[T", "f32[T,", "f32[T,]", "f32[=T]", "f32[t=]",
           "f32[t=T;]", "f32[t<T]", "f32[t=T B]", "f32[\n1]", many + "]", "f32[t==T]", "[T]"}) {
    size_t pos = 0;
    EXPECT_THROW(parse_tensor_type(bad, pos), Error) << bad;
  }
}

TEST(TensorType, Sizes) {
  auto type = [](const char* text) {
    size_t pos = 0;
    return parse_tensor_type(text, pos);
  };
  EXPECT_EQ(type("f32[]").bytes(), SymExpr(4));
  EXPECT_EQ(type("f16[t=T, d=8]").elements().text(), "8*T");
  EXPECT_EQ(type("f16[t=T, d=8]").bytes().text(), "16*T");
  EXPECT_EQ(type("q4_0[t=T, d=64]").bytes().text(), "36*T");
  EXPECT_EQ(type("q4_0[n=2, d=64]").extent(-1), SymExpr(64));
  EXPECT_THROW(type("q4_0[d=T]").bytes(), Error);
  EXPECT_THROW(type("q4_0[d=33]").bytes(), Error);
  EXPECT_THROW(type("q4_0[]").bytes(), Error);
}

TEST(Plane, BytesCountTheScales) {
  EXPECT_EQ(plane_bytes(DType::kF16, std::vector<int64_t>{3, 64}), 384);
  EXPECT_EQ(plane_bytes(DType::kI8, std::vector<int64_t>{3, 64}), 3 * (64 + 4));
  EXPECT_EQ(plane_bytes(DType::kI8, std::vector<int64_t>{20}), 24);
  EXPECT_THROW(plane_bytes(DType::kI8, std::vector<int64_t>{int64_t{1} << 62, 8}), Error);
}

TEST(Plane, RowsOfInt8AreNearAndKeepTheirLargest) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(1 + rng.below(100)), y;
    double size = std::pow(10.0, rng.uniform(-30, 30));
    float largest = 0;
    for (float& v : x) v = static_cast<float>(rng.normal() * size);
    for (float v : x) largest = std::max(largest, std::abs(v));
    y = x;
    round_plane(DType::kI8, static_cast<int64_t>(x.size()), y);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_LE(std::abs(x[i] - y[i]), largest / 127 * 0.5001f);
      if (std::abs(x[i]) == largest) {
        EXPECT_NEAR(y[i] / x[i], 1, 1e-6);
      }
    }
    std::vector<float> again = y;
    round_plane(DType::kI8, static_cast<int64_t>(x.size()), again);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(again[i], y[i], largest * 1e-6f);
  }
}

TEST(Plane, EachRowHasItsScaleAndBadValuesSpoilTheirRowOnly) {
  std::vector<float> x = {1, -2, 1e-3f, 5e-4f, 0, 0, NAN, 1, INFINITY, 1, FLT_TRUE_MIN, 0};
  round_plane(DType::kI8, 2, x);
  EXPECT_NEAR(x[0], 1, 2.0 / 254);
  EXPECT_FLOAT_EQ(x[1], -2);
  EXPECT_FLOAT_EQ(x[2], 1e-3f);
  EXPECT_EQ(x[4], 0);
  for (int i : {6, 7, 8, 9}) EXPECT_TRUE(std::isnan(x[static_cast<size_t>(i)])) << i;
  EXPECT_EQ(x[10], 0);  // too small for a scale
  std::vector<int8_t> q(3);
  EXPECT_EQ(quantize_plane_row(std::vector<float>{-FLT_MAX, FLT_MAX, 0}.data(), 3, q.data()),
            FLT_MAX / 127);
  EXPECT_EQ(q, (std::vector<int8_t>{-127, 127, 0}));
  std::vector<float> half = {1.0f / 3};
  round_plane(DType::kF16, 1, half);
  EXPECT_EQ(half[0], 0.333251953125f);
}

}  // namespace
}  // namespace tokamak
