// Region kernels against the kernels of their ops, call by call: outputs and the bytes of the
// cache.
#include "backend/cpu/region.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/cpu/isa.h"
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

  void run(KvStore& kv, std::string_view op, const Value& attrs, std::vector<Tensor> in,
           std::vector<Tensor> out) {
    OpSite site{op, attrs, in, out, table(), kv, pool_.size(), "test"};
    std::unique_ptr<Op> made;
    for (auto* make : {make_row_op, make_state_op, make_region_op})
      if (!made) made = make(site);
    ASSERT_TRUE(made) << op;
    std::vector<uint8_t> scratch(
        static_cast<size_t>(made->scratch_bytes() + 64) * static_cast<size_t>(pool_.size()) + 64);
    StepContext c{table(), kv, pool_.size()};
    c.step = &step_;
    c.scratch = scratch.data();
    c.scratch_bytes = (made->scratch_bytes() + 63) / 64 * 64;
    in.resize(12);
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
};

TEST_P(RegionKernels, RopeAppendWritesTheSameBytes) {
  Value eps = Value::Object{{"eps", 1e-5}}, turn = Value::Object{{"scale", 1.5}};
  Tensor state, view, w = weight(norm_weight_, kHeadDim),
                      f = weight(frequency_weight_, kHeadDim / 2);
  std::vector<float> kn(k_.size()), kr(k_.size()), qr(q_.size()), q_out(q_.size());
  run(alone_, "rms_norm", eps, {heads(k_, kKvHeads), w}, {heads(kn, kKvHeads)});
  run(alone_, "rope", turn, {heads(kn, kKvHeads), integers(pos_), f}, {heads(kr, kKvHeads)});
  run(alone_, "rope", turn, {heads(q_, kHeads), integers(pos_), f}, {heads(qr, kHeads)});
  run(alone_, "append", Value::object(),
      {state, view, integers(seq_), integers(slot_), heads(kr, kKvHeads), heads(v_, kKvHeads)},
      {state});

  // Inputs: state, view, seq, slot, q, k, v, pos, norm, frequencies.
  RegionProgram p;
  p.kind = "rope_append";
  p.inputs = 10;
  p.steps = {{"rms_norm", eps, {5, 8}, 10, 1},
             {"rope", turn, {10, 7, 9}, 11, 1},
             {"rope", turn, {4, 7, 9}, 12, 1},
             {"append", Value::object(), {0, 1, 2, 3, 11, 6}, 13, 1}};
  p.results = {13, 12};
  run(fused_, "region", region_attrs(p),
      {state, view, integers(seq_), integers(slot_), heads(q_, kHeads), heads(k_, kKvHeads),
       heads(v_, kKvHeads), integers(pos_), w, f},
      {state, heads(q_out, kHeads)});
  EXPECT_EQ(q_out, qr);
  expect_same_cache(alone_, fused_);
}

TEST_P(RegionKernels, WhatAKernelCannotDoIsRefused) {
  RegionProgram p;
  p.inputs = 1;
  p.steps = {{"transpose", Value::object(), {0}, 1, 1}};
  p.results = {1};
  std::vector<float> out(q_.size());
  std::vector<Tensor> in = {heads(q_, kHeads)}, to = {heads(out, kHeads)};
  for (const char* kind : {"rows", "linears", "rope_append", "nothing"}) {
    p.kind = kind;
    Value attrs = region_attrs(p);
    OpSite site{"region", attrs, in, to, table(), alone_, 1, "test"};
    EXPECT_THROW(make_region_op(site), Error) << kind;
  }
  // Numbers that do not fit are found before anything runs.
  p.steps[0].in = {7};
  EXPECT_THROW(parse_region(region_attrs(p), 1, 1), Error);
  p.steps[0].in = {0};
  EXPECT_THROW(parse_region(region_attrs(p), 0, 1), Error);
  EXPECT_THROW(parse_region(region_attrs(p), 1, 2), Error);
}

INSTANTIATE_TEST_SUITE_P(Caches, RegionKernels,
                         testing::Values(DType::kF32, DType::kF16, DType::kI8),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace tokamak::cpu
