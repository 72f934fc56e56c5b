// Products of bf16 activations in tiles: the same bits for a row alone and among others, and sums
// near those of the rounded numbers in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/linear_kernel.h"
#include "backend/cpu/pack.h"
#include "base/rng.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

// To the nearest, ties away from zero.
float nearest_bf16(float f) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(f) + 0x8000) & 0xffff0000);
}

const KernelTable* tile_level() {
  for (const KernelTable* t : available_tables())
    if (t->tile_unit.multiply) return t;
  return nullptr;
}

// A matrix of random numbers, and what its product computes with.
struct Matrix {
  Weight weight;
  std::vector<uint8_t> panels;
  std::vector<float> rounded;  // [n][k]
};

std::vector<std::byte> random_row(Rng& rng, DType dtype, int64_t k) {
  std::vector<std::byte> row(dtype_bytes(dtype, k));
  if (can_encode(dtype)) {
    std::vector<float> values(static_cast<size_t>(k));
    for (float& v : values) v = static_cast<float>(rng.normal());
    encode_row(dtype, values.data(), row.data(), k);
    return row;
  }
  for (std::byte& b : row) b = static_cast<std::byte>(rng.below(256));
  bool last = dtype == DType::kQ6_K, two = dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  for (size_t at = 0; at < row.size(); at += dtype_info(dtype).block_bytes)
    for (size_t i = 0; i < (two ? 2 : 1); ++i) {
      uint16_t h = f32_to_f16(static_cast<float>(rng.normal() * 0.02));
      std::memcpy(row.data() + at + (last ? 208 : 2 * i), &h, 2);
    }
  return row;
}

Matrix random_matrix(Rng& rng, const KernelTable& t, DType dtype, int64_t n, int64_t k) {
  Matrix m;
  Weight& w = m.weight;
  std::optional<QFormat> format = qformat_of(dtype);
  w.matrix = format ? Weight::Matrix::kQPanel : Weight::Matrix::kFPanel;
  w.dtype = dtype;
  w.n = n;
  w.k = k;
  if (format) w.qformat = *format;
  if (!format) w.ftype = *ftype_of(dtype);
  w.panel_bytes = format ? qpanel_bytes(*format, k) : fpanel_bytes(w.ftype, k);
  m.panels.resize(static_cast<size_t>(panels_of(n) * w.panel_bytes));
  for (int64_t p = 0; p < panels_of(n); ++p) {
    int count = static_cast<int>(std::min<int64_t>(kPanel, n - p * kPanel));
    std::vector<std::byte> rows;
    for (int i = 0; i < count; ++i) {
      std::vector<std::byte> row = random_row(rng, dtype, k);
      std::vector<float> values(static_cast<size_t>(k));
      decode_row(dtype, row.data(), values.data(), k);
      for (float v : values) m.rounded.push_back(dtype == DType::kF16 ? v : nearest_bf16(v));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    uint8_t* to = m.panels.data() + p * w.panel_bytes;
    auto bytes = static_cast<int64_t>(rows.size()) / count;
    if (format)
      pack_qpanel(*format, t.style, rows.data(), bytes, count, k, to);
    else
      pack_fpanel(w.ftype, rows.data(), bytes, count, k, to);
  }
  w.panels = m.panels.data();
  return m;
}

struct Multiplier {
  const KernelTable& table;
  const LinearKernel& kernel;
  std::vector<uint8_t> scratch_memory = std::vector<uint8_t>(kernel.scratch_bytes() + 64);
  uint8_t* scratch =
      scratch_memory.data() + 64 - reinterpret_cast<uintptr_t>(scratch_memory.data()) % 64;
  int64_t panels = panels_of(kernel.weight().n);

  // [row][n], in parts of panels that are shared out.
  std::vector<float> tiles(const uint16_t* x, int64_t rows, int64_t split) {
    const Weight& w = kernel.weight();
    std::vector<uint8_t> packed(static_cast<size_t>(kernel.packed_bytes(rows)), 0xff);
    for (int64_t r = 0; r < rows; r += kTile)
      kernel.pack_tile(table, x + r * w.k, std::min<int64_t>(kTile, rows - r), packed.data(),
                       r / kTile);
    std::vector<float> out(static_cast<size_t>(rows * w.n));
    for (auto [begin, end] : {std::pair{int64_t{0}, split}, {split, panels}})
      if (begin < end)
        kernel.tiles(table, packed.data(), rows, begin, end,
                     {out.data() + begin * kPanel, w.n, nullptr}, scratch);
    return out;
  }
  std::vector<float> single(const uint16_t* x) {
    const Weight& w = kernel.weight();
    std::vector<uint8_t> packed(static_cast<size_t>(kernel.single_bytes()), 0xff);
    kernel.pack_single(table, x, packed.data());
    std::vector<float> out(static_cast<size_t>(w.n));
    kernel.single(table, packed.data(), 0, panels, {out.data(), w.n, nullptr}, scratch);
    return out;
  }
};

double error_of(const Matrix& m, const std::vector<float>& x, const std::vector<float>& out) {
  const Weight& w = m.weight;
  double error = 0, power = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    size_t row = i / static_cast<size_t>(w.n), column = i % static_cast<size_t>(w.n);
    double sum = 0;
    for (size_t k = 0; k < static_cast<size_t>(w.k); ++k)
      sum += double(x[row * static_cast<size_t>(w.k) + k]) *
             double(m.rounded[column * static_cast<size_t>(w.k) + k]);
    error += std::pow(double(out[i]) - sum, 2);
    power += sum * sum;
  }
  return error / power;
}

