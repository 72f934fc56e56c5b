// Region kernels against the kernels of their ops, call by call: outputs and the bytes of the
// cache.
#include "backend/cpu/region.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/schedule.h"
#include "base/error.h"
#include "base/rng.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 32;

PlanSet cache_plans(DType dtype) {
  PlanSet set;
  set.groups = {{"full", 0, 16}};
  PlaneEntry plane{"k", dtype, {kKvHeads, kHeadDim}, 0};
  set.states = {{"kv", 0, false, {plane, plane}}};
  set.states[0].planes[1].name = "v";
  KernelCall attend;
  attend.op = "attend";
  attend.attrs = Value::object();
  attend.in.resize(2);
  set.plans.emplace_back();
  set.plans[0].calls = {attend};
  return set;
}

class RegionKernels : public testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kRows = 11;

  RegionKernels() : set_(cache_plans(GetParam())), alone_(set_, {8}), fused_(set_, {8}), pool_(3) {
    Rng rng(5);
    auto fill = [&](std::vector<float>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (float& v : x) v = static_cast<float>(rng.normal());
    };
    fill(q_, kRows * kHeads * kHeadDim);
    fill(k_, kRows * kKvHeads * kHeadDim);
    fill(v_, kRows * kKvHeads * kHeadDim);
    fill(norm_, kHeadDim);
    fill(frequencies_, kHeadDim / 2);
    norm_weight_.plain = norm_.data();
    frequency_weight_.plain = frequencies_.data();
    for (int64_t i = 0; i < kRows; ++i) {
      pos_.push_back(static_cast<int32_t>(3 * i));
      seq_.push_back(static_cast<int32_t>(i % 2));
      slot_.push_back(i == 4 ? -1 : static_cast<int32_t>(i * 3));  // row 4 is padding
    }
    table_.stride = 4;
    table_.blocks = {5, 1, 7, 0, 2, 6, 3, 4};
    step_.tables = {table_};
  }

  Tensor heads(std::vector<float>& x, int64_t count) {
    Tensor t;
    t.data = x.data();
    t.rank = 3;
    t.dims[0] = kRows;
    t.dims[1] = count;
    t.dims[2] = kHeadDim;
    return t;
  }
  static Tensor integers(std::vector<int32_t>& x) {
    Tensor t;
    t.data = x.data();
    t.dtype = DType::kI32;
    t.rank = 1;
    t.dims[0] = static_cast<int64_t>(x.size());
    return t;
  }
  static Tensor weight(const Weight& w, int64_t n) {
    Tensor t;
    t.data = w.plain;
    t.weight = &w;
    t.rank = 1;
    t.dims[0] = n;
    return t;
  }

  void run(KvStore& kv, std::string_view kernel, std::string_view op, const Value& attrs,
           std::vector<Tensor> in, std::vector<Tensor> out, const Region* region = nullptr) {
    OpSite site{nullptr, op, attrs, in, out, table(), kv, pool_.size(), "test", symbols_, region};
    std::unique_ptr<CpuOp> made = make_op(planned_kernel({std::string(kernel), 1, ""}), site);
    int64_t bytes = (made->scratch_bytes() + 127) / 64 * 64;
    std::vector<uint8_t> scratch(
        static_cast<size_t>(bytes * pool_.size() + made->shared_bytes()) + 64, 0xee);
    StepContext c{table(), kv, pool_.size()};
    const int64_t values[] = {kRows};
    c.step = &step_;
    c.symbols = values;
    c.scratch = scratch.data();
    c.scratch_bytes = bytes;
    c.shared_scratch = scratch.data() + bytes * pool_.size();
    in.resize(12);
    made->bind(in.data(), out.data(), c);
    run_call(*made, in.data(), out.data(), c, pool_);
  }
  static const KernelTable& table() { return *choose_table(); }

  static void expect_same_cache(const KvStore& a, const KvStore& b) {
    for (size_t p = 0; p < 2; ++p) {
      const KvPlane &x = a.state(0).planes[p], &y = b.state(0).planes[p];
      EXPECT_EQ(std::memcmp(x.memory.data(), y.memory.data(), x.memory.bytes()), 0)
          << "plane " << p;
    }
  }

  PlanSet set_;
  KvStore alone_, fused_;
  ThreadPool pool_;
  StepInputs step_;
  StepInputs::Table table_;
  std::vector<float> q_, k_, v_, norm_, frequencies_;
  std::vector<int32_t> pos_, seq_, slot_;
  Weight norm_weight_, frequency_weight_;
  std::vector<SymbolDecl> symbols_ = {{"T", 1, kRows, 1}};
};

