// The ops of a mixture of experts, each against its definition, with sizes that models have.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "backend/cuda/kernels.h"
#include "tensor/block_formats.h"
#include "tests/ops/evaluate.h"

namespace tokamak::cuda {
namespace {

using Values = testing::Tensor<double>;

Values random_values(std::vector<int64_t> dims, unsigned seed) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  std::mt19937 random(seed);
  std::vector<double> f(static_cast<size_t>(n));
  for (double& x : f) x = (static_cast<double>(random() % 4001) - 2000) / 1000;
  return testing::values<double>(std::move(dims), std::move(f));
}

// Experts of each token: different ones, and none with some probability.
Values random_experts(int64_t tokens, int64_t k, int64_t count, double none, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[random() % (i + 1)]);
    for (int64_t i = 0; i < k; ++i)
      ids.push_back(random() % 1000 < none * 1000 ? -1 : all[static_cast<size_t>(i)]);
  }
  return testing::integers<double>({tokens, k}, std::move(ids));
}

// Runs an op on the device and returns its outputs.
class OnDevice {
 public:
  OnDevice() : kernels_(device_) {}

  // The numbers as the device stores them, and as they then are.
  void add(Values& x, DType dtype = DType::kF32) {
    std::vector<std::byte> bytes;
    if (x.dtype == DType::kI32) {
      dtype = DType::kI32;
      bytes.resize(x.i.size() * 4);
      std::memcpy(bytes.data(), x.i.data(), bytes.size());
    } else {
      const std::vector<float> f(x.f.begin(), x.f.end());
      const auto n = static_cast<int64_t>(f.size());
      bytes.resize(dtype_bytes(dtype, n));
      encode_row(dtype, f.data(), bytes.data(), n);
      std::vector<float> stored(f.size());
      decode_row(dtype, bytes.data(), stored.data(), n);
      x.f.assign(stored.begin(), stored.end());
    }
    memory_.emplace_back(bytes.size()).write(bytes.data(), bytes.size());
    in_.push_back({dtype, x.dims, memory_.back().address(), 0});
  }

  std::vector<Values> run(Emit emit, const Value& attrs,
                          const std::vector<std::pair<DType, std::vector<int64_t>>>& results,
                          size_t scratch_bytes = 0) {
    KernelCall call;
    call.attrs = attrs;
    const KvPool kv(PlanSet{}, {});
    const StepView view;
    const Buffer scratch(std::max<size_t>(16, scratch_bytes));
    CallSite site{call, in_, {}, kv, view, {scratch.address(), scratch_bytes}};
    const size_t first = memory_.size();
    for (const auto& [dtype, dims] : results) {
      Tensor t{dtype, dims, 0, 0};
      memory_.emplace_back(dtype_bytes(dtype, t.elements()));
      t.address = memory_.back().address();
      site.out.push_back(t);
    }
    LaunchList list(kernels_);
    emit(site, list);
    check(driver().stream_wait(nullptr), "clearing memory");
    list.run(stream_);
    stream_.wait();
    std::vector<Values> out;
    for (size_t i = 0; i < site.out.size(); ++i)
      out.push_back(read(site.out[i], memory_[first + i]));
    return out;
  }

 private:
  static Values read(const Tensor& t, const Buffer& from) {
    std::vector<std::byte> bytes(dtype_bytes(t.dtype, t.elements()));
    from.read(bytes.data(), bytes.size());
    if (t.dtype == DType::kI32) {
      std::vector<int32_t> i(static_cast<size_t>(t.elements()));
      std::memcpy(i.data(), bytes.data(), bytes.size());
      return testing::integers<double>(t.dims, std::move(i));
    }
    std::vector<float> f(static_cast<size_t>(t.elements()));
    decode_row(t.dtype, bytes.data(), f.data(), t.elements());
    return testing::values<double>(t.dims, {f.begin(), f.end()});
  }

