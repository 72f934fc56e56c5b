#include "backend/cpu/calibrate.h"

#include <fmt/format.h>

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

class Meter {
 public:
  Meter(int threads, double seconds)
      : pool_(threads), table_(*cpu::choose_table()), budget_(seconds / 8) {}

  CpuMeasurement run() {
    CpuMeasurement m;
    m.isa = table_.name;
    m.threads = pool_.size();
    m.levels = cache_levels();
    double largest = 0;
    for (CpuMeasurement::Level& l : m.levels) {
      double footprint = l.capacity > 0 ? l.capacity / 2 : std::max(4 * largest, 256e6);
      largest = std::max(largest, l.capacity);
      // A cache that all cores share holds the sum of what they read.
      bool shared = l.name != "L1" && l.name != "L2" && l.capacity > 0;
      l.bandwidth = read_bandwidth(footprint / (shared || l.capacity == 0 ? m.threads : 1));
    }
    m.i8_ops = i8_ops();
    m.f32_flops = f32_flops();
    m.silu_elements = silu_elements();
    m.barrier_seconds = best_of([&] { pool_.run([](int) {}); }, 100) / 100;
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
  // The shortest time of `repeat` calls, over as many tries as the budget holds.
  double best_of(const std::function<void()>& body, int repeat) {
    double best = 1e30, spent = 0;
    while (spent < budget_) {
      Nanos start = clock_.now();
      for (int i = 0; i < repeat; ++i) body();
      double t = seconds(clock_.now() - start);
      best = std::min(best, t);
      spent += t;
    }
    return std::max(best, 1e-12);
  }

  double read_bandwidth(double bytes_per_thread) {
    auto words = static_cast<int64_t>(bytes_per_thread / 8) / 8 * 8;
    std::vector<std::vector<uint64_t>> data(static_cast<size_t>(pool_.size()));
    pool_.run([&](int t) { data[static_cast<size_t>(t)].assign(static_cast<size_t>(words), 1); });
    int repeat = std::max(1, static_cast<int>(4e6 / bytes_per_thread));
    std::vector<uint64_t> sums(data.size() * 16);
    double t = best_of(
        [&] {
          pool_.run([&](int thread) {
            const uint64_t* p = data[static_cast<size_t>(thread)].data();
            uint64_t sum[8] = {};
            for (int r = 0; r < repeat; ++r)
              for (int64_t i = 0; i < words; i += 8)
                for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
            for (uint64_t s : sum) sums[static_cast<size_t>(thread) * 16] += s;
          });
        },
        1);
    return static_cast<double>(words) * 8 * repeat * pool_.size() / t;
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
  SteadyClock clock_;
};

}  // namespace

CpuMeasurement measure_cpu(int threads, double seconds) { return Meter(threads, seconds).run(); }

}  // namespace tokamak
