// tokamak bench latency: tokens per second of prefill and decode, without server or scheduler.
#include <algorithm>
#include <cmath>

#include "apps/bench_breakeven.h"
#include "apps/bench_grammar.h"
#include "apps/bench_kernels.h"
#include "apps/bench_programs.h"
#include "apps/bench_replay.h"
#include "apps/bench_serve.h"
#include "apps/bench_speculate.h"
#include "apps/bench_startup.h"
#include "apps/bench_throughput.h"
#include "apps/bench_tree.h"
#include "apps/bench_vs.h"
#include "apps/model_flags.h"
#include "apps/step_driver.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct LatencyFlags {
  OpenOptions model;
  int64_t prompt = 512, gen = 64, depth = 0, batch = 1, step_tokens = 512;
  std::vector<int> threads;
  int repeat = 5, in_flight = 2;
  bool json = false;
};

struct Rates {
  std::vector<double> values;  // tokens per second
  double best() const {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  }
  double median() const {
    if (values.empty()) return 0;
    std::vector<double> v = values;
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  }
};

// Which plans ran, over all rounds.
Value dispatch_value(const DispatchStats& d) {
  Value plans = Value::object();
  for (size_t i = 0; d.names && i < d.names->size() && i < d.steps.size(); ++i)
    plans.set((*d.names)[i], d.steps[i]);
  int64_t all = d.rows + d.padded_rows;
  return Value::Object{
      {"steps", std::move(plans)},
      {"fallbacks", d.fallbacks},
      {"rows", d.rows},
      {"padded_rows", d.padded_rows},
      {"padding_waste",
       all > 0 ? static_cast<double>(d.padded_rows) / static_cast<double>(all) : 0.0},
      {"compiles", d.compiles},
      {"graphs", d.graphs},
      {"captures", d.captures}};
}

// The share of a stack of experts that a step reads when every token uses `used` of them: one
// token's are known, several tokens are taken to choose evenly.
double experts_read(int64_t used, int64_t count, int64_t tokens) {
  double left = 1 - static_cast<double>(used) / static_cast<double>(count);
  return 1 - std::pow(left, static_cast<double>(tokens));
}

// Bytes of weights that one decode step reads: every matrix of the decode plan once; of the
// embedding only its rows, of experts those that are used.
double decode_weight_bytes(const PlanSet& plans, int64_t batch) {
  std::vector<bool> seen(plans.weights.size());
  double bytes = 0;
  int64_t used = 0;  // experts of a token
  for (const Plan& plan : plans.plans) {
    if (plan.function != "decode") continue;
    for (const KernelCall& call : plan.calls) {
      if (call.op == "moe_route") used = call.attrs.at("k").as_int();
      for (const CallArg& arg : call.in) {
        if (arg.kind != CallArg::Kind::kWeight || call.op == "embed" || seen[arg.index]) continue;
        seen[arg.index] = true;
        const WeightEntry& w = plans.weights[arg.index];
        double share = call.op == "grouped_linear" ? experts_read(used, w.dims[0], batch) : 1;
        bytes += share * static_cast<double>(weight_bytes(w));
      }
    }
    break;
  }
  return bytes;
}

Value measure(const LatencyFlags& f, int threads, ProgressBar& bar, uint64_t& done,
              uint64_t total) {
  OpenOptions options = f.model;
  options.threads = threads;
  options.context = f.depth + f.prompt + f.gen + 1;
  options.max_sequences = f.batch;
  int64_t step_tokens = std::max(f.step_tokens, f.batch);
  if (!is_bundle(options.model)) {  // a bundle has its own limits
    options.max_logit_rows = f.batch;
    options.max_step_tokens = step_tokens;
  }
  CompiledSetup setup = compile_for(options);
  const PlanSet& plans = setup.source->plans();
  step_tokens = std::min(step_tokens, symbol_limit(plans, "T"));
  int64_t length = f.depth + f.prompt + f.gen;
  LoadOptions load;
  load.blocks = StepDriver::blocks_needed(plans, f.batch, length);
  load.max_rows = f.batch;
  load.eager = setup.eager;
  std::unique_ptr<Executable> executable =
      setup.backend->load(plans, setup.source->weights(), load);
  StepDriver driver(*executable, plans, f.batch, length, f.in_flight);
  SteadyClock clock;
  Rates prefill, decode;
  for (int r = -1; r < f.repeat; ++r) {  // the first round warms caches and is not counted
    driver.reset();
    if (f.depth > 0) driver.prefill(f.depth, step_tokens);
    Nanos t0 = clock.now();
    if (f.prompt > 0) driver.prefill(f.prompt, step_tokens);
    Nanos t1 = clock.now();
    driver.decode(f.gen);
    Nanos t2 = clock.now();
    bar.update(++done, total);
    if (r < 0) continue;
    if (f.prompt > 0)
      prefill.values.push_back(static_cast<double>(f.batch * f.prompt) / seconds(t1 - t0));
    if (f.gen > 0) decode.values.push_back(static_cast<double>(f.batch * f.gen) / seconds(t2 - t1));
  }
  double steps_per_second = decode.best() / static_cast<double>(f.batch),
         step_bytes = decode_weight_bytes(plans, f.batch);
  return Value::Object{{"model", plans.model},
                       {"backend", setup.backend->name()},
                       {"threads", threads},
                       {"prompt", f.prompt},
                       {"gen", f.gen},
                       {"depth", f.depth},
                       {"batch", f.batch},
                       {"prefill_tokens_per_second", prefill.median()},
                       {"prefill_tokens_per_second_best", prefill.best()},
                       {"decode_tokens_per_second", decode.median()},
                       {"decode_tokens_per_second_best", decode.best()},
                       {"decode_weight_bytes", step_bytes},
                       {"decode_weight_gb_per_second", steps_per_second * step_bytes * 1e-9},
                       {"mode", setup.eager ? "eager" : "compiled"},
                       {"arena_bytes", executable->memory().arena},
                       {"dispatch", dispatch_value(executable->dispatch())}};
}

