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
        if (i == 2 && GetParam() != QFormat::kQ4_K) continue;
        uint16_t h = f32_to_f16(static_cast<float>(rng.normal() / 64));
        std::memcpy(rows.data() + at + (GetParam() == QFormat::kQ6_K ? 208 : i), &h, 2);
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

INSTANTIATE_TEST_SUITE_P(Formats, LinearParts,
                         testing::Values(QFormat::kQ4_0, QFormat::kQ8_0, QFormat::kQ4_K,
                                         QFormat::kQ6_K),
                         [](const auto& info) {
                           return std::string(dtype_name(dtype_of(info.param)));
                         });

}  // namespace
}  // namespace tokamak::cpu
