#include "backend/cpu/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_table.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/pack.h"
#include "base/clock.h"
#include "base/thread_pool.h"

namespace tokamak {
namespace {

// Operations of silu per element in the cost model's unit.
constexpr double kSiluOps = 14;

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

// Streams far apart at once, as a kernel that walks several panels; 256 bytes in a round. The
// result depends on all that was read, so that nothing of it is optimised away.
template <size_t streams>
uint64_t read_streams(const Two* p, size_t part, size_t passes) {
  Two x[16] = {};
  size_t length = part * 4 / streams;
  for (size_t pass = 0; pass < passes; ++pass)
    for (size_t i = 0; i < length; i += 16 / streams)
#pragma GCC unroll 16
      for (size_t n = 0; n < 16; ++n) x[n] ^= p[n % streams * length + i + n / streams];
  for (int n = 1; n < 16; ++n) x[0] ^= x[n];
  return x[0][0] ^ x[0][1];
}

double read_speed(ThreadPool& pool, double footprint, double budget) {
  auto threads = static_cast<size_t>(pool.size());
  size_t part = std::max<size_t>(64, static_cast<size_t>(footprint) / 64 / threads) & ~size_t{3};
  std::vector<cpu::Buffer> memory(threads);
  pool.run([&](int t) {
    cpu::Buffer& m = memory[static_cast<size_t>(t)] = cpu::Buffer(part * 4 * sizeof(Two));
    std::memset(m.data(), 1, m.bytes());
  });
  std::vector<uint64_t> sums(threads * 16);  // a line each
  size_t passes = std::max<size_t>(1, (size_t{1} << 20) / part);
  double t = 1e30;  // how many streams are fastest differs from core to core
  for (auto* read : {read_streams<1>, read_streams<2>, read_streams<4>})
    t = std::min(t, shortest(
                        [&] {
                          pool.run([&](int thread) {
                            auto i = static_cast<size_t>(thread);
                            sums[i * 16] =
                                read(reinterpret_cast<const Two*>(memory[i].data()), part, passes);
                          });
                        },
                        1, budget / 3));
  volatile uint64_t keep = sums[0];
  (void)keep;
  return static_cast<double>(part * passes) * 64 * static_cast<double>(threads) / t;
}

// A sum and its norm on rows of 16 columns, run by one thread.
class LoopProbe {
 public:
  static constexpr int kSteps = 7;  // as the cost model counts: two ops, three inputs, two outputs

  LoopProbe(const cpu::KernelTable& table, int64_t rows)
      : x_(static_cast<size_t>(rows * kColumns), 0.5f),
        y_(x_.size()),
        z_(x_.size()),
        context_{table, kv_, 1} {
    auto program = std::make_shared<loop::Program>(
        loop::parse_program(fmt::format(kText, fmt::arg("t", rows), fmt::arg("d", kColumns))));
    region_ = {3, {}, {}, {3, 4}};
    for (const auto* types : {&program->in, &program->out})
      for (const TensorType& type : *types) region_.values.push_back(Type::of(type));
    region_.pieces.push_back({program, "", {}, {0, 1, 2}, {3, 4}});
    in_ = {tensor(x_, rows), tensor(x_, rows), tensor(w_, 1)};
    out_ = {tensor(y_, rows), tensor(z_, rows)};
    auto kernels = cpu::cpu_kernels();
    auto kernel = std::find_if(kernels.begin(), kernels.end(),
                               [](const auto& k) { return k.desc.pattern == "loop"; });
    const Value attrs;
    op_ = cpu::make_op(*kernel,
                       {nullptr, "region", attrs, in_, out_, table, kv_, 1, "probe", {}, &region_});
    scratch_.resize(static_cast<size_t>(op_->scratch_bytes()) + 64);
    context_.scratch = scratch_.data();
    context_.scratch_bytes = static_cast<int64_t>(scratch_.size());
    op_->bind(in_.data(), out_.data(), context_);
  }
  void run() { op_->run(in_.data(), out_.data(), context_); }

 private:
  static constexpr int64_t kColumns = 16;
  static constexpr std::string_view kText = R"(loop 1
rows {t}
columns {d}
in0 : f32[{t}, {d}]
in1 : f32[{t}, {d}]
in2 : f32[{d}]
out0 : f32[{t}, {d}]
out1 : f32[{t}, {d}]
%0 = load in0[c + {d}*r0] : f32 tile
%1 = load in1[c + {d}*r0] : f32 tile
%2 = add %0, %1 : f32 tile
%3 = sum_squares %2 : wide row
%4 = rsqrt %3 : wide row
%5 = mul %2, %4 : wide tile
%6 = load in2[c] : f32 tile
%7 = mul %5, %6 : f32 tile
store out0[c + {d}*r0] = %2
store out1[c + {d}*r0] = %7
)";
  static cpu::Tensor tensor(std::vector<float>& data, int64_t rows) {
    cpu::Tensor t;
    t.data = data.data();
    t.rank = 2;
    t.dims[0] = rows;
    t.dims[1] = kColumns;
    return t;
  }

