// tokamak bench kernels: the CPU kernels one by one, against what the machine can do.
#include "apps/bench_kernels.h"

#include <fmt/format.h>

#include "apps/terminal.h"
#include "backend/cpu/kernel_bench.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct KernelFlags {
  cpu::KernelBenchOptions bench;
  bool json = false;
};

double share(double speed, double peak) { return peak > 0 ? speed / peak : 0; }

Value figure_value(const cpu::KernelFigure& f) {
  double gb = f.bytes / f.seconds, gop = f.operations / f.seconds;
  return Value::Object{{"kernel", f.kernel},
                       {"shape", f.shape},
                       {"seconds", f.seconds},
                       {"gb_per_second", gb * 1e-9},
                       {"read_share", share(gb, f.read_peak)},
                       {"gop_per_second", gop * 1e-9},
                       {"operation_share", share(gop, f.operation_peak)}};
}

Value bench_value(const cpu::KernelBench& b) {
  Value figures = Value::array();
  for (const cpu::KernelFigure& f : b.figures) figures.push(figure_value(f));
  return Value::Object{{"level", b.level},
                       {"threads", b.threads},
                       {"peaks", Value::Object{{"read_gb_per_second", b.read_peak * 1e-9},
                                               {"f32_gop_per_second", b.peak.f32 * 1e-9},
                                               {"i8_gop_per_second", b.peak.i8 * 1e-9},
                                               {"bf16_gop_per_second", b.peak.bf16 * 1e-9}}},
                       {"kernels", std::move(figures)}};
}

std::string percent(double share) {
  return share > 0 ? fmt::format("{:.0f}%", 100 * share) : std::string("-");
}

void run_kernels(const KernelFlags& f) {
  ProgressBar bar("kernels");
  Value v = bench_value(
      cpu::bench_kernels(f.bench, [&](size_t done, size_t total) { bar.update(done, total); }));
  if (f.json) {
    fmt::print("{}\n", dump_json(v, 2));
    return;
  }
  const Value& peaks = v.at("peaks");
  double bf16 = peaks.at("bf16_gop_per_second").as_double();
  fmt::print("{}, {} threads. Peaks: read {:.1f} GB/s, f32 {:.0f}, int8 {:.0f}{} GOP/s\n",
             v.at("level").as_string(), v.at("threads").as_int(),
             peaks.at("read_gb_per_second").as_double(), peaks.at("f32_gop_per_second").as_double(),
             peaks.at("i8_gop_per_second").as_double(),
             bf16 > 0 ? fmt::format(", bf16 {:.0f}", bf16) : "");
  fmt::print("{:<14} {:<24} {:>10} {:>9} {:>6} {:>9} {:>6}\n", "kernel", "shape", "us", "GB/s",
             "peak", "GOP/s", "peak");
  for (const Value& k : v.at("kernels").as_array())
    fmt::print("{:<14} {:<24} {:>10.1f} {:>9.1f} {:>6} {:>9.1f} {:>6}\n",
               k.at("kernel").as_string(), k.at("shape").as_string(),
               k.at("seconds").as_double() * 1e6, k.at("gb_per_second").as_double(),
               percent(k.at("read_share").as_double()), k.at("gop_per_second").as_double(),
               percent(k.at("operation_share").as_double()));
}

}  // namespace

void add_bench_kernels(CLI::App& bench) {
  auto flags = std::make_shared<KernelFlags>();
  CLI::App* verb = bench.add_subcommand(
      "kernels", "speed of each CPU kernel, and its share of what this machine can do");
  verb->add_option("--threads", flags->bench.threads, "threads (default: all cores)")
      ->check(CLI::Range(0, 1024));
  verb->add_option("--filter", flags->bench.filter, "only kernels whose line contains this text");
  verb->add_option("--seconds", flags->bench.seconds, "time to spend on each line, at least")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  verb->add_option("--rows", flags->bench.rows, "rows that matrices are multiplied with")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--columns", flags->bench.n, "output columns of the matrices, width of rows")
      ->check(CLI::Range(32, 1 << 20))
      ->capture_default_str();
  verb->add_option("--inner", flags->bench.k, "length of the matrices' rows")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  verb->add_flag("--bf16", flags->bench.bf16,
                 "quantised matrices with bf16 activations, where the CPU has kernels for that");
  verb->add_flag("--json", flags->json, "print JSON");
  verb->footer(
      "Shares: GB/s of the fastest read of as many bytes as a case moves, GOP/s of the level's\n"
      "multiply-add instruction in registers. TOKAMAK_ISA chooses another level.\n\n"
      "Example:\n  tokamak bench kernels --filter \"linear q4_0\" --threads 1 --json");
  verb->callback([flags] { run_kernels(*flags); });
}

}  // namespace tokamak