// Inputs: state, view, seq, slot, q, k, v, pos, norm, frequencies. The keys have a norm.
Region rope_append(const Value& turn) {
  auto tensor = [](DType dtype, std::vector<SymExpr> dims) {
    TensorType t{dtype, {}};
    for (SymExpr& d : dims) t.dims.push_back({"x", d, false});
    return Type::of(t);
  };
  const SymExpr rows = SymExpr::symbol("T");
  Type q = tensor(DType::kF32, {rows, kHeads, kHeadDim}),
       k = tensor(DType::kF32, {rows, kKvHeads, kHeadDim}), index = tensor(DType::kI32, {rows});
  Region r;
  r.inputs = 10;
  r.values = {Type::state(""),
              Type::view(""),
              index,
              index,
              q,
              k,
              k,
              index,
              tensor(DType::kF32, {kHeadDim}),
              tensor(DType::kF32, {kHeadDim / 2}),
              k,
              k,
              q,
              Type::state("")};
  RegionPiece norm, turn_k, turn_q, append;
  norm.program = std::make_shared<loop::Program>(loop::parse_program(R"(loop 1
rows T, 2
columns 32
in0 : f32[T, 2, 32]
in1 : f32[32]
out0 : f32[T, 2, 32]
%0 = load in0[c + 64*r0 + 32*r1] : f32 tile
%1 = sum_squares %0 : wide row
%2 = columns : wide row
%3 = div %1, %2 : wide row
%4 = const 1e-05 : wide row
%5 = add %3, %4 : wide row
%6 = rsqrt %5 : wide row
%7 = mul %0, %6 : wide tile
%8 = load in1[c] : f32 tile
%9 = mul %7, %8 : f32 tile
store out0[c + 64*r0 + 32*r1] = %9
)"));
  norm.in = {5, 8}, norm.out = {10};
  turn_k.op = turn_q.op = "rope";
  turn_k.attrs = turn_q.attrs = turn;
  turn_k.in = {10, 7, 9}, turn_k.out = {11};
  turn_q.in = {4, 7, 9}, turn_q.out = {12};
  append.op = "append";
  append.in = {0, 1, 2, 3, 11, 6}, append.out = {13};
  r.pieces = {norm, turn_k, turn_q, append};
  r.results = {13, 12};
  check_region(r, 10, 2);
  return r;
}

TEST_P(RegionKernels, RopeAppendWritesTheSameBytes) {
  Value eps = Value::Object{{"eps", 1e-5}}, turn = Value::Object{{"scale", 1.5}};
  Tensor state, view, w = weight(norm_weight_, kHeadDim),
                      f = weight(frequency_weight_, kHeadDim / 2);
  std::vector<float> kn(k_.size()), kr(k_.size()), qr(q_.size()), q_out(q_.size());
  run(alone_, "cpu.rms_norm", "rms_norm", eps, {heads(k_, kKvHeads), w}, {heads(kn, kKvHeads)});
  run(alone_, "cpu.rope", "rope", turn, {heads(kn, kKvHeads), integers(pos_), f},
      {heads(kr, kKvHeads)});
  run(alone_, "cpu.rope", "rope", turn, {heads(q_, kHeads), integers(pos_), f},
      {heads(qr, kHeads)});
  run(alone_, "cpu.append", "append", Value::object(),
      {state, view, integers(seq_), integers(slot_), heads(kr, kKvHeads), heads(v_, kKvHeads)},
      {state});

  // Inputs: state, view, seq, slot, q, k, v, pos, norm, frequencies.
  Region r = rope_append(turn);
  run(fused_, "cpu.region.rope_append", "region", Value(),
      {state, view, integers(seq_), integers(slot_), heads(q_, kHeads), heads(k_, kKvHeads),
       heads(v_, kKvHeads), integers(pos_), w, f},
      {state, heads(q_out, kHeads)}, &r);
  EXPECT_EQ(q_out, qr);
  expect_same_cache(alone_, fused_);
}

TEST_P(RegionKernels, WhatAKernelCannotDoIsRefused) {
  std::vector<float> out(q_.size());
  Tensor state, w = weight(norm_weight_, kHeadDim), f = weight(frequency_weight_, kHeadDim / 2);
  std::vector<Tensor> in = {state,
                            state,
                            integers(seq_),
                            integers(slot_),
                            heads(q_, kHeads),
                            heads(k_, kKvHeads),
                            heads(v_, kKvHeads),
                            integers(pos_),
                            w,
                            f};
  std::vector<Tensor> to = {state, heads(out, kHeads)};
  auto refuses = [&](const char* kernel, const Region& region, std::string_view text) {
    try {
      make_op(planned_kernel({kernel, 1, ""}),
              {nullptr, "region", Value(), in, to, table(), alone_, 1, "test", symbols_, &region});
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << e.what();
    }
  };
  Value turn = Value::Object{{"scale", 1.5}};
  Region r = rope_append(turn);
  refuses("cpu.loop", r, "one loop program");
  refuses("cpu.region.linears", r, "takes regions with a matrix");
  Region other = r;
  other.pieces[1].op = "transpose";
  refuses("cpu.region.rope_append", other, "transpose before rope or append");
  other = r;
  other.pieces[2].attrs = Value::Object{{"scale", 2.5}};
  refuses("cpu.region.rope_append", other, "rotations by different angles");
  other = r;
  other.pieces.pop_back();
  other.results = {12, 11};
  refuses("cpu.region.rope_append", other, "a region without append");
  other = r;
  other.results = {13, 10};
  refuses("cpu.region.rope_append", other, "a norm whose result leaves the region");
}

INSTANTIATE_TEST_SUITE_P(Caches, RegionKernels,
                         testing::Values(DType::kF32, DType::kF16, DType::kI8),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace tokamak::cpu
