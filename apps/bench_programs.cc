// tokamak bench programs: time of generation programs, compared with the same requests sent
// independently.
#include "apps/bench_programs.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct ProgramsFlags {
  OpenOptions model;
  std::vector<std::string> files;
  int repeat = 3;
  bool json = false;
};

// An engine that shares nothing between requests: each has a cache of its own. alone: one request
// at a time, as from a client that waits for each answer.
class IndependentClient final : public Client {
 public:
  IndependentClient(std::shared_ptr<Client> engine, bool alone)
      : engine_(std::move(engine)), alone_(alone) {}

  RequestId submit(RequestSpec spec, Sink sink) override {
    static std::atomic<uint64_t> count{0};
    spec.cache_salt = fmt::format("independent {}", count++);
    if (!alone_) return engine_->submit(std::move(spec), std::move(sink));
    {
      std::unique_lock lock(turn_->mutex);
      turn_->free.wait(lock, [&] { return !turn_->busy; });
      turn_->busy = true;
    }
    return engine_->submit(std::move(spec), [turn = turn_, sink = std::move(sink)](Delta&& delta) {
      bool last = delta.finish != Finish::kNone;
      sink(std::move(delta));
      if (!last) return;
      std::lock_guard guard(turn->mutex);
      turn->busy = false;
      turn->free.notify_one();
    });
  }
  void cancel(RequestId id) override { engine_->cancel(id); }
  void stop_at(RequestId id, int32_t choice, int32_t position) override {
    engine_->stop_at(id, choice, position);
  }
  EngineInfo info() const override { return engine_->info(); }

 private:
  const std::shared_ptr<Client> engine_;
  const bool alone_;
  struct Turn {
    std::mutex mutex;
    std::condition_variable free;
    bool busy = false;
  };
  const std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();  // sinks may outlive the client
};

struct Measured {
  double seconds = 0;  // the best round
  Value result;
};

// Every round has a cache of its own.
Measured measure_program(const ProgramsFlags& f, const program::Host& host,
                         const std::shared_ptr<const program::Program>& program) {
  Measured best;
  static int round = 0;
  for (int i = 0; i < f.repeat; ++i) {
    program::Host one = host;
    one.cache_salt = fmt::format("round {}", round++);
    Nanos start = SteadyClock().now();
    // Tools take no time: a call returns its arguments.
    Value result = program::run_program(program, std::move(one), {},
                                        [](const Value& call) { return call.at("arguments"); });
    double time = seconds(SteadyClock().now() - start);
    if (i == 0 || time < best.seconds) best.seconds = time;
    best.result = std::move(result);
  }
  return best;
}

Value program_row(const std::string& name, const Measured& m, const Measured& base) {
  const Value& usage = m.result.at("usage");
  return Value::Object{{"how", name},
                       {"seconds", m.seconds},
                       {"speed", m.seconds > 0 ? base.seconds / m.seconds : 0.0},
                       {"requests", usage.at("requests")},
                       {"prompt_tokens", usage.at("prompt_tokens")},
                       {"cached_tokens", usage.at("prompt_tokens_details").at("cached_tokens")},
                       {"completion_tokens", usage.at("completion_tokens")}};
}

Value compare_ways(const ProgramsFlags& f, const LoadedModel& model, const std::string& file) {
  Value request = parse_json(read_text_file(file), file);
  if (!request.has("seed")) request.set("seed", f.model.seed);
  auto program = program::parse_program(request);
  program::Host host = program_host(model);
  host.seed = f.model.seed;
  program::Host together = host, alone = host;
  together.client = std::make_shared<IndependentClient>(host.client, false);
  alone.client = std::make_shared<IndependentClient>(host.client, true);
  Measured one = measure_program(f, host, program), two = measure_program(f, together, program),
           three = measure_program(f, alone, program);
  for (const Measured* other : {&two, &three})
    if (other->result.at("variables") != one.result.at("variables"))
      fail(ErrorCode::kInternal, "{}: independent requests give another answer", file);
  return Value::Object{
      {"program", std::filesystem::path(file).stem().string()},
      {"rows", Value::Array{program_row("independent, one at a time", three, three),
                            program_row("independent, together", two, three),
                            program_row("program", one, three)}}};
}

void print_program(const Value& entry) {
  fmt::print("{}\n", entry.at("program").as_string());
  for (const Value& row : entry.at("rows").as_array())
    fmt::print(
        "  {:<27} {:>8.2f} s {:>6.2f}x {:>5} requests {:>7} prompt tokens, {:>7} cached, "
        "{:>6} generated\n",
        row.at("how").as_string(), row.at("seconds").as_double(), row.at("speed").as_double(),
        row.at("requests").as_int(), row.at("prompt_tokens").as_int(),
        row.at("cached_tokens").as_int(), row.at("completion_tokens").as_int());
}

void run(const ProgramsFlags& f) {
  LoadedModel model = load_with_progress(f.model);
  Value all = Value::array();
  for (const std::string& file : f.files) {
    Value entry = compare_ways(f, model, file);
    if (!f.json) print_program(entry);
    std::fflush(stdout);
    all.push(std::move(entry));
  }
  if (f.json) fmt::print("{}\n", dump_json(all));
}

}  // namespace

void add_bench_programs(CLI::App& bench) {
  auto flags = std::make_shared<ProgramsFlags>();
  CLI::App* verb = bench.add_subcommand(
      "programs",
      "time of generation programs, compared with the same requests sent independently");
  add_model_argument(*verb, flags->model);
  verb->add_option("FILES", flags->files, "programs (docs/programs.md)")->required();
  verb->add_option("--repeat", flags->repeat, "rounds; the best one counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "print JSON");
  add_model_flags(*verb, flags->model);
  add_batch_flags(*verb, flags->model);
  verb->footer(
      "Example:\n  tokamak bench programs model.gguf examples/programs/*.json\n"
      "The answers of all ways are compared. 'cached' are prompt tokens whose KV was shared.");
  verb->callback([flags] { run(*flags); });
}

}  // namespace tokamak
