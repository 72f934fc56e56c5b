// Rows that are longer than what a level widens at once: k in several parts, panels in groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/linear_kernel.h"
#include "backend/cpu/pack.h"
#include "base/rng.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

class LinearParts : public testing::TestWithParam<QFormat> {
 protected:
  static constexpr int64_t kRows = 37, kColumns = 9 * kPanel + 5;
  static constexpr uint8_t kGuard = 0xa5;

  // Panels of random bytes: every code, with scales near 1 / 64.
  void fill(const KernelTable& table, int64_t k) {
    Rng rng(3);
    DType dtype = dtype_of(GetParam());
    int64_t row_bytes = static_cast<int64_t>(dtype_bytes(dtype, k));
    std::vector<std::byte> rows(static_cast<size_t>(kColumns * row_bytes));
    for (std::byte& b : rows) b = static_cast<std::byte>(rng.below(256));
    for (size_t at = 0; at < rows.size(); at += dtype_info(dtype).block_bytes)
      for (size_t i : {0, 2}) {
        const QLayout& layout = qlayout(GetParam());
        if (i == 2 && layout.head != 64) continue;
        uint16_t h = f32_to_f16(static_cast<float>(rng.normal() / 64));
        if (GetParam() == QFormat::kMXFP4)
          rows[at] = static_cast<std::byte>(115 + rng.below(16));
        else
          std::memcpy(rows.data() + at + static_cast<size_t>(layout.d) + i, &h, 2);
      }
    weight_.matrix = Weight::Matrix::kQPanel;
    weight_.dtype = dtype;
    weight_.qformat = GetParam();
    weight_.n = kColumns;
    weight_.k = k;
    weight_.panel_bytes = qpanel_bytes(GetParam(), k);
    panels_.resize(static_cast<size_t>(panels_of(kColumns) * weight_.panel_bytes));
    for (int64_t p = 0; p < panels_of(kColumns); ++p)
      pack_qpanel(GetParam(), table.style, rows.data() + p * kPanel * row_bytes, row_bytes,
                  static_cast<int>(std::min<int64_t>(kPanel, kColumns - p * kPanel)), k,
                  panels_.data() + p * weight_.panel_bytes);
    weight_.panels = panels_.data();
    x_.resize(static_cast<size_t>(kRows) * dtype_bytes(DType::kQ8A, k));
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<float> values(static_cast<size_t>(k));
      for (float& v : values) v = static_cast<float>(rng.normal());
      encode_row(DType::kQ8A, values.data(), x_.data() + r * kActivationBlock * (k / kQuantBlock),
                 k);
    }
  }

  Weight weight_;
  std::vector<uint8_t> panels_, x_;
};

TEST_P(LinearParts, GiveTheBitsOfEachRowAlone) {
  const std::vector<Tensor> none;
  const Value attrs;
  const KvStore kv;
  for (const KernelTable* table : available_tables()) {
    if (!table->qwide[static_cast<int>(GetParam())]) continue;
    SCOPED_TRACE(table->name);
    int64_t part = table->wide_blocks * int64_t{kQuantBlock};
    for (int64_t k : {part, 2 * part + 512}) {  // one part; three, the last one shorter
      SCOPED_TRACE(k);
      fill(*table, k);
      OpSite site{nullptr, "linear", attrs, none, none, *table, kv, 1, "test"};
      std::unique_ptr<LinearKernel> kernel = make_linear_kernel(site, &weight_, DType::kQ8A);
      auto size = static_cast<size_t>(kernel->scratch_bytes());
      std::vector<uint8_t> memory(size + 128, kGuard),
          packed(static_cast<size_t>(kernel->packed_bytes(kRows)) + 64),
          single(static_cast<size_t>(kernel->single_bytes()) + 64);
      auto aligned = [](std::vector<uint8_t>& v) {
        return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
      };
      uint8_t* scratch = aligned(memory);
      int64_t panels = panels_of(kColumns);
      std::vector<float> alone(static_cast<size_t>(kRows * kColumns));
      for (int64_t r = 0; r < kRows; ++r) {
        kernel->pack_single(*table, x_.data() + r * kernel->row_bytes(), aligned(single));
        kernel->single(*table, aligned(single), 0, panels,
                       {alone.data() + r * kColumns, kColumns, nullptr}, scratch);
      }
      for (int64_t r = 0; r < kRows; r += kTile)
        kernel->pack_tile(*table, x_.data() + r * kernel->row_bytes(),
                          std::min<int64_t>(kTile, kRows - r), aligned(packed), r / kTile);
      ASSERT_GE(kernel->chunk_tiles() * kTile, kRows);
      for (int64_t rows : {int64_t{1}, kRows / 2, kRows})
        for (int64_t split : {int64_t{0}, int64_t{1}, panels - 1}) {  // two threads' panels
          std::vector<float> out(static_cast<size_t>(rows * kColumns));
          for (auto [begin, end] : {std::pair{int64_t{0}, split}, {split, panels}})
            kernel->tiles(*table, aligned(packed), rows, begin, end,
                          {out.data() + begin * kPanel, kColumns, nullptr}, scratch);
          EXPECT_EQ(0, std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)))
              << rows << " rows, panels from " << split;
        }
      for (const uint8_t* at = scratch + size; at < memory.data() + memory.size(); ++at)
        ASSERT_EQ(*at, kGuard) << "written past the end of the scratch memory";
    }
  }
}