  Device device_{0};
  KernelLibrary kernels_;
  DeviceStream stream_;
  std::vector<Buffer> memory_;
  std::vector<Tensor> in_;
};

double error_of(const Values& got, const Values& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.f.size(); ++i) {
    difference += (got.f[i] - want.f[i]) * (got.f[i] - want.f[i]);
    size += want.f[i] * want.f[i];
  }
  return size > 0 ? difference / size : difference;
}

TEST(CudaExperts, RoutingChoosesTheSameExperts) {
  struct Case {
    int64_t tokens, experts;
    bool bias;
    Value::Object attrs;
  };
  const Case cases[] = {
      {5, 8, false, {{"k", 2}, {"normalize", 1}}},
      {33, 128, false, {{"k", 8}, {"normalize", 1}}},
      {7, 60, false, {{"k", 4}}},
      {3, 32, false, {{"k", 4}, {"gate", "sigmoid"}, {"normalize", 1}}},
      {9,
       256,
       true,
       {{"k", 8},
        {"gate", "sigmoid"},
        {"normalize", 1},
        {"scale", 2.5},
        {"groups", 8},
        {"used_groups", 4}}},
      {6, 160, false, {{"k", 6}, {"scale", 16.0}, {"groups", 8}, {"used_groups", 3}}},
      {4, 6, true, {{"k", 6}, {"groups", 3}, {"used_groups", 3}}},
      {2, 1, false, {{"k", 1}}},
  };
  unsigned seed = 1;
  for (const Case& c : cases) {
    Values logits = random_values({c.tokens, c.experts}, seed++);
    for (int64_t e = 1; e < c.experts; e += 3)  // equal logits: the lower index comes first
      logits.f[static_cast<size_t>(e)] = logits.f[0];
    OnDevice device;
    device.add(logits);
    std::vector<Values> in = {logits};
    if (c.bias) {
      Values bias = random_values({c.experts}, seed++);
      device.add(bias);
      in.push_back(bias);
    }
    const Value attrs(c.attrs);
    const auto want = testing::evaluate<double>("moe_route", in, attrs);
    const auto got =
        device.run(emit_route, attrs, {{DType::kF32, want[0].dims}, {DType::kI32, want[1].dims}});
    EXPECT_EQ(got[1].i, want[1].i) << c.experts << " experts";
    EXPECT_LE(error_of(got[0], want[0]), 1e-14) << c.experts << " experts";
  }
}

TEST(CudaExperts, RowsAreSortedAndCombined) {
  struct Case {
    int64_t tokens, k, count, d;
    double none;
    DType type;
  };
  const Case cases[] = {{1, 8, 128, 64, 0, DType::kF32},
                        {7, 2, 8, 33, 0.2, DType::kF32},
                        {70, 4, 5, 24, 0.1, DType::kBF16},
                        {600, 4, 16, 8, 0.05, DType::kBF16},
                        {3, 2, 4, 40, 1, DType::kF16}};
  unsigned seed = 11;
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} experts", c.tokens, c.count));
    const int64_t m = c.tokens * c.k;
    Values x = random_values({c.tokens, c.d}, seed++),
           weights = random_values({c.tokens, c.k}, seed++),
           ids = random_experts(c.tokens, c.k, c.count, c.none, seed++);
    OnDevice sorting;
    sorting.add(x, c.type);
    sorting.add(ids);
    const Value attrs(Value::Object{{"count", c.count}});
    const auto want = testing::evaluate<double>("moe_dispatch", {x, ids}, attrs);
    const auto got =
        sorting.run(emit_dispatch, attrs,
                    {{c.type, {m, c.d}}, {DType::kI32, {c.count + 1}}, {DType::kI32, {m}}});
    EXPECT_EQ(got[0].f, want[0].f);
    EXPECT_EQ(got[1].i, want[1].i);
    EXPECT_EQ(got[2].i, want[2].i);
    OnDevice sum;
    Values rows = want[0], offsets = want[1], source = want[2];
    sum.add(rows, c.type);
    sum.add(source);
    sum.add(offsets);
    sum.add(weights);
    const auto total = testing::evaluate<double>("moe_combine", {rows, source, offsets, weights});
    const auto combined =
        sum.run(emit_combine, Value::object(), {{DType::kF32, {c.tokens, c.d}}}, combine_bytes(m));
    EXPECT_LE(error_of(combined[0], total[0]), 1e-13);
    EXPECT_EQ(combine_bytes(m) > 0, m > 2048);
  }
}

