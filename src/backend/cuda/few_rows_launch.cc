#include "backend/cuda/few_rows_launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

TensorMap map_of(DeviceAddress address, int element, uint64_t rows, uint64_t row_bytes,
                 unsigned box_rows, unsigned box_width, int swizzle) {
  constexpr int kNotInterleaved = 0, kPromote256 = 3, kZeros = 0;
  const uint64_t extents[] = {row_bytes / 2, rows}, strides[] = {row_bytes};
  const unsigned box[] = {box_width, box_rows}, steps[] = {1, 1};
  TensorMap map{};
  check(driver().tensor_map(&map, element, 2, reinterpret_cast<void*>(address), extents, strides,
                            box, steps, kNotInterleaved, swizzle, kPromote256, kZeros),
        "describing a matrix");
  return map;
}
// Boxes of `box_rows` rows and kFewRowsWidth columns of a matrix of 16-bit values.
TensorMap boxes_of(DeviceAddress address, int64_t rows, int64_t columns, int box_rows) {
  constexpr int kBf16 = 9, kSwizzle128 = 3;
  return map_of(address, kBf16, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns) * 2,
                static_cast<unsigned>(box_rows), kFewRowsWidth, kSwizzle128);
}
TensorMap boxes_of_weights(const FewRowsProduct& p, const FewRowsType& type) {
  constexpr int kTwoBytes = 1, kNoSwizzle = 0;
  constexpr int kBoxRows = kFewRowsTile / 2;
  const int64_t rows = p.gated ? 2 * p.n : p.n;
  if (!type.blocks()) return boxes_of(p.w, rows, p.k, kBoxRows);
  return map_of(p.w, kTwoBytes, static_cast<uint64_t>(rows), dtype_bytes(p.type, p.k), kBoxRows,
                static_cast<unsigned>(type.pitch) / 2, kNoSwizzle);
}

}  // namespace

// Tensor copies begin at rows, which have to be multiples of 16 bytes.
bool few_rows_reads(DType weights, int64_t k) {
  const FewRowsType* type = few_rows_type(weights);
  return type && k % (type->blocks() ? type->columns : 8) == 0 && k >= kFewRowsWidth &&
         k <= int64_t{1} << 20 && (type->copied_by_threads() || dtype_bytes(weights, k) % 16 == 0);
}

bool few_rows_takes(const FewRowsProduct& p, int blocks) {
  return blocks > 0 && blocks <= kFewRowsBlocks && p.rows >= 1 && p.rows <= kMostFewRows &&
         few_rows_reads(p.type, p.k) && p.n % 2 == 0 && p.n <= int64_t{1} << 24 &&
         p.pitch % 2 == 0 && p.x % 16 == 0 && p.w % 16 == 0 && p.y % 8 == 0;
}

bool few_rows_splits(const FewRowsProduct& p, int blocks) {
  // Then the sums of a tile are of at most blocks / tiles + 2 blocks: kFewRowsMemory.
  return !p.gated && p.pitch == 0 && p.n <= int64_t{blocks} * kFewRowsTile;
}

FewRowsLaunch few_rows_launch(const FewRowsProduct& p, DeviceAddress memory, int blocks, bool split,
                              int in_flight) {
  TK_CHECK(few_rows_takes(p, blocks) && (!split || few_rows_splits(p, blocks)), "{} rows, {} x {}",
           p.rows, p.n, p.k);
  const int most = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : 64;
  const FewRowsType& type = *few_rows_type(p.type);
  const int64_t tile = p.gated ? kFewRowsTile / 2 : kFewRowsTile, step = type.columns;
  const int64_t tiles = (p.n + tile - 1) / tile, steps = (p.k + step - 1) / step;
  FewRowsLaunch out;
  out.kernel = fmt::format("few_rows_{}_{}", dtype_name(p.type), most);
  out.threads = few_rows_threads(type);
  out.shared_bytes = few_rows_shared_bytes(type, most);
  // The fewest blocks of which none gets more: fewer tiles are shared, and fewer sums are written.
  const int64_t most_units = (tiles * steps + blocks - 1) / blocks;
  out.blocks = static_cast<int>((tiles * steps + most_units - 1) / most_units);
  FewRowsArgs& a = out.args = {};
  if (!type.copied_by_threads()) a.w = boxes_of_weights(p, type);
  a.bytes = reinterpret_cast<const uint8_t*>(p.w);
  a.row_bytes = static_cast<int32_t>(dtype_bytes(p.type, p.k));
  a.w_rows = static_cast<int32_t>(p.gated ? 2 * p.n : p.n);
  a.x = boxes_of(p.x, p.rows, p.k, most);
  a.y = reinterpret_cast<void*>(p.y);
  a.pitch = p.pitch == 0 ? p.n : p.pitch;
  a.parts = reinterpret_cast<float*>(memory);
  a.ready = reinterpret_cast<uint32_t*>(memory + 4 * kFewRowsParts);
  a.rows = static_cast<int32_t>(p.rows);
  a.n = static_cast<int32_t>(p.n);
  a.sums.plane = p.rows * p.n;
  a.sums.shares = {static_cast<int32_t>(tiles), static_cast<int32_t>(steps), out.blocks};
  if (split) a.sums.planes = reinterpret_cast<float*>(memory + kFewRowsParts);
  a.second = p.gated ? a.n : kFewRowsTile / 2;
  constexpr int kInFlight = 32 * 1024;
  a.in_flight = std::min((in_flight * kInFlight + type.stage_bytes() - 1) / type.stage_bytes(),
                         few_rows_stages(type, most).weights);
  a.gated = p.gated;
  a.f32 = p.f32;
  return out;
}

}  // namespace tokamak::cuda
