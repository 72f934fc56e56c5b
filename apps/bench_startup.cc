// tokamak bench startup: time from process start to the first token, measured by starting it.
#include "apps/bench_startup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "apps/child_process.h"
#include "apps/terminal.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/bundle_file.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct StartupFlags {
  std::vector<std::string> models;
  std::string prompt = "The capital of France is", backend;
  int repeat = 5, threads = 0;
  bool json = false;
};

struct StartupCase {
  const char* name;
  bool cold;           // the model's pages are not in memory
  bool compile_cache;  // filled by an earlier run
};

// A folder for the compile cache of the runs; removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "tokamak-startup-XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      fail(ErrorCode::kUnavailable, "cannot create a folder in {}",
           fs::temp_directory_path().string());
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<fs::path> files_of(const std::string& model) {
  if (!fs::is_directory(model)) return {model};
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(model))
    if (entry.is_regular_file()) out.push_back(entry.path());
  return out;
}

// The fraction of the model's pages that are in memory.
double resident_share(const std::string& model) {
  uint64_t pages = 0, resident = 0;
  for (const fs::path& path : files_of(model)) {
    auto file = MappedFile::open(path);
    if (file->bytes().empty()) continue;
    std::vector<unsigned char> in_memory((file->bytes().size() + 4095) / 4096);
    if (::mincore(const_cast<std::byte*>(file->bytes().data()), file->bytes().size(),
                  in_memory.data()) != 0)
      continue;
    pages += in_memory.size();
    for (unsigned char c : in_memory) resident += c & 1;
  }
  return pages == 0 ? 0 : static_cast<double>(resident) / static_cast<double>(pages);
}

void drop_from_memory(const std::string& model) {
  for (const fs::path& path : files_of(model)) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(ErrorCode::kNotFound, "cannot open {}", path.string());
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

struct StartupTimes {
  double ready = 0, first_token = 0;  // seconds
  double cpu = 0;                     // processor time, which a busy machine changes little
};

// The answer has one token and is printed at once, so the run time is the time to the first token.
// The child reports how much of it was the prompt.
StartupTimes measure_start(const StartupFlags& f, const std::string& model, bool use_cache,
                           const fs::path& cache) {
  std::vector<std::string> args = {"run",           model, f.prompt,       "--max-tokens", "1",
                                   "--temperature", "0",   "--ignore-eos", "--json"};
  if (!use_cache) args.push_back("--no-compile-cache");
  if (f.threads > 0) args.insert(args.end(), {"--threads", std::to_string(f.threads)});
  if (!f.backend.empty()) args.insert(args.end(), {"--backend", f.backend});
  SteadyClock clock;
  Nanos start = clock.now();
  StartupTimes times;
  ChildResult child = run_child(kThisProgram, std::move(args), {"TOKAMAK_CACHE=" + cache.string()});
  double total = seconds(clock.now() - start);
  times.cpu = child.cpu_seconds;
  Value timings = parse_json(child.output, "the answer").at("timings");
  times.ready = total - timings.at("prefill_seconds").as_double();
  times.first_token = total;
  return times;
}

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Value measure_case(const StartupFlags& f, const std::string& model, const StartupCase& c,
                   const fs::path& cache) {
  std::vector<double> ready, first, cpu;
  double resident = 0;
  measure_start(f, model, c.compile_cache, cache);  // fills the caches; not counted
  for (int r = 0; r < f.repeat; ++r) {
    if (c.cold) drop_from_memory(model);
    resident += resident_share(model) / f.repeat;
    StartupTimes t = measure_start(f, model, c.compile_cache, cache);
    ready.push_back(t.ready);
    first.push_back(t.first_token);
    cpu.push_back(t.cpu);
  }
  return Value::Object{{"model", model},
                       {"case", c.name},
                       {"bundle", is_bundle(model)},
                       {"pages_in_memory", resident},
                       {"ready_seconds", middle(ready)},
                       {"ready_seconds_best", *std::min_element(ready.begin(), ready.end())},
                       {"first_token_seconds", middle(first)},
                       {"first_token_seconds_best", *std::min_element(first.begin(), first.end())},
                       {"cpu_seconds", middle(cpu)}};
}

void startup(const StartupFlags& f) {
  constexpr StartupCase kModel[] = {{"disk cold, no compile cache", true, false},
                                    {"no compile cache", false, false},
                                    {"disk cold, compile cache", true, true},
                                    {"compile cache", false, true}};
  constexpr StartupCase kBundle[] = {{"disk cold", true, false}, {"bundle", false, false}};
  TemporaryFolder cache;
  ProgressBar bar("startup");
  uint64_t done = 0, total = 0;
  auto cases = [&](const std::string& model) {
    return is_bundle(model) ? std::span<const StartupCase>(kBundle) : kModel;
  };
  for (const std::string& m : f.models) total += cases(m).size();
  Value rows = Value::array();
  for (const std::string& model : f.models)
    for (const StartupCase& c : cases(model)) {
      rows.push(measure_case(f, model, c, cache.path()));
      bar.update(++done, total);
    }
  if (f.json) {
    fmt::print("{}\n", dump_json(rows, 2));
    return;
  }
  fmt::print("{:<40} {:<30} {:>10} {:>16} {:>8} {:>9}\n", "model", "case", "ready ms",
             "first token ms", "cpu ms", "in memory");
  for (const Value& r : rows.as_array())
    fmt::print("{:<40} {:<30} {:>10.1f} {:>16.1f} {:>8.1f} {:>8.0f}%\n",
               fs::path(r.at("model").as_string()).filename().string(), r.at("case").as_string(),
               r.at("ready_seconds").as_double() * 1e3,
               r.at("first_token_seconds").as_double() * 1e3, r.at("cpu_seconds").as_double() * 1e3,
               r.at("pages_in_memory").as_double() * 100);
}

}  // namespace

void add_bench_startup(CLI::App& bench) {
  auto flags = std::make_shared<StartupFlags>();
  CLI::App* verb = bench.add_subcommand(
      "startup", "time from process start to the first token, for model files and bundles");
  verb->add_option("MODEL", flags->models, "model files, folders and bundles")->required();
  verb->add_option("--prompt", flags->prompt, "the prompt")->capture_default_str();
  verb->add_option("--repeat", flags->repeat, "starts per case; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--threads", flags->threads, "threads of the cpu backend (default: all cores)")
      ->check(CLI::Range(0, 1024));
  verb->add_option("--backend", flags->backend, "backend (default: cpu, or the bundle's)");
  verb->add_flag("--json", flags->json, "print rows as JSON");
  verb->footer(
      "Each case starts the program --repeat times after one start that is not counted. \"disk "
      "cold\":\n"
      "the model's pages were dropped from memory first; pages_in_memory is what was left.\n\n"
      "Example:\n  tokamak bench startup model.gguf model.tkm --repeat 9 --json");
  verb->callback([flags] { startup(*flags); });
}

}  // namespace tokamak
