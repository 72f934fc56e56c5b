// The kernels of the bf16 level against the definition of bfmmla in the Arm manual, and against
// sums in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_table.h"
#include "base/rng.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

float bits_to_f32(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
uint32_t f32_to_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
float from_bf16(uint16_t h) { return bits_to_f32(static_cast<uint32_t>(h) << 16); }
uint16_t to_bf16(float f) {
  uint32_t b = f32_to_bits(f);
  return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
float without_subnormals(float f) { return std::abs(f) < 0x1p-126f ? std::copysign(0.0f, f) : f; }

// a + b rounded to odd: towards zero, then the last bit is set if anything was lost.
float add_to_odd(float a, float b) {
  double s = double(a) + double(b), t = s - double(a);
  double lost = (double(a) - (s - t)) + (double(b) - t);
  if (lost != 0 && std::signbit(lost) != std::signbit(s)) s = std::nextafter(s, 0.0);
  auto rounded = static_cast<float>(s);
  if (std::abs(double(rounded)) > std::abs(s)) rounded = std::nextafter(rounded, 0.0f);
  bool exact = double(rounded) == s && lost == 0;
  if (!exact) rounded = bits_to_f32(f32_to_bits(rounded) | 1);
  return without_subnormals(rounded);
}

// bfmmla for one of the four sums: two pairs of products, one after the other.
float bfmmla(float sum, const uint16_t* w, const uint16_t* x) {
  for (int i = 0; i < 4; i += 2) {
    float first = without_subnormals(from_bf16(w[i]) * from_bf16(x[i]));
    float second = without_subnormals(from_bf16(w[i + 1]) * from_bf16(x[i + 1]));
    sum = add_to_odd(sum, add_to_odd(first, second));
  }
  return sum;
}

struct Case {
  int64_t k, rows;
  std::vector<uint16_t> panel;
  std::vector<float> x;
  Case(uint64_t seed, int64_t k_, int64_t rows_) : k(k_), rows(rows_) {
    Rng rng(seed);
    for (int64_t i = 0; i < k * kPanel; ++i)
      panel.push_back(to_bf16(static_cast<float>(rng.normal())));
    for (int64_t i = 0; i < rows * k; ++i)
      x.push_back(static_cast<float>(rng.normal() * std::exp2(rng.uniform(-8, 8))));
  }
  int64_t row() const { return (k + 3) / 4 * 8; }
  std::vector<uint16_t> split(const KernelTable& t) const {
    std::vector<uint16_t> out(static_cast<size_t>(rows * row()), 0xffff);
    for (int64_t r = 0; r < rows; ++r) t.bf16_split(x.data() + r * k, k, out.data() + r * row());
    return out;
  }
};

const KernelTable* level() {
  for (const KernelTable* t : available_tables())
    if (t->bf16_rows) return t;
  return nullptr;
}

// The result of row r for output n, from the definitions.
float defined_product(const Case& c, int64_t r, int64_t n) {
  float sums[2] = {};
  for (int64_t k = 0; k < c.k; k += 4) {
    uint16_t w[4] = {}, terms[2][4] = {};
    for (int64_t i = k; i < std::min(k + 4, c.k); ++i) {
      float v = c.x[static_cast<size_t>(r * c.k + i)];
      w[i - k] = c.panel[static_cast<size_t>(i * kPanel + n)];
      terms[0][i - k] = to_bf16(v);
      terms[1][i - k] = to_bf16(v - from_bf16(to_bf16(v)));
    }
    for (int j = 0; j < 2; ++j) sums[j] = bfmmla(sums[j], w, terms[j]);
  }
  return sums[0] + sums[1];
}

float rounded_product(const Case& c, int64_t r, int64_t n) {
  float sum = 0;
  for (int64_t k = 0; k < c.k; k += 4) {
    uint16_t w[4] = {}, x[4] = {};
    for (int64_t i = k; i < std::min(k + 4, c.k); ++i) {
      w[i - k] = c.panel[static_cast<size_t>(i * kPanel + n)];
      x[i - k] = to_bf16(c.x[static_cast<size_t>(r * c.k + i)]);
    }
    sum = bfmmla(sum, w, x);
  }
  return sum;
}

TEST(Bfloat, ProductsAreThoseOfTheDefinitionForAnyNumberOfRows) {
  const KernelTable* t = level();
  if (!t) GTEST_SKIP() << "this machine has no bf16 matrix instructions";
  for (int64_t k : {1, 2, 3, 4, 5, 31, 64, 259}) {
    Case c(static_cast<uint64_t>(k), k, 67);
    std::vector<uint16_t> x = c.split(*t);
    std::vector<float> expected;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t n = 0; n < kPanel; ++n) expected.push_back(defined_product(c, r, n));
    for (int64_t r = 0; r < c.rows; ++r) {
      float two[2 * kPanel];
      t->bf16_dot1x2(c.panel.data(), c.panel.data(), x.data() + r * c.row(), k, two);
      for (int i = 0; i < 2; ++i)
        ASSERT_EQ(0, std::memcmp(two + i * kPanel, expected.data() + r * kPanel, kPanel * 4))
            << "k " << k << ", row " << r << " alone";
    }
    int64_t first = k / 2 / 4 * 4;  // k in two parts
    for (int64_t rows = 1; rows <= c.rows; ++rows) {
      std::vector<uint16_t> part(static_cast<size_t>((k + 3) / 4 * 4 * kPanel));
      std::vector<float> sums(static_cast<size_t>(rows) * 2 * kPanel), out(sums.size() / 2);
      t->bf16_spread(c.panel.data(), first, part.data());
      t->bf16_rows(part.data(), x.data(), c.row(), rows, first, sums.data());
      t->bf16_spread(c.panel.data() + first * kPanel, k - first, part.data());
      t->bf16_rows(part.data(), x.data() + 2 * first, c.row(), rows, k - first, sums.data());
      t->bf16_join(sums.data(), rows, out.data());
      ASSERT_EQ(0, std::memcmp(out.data(), expected.data(), out.size() * 4))
          << "k " << k << ", " << rows << " rows";
    }
  }
}

// The same for activations that are bf16 numbers.
TEST(Bfloat, RoundedActivationsGiveTheProductsOfTheDefinitionForAnyNumberOfRows) {
  const KernelTable* t = level();
  if (!t) GTEST_SKIP() << "this machine has no bf16 matrix instructions";
  const auto& product = t->rounded[static_cast<int>(FType::kBF16)];
  for (int64_t k : {1, 2, 3, 4, 5, 7, 8, 31, 64, 259}) {
    Case c(static_cast<uint64_t>(k), k, 67);
    std::vector<uint16_t> x;
    for (float v : c.x) x.push_back(to_bf16(v));
    std::vector<float> expected;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t n = 0; n < kPanel; ++n) expected.push_back(rounded_product(c, r, n));
    for (int64_t r = 0; r < c.rows; ++r) {
      float two[2 * kPanel];
      product.row(c.panel.data(), c.panel.data(), x.data() + r * k, k, two);
      for (int i = 0; i < 2; ++i)
        ASSERT_EQ(0, std::memcmp(two + i * kPanel, expected.data() + r * kPanel, kPanel * 4))
            << "k " << k << ", row " << r << " alone";
    }
    int64_t first = k / 2 / 4 * 4;  // k in two parts
    for (int64_t rows = 1; rows <= c.rows; ++rows) {
      int64_t tile = kTile * c.row() / 2;
      std::vector<uint16_t> packed(static_cast<size_t>((rows + 3) / 4 * tile), 0xffff),
          part(static_cast<size_t>((k + 3) / 4 * 4 * kSpread));
      for (int64_t r = 0; r < rows; r += kTile)
        t->bf16_pack(x.data() + r * k, std::min<int64_t>(kTile, rows - r), k,
                     packed.data() + r / kTile * tile);
      std::vector<float> sums(static_cast<size_t>(rows + 1) * kPanel), out(sums.size());
      for (auto [at, n] : {std::pair{int64_t{0}, first}, std::pair{first, k - first}}) {
        product.spread(c.panel.data() + at * kPanel, n, part.data());
        product.tiles(part.data(), packed.data(), tile, at, rows, n, sums.data());
      }
      t->bf16_part(sums.data(), rows, out.data());
      auto bytes = static_cast<size_t>(rows * kPanel) * 4;
      ASSERT_EQ(0, std::memcmp(out.data(), expected.data(), bytes))
          << "k " << k << ", " << rows << " rows";
      if (rows > kMostFewRows) continue;
      std::vector<float> few(kMostFewRows * kPanel);
      for (auto [at, n] : {std::pair{int64_t{0}, first}, std::pair{first, k - first}})
        product.few(c.panel.data() + at * kPanel, packed.data(), tile, at, rows, n, few.data());
      ASSERT_EQ(0, std::memcmp(few.data(), expected.data(), bytes))
          << "k " << k << ", few rows: " << rows;
    }
  }
}

