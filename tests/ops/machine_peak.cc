#include "ops/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace tokamak::testing {
namespace {

template <class F>
double seconds_on_all(int threads, F&& work) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back([&, t] { work(t); });
  for (std::thread& t : pool) t.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

MachinePeak measure_peak(int threads) {
  MachinePeak peak{0, 0};
  const size_t words = size_t{16} << 20;  // 128 MiB in each thread
  std::vector<std::vector<uint64_t>> memory(static_cast<size_t>(threads),
                                            std::vector<uint64_t>(words, 1));
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  for (int round = 0; round < 5; ++round) {
    double s = seconds_on_all(threads, [&](int t) {
      uint64_t sum = 0;
      for (uint64_t x : memory[static_cast<size_t>(t)]) sum ^= x;
      sums[static_cast<size_t>(t)] = sum;
    });
    peak.bytes_per_second =
        std::max(peak.bytes_per_second, static_cast<double>(words) * 8 * threads / s);
  }
  std::vector<float> results(static_cast<size_t>(threads));
  constexpr int kLanes = 64, kRounds = 2000000;
  for (int round = 0; round < 3; ++round) {
    double s = seconds_on_all(threads, [&](int t) {
      float x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(i + t);
      for (int r = 0; r < kRounds; ++r)
        for (int i = 0; i < kLanes; ++i) x[i] = x[i] * 0.999f + 0.001f;
      for (float v : x) results[static_cast<size_t>(t)] += v;
    });
    peak.flops_per_second = std::max(peak.flops_per_second, 2.0 * kLanes * kRounds * threads / s);
  }
  // Keeps the work from being optimised away.
  if (std::isnan(results[0]) || sums[0] == 7) peak.flops_per_second = 0;
  return peak;
}

}  // namespace tokamak::testing
