// tokamak calibrate: measures this machine for the fusion planner's cost model.
#include "backend/cpu/calibrate.h"

#include <cstdio>

#include "apps/verbs.h"
#include "backend/cuda/calibrate.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/cache.h"

namespace tokamak {
namespace {

struct CalibrateFlags {
  std::string out, name, backend = "cpu";
  int threads = 0;
  double seconds = 4;
};

constexpr double kQuiet = 0.9;  // share of the processors that a valid measurement gets

Machine measure_processors(const CalibrateFlags& f, bool& valid) {
  CpuMeasurement m = measure_cpu(f.threads, f.seconds);
  valid = m.share >= kQuiet;
  if (!valid)
    fmt::print(stderr,
               "tokamak: warning: other programs used {:.0f} % of the processors during the "
               "measurement; the figures are too low. Run it again on a quiet machine.\n",
               100 * (1 - m.share));
  if (!f.name.empty()) m.machine.name = f.name;
  return m.machine;
}

// For models that are compiled later.
void keep(const std::string& text) {
  CompileCache cache = CompileCache::from_environment();
  std::filesystem::path file = cache.machine_file("cpu");
  if (file.empty()) return;
  std::filesystem::create_directories(cache.folder());
  write_text_file(file.string(), text);
  fmt::print(stderr,
             "tokamak: kept in {}: models are compiled for these figures from now on, unless "
             "--machine names another file\n",
             file.string());
}

void run_calibrate(const CalibrateFlags& f) {
  bool valid = true;
  Machine machine =
      f.backend == "cuda" ? cuda::measure_gpu(f.seconds, f.name) : measure_processors(f, valid);
  std::string text = dump_json(machine_value(machine), 2) + "\n";
  if (!f.out.empty()) return write_text_file(f.out, text);
  fmt::print("{}", text);
  if (f.backend == "cpu" && valid) keep(text);
}

}  // namespace

void add_calibrate_verb(CLI::App& app) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* verb = app.add_subcommand(
      "calibrate",
      "measure this machine (bandwidths, dot products, calls) and write a machine file");
  verb->add_option(
      "-o,--out", flags->out,
      "file to write (default: standard output, and the cache folder, where models that are "
      "compiled later find it)");
  verb->add_option("--backend", flags->backend, "what to measure: cpu, or cuda (the GPU)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  verb->add_option("--name", flags->name, "name of the machine in the file");
  verb->add_option("--threads", flags->threads, "threads to use; 0 = all cores")
      ->check(CLI::Range(0, 1024));
  verb->add_option("--seconds", flags->seconds, "time to spend")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  verb->footer(
      "Example: tokamak calibrate -o this.json && tokamak debug opt graph.tkg --machine "
      "this.json");
  verb->callback([flags] { run_calibrate(*flags); });
}

}  // namespace tokamak