class TileUnit : public testing::TestWithParam<DType> {};

TEST_P(TileUnit, RowsAloneAndTogetherHaveTheSameBits) {
  const KernelTable* table = tile_level();
  if (!table) GTEST_SKIP() << "this machine multiplies no tiles of bf16 numbers";
  DType dtype = GetParam();
  Rng rng(static_cast<uint64_t>(dtype) + 1);
  for (int64_t k :
       is_block_type(dtype) ? std::vector<int64_t>{256, 1280} : std::vector<int64_t>{1, 33, 1111}) {
    constexpr int64_t kRowsInAll = 83;
    Matrix m = random_matrix(rng, *table, dtype, 11 * kPanel - 5, k);
    auto kernel = make_tile_linear(*table, &m.weight);
    Multiplier run{*table, *kernel};
    std::vector<float> x(static_cast<size_t>(kRowsInAll * k));
    std::vector<uint16_t> narrow(x.size());
    for (float& v : x) v = static_cast<float>(rng.normal());
    table->narrow[static_cast<int>(FType::kBF16)](x.data(), narrow.data(), kRowsInAll * k);
    table->widen[static_cast<int>(FType::kBF16)](narrow.data(), x.data(), kRowsInAll * k);
    std::vector<float> alone;
    for (int64_t r = 0; r < kRowsInAll; ++r) {
      std::vector<float> row = run.single(narrow.data() + r * k);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    // Minimums are added before numbers are rounded: one in many falls to the other side.
    EXPECT_LT(error_of(m, x, alone), 1e-9) << "k " << k;
    for (int64_t rows : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 48, 64, 67, 83})
      for (int64_t split : {0, 3}) {
        std::vector<float> out = run.tiles(narrow.data(), rows, split);
        ASSERT_EQ(0, std::memcmp(out.data(), alone.data(), out.size() * 4))
            << "k " << k << ", " << rows << " rows, split at panel " << split;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TileUnit,
                         testing::Values(DType::kBF16, DType::kF16, DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                                         DType::kQ5_K, DType::kQ6_K, DType::kInt4G32,
                                         DType::kInt4G64, DType::kInt4G128, DType::kInt8G128,
                                         DType::kIQ4_NL, DType::kMXFP4, DType::kIQ4_XS,
                                         DType::kQ3_K, DType::kQ2_K, DType::kTQ2_0),
                         [](const auto& i) { return std::string(dtype_name(i.param)); });

}  // namespace
}  // namespace tokamak::cpu
