#include "tensor/group_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/block_formats.h"
#include "tensor/group_join.h"

namespace tokamak {
namespace {

using Code = GroupFormat::Code;

TEST(GroupFormats, ValuesAreScaleTimesCodeLessZero) {
  Rng rng(11);
  int types = 0;
  for (int i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    auto format = group_format(dtype);
    if (!format) continue;
    ++types;
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    const GroupFormat& f = *format;
    EXPECT_EQ(group_dtype(f), dtype);
    EXPECT_EQ(static_cast<int>(dtype_info(dtype).block_elements), f.group);
    EXPECT_EQ(static_cast<int>(dtype_info(dtype).block_bytes), f.bytes());
    for (int round = 0; round < 20; ++round) {
      std::vector<uint8_t> codes(static_cast<size_t>(f.group)), out(static_cast<size_t>(f.bytes()));
      for (uint8_t& c : codes) c = static_cast<uint8_t>(rng.below(uint64_t{1} << f.bits));
      auto scale = static_cast<float>(rng.normal());
      if (!f.wide) scale = f16_to_f32(f32_to_f16(scale));
      int zero = f.bits == 8 ? static_cast<int>(rng.below(256)) - 128
                             : static_cast<int>(rng.below(uint64_t{1} << f.bits));
      write_group(f, scale, zero, codes.data(), out.data());
      std::vector<float> values(codes.size());
      decode_row(dtype, out.data(), values.data(), f.group);
      for (size_t j = 0; j < codes.size(); ++j) {
        float want = 0;
        if (f.code == Code::kInt) {
          int code = f.bits == 8 ? static_cast<int8_t>(codes[j]) : codes[j];
          want = scale * static_cast<float>(code - zero);
        } else if (f.code == Code::kF8) {
          decode_row(DType::kF8E4M3, &codes[j], &want, 1);
          want *= scale;
        } else {
          ASSERT_LE(std::abs(values[j]), std::abs(scale));
          continue;
        }
        ASSERT_TRUE(values[j] == want || (std::isnan(values[j]) && std::isnan(want)))
            << values[j] << " " << want;
      }
    }
  }
  EXPECT_EQ(types, 30);
}

// The ends and the middle of bitsandbytes' table.
TEST(GroupFormats, Nf4) {
  GroupFormat f{Code::kNF4, 4, 32, true};
  std::vector<uint8_t> codes(32), out(static_cast<size_t>(f.bytes()));
  for (size_t i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(i % 16);
  write_group(f, 2.0f, 0, codes.data(), out.data());
  std::vector<float> values(32);
  decode_row(DType::kNF4G32, out.data(), values.data(), 32);
  EXPECT_EQ(values[0], -2.0f);
  EXPECT_EQ(values[7], 0.0f);
  EXPECT_EQ(values[15], 2.0f);
  EXPECT_EQ(values[16 + 8], 2 * 0.07958029955625534f);
  for (size_t i = 1; i < 16; ++i) EXPECT_LT(values[i - 1], values[i]);
}

TEST(GroupJoin, SortsColumnsByGroup) {
  std::vector<int32_t> groups = {1, 0, 1, 0};
  int64_t dims[] = {4};
  GroupPart part{"g_idx", DType::kI32, dims, std::as_bytes(std::span(groups))};
  EXPECT_EQ(sorted_columns("m", part, 2), (std::vector<int32_t>{1, 3, 0, 2}));
  auto message = [&](int64_t count) {
    try {
      sorted_columns("m", part, count);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message(1).find("column 0 into group 1 of 1"), std::string::npos);
  groups = {1, 1, 1, 0};
  EXPECT_NE(message(2).find("1 of 4 columns into group 0, expected 2"), std::string::npos)
      << message(2);
  groups[0] = -1;
  EXPECT_NE(message(2).find("group -1 of 2"), std::string::npos);
}

// v1 zeros that borrow from their neighbour, as whole words are decremented by their writer.
TEST(GroupJoin, ZerosOfGptq1AreWordsLessOne) {
  constexpr int64_t n = 8, k = 32;
  std::vector<uint32_t> codes(4 * n, 0x33333333u), zeros = {0x87654320u - 0x11111111u};
  std::vector<uint16_t> scales(n, 0x3c00);
  int64_t codes_dims[] = {4, n}, zeros_dims[] = {1, 1}, scales_dims[] = {1, n};
  const GroupPart parts[] = {{"qweight", DType::kI32, codes_dims, std::as_bytes(std::span(codes))},
                             {"scales", DType::kF16, scales_dims, std::as_bytes(std::span(scales))},
                             {"qzeros", DType::kI32, zeros_dims, std::as_bytes(std::span(zeros))}};
  RecipeStep step{.kind = RecipeStep::Kind::kJoinGroups,
                  .a = static_cast<int64_t>(GroupPacking::kGptq),
                  .b = kGroupZeros | kGroupZerosLess1,
                  .dtype = DType::kInt4G32,
                  .dims = {n, k, 1, 32}};
  check_group_parts("m", step, parts);
  std::vector<std::byte> rows = join_groups("m", step, parts);
  ASSERT_EQ(rows.size(), dtype_bytes(DType::kInt4G32, n * k));
  const int want[] = {0, 2, 3, 4, 5, 6, 7, 8};
  for (size_t r = 0; r < n; ++r) {
    float values[k];
    decode_row(DType::kInt4G32, rows.data() + r * 19, values, k);
    EXPECT_EQ(values[5], static_cast<float>(3 - want[r])) << r;
  }
  step.dims[3] = 24;
  EXPECT_THROW(check_group_parts("m", step, parts), Error);
  step.dims = {n, 2 * k, 1, 32};
  EXPECT_THROW(check_group_parts("m", step, parts), Error);
}

}  // namespace
}  // namespace tokamak
