// tokamak bench replay: a trace through the whole engine on the null backend, under virtual time.
#include <algorithm>

#include "apps/bench_replay.h"

#include "apps/trace_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct ReplayFlags {
  std::string trace, backend = "null", machine;
  std::string scheduler = "fcfs", kv_policy = "max-utilization", batching = "continuous";
  std::vector<int64_t> kv_tokens = {1000000};
  int64_t requests = 0, max_num_seqs = 256, max_batched_tokens = 8192;
  bool no_prefix_cache = false, no_chunked_prefill = false, checks = false, json = false;
  double tpot_target_ms = 0;
  int in_flight = 1;
  ReplayOptions options;
};

Value to_value(const Percentiles& p) {
  return Value::Object{
      {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}, {"mean", p.mean}};
}

Value to_value(const ReplayReport& r, int64_t kv_tokens, double wall) {
  const EngineStats& s = r.stats;
  return Value::Object{{"kv_tokens", kv_tokens},
                       {"requests", r.requests},
                       {"failed", r.failed},
                       {"input_tokens", r.input_tokens},
                       {"output_tokens", r.output_tokens},
                       {"computed_prompt_tokens", s.prefill_tokens},
                       {"virtual_seconds", r.seconds},
                       {"device_seconds", r.device_seconds},
                       {"output_tokens_per_second",
                        static_cast<double>(r.output_tokens) / std::max(r.seconds, 1e-9)},
                       {"hit_rate", r.hit_rate},
                       {"ideal_hit_rate", r.ideal_hit_rate},
                       {"ttft", to_value(r.ttft)},
                       {"tpot", to_value(r.tpot)},
                       {"itl", to_value(r.itl)},
                       {"e2e", to_value(r.e2e)},
                       {"preemptions", s.preemptions},
                       {"blocks_evicted", s.blocks_evicted},
                       {"blocks_copied", s.blocks_copied},
                       {"steps", s.steps},
                       {"sequences_per_step", r.sequences_per_step},
                       {"tokens_per_step", r.tokens_per_step},
                       {"wall_seconds", wall}};
}

void print(const Value& rows) {
  fmt::print(
      "{:>10} {:>6} {:>6} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7} "
      "{:>7} {:>6}\n",
      "KV tokens", "hit", "ideal", "virtual s", "tokens/s", "TTFT p50", "p90", "p99", "TPOT p50",
      "p99", "ITL max", "preempted", "steps", "seqs", "tokens", "wall s");
  for (const Value& r : rows.as_array()) {
    auto number = [&](const char* key) { return r.at(key).as_double(); };
    auto of = [&](const char* key, const char* which) { return r.at(key).at(which).as_double(); };
    fmt::print(
        "{:>10} {:>6.4f} {:>6.4f} {:>9.1f} {:>9.1f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.4f} "
        "{:>8.4f} {:>8.3f} {:>9} {:>7} {:>7.1f} {:>7.1f} {:>6.1f}\n",
        r.at("kv_tokens").as_int(), number("hit_rate"), number("ideal_hit_rate"),
        number("virtual_seconds"), number("output_tokens_per_second"), of("ttft", "p50"),
        of("ttft", "p90"), of("ttft", "p99"), of("tpot", "p50"), of("tpot", "p99"),
        of("itl", "max"), r.at("preemptions").as_int(), r.at("steps").as_int(),
        number("sequences_per_step"), number("tokens_per_step"), number("wall_seconds"));
  }
}

void replay(ReplayFlags& f) {
  if (f.backend != "null")
    fail(ErrorCode::kInvalidArgument,
         "bench replay runs in virtual time and only supports --backend null, not {}", f.backend);
  auto trace = load_trace(f.trace, f.requests);
  ReplayOptions& o = f.options;
  if (!f.machine.empty()) o.machine = load_machine_file(f.machine);
  o.check_steps = f.checks;
  EngineConfig& c = o.engine;
  c.policy = parse_sched_policy(f.scheduler);
  c.kv_policy = parse_kv_policy(f.kv_policy);
  c.batching = parse_batching(f.batching);
  c.prefix_cache = !f.no_prefix_cache;
  c.chunked_prefill = !f.no_chunked_prefill;
  c.tpot_target = static_cast<Nanos>(f.tpot_target_ms * 1e6);
  c.max_num_seqs = f.max_num_seqs;
  c.max_batched_tokens = std::max(f.max_batched_tokens, f.max_num_seqs);
  c.max_in_flight = f.in_flight;
  c.max_queue = std::ssize(trace) + 1;
  SteadyClock clock;
  Value rows = Value::array();
  for (int64_t kv_tokens : f.kv_tokens) {
    o.kv_tokens = kv_tokens;
    Nanos start = clock.now();
    ReplayReport report = replay_trace(trace, o);
    rows.push(to_value(report, kv_tokens, seconds(clock.now() - start)));
  }
  if (f.json)
    fmt::print("{}\n", dump_json(rows, 2));
  else
    print(rows);
}

}  // namespace

void add_bench_replay(CLI::App& bench) {
  auto f = std::make_shared<ReplayFlags>();
  CLI::App* verb = bench.add_subcommand(
      "replay", "run a trace of requests through the whole engine, in virtual time");
  verb->add_option("trace", f->trace, "Azure .csv or Mooncake .jsonl")
      ->required()
      ->check(CLI::ExistingFile);
  verb->add_option("--backend", f->backend, "only null is supported")->capture_default_str();
  verb->add_option("--machine", f->machine,
                   "roofline of the machine, e.g. bench/machines/h200.json")
      ->check(CLI::ExistingFile);
  verb->add_option("--parameters", f->options.model.parameters,
                   "parameters of the model, two bytes each")
      ->check(CLI::Range(1.0, 1e15))
      ->capture_default_str();
  verb->add_option("--kv-bytes", f->options.model.kv_bytes_per_token, "KV bytes per token")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--block-size", f->options.model.block_size, "tokens per KV block")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--kv-tokens", f->kv_tokens,
                   "size of the KV cache in tokens; one row per number")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 33))
      ->capture_default_str();
  verb->add_option("--requests", f->requests, "maximum number of requests to replay (0: all)")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--speed", f->options.speed, "speed-up factor of the trace")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  verb->add_option("--scheduler", f->scheduler, "fcfs, priority, cache or fair")
      ->capture_default_str();
  verb->add_option("--kv-policy", f->kv_policy, "max-utilization or guaranteed-no-evict")
      ->capture_default_str();
  verb->add_option("--batching", f->batching, "continuous, prefill-first or static")
      ->capture_default_str();
  verb->add_option("--max-num-seqs", f->max_num_seqs, "sequences that run at the same time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  verb->add_option("--max-num-batched-tokens", f->max_batched_tokens, "maximum tokens per step")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  verb->add_option("--tpot-target", f->tpot_target_ms, "longest step that contains decodes, in ms")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--in-flight", f->in_flight,
                   "steps submitted before the first of them is collected")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  verb->add_flag("--no-prefix-cache", f->no_prefix_cache,
                 "do not reuse the KV cache of common prefixes");
  verb->add_flag("--no-chunked-prefill", f->no_chunked_prefill, "do not split prompts into chunks");
  verb->add_flag("--checks", f->checks,
                 "let the null backend check every step (takes twice as long)");
  verb->add_flag("--json", f->json, "print rows as JSON");
  verb->footer(
      "Example:\n  tokamak bench replay conversation_trace.jsonl --backend null \\\n"
      "      --machine bench/machines/h200.json --kv-tokens 1000000,10000000 --scheduler cache");
  verb->callback([f] { replay(*f); });
}

}  // namespace tokamak
