// What the host tells the attention kernel for many rows: which calls it takes, and where the copy
// engine finds the blocks of the cache. The kernel itself needs a GPU (tests/cuda).
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "backend/cuda/emulator/fake_driver.h"
#include "backend/cuda/prefill_launch.h"

namespace tokamak::cuda {
namespace {

AttendArgs rows_of(int heads, int kv_heads, int d, int block_size) {
  AttendArgs a{};
  a.tq = a.ty = DType::kBF16;
  a.view = {nullptr, 64, block_size};
  a.rows = 300;
  a.sequences = 2;
  a.heads = heads;
  a.d = a.dv = d;
  a.keys = 1;
  a.scale = 0.25f;
  PlaneArgs plane{};
  plane.heads = kv_heads;
  plane.width = d;
  plane.element = 2;
  plane.type = DType::kF16;
  plane.block_bytes = int64_t{kv_heads} * block_size * d * 2;
  a.key[0] = a.value = plane;
  a.key[0].base = reinterpret_cast<uint8_t*>(0x10000);
  a.value.base = reinterpret_cast<uint8_t*>(0x900000);
  return a;
}

TEST(CudaPrefill, TakesPlainCallsOnly) {
  auto with = [](auto change) {
    AttendArgs a = rows_of(8, 2, 128, 16);
    change(a);
    return takes_prefill(a);
  };
  EXPECT_TRUE(with([](AttendArgs&) {}));
  EXPECT_TRUE(takes_prefill(rows_of(8, 2, 64, 128)));
  EXPECT_TRUE(takes_prefill(rows_of(8, 8, 128, 8)));
  EXPECT_FALSE(takes_prefill(rows_of(8, 2, 96, 16)));
  EXPECT_FALSE(takes_prefill(rows_of(8, 2, 128, 4)));
  EXPECT_FALSE(takes_prefill(rows_of(8, 2, 128, 24)));
  EXPECT_FALSE(takes_prefill(rows_of(8, 2, 128, 256)));
  EXPECT_FALSE(takes_prefill(rows_of(9, 2, 128, 16)));
  EXPECT_FALSE(with([](AttendArgs& a) { a.window = 512; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.cap = 50; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.keys = 2; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.dv = 64; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.tq = DType::kF32; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.value.type = DType::kBF16; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.key[0].type = a.value.type = DType::kI8; }));
  EXPECT_FALSE(with([](AttendArgs& a) { a.value.block_bytes += 256; }));
  const int32_t word = 0;
  EXPECT_FALSE(with([&](AttendArgs& a) { a.mask = &word; }));
}

// The kernel copies block b of head h from row group (b * heads + h) * block_size / 8 on.
TEST(CudaPrefill, MapsReachEveryValueOfABlock) {
  install_fake_driver();
  constexpr int kBlocks = 5;
  for (auto [kv_heads, d, block_size] : {std::tuple{2, 128, 16}, {3, 64, 32}, {1, 128, 128}}) {
    const AttendArgs a = rows_of(kv_heads * 4, kv_heads, d, block_size);
    const PrefillLaunch launch = prefill_launch(a, kBlocks);
    EXPECT_EQ(1 << launch.block_shift, block_size);
    for (bool values : {false, true}) {
      const PlaneArgs& plane = values ? a.value : a.key[0];
      FakeTensorMap map;
      std::memcpy(&map, values ? &launch.values : &launch.keys, sizeof map);
      EXPECT_EQ(map.address, plane.base);
      ASSERT_EQ(map.rank, 4);
      EXPECT_EQ(map.dims[3], static_cast<uint32_t>(kBlocks * kv_heads * block_size / 8));
      EXPECT_EQ(map.box[0] * 2, 128u);  // as wide as the swizzle
      EXPECT_EQ(map.box[0] * map.box[1] * map.box[2] * map.box[3],
                static_cast<uint32_t>(block_size * d));
      for (int block : {0, kBlocks - 1})
        for (int row = 0; row < block_size; ++row)
          for (int column = 0; column < d; column += 8) {
            const int head = kv_heads - 1;
            const int group = (block * kv_heads + head) * block_size / 8 + row / 8;
            const auto at = static_cast<uint64_t>(group) * map.strides[2] +
                            static_cast<uint64_t>(column / 64) * map.strides[1] +
                            static_cast<uint64_t>(row % 8) * map.strides[0] +
                            static_cast<uint64_t>(column % 64) * 2;
            const int64_t expected =
                block * plane.block_bytes + (int64_t{head} * block_size + row) * d * 2 + column * 2;
            ASSERT_EQ(at, static_cast<uint64_t>(expected)) << block << " " << row << " " << column;
          }
    }
  }
  fake_driver().fail_at = fake_driver().calls;
  EXPECT_ANY_THROW(prefill_launch(rows_of(8, 2, 128, 16), kBlocks));
}

}  // namespace
}  // namespace tokamak::cuda
