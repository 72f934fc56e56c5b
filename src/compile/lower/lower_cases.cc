// Bodies that the fusion planner makes, and some that are there for their shapes.
#include "compile/lower/lower_test_util.h"

namespace tokamak::testing {

namespace {

constexpr BodyCase kBodyCases[] = {
    {"residual_norm", R"(
  %0 = input x : f32[t=T, d=D]
  %1 = input y : f32[t=T, d=D]
  %2 = input w : f32[d=D]
  %3 = add(%0, %1)
  %4 = rms_norm(%3, %2) {eps=1e-05}
  return sum = %3
  return out = %4
)"},
    {"silu_mul", R"(
  %0 = input gate : f32[t=T, d=D]
  %1 = input up : f32[t=T, d=D]
  %2 = silu(%0)
  %3 = mul(%2, %1)
  return out = %3
)"},
    {"gelu_scale_softcap", R"(
  %0 = input x : f32[t=T, d=D]
  %1 = gelu(%0) {approximate="tanh"}
  %2 = scale(%1) {value=0.3}
  %3 = softcap(%2) {cap=30.0}
  %4 = gelu(%3) {approximate="none"}
  %5 = sub(%4, $half)
  return out = %5
)"},
    {"layer_norm_bias", R"(
  %0 = input x : f32[t=T, d=D]
  %1 = input w : f32[d=D]
  %2 = input b : f32[d=D]
  %3 = layer_norm(%0, %1, %2) {eps=1e-05}
  %4 = layer_norm(%3, %1) {eps=1e-06}
  %5 = tanh(%4)
  return out = %5
)"},
    {"softmax_of_sum", R"(
  %0 = input x : f32[t=T, h=3, d=D]
  %1 = input bias : f32[t=T, h=1, d=D]
  %2 = add(%0, %1)
  %3 = softmax(%2)
  %4 = exp(%3)
  return out = %4
)"},
    {"heads_norm", R"(
  %0 = input x : f32[t=T, d=4*D]
  %1 = input w : f32[d=D]
  %2 = reshape(%0) {dims=["T", 4, D], axes=["t", "h", "d"]}
  %3 = rms_norm(%2, %1) {eps=1e-05}
  %4 = neg(%3)
  return out = %4
)"},
    {"broadcasts", R"(
  %0 = input x : f32[t=T, h=3, d=D]
  %1 = input column : f32[d=D]
  %2 = input row : f32[t=T, h=1, d=1]
  %3 = input head : f32[h=3, d=1]
  %4 = input one : f32[a=1]
  %5 = mul(%1, %0)
  %6 = sub(%2, %5)
  %7 = div(%6, %3)
  %8 = maximum(%7, %4)
  %9 = minimum(%8, %2)
  return out = %9
)"},
    {"layout", R"(
  %0 = input x : f32[t=T, d=2*D]
  %1 = input y : f32[d=D, t=T]
  %2 = slice(%0) {axis=-1, start=D, end="2*D"}
  %3 = transpose(%1) {perm=[1, 0]}
  %4 = mul(%2, %3)
  %5 = abs(%4)
  return out = %5
)"},
    {"gathered", R"(
  %0 = input x : f32[s=7, d=D]
  %1 = input index : i32[t=T]
  %2 = gather(%0, %1) {axis=0}
  %3 = square(%2)
  %4 = sqrt(%3)
  return rows = %2
  return out = %4
)"},
};

}  // namespace

std::span<const BodyCase> body_cases() { return kBodyCases; }

}  // namespace tokamak::testing
