// tokamak bench throughput: a batch of prompts through the whole engine at once, without a server.
#include "apps/bench_throughput.h"

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"

namespace tokamak {
namespace {

struct ThroughputFlags {
  OpenOptions model;
  std::string file;
  int64_t requests = 32, prompt = 128, output = 64, prefix = 0;
  bool json = false, no_prefix_cache = false;
};

// Counts answers as they arrive; the main thread waits for the last one.
class Count {
 public:
  Count(uint64_t total, ProgressBar& bar) : total_(total), bar_(bar) {}
  void add(const Delta& delta) {
    std::lock_guard lock(mutex_);
    tokens_ += static_cast<int64_t>(delta.ids.size());
    if (delta.finish == Finish::kNone) return;
    bool ok = delta.finish == Finish::kLength || delta.finish == Finish::kStop;
    if (!ok && error_.empty()) error_ = delta.error.empty() ? "a request failed" : delta.error;
    bar_.update(++done_, total_);
    if (done_ == total_) all_.notify_all();
  }
  int64_t wait() {
    std::unique_lock lock(mutex_);
    all_.wait(lock, [&] { return done_ == total_; });
    if (!error_.empty()) fail(ErrorCode::kInternal, "{}", error_);
    return tokens_;
  }

 private:
  const uint64_t total_;
  ProgressBar& bar_;
  std::mutex mutex_;
  std::condition_variable all_;
  uint64_t done_ = 0;
  int64_t tokens_ = 0;
  std::string error_;
};

std::vector<std::vector<int32_t>> random_prompts(const ThroughputFlags& f, int64_t vocab) {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(f.requests));
  for (size_t r = 0; r < out.size(); ++r)
    for (int64_t i = 0; i < f.prompt; ++i) {
      uint64_t key = i < f.prefix ? 0 : r + 1;
      out[r].push_back(static_cast<int32_t>(philox(f.model.seed, key, static_cast<uint64_t>(i))[0] %
                                            static_cast<uint64_t>(vocab)));
    }
  return out;
}

std::vector<std::vector<int32_t>> file_prompts(const ThroughputFlags& f,
                                               const Tokenizer& tokenizer) {
  std::ifstream in(f.file);
  if (!in) fail(ErrorCode::kNotFound, "cannot read {}", f.file);
  std::vector<std::vector<int32_t>> out;
  for (std::string line; std::getline(in, line) && std::ssize(out) < f.requests;)
    if (auto ids = tokenizer.encode(line, {.add_special = true, .parse_special = false});
        !ids.empty())
      out.push_back(std::move(ids));
  if (out.empty()) fail(ErrorCode::kInvalidArgument, "{} has no prompts: one per line", f.file);
  return out;
}

Value measure_throughput(const ThroughputFlags& f) {
  OpenOptions flags = f.model;
  if (f.file.empty()) {
    if (flags.context == 0) flags.context = f.prompt + f.output;
    int64_t rows = flags.max_sequences > 0 ? flags.max_sequences : kDefaultSequences;
    flags.kv_tokens = std::min(f.requests, rows) * (f.prompt + f.output + 16);
  }
  flags.tune = [&](EngineConfig& config) {
    config.prefix_cache = !f.no_prefix_cache;
    config.max_queue = std::max(config.max_queue, f.requests);
  };
  LoadedModel model = load_with_progress(flags);
  std::vector<std::vector<int32_t>> prompts = f.file.empty()
                                                  ? random_prompts(f, model.source->plans().vocab)
                                                  : file_prompts(f, *model.tokenizer);
  int64_t inputs = 0;
  for (const auto& p : prompts) inputs += std::ssize(p);
  ProgressBar bar("bench throughput");
  Count count(prompts.size(), bar);
  SteadyClock clock;
  Nanos start = clock.now();
  auto n = static_cast<int64_t>(prompts.size());
  for (std::vector<int32_t>& prompt : prompts) {
    RequestSpec request;
    request.prompt = std::move(prompt);
    request.max_tokens = static_cast<int32_t>(f.output);
    model.engine->submit(std::move(request), [&count](Delta&& delta) { count.add(delta); });
  }
  int64_t tokens = count.wait();
  double wall = seconds(clock.now() - start);
  EngineStats stats = model.engine->stats();
  auto per_second = [&](int64_t amount) { return static_cast<double>(amount) / wall; };
  return Value::Object{{"model", model.name},
                       {"backend", model.backend->name()},
                       {"requests", n},
                       {"seconds", wall},
                       {"prompt_tokens", inputs},
                       {"cached_tokens", stats.prefix_hits},
                       {"completion_tokens", tokens},
                       {"requests_per_second", per_second(n)},
                       {"output_tokens_per_second", per_second(tokens)},
                       {"total_tokens_per_second", per_second(inputs + tokens)},
                       {"steps", stats.steps},
                       {"tokens_per_step", stats.step_tokens.mean()},
                       {"sequences_per_step", stats.step_sequences.mean()},
                       {"preemptions", stats.preemptions}};
}

void throughput(const ThroughputFlags& f) {
  if (f.prefix > f.prompt)
    fail(ErrorCode::kInvalidArgument, "--prefix {} is longer than --prompt {}", f.prefix, f.prompt);
  Value r = measure_throughput(f);
  if (f.json) {
    fmt::print("{}\n", dump_json(r, 2));
    return;
  }
  fmt::print("{} requests in {:.2f} s: {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} in all\n",
             r.at("requests").as_int(), r.at("seconds").as_double(),
             r.at("requests_per_second").as_double(), r.at("output_tokens_per_second").as_double(),
             r.at("total_tokens_per_second").as_double());
  fmt::print(
      "{} steps of {:.1f} tokens and {:.1f} sequences; {} of {} prompt tokens cached; {} "
      "preemptions\n",
      r.at("steps").as_int(), r.at("tokens_per_step").as_double(),
      r.at("sequences_per_step").as_double(), r.at("cached_tokens").as_int(),
      r.at("prompt_tokens").as_int(), r.at("preemptions").as_int());
}

}  // namespace

void add_bench_throughput(CLI::App& bench) {
  auto f = std::make_shared<ThroughputFlags>();
  CLI::App* verb = bench.add_subcommand(
      "throughput", "run many prompts at once through the engine, without a server");
  add_model_argument(*verb, f->model);
  verb->add_option("--requests", f->requests, "prompts")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--prompt", f->prompt, "tokens per prompt (random ids)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--output", f->output, "tokens per answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--prefix", f->prefix, "prompt tokens that all requests share")
      ->check(CLI::Range(0, 1 << 20));
  verb->add_option("--file", f->file, "prompts from a text file instead, one per line");
  add_batch_flags(*verb, f->model);
  verb->add_flag("--no-prefix-cache", f->no_prefix_cache,
                 "do not reuse the KV cache of common prefixes");
  verb->add_flag("--json", f->json, "print the result as JSON");
  add_model_flags(*verb, f->model);
  verb->footer(
      "Examples:\n  tokamak bench throughput model.gguf --requests 64 --prompt 128 --output 64\n"
      "  tokamak bench throughput model.gguf --file prompts.txt --json");
  verb->callback([f] { throughput(*f); });
}

}  // namespace tokamak