// Rows around the limits between reading panels as they are and decoding parts of them.
TEST(FloatLinearParts, GiveTheBitsOfEachRowAlone) {
  constexpr int64_t kRows = 37, kColumns = 10 * kPanel + 5, k = 300;
  Rng rng(4);
  int64_t panels = panels_of(kColumns);
  std::vector<float> numbers(static_cast<size_t>(panels * k * kPanel)), x(kRows * k);
  for (float& v : numbers) v = static_cast<float>(rng.normal());
  for (float& v : x) v = static_cast<float>(rng.normal());
  for (const KernelTable* table : available_tables())
    for (FType type : {FType::kF32, FType::kF16, FType::kBF16}) {
      std::vector<uint8_t> stored(numbers.size() * 4);
      table->narrow[static_cast<int>(type)](numbers.data(), stored.data(), panels * k * kPanel);
      Weight weight;
      weight.matrix = Weight::Matrix::kFPanel;
      weight.dtype = type == FType::kF32   ? DType::kF32
                     : type == FType::kF16 ? DType::kF16
                                           : DType::kBF16;
      weight.ftype = type;
      weight.n = kColumns, weight.k = k;
      weight.panel_bytes = fpanel_bytes(type, k);
      weight.panels = stored.data();
      auto kernel = make_float_linear(*table, &weight, DType::kF32);
      std::vector<uint8_t> scratch(static_cast<size_t>(kernel->scratch_bytes())),
          packed(static_cast<size_t>(kernel->packed_bytes(kRows)));
      std::vector<float> alone(kRows * kColumns);
      for (int64_t r = 0; r < kRows; ++r)
        kernel->single(*table, x.data() + r * k, 0, panels,
                       {alone.data() + r * kColumns, kColumns, nullptr}, scratch.data());
      for (int64_t r = 0; r < kRows; r += kTile)
        kernel->pack_tile(*table, x.data() + r * k, std::min<int64_t>(kTile, kRows - r),
                          packed.data(), r / kTile);
      for (int64_t rows : {2, 7, 8, 9, 31, 32, 33, 37})
        for (int64_t split : {int64_t{0}, int64_t{5}, panels - 1}) {
          std::vector<float> out(static_cast<size_t>(rows * kColumns));
          for (auto [begin, end] : {std::pair{int64_t{0}, split}, {split, panels}})
            kernel->tiles(*table, packed.data(), rows, begin, end,
                          {out.data() + begin * kPanel, kColumns, nullptr}, scratch.data());
          EXPECT_EQ(0, std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)))
              << table->name << ", type " << static_cast<int>(type) << ", " << rows
              << " rows, panels from " << split;
        }
    }
}

// Matrices of int16: rows around the numbers that are multiplied at once, a bias, and a last panel
// that is cut.
class PairLinearParts : public testing::Test {
 protected:
  static constexpr int64_t kRows = 45, kColumns = 10 * kPanel + 5, k = 3 * kPairBlock;

