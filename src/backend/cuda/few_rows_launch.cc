#include "backend/cuda/few_rows_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

// A tensor of 16-bit elements, its inner dimension first. strides: in bytes, of all dimensions but
// the first.
TensorMap map_of(DeviceAddress address, std::vector<uint64_t> extents,
                 std::vector<uint64_t> strides, std::vector<unsigned> box, bool swizzled) {
  constexpr int kTwoBytes = 1, kNotInterleaved = 0, kSwizzle128 = 3, kPromote256 = 3, kZeros = 0;
  const std::vector<unsigned> steps(box.size(), 1);
  TensorMap map{};
  check(driver().tensor_map(&map, kTwoBytes, static_cast<unsigned>(box.size()),
                            reinterpret_cast<void*>(address), extents.data(), strides.data(),
                            box.data(), steps.data(), kNotInterleaved, swizzled ? kSwizzle128 : 0,
                            kPromote256, kZeros),
        "describing a matrix");
  return map;
}
// The lines of a tile, of those columns that a copy brings.
TensorMap tiles_of(const FewRowsProduct& p, const FewRowsType& type, int64_t lines) {
  const uint64_t row = dtype_bytes(p.type, p.k), columns = row / 2;
  const auto n = static_cast<uint64_t>(p.n);
  const auto height = static_cast<unsigned>(lines);
  const unsigned width = type.blocks() ? static_cast<unsigned>(type.pitch) / 2 : kFewRowsWidth;
  if (!p.gated) return map_of(p.w, {columns, n}, {row}, {width, height}, !type.blocks());
  return map_of(p.w, {columns, kFewRowsTurn, 2, n / kFewRowsTurn},
                {row, n * row, kFewRowsTurn * row},
                {width, kFewRowsTurn, 2, height / 2 / kFewRowsTurn}, !type.blocks());
}

// How the rows of a matrix are divided among at most `most` blocks.
struct Division {
  int64_t lines = kFewRowsTile, tiles = 0, steps = 0, blocks = 0;
  bool whole = false;  // blocks have whole tiles
};
Division division_of(int64_t rows, int64_t steps, int most, bool any_height) {
  Division best{.steps = steps};
  best.tiles = (rows + kFewRowsTile - 1) / kFewRowsTile;
  // The fewest blocks of which none gets more: fewer tiles are shared, and fewer sums are written.
  const int64_t units = (best.tiles * steps + most - 1) / most;
  best.blocks = (best.tiles * steps + units - 1) / units;
  if (!any_height) return best;
  // Where a tile is shared, its blocks wait for each other: as long as it takes to load two steps.
  int64_t cost = (units + 2) * kFewRowsTile;
  for (int64_t lines = kFewRowsTile; lines >= kFewRowsTile / 2; lines -= 16) {
    const int64_t tiles = (rows + lines - 1) / lines, each = (tiles + most - 1) / most;
    if (each * lines * steps >= cost) continue;
    cost = each * lines * steps;
    best = {lines, tiles, steps, (tiles + each - 1) / each, true};
  }
  return best;
}

}  // namespace

// Tensor copies begin at rows, which have to be multiples of 16 bytes.
bool few_rows_reads(DType weights, int64_t k) {
  const FewRowsType* type = few_rows_type(weights);
  return type && k % (type->blocks() ? type->columns : 8) == 0 && k >= kFewRowsWidth &&
         k <= int64_t{1} << 20 && (type->copied_by_threads() || dtype_bytes(weights, k) % 16 == 0);
}

bool few_rows_takes(const FewRowsProduct& p, int blocks) {
  return blocks > 0 && blocks <= kFewRowsBlocks && few_rows_reads(p.type, p.k) && p.rows >= 1 &&
         p.rows <= few_rows_type(p.type)->most_rows() && p.n % (p.gated ? kFewRowsTurn : 2) == 0 &&
         p.n <= int64_t{1} << 24 && p.pitch % 2 == 0 && p.x % 16 == 0 && p.w % 16 == 0 &&
         p.y % 8 == 0;
}

bool few_rows_splits(const FewRowsProduct& p, int blocks) {
  // Then the sums of a tile are of at most blocks / tiles + 2 blocks: kFewRowsMemory.
  return !p.gated && p.pitch == 0 && p.n <= int64_t{blocks} * kFewRowsTile;
}

FewRowsLaunch few_rows_launch(const FewRowsProduct& p, DeviceAddress memory, int blocks, bool split,
                              int in_flight) {
  TK_CHECK(few_rows_takes(p, blocks) && (!split || few_rows_splits(p, blocks)), "{} rows, {} x {}",
           p.rows, p.n, p.k);
  const int most = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : p.rows <= 64 ? 64 : 128;
  const FewRowsType& type = *few_rows_type(p.type);
  const Division d = division_of(p.gated ? 2 * p.n : p.n, (p.k + type.columns - 1) / type.columns,
                                 blocks, p.gated && !type.copied_by_threads());
  FewRowsLaunch out;
  out.kernel = fmt::format("few_rows_{}_{}", dtype_name(p.type), most);
  out.threads = few_rows_threads(type);
  out.shared_bytes = few_rows_shared_bytes(type, most);
  out.blocks = static_cast<int>(d.blocks);
  FewRowsArgs& a = out.args = {};
  if (!type.copied_by_threads()) a.w = tiles_of(p, type, d.lines);
  a.bytes = reinterpret_cast<const uint8_t*>(p.w);
  a.row_bytes = static_cast<int32_t>(dtype_bytes(p.type, p.k));
  a.w_rows = static_cast<int32_t>(p.gated ? 2 * p.n : p.n);
  a.x =
      map_of(p.x, {static_cast<uint64_t>(p.k), static_cast<uint64_t>(p.rows)},
             {static_cast<uint64_t>(p.k) * 2}, {kFewRowsWidth, static_cast<unsigned>(most)}, true);
  a.y = reinterpret_cast<void*>(p.y);
  a.pitch = p.pitch == 0 ? p.n : p.pitch;
  a.parts = reinterpret_cast<float*>(memory);
  a.ready = reinterpret_cast<uint32_t*>(memory + 4 * kFewRowsParts);
  a.rows = static_cast<int32_t>(p.rows);
  a.n = static_cast<int32_t>(p.n);
  a.lines = static_cast<int32_t>(d.lines);
  a.whole_tiles = d.whole;
  a.sums.shares = {static_cast<int32_t>(d.tiles), static_cast<int32_t>(d.steps), out.blocks};
  a.sums.plane = p.rows * a.sums.pitch();
  if (split) a.sums.planes = reinterpret_cast<uint16_t*>(memory + kFewRowsParts);
  constexpr int kInFlight = 32 * 1024;
  a.in_flight = std::min((in_flight * kInFlight + type.stage_bytes() - 1) / type.stage_bytes(),
                         few_rows_stages(type, most).weights);
  a.gated = p.gated;
  a.f32 = p.f32;
  return out;
}

}  // namespace tokamak::cuda
