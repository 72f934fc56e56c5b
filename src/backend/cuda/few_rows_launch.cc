#include "backend/cuda/few_rows_launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

// Boxes of `box_rows` rows and kFewRowsWidth columns of a bf16 matrix.
TensorMap boxes_of(DeviceAddress address, int64_t rows, int64_t columns, int box_rows) {
  constexpr int kBf16 = 9, kNotInterleaved = 0, kSwizzle128 = 3, kPromote256 = 3, kZeros = 0;
  const uint64_t extents[] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                 strides[] = {static_cast<uint64_t>(columns) * 2};
  const unsigned box[] = {kFewRowsWidth, static_cast<unsigned>(box_rows)}, steps[] = {1, 1};
  TensorMap map{};
  check(driver().tensor_map(&map, kBf16, 2, reinterpret_cast<void*>(address), extents, strides, box,
                            steps, kNotInterleaved, kSwizzle128, kPromote256, kZeros),
        "describing a matrix");
  return map;
}

}  // namespace

bool few_rows_takes(const FewRowsProduct& p, int blocks) {
  return blocks > 0 && blocks <= kFewRowsBlocks && p.rows >= 1 && p.rows <= kMostFewRows &&
         p.k % 8 == 0 && p.k >= kFewRowsWidth && p.n % 2 == 0 && p.n <= int64_t{1} << 24 &&
         p.k <= int64_t{1} << 20 && p.x % 16 == 0 && p.w % 16 == 0 && p.y % 8 == 0;
}

bool few_rows_splits(const FewRowsProduct& p, int blocks) {
  // Then the sums of a tile are of at most blocks / tiles + 2 blocks: kFewRowsMemory.
  return !p.gated && p.n <= int64_t{blocks} * kFewRowsTile;
}

FewRowsLaunch few_rows_launch(const FewRowsProduct& p, DeviceAddress memory, int blocks, bool split,
                              int in_flight) {
  TK_CHECK(few_rows_takes(p, blocks) && (!split || few_rows_splits(p, blocks)), "{} rows, {} x {}",
           p.rows, p.n, p.k);
  const int most = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : 64;
  const int64_t tile = p.gated ? kFewRowsTile / 2 : kFewRowsTile,
                step = kFewRowsBoxes * kFewRowsWidth;
  const int64_t tiles = (p.n + tile - 1) / tile, steps = (p.k + step - 1) / step;
  FewRowsLaunch out;
  out.kernel = fmt::format("few_rows_{}", most);
  out.shared_bytes = few_rows_shared_bytes(most);
  // The fewest blocks of which none gets more: fewer tiles are shared, and fewer sums are written.
  const int64_t most_units = (tiles * steps + blocks - 1) / blocks;
  out.blocks = static_cast<int>((tiles * steps + most_units - 1) / most_units);
  FewRowsArgs& a = out.args = {};
  a.w = boxes_of(p.w, p.gated ? 2 * p.n : p.n, p.k, kFewRowsTile / 2);
  a.x = boxes_of(p.x, p.rows, p.k, most);
  a.y = reinterpret_cast<void*>(p.y);
  a.parts = reinterpret_cast<float*>(memory);
  a.ready = reinterpret_cast<uint32_t*>(memory + 4 * kFewRowsParts);
  a.rows = static_cast<int32_t>(p.rows);
  a.n = static_cast<int32_t>(p.n);
  a.sums.plane = p.rows * p.n;
  a.sums.shares = {static_cast<int32_t>(tiles), static_cast<int32_t>(steps), out.blocks};
  if (split) a.sums.planes = reinterpret_cast<float*>(memory + kFewRowsParts);
  a.second = p.gated ? a.n : kFewRowsTile / 2;
  a.in_flight = std::min(in_flight, few_rows_stages(most));
  a.gated = p.gated;
  a.f32 = p.f32;
  return out;
}

}  // namespace tokamak::cuda