  void fill(float x_size) {
    Rng rng(5);
    auto row_bytes = static_cast<int64_t>(dtype_bytes(DType::kInt16G128, k));
    std::vector<std::byte> rows(static_cast<size_t>(kColumns * row_bytes));
    w_.resize(kColumns * k), x_.resize(kRows * k), bias_.resize(kColumns);
    for (float& v : w_) v = static_cast<float>(rng.normal());
    for (float& v : x_) v = static_cast<float>(rng.normal()) * x_size;
    for (float& v : bias_) v = static_cast<float>(rng.normal()) * x_size;
    for (int64_t n = 0; n < kColumns; ++n)
      encode_row(DType::kInt16G128, w_.data() + n * k, rows.data() + n * row_bytes, k);
    weight_.matrix = Weight::Matrix::kPairPanel;
    weight_.dtype = DType::kInt16G128;
    weight_.n = kColumns, weight_.k = k;
    weight_.panel_bytes = k / kPairBlock * kPairPanelBlock;
    panels_.resize(static_cast<size_t>(panels_of(kColumns) * weight_.panel_bytes));
    for (int64_t p = 0; p < panels_of(kColumns); ++p)
      pack_pair_panel(rows.data() + p * kPanel * row_bytes, row_bytes,
                      static_cast<int>(std::min<int64_t>(kPanel, kColumns - p * kPanel)), k,
                      panels_.data() + p * weight_.panel_bytes);
    weight_.panels = panels_.data();
  }

  // The rows from `first` on, multiplied by two threads that divide the panels at `split`.
  std::vector<float> product(const KernelTable& table, int64_t first, int64_t rows, int64_t split) {
    auto kernel = make_pair_linear(table, &weight_);
    std::vector<XPairs4> packed(static_cast<size_t>(kernel->packed_bytes(rows)) / sizeof(XPairs4));
    auto* tiles = reinterpret_cast<uint8_t*>(packed.data());
    for (int64_t r = 0; r < rows; r += kTile)
      kernel->pack_tile(table, x_.data() + (first + r) * k, std::min<int64_t>(kTile, rows - r),
                        tiles, r / kTile);
    std::vector<float> out(static_cast<size_t>(rows * kColumns));
    for (auto [begin, end] : {std::pair{int64_t{0}, split}, {split, panels_of(kColumns)}})
      kernel->tiles(table, tiles, rows, begin, end,
                    {out.data() + begin * kPanel, kColumns, bias_.data()}, nullptr);
    return out;
  }

  Weight weight_;
  std::vector<float> w_, x_, bias_;
  std::vector<uint8_t> panels_;
};

TEST_F(PairLinearParts, GiveTheBitsOfEachRowAlone) {
  fill(1.0f);
  for (const KernelTable* table : available_tables()) {
    if (!table->pairs.multiply) continue;
    std::vector<float> alone;
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<float> row = product(*table, r, 1, 0);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 45})
      for (int64_t split : {int64_t{0}, int64_t{2}, panels_of(kColumns) - 1}) {
        std::vector<float> out = product(*table, 0, rows, split);
        EXPECT_EQ(0, std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)))
            << table->name << ", " << rows << " rows, panels from " << split;
      }
  }
}

// Sums of squares of the tiny numbers are zero; they must not make the scale too small.
TEST_F(PairLinearParts, AreCloseForNumbersOfAnySize) {
  for (float size : {1.0f, 1e-25f, 1e12f}) {
    fill(size);
    for (const KernelTable* table : available_tables()) {
      if (!table->pairs.multiply) continue;
      std::vector<float> out = product(*table, 0, kRows, 3);
      double error = 0, square = 0;
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t n = 0; n < kColumns; ++n) {
          double sum = bias_[n];
          for (int64_t i = 0; i < k; ++i) sum += double{x_[r * k + i]} * w_[n * k + i];
          double off = (out[r * kColumns + n] - sum) / size;
          error += off * off, square += sum / size * (sum / size);
        }
      EXPECT_LT(error / square, 1e-7) << table->name << ", numbers of size " << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearParts,
                         testing::Values(QFormat::kQ4_0, QFormat::kQ8_0, QFormat::kQ4_K,
                                         QFormat::kQ6_K, QFormat::kIQ4_NL, QFormat::kMXFP4,
                                         QFormat::kIQ4_XS, QFormat::kQ3_K, QFormat::kQ2_K,
                                         QFormat::kTQ2_0),
                         [](const auto& info) {
                           return std::string(dtype_name(dtype_of(info.param)));
                         });

}  // namespace
}  // namespace tokamak::cpu