TEST(CudaExperts, ProductsAreThoseOfTheExpertsThatHaveRows) {
  struct Case {
    int64_t rows, groups, n, k;
    DType x, w;
    bool bias;
    std::vector<int32_t> offsets;
    double bound;
  };
  std::vector<int32_t> many = {0};  // 40 groups of 0, 1, 2 ... rows, more than one tile of lanes
  for (int32_t g = 0; g < 200; ++g) many.push_back(many.back() + (g % 7 == 3 ? g % 5 : 0));
  std::vector<int32_t> large = {0, 130, 130, 141, 300};
  const Case cases[] = {
      {9, 4, 40, 96, DType::kBF16, DType::kBF16, true, {0, 1, 1, 7, 8}, 1e-13},
      {many.back(), 200, 33, 64, DType::kBF16, DType::kBF16, false, many, 1e-13},
      {large.back() + 3, 4, 70, 160, DType::kBF16, DType::kBF16, true, large, 1e-13},
      {many.back(), 200, 33, 64, DType::kF32, DType::kF16, true, many, 1e-13},
      {large.back(), 4, 21, 64, DType::kBF16, DType::kMXFP4, true, large, 1e-13},
      {5, 3, 21, 96, DType::kF32, DType::kMXFP4, false, {0, 0, 5, 5}, 1e-13},
  };
  unsigned seed = 31;
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} rows, {} groups, {}", c.rows, c.groups, dtype_name(c.w)));
    Values x = random_values({c.rows, c.k}, seed++),
           w = random_values({c.groups, c.n, c.k}, seed++),
           offsets = testing::integers<double>({c.groups + 1}, c.offsets),
           bias = random_values({c.groups, c.n}, seed++);
    OnDevice device;
    device.add(x, c.x);
    device.add(w, c.w);
    device.add(offsets);
    std::vector<Values> in = {x, w, offsets};
    if (c.bias) {
      device.add(bias);
      in.push_back(bias);
    }
    const auto want = testing::evaluate<double>("grouped_linear", in);
    const auto got = device.run(emit_grouped, Value::object(), {{DType::kF32, {c.rows, c.n}}});
    EXPECT_LE(error_of(got[0], want[0]), c.bound);
    for (size_t i = static_cast<size_t>(c.offsets.back() * c.n); i < got[0].f.size(); ++i)
      EXPECT_EQ(got[0].f[i], 0);
  }
}

TEST(CudaExperts, HeadsHaveMatricesOfTheirOwn) {
  for (auto [x_type, w_type, rows] : {std::tuple{DType::kBF16, DType::kBF16, 5},
                                      {DType::kBF16, DType::kBF16, 150},
                                      {DType::kF32, DType::kBF16, 1},
                                      {DType::kF32, DType::kF32, 11},
                                      {DType::kBF16, DType::kQ8_0, 9}}) {
    Values x = random_values({rows, 3, 64}, 5), w = random_values({3, 40, 64}, 6);
    OnDevice device;
    device.add(x, x_type);
    device.add(w, w_type);
    const auto want = testing::evaluate<double>("head_linear", {x, w});
    const auto got = device.run(emit_heads, Value::object(), {{DType::kF32, want[0].dims}});
    EXPECT_LE(error_of(got[0], want[0]), 1e-13) << rows;
  }
}

}  // namespace
}  // namespace tokamak::cuda
