#include "backend/cpu/calibrate.h"

#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_table.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/pack.h"
#include "base/clock.h"
#include "base/thread_pool.h"

namespace tokamak {
namespace {

// Data caches of core 0 as the system lists them; the usual sizes where it does not.
std::vector<CpuMeasurement::Level> cache_levels() {
  std::vector<CpuMeasurement::Level> out;
  for (int i = 0; i < 8; ++i) {
    std::filesystem::path dir = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", i);
    std::ifstream type_file(dir / "type"), size_file(dir / "size"), level_file(dir / "level");
    std::string type, size;
    int level = 0;
    if (!(type_file >> type) || !(size_file >> size) || !(level_file >> level)) break;
    if (type == "Instruction" || size.empty()) continue;
    double bytes = 1024.0 * static_cast<double>(std::strtoll(size.c_str(), nullptr, 10));
    if (size.back() == 'M') bytes *= 1024;
    if (bytes > 0) out.push_back({fmt::format("L{}", level), bytes, 0});
  }
  if (out.empty()) out = {{"L1", 65536, 0}, {"L2", 1048576, 0}};
  out.push_back({"memory", 0, 0});
  return out;
}

// The time of `repeat` calls, the shortest of as many tries as the budget holds.
double shortest(const std::function<void()>& body, int repeat, double budget) {
  SteadyClock clock;
  double best = 1e30, spent = 0;
  while (spent < budget) {
    Nanos start = clock.now();
    for (int i = 0; i < repeat; ++i) body();
    double t = seconds(clock.now() - start);
    best = std::min(best, t);
    spent += t;
  }
  return std::max(best, 1e-12);
}

using Two = uint64_t __attribute__((vector_size(16)));

// Four streams far apart at once, as a kernel that walks several panels; 64 bytes of each in a
// round. The result depends on all that was read, so that nothing of it is optimised away.
uint64_t read_streams(const Two* p, size_t part, size_t passes) {
  Two x[16] = {};
  for (size_t pass = 0; pass < passes; ++pass)
    for (size_t i = 0; i < part; i += 4)
#pragma GCC unroll 16
      for (size_t n = 0; n < 16; ++n) x[n] ^= p[n % 4 * part + i + n / 4];
  for (int n = 1; n < 16; ++n) x[0] ^= x[n];
  return x[0][0] ^ x[0][1];
}

double read_speed(ThreadPool& pool, double footprint, double budget) {
  auto threads = static_cast<size_t>(pool.size());
  size_t part = std::max<size_t>(64, static_cast<size_t>(footprint) / 64 / threads) & ~size_t{3};
  std::vector<std::vector<Two>> memory(threads);
  pool.run([&](int t) { memory[static_cast<size_t>(t)].assign(part * 4, Two{1, 1}); });
  std::vector<uint64_t> sums(threads * 16);  // a line each
  size_t passes = std::max<size_t>(1, (size_t{1} << 20) / part);
  double t = shortest(
      [&] {
        pool.run([&](int thread) {
          auto i = static_cast<size_t>(thread);
          sums[i * 16] = read_streams(memory[i].data(), part, passes);
        });
      },
      1, budget);
  volatile uint64_t keep = sums[0];
  (void)keep;
  return static_cast<double>(part * passes) * 64 * static_cast<double>(threads) / t;
}

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Meter {
 public:
  Meter(int threads, double seconds)
      : pool_(threads), table_(*cpu::choose_table()), budget_(seconds / 8) {}

  CpuMeasurement run() {
    CpuMeasurement m;
    m.isa = table_.name;
    m.threads = pool_.size();
    m.levels = cache_levels();
    SteadyClock clock;
    Nanos start = clock.now();
    double busy = processor_seconds(), largest = 0;
    for (CpuMeasurement::Level& l : m.levels) {
      double footprint = l.capacity > 0 ? l.capacity / 2 : std::max(4 * largest, 256e6);
      largest = std::max(largest, l.capacity);
      // A cache that all cores share holds the sum of what they read.
      bool shared = l.name != "L1" && l.name != "L2" && l.capacity > 0;
      l.bandwidth =
          read_speed(pool_, footprint * (shared || l.capacity == 0 ? 1 : m.threads), budget_);
    }
    m.i8_ops = i8_ops();
    m.f32_flops = f32_flops();
    m.silu_elements = silu_elements();
    m.share = (processor_seconds() - busy) / (seconds(clock.now() - start) * m.threads);
    constexpr int kBarriers = 100;
    auto barriers = [&](int) {
      for (int i = 0; i < kBarriers; ++i) pool_.barrier();
    };
    m.barrier_seconds = best_of([&] { pool_.run(barriers); }, 10) / (10 * kBarriers);
    std::vector<float> x(16, 0.5f);
    auto* add = table_.binary[0];
    m.call_seconds = best_of(
                         [&] {
                           pool_.split(1, 1, [&](int64_t, int64_t, int) {
                             add(x.data(), x.data(), x.data(), 16);
                           });
                         },
                         100) /
                     100;
    return m;
  }

 private:
  double best_of(const std::function<void()>& body, int repeat) {
    return shortest(body, repeat, budget_);
  }

  double i8_ops() {
    constexpr int64_t kLength = 1024, kBlocks = kLength / 32;
    constexpr int kRepeat = 64;
    auto f = static_cast<int>(cpu::QFormat::kQ8_0);
    auto bytes = static_cast<uint64_t>(cpu::qpanel_bytes(cpu::QFormat::kQ8_0, kLength));
    double t = best_of(
        [&] {
          pool_.run([&](int) {
            thread_local cpu::Buffer panel(bytes), x(sizeof(cpu::XBlock4) * kBlocks);
            float out[cpu::kTile * cpu::kPanel];
            for (int r = 0; r < kRepeat; ++r)
              table_.qdot4[f](panel.data(), reinterpret_cast<cpu::XBlock4*>(x.data()), kBlocks,
                              out);
          });
        },
        1);
    return 2.0 * kLength * cpu::kPanel * cpu::kTile * kRepeat * pool_.size() / t;
  }

  double f32_flops() {
    constexpr int64_t kLength = 512;
    constexpr int kRepeat = 64;
    double t = best_of(
        [&] {
          pool_.run([&](int) {
            thread_local std::vector<float> panel(kLength * cpu::kPanel, 0.5f),
                x(kLength * cpu::kTile, 0.5f);
            float acc[cpu::kTile * cpu::kPanel] = {};
            for (int r = 0; r < kRepeat; ++r) table_.fdot4[0](panel.data(), x.data(), kLength, acc);
          });
        },
        1);
    return 2.0 * kLength * cpu::kPanel * cpu::kTile * kRepeat * pool_.size() / t;
  }

  double silu_elements() {
    constexpr int64_t kLength = 4096;
    constexpr int kRepeat = 16;
    double t = best_of(
        [&] {
          pool_.run([&](int) {
            thread_local std::vector<float> x(kLength, 0.5f), y(kLength);
            for (int r = 0; r < kRepeat; ++r)
              table_.unary[static_cast<int>(cpu::Unary::kSilu)](x.data(), y.data(), kLength, 0);
          });
        },
        1);
    return 1.0 * kLength * kRepeat * pool_.size() / t;
  }

  ThreadPool pool_;
  const cpu::KernelTable& table_;
  double budget_;
};

}  // namespace

double read_speed(int threads, double footprint, double seconds) {
  ThreadPool pool(threads);
  return read_speed(pool, footprint, seconds);
}

CpuMeasurement measure_cpu(int threads, double seconds) { return Meter(threads, seconds).run(); }

}  // namespace tokamak