void latency(const LatencyFlags& f) {
  std::vector<int> threads = f.threads.empty() ? std::vector<int>{f.model.threads} : f.threads;
  ProgressBar bar("bench");
  uint64_t done = 0, total = threads.size() * static_cast<uint64_t>(f.repeat + 1);
  Value rows = Value::array();
  for (int t : threads) rows.push(measure(f, t, bar, done, total));
  if (f.json) {
    fmt::print("{}\n", dump_json(rows, 2));
    return;
  }
  fmt::print("{:>7} {:>6} {:>7} {:>6} {:>6} {:>22} {:>22} {:>14}\n", "threads", "batch", "prompt",
             "gen", "depth", "prefill t/s (best)", "decode t/s (best)", "weights GB/s");
  for (const Value& r : rows.as_array())
    fmt::print(
        "{:>7} {:>6} {:>7} {:>6} {:>6} {:>12.1f} ({:>7.1f}) {:>12.1f} ({:>7.1f}) {:>14.1f}\n",
        r.at("threads").as_int(), f.batch, f.prompt, f.gen, f.depth,
        r.at("prefill_tokens_per_second").as_double(),
        r.at("prefill_tokens_per_second_best").as_double(),
        r.at("decode_tokens_per_second").as_double(),
        r.at("decode_tokens_per_second_best").as_double(),
        r.at("decode_weight_gb_per_second").as_double());
}

}  // namespace

void add_bench_verb(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure speed");
  bench->footer("Example:\n  tokamak bench latency model.gguf --prompt 512 --gen 64");
  bench->require_subcommand(1);
  auto flags = std::make_shared<LatencyFlags>();
  CLI::App* verb = bench->add_subcommand(
      "latency",
      "tokens per second of prefill and decode, on the backend without engine or server");
  add_model_argument(*verb, flags->model);
  verb->add_option("--prompt", flags->prompt, "prompt tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--gen", flags->gen, "generated tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--depth", flags->depth, "tokens in the cache before the prompt")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  verb->add_option("--batch", flags->batch, "sequences in a batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--repeat", flags->repeat, "measured rounds; median and best are reported")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->add_option("--step-tokens", flags->step_tokens, "maximum number of prompt tokens per step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--in-flight", flags->in_flight,
                   "decode steps that are submitted at a time, where the backend takes several")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->add_flag("--json", flags->json,
                 "print rows as JSON, with the plans that ran and the padded rows");
  add_model_flags(*verb, flags->model);
  verb->remove_option(verb->get_option("--threads"));
  verb->add_option("--threads", flags->threads, "one row per number, e.g. 1,2")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024));
  verb->footer(
      "Examples:\n  tokamak bench latency model.gguf --prompt 512 --gen 64 --threads 1,2 --repeat "
      "5 "
      "--json\n"
      "  tokamak bench latency model.gguf --mode eager\n"
      "  tokamak bench latency model.gguf --prompt 32 --shapes buckets --buckets 128,512,2048 "
      "--json");
  verb->callback([flags] { latency(*flags); });
  add_bench_grammar(*bench);
  add_bench_kernels(*bench);
  add_bench_programs(*bench);
  add_bench_replay(*bench);
  add_bench_serve(*bench);
  add_bench_breakeven(*bench);
  add_bench_speculate(*bench);
  add_bench_tree(*bench);
  add_bench_startup(*bench);
  add_bench_throughput(*bench);
  add_bench_vs(*bench);
}

}  // namespace tokamak
