// Products of few rows against sums in double: every way of cutting them that can be chosen.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "backend/cuda/thin_product.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

struct ThinCase {
  int64_t rows, n, k;
  int multiprocessors;
  ThinResult result;
};

std::vector<uint16_t> random_values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (uint16_t& v : out) v = f32_to_bf16(normal(random));
  return out;
}

// [rows, n], in f32.
std::vector<float> products(const ThinCase& c, const std::vector<uint16_t>& x,
                            const std::vector<uint16_t>& w) {
  std::vector<float> fx(x.size()), fw(w.size()), out;
  decode_row(DType::kBF16, reinterpret_cast<const std::byte*>(x.data()), fx.data(), std::ssize(fx));
  decode_row(DType::kBF16, reinterpret_cast<const std::byte*>(w.data()), fw.data(), std::ssize(fw));
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < c.k; ++j)
        sum += double{fx[static_cast<size_t>(r * c.k + j)]} *
               double{fw[static_cast<size_t>(i * c.k + j)]};
      out.push_back(static_cast<float>(sum));
    }
  return out;
}

std::vector<float> wanted(const ThinCase& c, const std::vector<float>& products) {
  if (c.result != ThinResult::kGated) return products;
  std::vector<float> out;
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.n / 2; ++i) {
      float gate = products[static_cast<size_t>(r * c.n + i)];
      float up = products[static_cast<size_t>(r * c.n + c.n / 2 + i)];
      out.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  return out;
}

std::vector<float> computed(const ThinCase& c, const ThinPlan& plan, const std::vector<uint16_t>& x,
                            const std::vector<uint16_t>& w) {
  const Device device(0);
  const KernelLibrary kernels(device);
  const DeviceStream stream;
  Buffer bx(x.size() * 2), bw(w.size() * 2);
  bx.write(x.data(), x.size() * 2);
  bw.write(w.data(), w.size() * 2);
  const bool wide = c.result == ThinResult::kParts || c.result == ThinResult::kF32;
  const auto elements =
      static_cast<size_t>(c.rows * c.n / (c.result == ThinResult::kGated ? 2 : 1));
  const size_t bytes = elements * (wide ? 4 : 2) * static_cast<size_t>(plan.parts);
  const Buffer y(bytes);
  ThinArgs args{};
  args.x = bx.as<uint16_t>();
  args.w = bw.as<uint16_t>();
  args.y = y.as<void>();
  args.n = c.n;
  args.k = c.k;
  args.rows = static_cast<int32_t>(c.rows);
  LaunchList list(kernels);
  emit_thin(plan, args, c.result, list);
  check(driver().stream_wait(nullptr), "clearing memory");
  list.run(stream);
  stream.wait();
  std::vector<std::byte> raw(bytes);
  y.read(raw.data(), bytes);
  std::vector<float> values(elements * static_cast<size_t>(plan.parts));
  decode_row(wide ? DType::kF32 : DType::kBF16, raw.data(), values.data(), std::ssize(values));
  for (size_t p = 1; p < static_cast<size_t>(plan.parts); ++p)
    for (size_t i = 0; i < elements; ++i) values[i] += values[p * elements + i];
  values.resize(elements);
  return values;
}

TEST(CudaThin, ProductsAreRight) {
  const ThinCase cases[] = {
      {1, 64, 256, 8, ThinResult::kParts},     {9, 200, 512, 132, ThinResult::kParts},
      {16, 96, 1024, 8, ThinResult::kBf16},    {17, 136, 256, 8, ThinResult::kF32},
      {32, 64, 512, 132, ThinResult::kGated},  {33, 192, 256, 8, ThinResult::kParts},
      {64, 160, 512, 132, ThinResult::kGated}, {64, 264, 192, 8, ThinResult::kF32},
  };
  for (const ThinCase& c : cases) {
    const ThinPlan plan = plan_thin(c.rows, c.n, c.k, c.multiprocessors, c.result);
    ASSERT_GT(plan.batch, 0);
    auto x = random_values(c.rows * c.k, 3), w = random_values(c.n * c.k, 5);
    const std::vector<float> want = wanted(c, products(c, x, w)), got = computed(c, plan, x, w);
    ASSERT_EQ(got.size(), want.size());
    double error = 0, power = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double{got[i]} - double{want[i]}, 2);
      power += std::pow(double{want[i]}, 2);
    }
    const bool wide = c.result == ThinResult::kParts || c.result == ThinResult::kF32;
    EXPECT_LE(error / power, wide ? 1e-12 : 3e-5)
        << c.rows << " x " << c.n << " x " << c.k << ": tile " << plan.tile << ", chunk "
        << plan.chunk << ", parts " << plan.parts;
  }
}

// Each kernel with its largest and smallest tile, whatever is predicted to be fastest.
TEST(CudaThin, EveryKernelIsRight) {
  for (int batch : {16, 32, 64})
    for (int chunk : {64, 128, 256}) {
      const int most = 16 * thin_warp_tiles(batch) * kThinWarps / (chunk / 32);
      for (int tile : {16, most}) {
        const ThinPlan plan{batch, chunk, tile, 1};
        const ThinCase c{batch - 3, most + 24, 2 * chunk, 8, ThinResult::kF32};
        auto x = random_values(c.rows * c.k, 3), w = random_values(c.n * c.k, 5);
        const std::vector<float> want = products(c, x, w), got = computed(c, plan, x, w);
        double worst = 0;
        for (size_t i = 0; i < got.size(); ++i)
          worst = std::max(worst, std::abs(double{got[i]} - double{want[i]}));
        EXPECT_LE(worst, 1e-3) << batch << ", " << chunk << ", tile " << tile;
      }
    }
}

TEST(CudaThin, BlocksAreCutSoThatAllMultiprocessorsWork) {
  const std::pair<int64_t, int64_t> kShapes[] = {{6144, 4096}, {4096, 4096}, {4096, 14336},
                                                 {4096, 2048}, {2048, 2048}, {2048, 6144}};
  for (int64_t rows : {16, 64})
    for (const auto& [n, k] : kShapes) {
      const ThinPlan plan = plan_thin(rows, n, k, 132, ThinResult::kParts);
      const int64_t blocks = (n + plan.tile - 1) / plan.tile * plan.parts;
      const double turns = static_cast<double>((blocks + 131) / 132);
      EXPECT_GE(static_cast<double>(blocks) / (132 * turns), 0.9) << rows << ", " << n << ", " << k;
      EXPECT_LE(plan.shared_bytes() * (blocks > 132 ? 2 : 1), 227 << 10);
      EXPECT_LE(plan.parts, kMostParts);
    }
  EXPECT_EQ(plan_thin(65, 4096, 4096, 132, ThinResult::kParts).batch, 0);
  EXPECT_EQ(plan_thin(8, 4096, 4096 + 32, 132, ThinResult::kParts).batch, 0);
}

}  // namespace
}  // namespace tokamak::cuda