  std::vector<float> x_, y_, z_, w_ = std::vector<float>(kColumns, 0.5f);
  std::vector<uint8_t> scratch_;
  cpu::KvStore kv_;
  cpu::StepContext context_;
  std::vector<cpu::Tensor> in_, out_;
  Region region_;
  std::unique_ptr<cpu::CpuOp> op_;
};

class Meter {
 public:
  Meter(int threads, double seconds)
      : pool_(threads), table_(*cpu::choose_table()), budget_(seconds / 10) {}

  CpuMeasurement run() {
    CpuMeasurement out;
    Machine& m = out.machine;
    m.name = fmt::format("cpu {} x{}", table_.name, pool_.size());
    m.measured_on = cpu::measured_on(pool_.size());
    m.cores = pool_.size();
    m.levels = cache_levels();
    SteadyClock clock;
    Nanos start = clock.now();
    double busy = process_cpu_seconds(), largest = 0;
    for (MachineLevel& l : m.levels) {
      double footprint = l.capacity > 0 ? l.capacity / 2 : std::max(4 * largest, 256e6);
      largest = std::max(largest, l.capacity);
      // A cache that all cores share holds the sum of what they read.
      bool shared = l.name != "L1" && l.name != "L2" && l.capacity > 0;
      l.bandwidth =
          read_speed(pool_, footprint * (shared || l.capacity == 0 ? 1 : m.cores), budget_);
    }
    m.i8_ops = i8_ops();
    m.f32_flops = f32_flops();
    m.vector_ops = silu_elements() * kSiluOps;
    out.share = (process_cpu_seconds() - busy) / (seconds(clock.now() - start) * m.cores);
    measure_calls(m);
    measure_loops(m);
    return out;
  }

 private:
  double best_of(const std::function<void()>& body, int repeat) {
    return shortest(body, repeat, budget_);
  }

  void measure_calls(Machine& m) {
    constexpr int kBarriers = 100, kCalls = 100;
    auto barriers = [&](int) {
      for (int i = 0; i < kBarriers; ++i) pool_.barrier();
    };
    m.barrier_seconds = best_of([&] { pool_.run(barriers); }, 10) / (10 * kBarriers);
    std::vector<float> x(16, 0.5f);
    auto* add = table_.binary[0];
    auto call = [&] {
      pool_.split(1, 1, [&](int64_t, int64_t, int) { add(x.data(), x.data(), x.data(), 16); });
    };
    m.call_seconds = best_of(call, kCalls) / kCalls;
    m.launch_seconds = m.call_seconds + m.barrier_seconds;
  }

  // The interpreter of Loop IR on short rows, where its own time dominates: many rows give the time
  // of a step, one row that of a call.
  void measure_loops(Machine& m) {
    constexpr int64_t kRows = 256;
    LoopProbe one(table_, 1), many(table_, kRows);
    constexpr int kCalls = 100;
    double first = best_of([&] { one.run(); }, kCalls) / kCalls,
           all = best_of([&] { many.run(); }, kCalls) / kCalls;
    m.loop_step_seconds = std::max(0.0, all - first) / ((kRows - 1) * LoopProbe::kSteps);
    m.loop_seconds = std::max(0.0, first - LoopProbe::kSteps * m.loop_step_seconds);
  }

  double i8_ops() {
    constexpr int64_t kLength = 1024, kBlocks = kLength / 32;
    constexpr int kRepeat = 64;
    auto f = static_cast<int>(cpu::QFormat::kQ8_0);
    auto bytes = static_cast<uint64_t>(cpu::qpanel_bytes(cpu::QFormat::kQ8_0, kLength));
    double t = best_of(
        [&] {
          pool_.run([&](int) {
            thread_local cpu::Buffer panel(bytes), x(sizeof(cpu::XBlock16) * kBlocks);
            float out[cpu::kTile * cpu::kPanel];
            for (int r = 0; r < kRepeat; ++r)
              table_.qdot4[f](panel.data(), reinterpret_cast<cpu::XBlock4*>(x.data()), kBlocks,
                              cpu::kTile, out);
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

std::vector<MachineLevel> cache_levels() {
  std::vector<MachineLevel> out;
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

double read_speed(int threads, double footprint, double seconds) {
  ThreadPool pool(threads);
  return read_speed(pool, footprint, seconds);
}

CpuMeasurement measure_cpu(int threads, double seconds) { return Meter(threads, seconds).run(); }

}  // namespace tokamak