// Every level and type with such instructions: near sums in double, and the same bits for a row
// alone and among others.
TEST(Bfloat, RoundedProductsAreNearTheirSums) {
  constexpr int64_t k = 301, rows = 83, first = 96;
  Case c(21, k, rows);
  std::vector<uint16_t> x;
  for (float v : c.x) x.push_back(to_bf16(v));
  for (const KernelTable* t : available_tables())
    for (FType type : {FType::kBF16, FType::kF16}) {
      const auto& product = t->rounded[static_cast<int>(type)];
      if (!product.row) continue;
      SCOPED_TRACE(t->name);
      std::vector<uint16_t> panel = c.panel;
      std::vector<float> w(panel.size());
      for (size_t i = 0; i < panel.size(); ++i)
        w[i] = from_bf16(panel[i]) * (i % 5 == 0 ? 1e-6f : 1.001f);
      t->narrow[static_cast<int>(type)](w.data(), panel.data(), k * kPanel);
      t->widen[static_cast<int>(type)](panel.data(), w.data(), k * kPanel);
      int64_t row = (k + t->bf16_group - 1) / t->bf16_group * t->bf16_group, tile = kTile * row;
      std::vector<uint16_t> packed(static_cast<size_t>((rows + 3) / 4 * tile)),
          part(static_cast<size_t>((k + 31) / 32 * 32 * kSpread)), one(static_cast<size_t>(row));
      for (int64_t r = 0; r < rows; r += kTile)
        t->bf16_pack(x.data() + r * k, std::min<int64_t>(kTile, rows - r), k,
                     packed.data() + r / kTile * tile);
      std::vector<float> sums(static_cast<size_t>(rows + 1) * kPanel), out(sums.size());
      for (auto [at, n] : {std::pair{int64_t{0}, first}, std::pair{first, k - first}}) {
        product.spread(panel.data() + at * kPanel, n, part.data());
        product.tiles(part.data(), packed.data(), tile, at, rows, n, sums.data());
      }
      if (t->bf16_part)
        t->bf16_part(sums.data(), rows, out.data());
      else
        out = sums;
      double error = 0, power = 0;
      for (int64_t r = 0; r < rows; ++r) {
        float two[2 * kPanel];
        std::copy_n(x.data() + r * k, k, one.data());
        product.row(panel.data(), panel.data(), one.data(), k, two);
        for (int i = 0; i < 2; ++i)
          ASSERT_EQ(0, std::memcmp(two + i * kPanel, out.data() + r * kPanel, kPanel * 4)) << r;
        for (int64_t n = 0; n < kPanel; ++n) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i)
            sum += double(w[static_cast<size_t>(i * kPanel + n)]) *
                   double(from_bf16(x[static_cast<size_t>(r * k + i)]));
          error += std::pow(double(out[static_cast<size_t>(r * kPanel + n)]) - sum, 2);
          power += sum * sum;
        }
      }
      EXPECT_LT(error / power, 2e-12);
    }
}

