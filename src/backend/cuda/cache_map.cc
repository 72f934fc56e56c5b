#include "backend/cuda/cache_map.h"

#include "backend/cuda/driver.h"

namespace tokamak::cuda {

TensorMap cache_map(void* plane, int64_t rows, int64_t width, int rows_at_once) {
  constexpr int kAtomRows = 8, kAtomWidth = 64;
  // Values of the driver's enumerations.
  constexpr int kSixteenBits = 1, kNotInterleaved = 0, kSwizzle128 = 3, kCacheLines128 = 2,
                kFillZero = 0;
  const auto columns = static_cast<uint64_t>(width);
  const uint64_t dims[] = {kAtomWidth, kAtomRows, columns / kAtomWidth,
                           static_cast<uint64_t>(rows / kAtomRows)};
  const uint64_t strides[] = {columns * 2, kAtomWidth * 2, columns * 2 * kAtomRows};  // bytes
  const unsigned box[] = {kAtomWidth, kAtomRows, static_cast<unsigned>(columns / kAtomWidth),
                          static_cast<unsigned>(rows_at_once / kAtomRows)};
  const unsigned steps[] = {1, 1, 1, 1};
  TensorMap map{};
  check(driver().tensor_map(&map, kSixteenBits, 4, plane, dims, strides, box, steps,
                            kNotInterleaved, kSwizzle128, kCacheLines128, kFillZero),
        "describing the cache");
  return map;
}

}  // namespace tokamak::cuda
