#include "backend/cuda/thin_product.h"

#include <fmt/format.h>

#include <algorithm>

namespace tokamak::cuda {
namespace {

constexpr int kMostShared = 124 << 10;  // the next launch's blocks fit beside one
constexpr int kPairShared = 110 << 10;  // a multiprocessor holds two blocks
// Of an H200, bytes per second and seconds.
constexpr double kMemory = 4.4e12, kCache = 6e12, kStage = 3e-8, kBlock = 7e-7;

}  // namespace

int ThinPlan::shared_bytes() const {
  const int stages = kThinStages * (tile + batch) * chunk * 2;
  const int sums = chunk / 32 * tile * (batch + 1) * 4;
  return std::max(stages, sums);
}

ThinPlan plan_thin(int64_t rows, int64_t n, int64_t k, int multiprocessors, ThinResult result) {
  ThinPlan best;
  constexpr int64_t kMostElements = int64_t{1} << 32;  // offsets of 32 bits
  if (rows < 1 || rows > kThinRows || n % 8 != 0 || n * k >= kMostElements) return best;
  const int batch = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  const int step = result == ThinResult::kGated ? 32 : 16;
  for (int chunk : {64, 128, 256})
    for (int parts : {1, 2, 4, 8}) {
      if (k % (parts * chunk) != 0 || (parts > 1 && result != ThinResult::kParts)) continue;
      const int across = kThinWarps / (chunk / 32);
      for (int tile = step; tile <= 16 * thin_warp_tiles(batch) * across; tile += step) {
        ThinPlan plan{batch, chunk, tile, parts};
        if (plan.shared_bytes() > kMostShared) break;
        const int64_t blocks = (n + tile - 1) / tile * parts;
        const auto turns = static_cast<double>((blocks + multiprocessors - 1) / multiprocessors);
        if (turns > 1 && plan.shared_bytes() > kPairShared) continue;
        const double length = static_cast<double>(k / parts);
        const double weights = 2.0 * tile * length, values = 2.0 * batch * length;
        const double reading =
            turns * multiprocessors * std::max(weights / kMemory, (weights + values) / kCache);
        const double adding = parts > 1 ? 8.0 * parts * batch * static_cast<double>(n) / kCache : 0;
        plan.seconds = reading + adding + length / chunk * kStage + turns * kBlock;
        if (best.batch == 0 || plan.seconds < best.seconds) best = plan;
      }
    }
  return best;
}

void emit_thin(const ThinPlan& plan, ThinArgs args, ThinResult result, LaunchList& list) {
  args.tile = plan.tile;
  args.part = args.k / plan.parts;
  args.gated = result == ThinResult::kGated;
  args.wide = result == ThinResult::kParts || result == ThinResult::kF32;
  list.add_overlapped("op_thin", fmt::format("op_thin_{}_{}", plan.batch, plan.chunk),
                      {(args.n + plan.tile - 1) / plan.tile, plan.parts}, kThinThreads, args,
                      plan.shared_bytes());
}

}  // namespace tokamak::cuda