// Halves by fmlal, where activations allow it: the bits of f32 products.
TEST(Bfloat, HalvesWithRoundedActivationsGiveTheSameBits) {
  const KernelTable* t = level();
  if (!t) GTEST_SKIP() << "this machine has no bf16 matrix instructions";
  constexpr int64_t k = 1022, stride = k * kPanel * 2;
  std::vector<uint16_t> panels(4 * k * kPanel);
  for (size_t i = 0; i < panels.size(); ++i) {
    auto h = static_cast<uint16_t>(i);
    panels[i] = (h & 0x7c00) == 0x7c00 ? h & 0x83ff : h;
  }
  Rng rng(3);
  // Without loss in halves, with a loss that has to be seen, and zeros.
  for (double size : {1.0, 1e-12, 1e12, 1e30, 0.0})
    for (int range : {0, 20, 60}) {
      std::vector<float> x(k), expected(4 * kPanel), sums(4 * kPanel);
      for (float& v : x)
        v = from_bf16(
            to_bf16(static_cast<float>(size * rng.normal() * std::exp2(-rng.uniform(0, range)))));
      t->fdot1x4[static_cast<int>(FType::kF16)](panels.data(), stride, x.data(), k,
                                                expected.data());
      if (!t->hdot1x4(panels.data(), stride, x.data(), k, sums.data())) continue;
      EXPECT_EQ(0, std::memcmp(sums.data(), expected.data(), sums.size() * 4))
          << size << " over " << range << " bits";
    }
}

