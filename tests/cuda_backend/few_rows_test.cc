// What few_rows.cu does before it multiplies: the parts that need no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "backend/cuda/decode_attention.h"
#include "backend/cuda/few_rows_blocks.cuh"
#include "backend/cuda/few_rows_launch.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

constexpr int64_t kColumns = 256;

// All values of 256 columns, as the lanes of a warp decode them.
template <DType type>
std::vector<float> by_lanes(const uint8_t* bytes) {
  std::vector<float> out(kColumns, NAN);
  for (int segment = 0; segment < 8; ++segment)
    for (int c = 0; c < 8; c += 2) {
      LanePairs pairs;
      lane_of_blocks<type>(bytes, segment, c, pairs);
      for (int j = 0; j < 8; ++j)
        out[static_cast<size_t>(segment * 32 + c + j / 2 * 8 + j % 2)] =
            bf16_to_f32(static_cast<uint16_t>(pairs[j / 2] >> 16 * (j % 2)));
    }
  return out;
}

template <DType type>
void check_lanes() {
  std::mt19937 random(1);
  std::vector<float> values(kColumns), want(kColumns);
  std::vector<uint8_t> bytes(dtype_bytes(type, kColumns));
  for (int round = 0; round < 100; ++round) {
    for (float& v : values) v = (static_cast<float>(random() % 65536) / 65536 - 0.5f) * 0.1f;
    encode_row(type, values.data(), bytes.data(), kColumns);
    decode_row(type, bytes.data(), want.data(), kColumns);
    for (float& v : want) v = bf16_to_f32(f32_to_bf16(v));
    EXPECT_EQ(by_lanes<type>(bytes.data()), want) << dtype_name(type);
  }
}

TEST(FewRows, LanesHaveTheHostsValuesAsBf16) {
  check_lanes<DType::kQ8_0>();
  check_lanes<DType::kQ4_0>();
  check_lanes<DType::kQ4_1>();
  check_lanes<DType::kQ5_0>();
  check_lanes<DType::kQ5_1>();
  check_lanes<DType::kQ4_K>();
  check_lanes<DType::kQ5_K>();
  check_lanes<DType::kQ6_K>();
}

TEST(FewRows, StagesFitIntoSharedMemory) {
  constexpr int kHopperSharedBytes = 232448;
  for (const FewRowsType& t : kFewRowsTypes)
    for (int rows : {16, 32, 64, 128}) {
      if (rows > t.most_rows()) continue;
      EXPECT_EQ(dtype_bytes(t.type, t.columns), static_cast<size_t>(t.bytes));
      EXPECT_GE(t.pitch, t.bytes + (t.bytes % 16 ? 14 : 0)) << "copies begin at multiples of 16";
      EXPECT_EQ(t.pitch % 16, 0) << "copies are multiples of 16 bytes";
      EXPECT_LE(few_rows_shared_bytes(t, rows), kHopperSharedBytes) << dtype_name(t.type);
      EXPECT_GE(few_rows_stages(t, rows).weights, 4) << dtype_name(t.type);
    }
}

TEST(FewRows, SumsStayInTheirSixteenColumnsAndPairsStayPairs) {
  std::set<int> places;
  for (int column = 0; column < 2 * kFewRowsTile; ++column) {
    const int place = few_rows_place(column);
    EXPECT_EQ(place / 16, column / 16);
    EXPECT_EQ(place % 2, column % 2);
    EXPECT_EQ(few_rows_place(column / 2 * 2) / 2, place / 2);
    places.insert(place);
  }
  EXPECT_EQ(places.size(), 2u * kFewRowsTile) << "every column has a place of its own";
}

TEST(FewRows, TakesAsManyRowsAsItsTypeAndWholeTurnsOfGates) {
  FewRowsProduct p{.x = 256, .w = 256, .y = 256, .rows = 128, .n = 520, .k = 4096};
  EXPECT_TRUE(few_rows_takes(p, 132));
  p.rows = 129;
  EXPECT_FALSE(few_rows_takes(p, 132));
  p.rows = 65;
  p.type = DType::kQ4_0;
  EXPECT_FALSE(few_rows_takes(p, 132));
  p.rows = 64;
  p.gated = true;
  EXPECT_TRUE(few_rows_takes(p, 132));
  p.n = 514;
  EXPECT_FALSE(few_rows_takes(p, 132));
}

TEST(DecodeAttention, EqualSequencesGiveEvenBlocksIfFewAreLost) {
  EXPECT_EQ(attention_blocks(64 * 8, 264), 256);  // two pairs each
  EXPECT_EQ(attention_blocks(16 * 8, 264), 256);  // half a pair each
  EXPECT_EQ(attention_blocks(1, 264), 264);
  EXPECT_EQ(attention_blocks(140, 264), 264);  // a pair each would leave 124 idle
  EXPECT_EQ(attention_blocks(300, 264), 264);
  for (int64_t pairs = 1; pairs < 5000; ++pairs) {
    const int blocks = attention_blocks(pairs, 264);
    EXPECT_LE(blocks, 264);
    EXPECT_GE(blocks, 247) << pairs;
  }
}

TEST(FewRows, RowsOfWeightsHaveToBeMultiplesOf16Bytes) {
  EXPECT_TRUE(few_rows_reads(DType::kQ4_0, 4096));
  EXPECT_FALSE(few_rows_reads(DType::kQ4_0, 896));  // 3.5 times 256
  EXPECT_TRUE(few_rows_reads(DType::kQ6_K, 256));   // 210 bytes: copied by threads
  EXPECT_FALSE(few_rows_reads(DType::kQ6_K, 896));
  EXPECT_TRUE(few_rows_reads(DType::kF16, 200));
  EXPECT_FALSE(few_rows_reads(DType::kF32, 4096));
}

}  // namespace
}  // namespace tokamak::cuda
