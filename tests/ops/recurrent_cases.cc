// Ops that advance a state per sequence. The inputs are such that states neither grow nor vanish,
// as in a model: time steps and rates are positive, decays negative, keys have length one.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/case_args.h"
#include "ops/cases.h"
#include "tensor/dtype.h"

namespace tokamak::testing {
namespace {

struct ScanSize {
  int64_t heads, width, groups, n;
};

// The state is `plane`; rows of three sequences, two of which have older tokens.
OpCase state_case(std::string op, std::string name, std::vector<int64_t> plane, BatchSpec batch) {
  OpCase c;
  c.name = op + "/" + name;
  c.op = std::move(op);
  c.in = {
      {.kind = Arg::Kind::kState}, {.kind = Arg::Kind::kView}, input("q_start"), input("kv_len")};
  c.planes = {{"s", DType::kF32, std::move(plane)}};
  c.per_sequence = true;
  c.batch = std::move(batch);
  return c;
}

EarlierCall unary(const char* op, Arg x, int64_t width) {
  return {.op = op, .in = {std::move(x)}, .out = {{.dims = {rows(), width}}}};
}

// Values of these types, as a plan with narrow storage has them.
OpCase stored_as(DType dtype, OpCase c) {
  c.name += fmt::format(" {}", dtype_name(dtype));
  if (dtype == DType::kF32) return c;
  for (Arg& arg : c.in)
    if (arg.kind == Arg::Kind::kActivation) arg.dtype = dtype;
  for (EarlierCall& call : c.earlier)
    for (Result& r : call.out) r.dtype = dtype;
  c.bound = 1e-8;  // a rounded input may differ by its last bit; a backend may split states
  return c;
}

OpCase scan_case(const std::string& name, const ScanSize& s, BatchSpec batch) {
  OpCase c = state_case("ssm_scan", name, {s.heads, s.width, s.n}, std::move(batch));
  std::vector<double> decays;
  for (int64_t h = 0; h < s.heads; ++h) decays.push_back(-0.1 * static_cast<double>(h + 1));
  c.earlier = {unary("sigmoid", activation({s.heads}), s.heads)};
  for (Arg arg : {activation({s.heads, s.width}), result(0), constant({s.heads}, decays),
                  activation({s.groups, s.n}), activation({s.groups, s.n})})
    c.in.push_back(std::move(arg));
  c.out = {s.heads, s.width};
  return c;
}

// A decay for each number of a state, channels without heads.
OpCase channel_case(const std::string& name, int64_t channels, int64_t n, BatchSpec batch) {
  OpCase c = scan_case(name, {channels, 1, 1, n}, std::move(batch));
  std::vector<double> decays;
  for (int64_t i = 0; i < channels * n; ++i)
    decays.push_back(-0.05 * static_cast<double>(i % 7 + 1));
  c.in[c.in.size() - 3] = constant({channels, n}, decays);
  return c;
}

OpCase delta_case(const std::string& name, const ScanSize& s, BatchSpec batch) {
  OpCase c = state_case("gated_delta", name, {s.heads, s.width, s.n}, std::move(batch));
  const Arg length = constant({s.n}, std::vector<double>(static_cast<size_t>(s.n),
                                                         1 / std::sqrt(static_cast<double>(s.n))));
  c.earlier = {{.op = "rms_norm",
                .attrs = object({{"eps", 1e-6}}),
                .in = {activation({s.groups, s.n}), length},
                .out = {{.dims = {rows(), s.groups, s.n}}}},
               unary("sigmoid", activation({s.heads}), s.heads),
               unary("neg", result(1), s.heads),
               unary("sigmoid", activation({s.heads}), s.heads)};
  for (Arg arg : {activation({s.groups, s.n}), result(0), activation({s.heads, s.width}), result(2),
                  result(3)})
    c.in.push_back(std::move(arg));
  c.out = {s.heads, s.width};
  return c;
}

}  // namespace

void add_recurrent(std::vector<OpCase>& cases) {
  const BatchSpec some{.own = {3, 1, 60}, .older = {0, 9, 2}};
  const BatchSpec ones{.own = {1, 1, 1, 1}, .older = {5, 0, 1, 30}};
  const BatchSpec long_rows{.own = {200, 5, 64, 129}, .older = {0, 70, 3, 0}};
  for (auto [taps, bias] : {std::pair<int64_t, bool>{4, true}, {3, false}, {2, true}})
    for (const auto& [name, batch] :
         {std::pair{"some", some}, {"ones", ones}, {"long", long_rows}}) {
      OpCase c =
          state_case("causal_conv", fmt::format("{} taps {}", name, taps), {taps - 1, 70}, batch);
      c.in.push_back(activation({70}));
      c.in.push_back(weight(DType::kF32, {70, taps}));
      if (bias) c.in.push_back(weight(DType::kF32, {70}));
      c.out = {70};
      cases.push_back(std::move(c));
    }
  for (const auto& [name, batch] : {std::pair{"some", some}, {"ones", ones}, {"long", long_rows}})
    for (const ScanSize& s : {ScanSize{2, 5, 1, 12},
                              {4, 64, 2, 128},
                              {2, 128, 2, 128},
                              {3, 80, 1, 48},
                              {3, 16, 1, 200}}) {
      const std::string size =
          fmt::format("{} {}x{} n={} groups={}", name, s.heads, s.width, s.n, s.groups);
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        cases.push_back(stored_as(dtype, scan_case(size, s, batch)));
        cases.push_back(stored_as(dtype, delta_case(size, s, batch)));
      }
    }
  for (const auto& [name, batch] : {std::pair{"some", some}, {"ones", ones}, {"long", long_rows}})
    for (int64_t n : {16, 40})
      cases.push_back(channel_case(fmt::format("{} 37 channels n={}", name, n), 37, n, batch));
}

}  // namespace tokamak::testing