// Two terms keep 16 bits of an activation: the error stays near that of sums in f32.
TEST(Bfloat, ErrorIsNearThatOfSumsInF32) {
  const KernelTable* t = level();
  if (!t) GTEST_SKIP() << "this machine has no bf16 matrix instructions";
  Case c(9, 2048, 32);
  std::vector<uint16_t> x = c.split(*t);
  double error = 0, error_f32 = 0, power = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    float out[2 * kPanel], sums[kPanel] = {};
    t->bf16_dot1x2(c.panel.data(), c.panel.data(), x.data() + r * c.row(), c.k, out);
    t->fdot1[static_cast<int>(FType::kBF16)](c.panel.data(), c.x.data() + r * c.k, c.k, sums);
    for (int64_t n = 0; n < kPanel; ++n) {
      double sum = 0;
      for (int64_t i = 0; i < c.k; ++i)
        sum += double(from_bf16(c.panel[static_cast<size_t>(i * kPanel + n)])) *
               double(c.x[static_cast<size_t>(r * c.k + i)]);
      error += std::pow(double(out[n]) - sum, 2);
      error_f32 += std::pow(double(sums[n]) - sum, 2);
      power += sum * sum;
    }
  }
  EXPECT_LT(error / power, 2e-11);
  EXPECT_LT(error_f32 / power, error / power);  // otherwise the bound above says nothing
  RecordProperty("nmse", std::to_string(error / power * 1e12));
}

TEST(Bfloat, InfinityAndNotANumberStay) {
  const KernelTable* t = level();
  if (!t) GTEST_SKIP() << "this machine has no bf16 matrix instructions";
  for (float v : {INFINITY, -INFINITY, NAN, 3.4e38f}) {
    Case c(11, 8, 1);
    c.x[5] = v;
    for (int64_t n = 0; n < kPanel; ++n) c.panel[static_cast<size_t>(5 * kPanel + n)] = to_bf16(1);
    float out[2 * kPanel];
    t->bf16_dot1x2(c.panel.data(), c.panel.data(), c.split(*t).data(), c.k, out);
    for (int64_t n = 0; n < kPanel; ++n) {
      if (std::isnan(v))
        EXPECT_TRUE(std::isnan(out[n]));
      else
        EXPECT_EQ(out[n], v > 0 ? INFINITY : -INFINITY) << v;  // 3.4e38 is no bf16 number
    }
  }
}

}  // namespace
}  // namespace tokamak::cpu
