// tokamak bench speculate: tokens per step and per second with each drafter and without, by kind of
// text.
#include "apps/bench_speculate.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct SpeculateFlags {
  OpenOptions model;
  std::string cases = "bench/speculate_cases.json";
  std::vector<std::string> methods = {"ngram", "suffix"};
  int32_t tokens = 128, drafts = 24, branches = 1;
  int repeat = 3;
  double temperature = 0;
  bool adaptive = true, json = false;
};

struct Case {
  std::string kind;
  std::vector<int32_t> prompt;
};

// Sums over all answers of one kind with one method.
struct Tally {
  int64_t tokens = 0, steps = 0, drafted = 0, accepted = 0;  // after the first token
  std::vector<double> seconds, cpu_seconds;                  // by round
  void add(const Tally& o, size_t round) {
    tokens += o.tokens;
    steps += o.steps;
    drafted += o.drafted;
    accepted += o.accepted;
    seconds.resize(std::max(seconds.size(), round + 1));
    cpu_seconds.resize(seconds.size());
    seconds[round] += o.seconds[0];
    cpu_seconds[round] += o.cpu_seconds[0];
  }
};

// A sequence gets one delta per step.
class Answer {
 public:
  void add(const Delta& delta) {
    std::lock_guard lock(mutex_);
    if (deltas_++ == 0) {
      first_ = SteadyClock().now();
      first_cpu_ = process_cpu_seconds();
    } else {
      tally_.tokens += static_cast<int64_t>(delta.ids.size());
      ++tally_.steps;
      tally_.drafted += delta.drafted;
      tally_.accepted += delta.accepted;
    }
    ids_.insert(ids_.end(), delta.ids.begin(), delta.ids.end());
    if (delta.finish == Finish::kNone) return;
    if (delta.finish != Finish::kLength && delta.finish != Finish::kStop)
      error_ = delta.error.empty() ? "the request failed" : delta.error;
    tally_.cpu_seconds = {process_cpu_seconds() - first_cpu_};
    tally_.seconds = {seconds(SteadyClock().now() - first_)};
    done_ = true;
    ready_.notify_all();
  }
  std::pair<std::vector<int32_t>, Tally> wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return done_; });
    if (!error_.empty()) fail(ErrorCode::kInternal, "{}", error_);
    return {std::move(ids_), std::move(tally_)};
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<int32_t> ids_;
  Tally tally_;
  Nanos first_ = 0;
  double first_cpu_ = 0;
  int64_t deltas_ = 0;
  bool done_ = false;
  std::string error_;
};

OpenOptions with_method(const SpeculateFlags& f, const std::string& method) {
  OpenOptions o = f.model;
  Value config = Value::Object{{"method", method},
                               {"num_speculative_tokens", f.drafts},
                               {"max_branches", method == "early_exit" ? 1 : f.branches},
                               {"adaptive", f.adaptive}};
  o.speculative = method == "off" ? "off" : dump_json(config);
  if (method != "draft_model") o.draft_model.clear();
  return o;
}

std::vector<Case> read_cases(const std::string& path, const LoadedModel& model) {
  std::vector<Case> out;
  Value input = parse_json(read_text_file(path), path);
  for (const Value& c : input.as_array()) {
    // A prompt, or a conversation; without a chat template, the texts of its messages.
    Value messages = Value::array();
    if (const Value* given = c.find("messages"))
      messages = *given;
    else
      messages.push(Value::Object{{"role", "user"}, {"content", c.at("prompt")}});
    std::string text;
    for (const Value& m : messages.as_array()) text += m.at("content").as_string() + "\n";
    if (model.chat_template) {
      Value context = Value::object();
      context.set("messages", std::move(messages));
      context.set("add_generation_prompt", true);
      context.set("bos_token", "");
      context.set("eos_token", "");
      text = model.chat_template->render(context);
    }
    out.push_back({c.at("kind").as_string(), model.tokenizer->encode(text)});
  }
  if (out.empty()) fail(ErrorCode::kInvalidArgument, "{} has no cases", path);
  return out;
}

std::pair<std::vector<int32_t>, Tally> answer(const LoadedModel& model, const Case& c,
                                              const SpeculateFlags& f) {
  SampleSpec sample;
  sample.temperature = static_cast<float>(f.temperature);
  sample.seed = f.model.seed;
  RequestSpec request;
  request.prompt = c.prompt;
  request.max_tokens = f.tokens;
  request.sample = std::make_shared<const SampleSpec>(sample);
  request.stop_ids = model.tokenizer->spec().eog_ids;
  if (int32_t eos = model.tokenizer->eos_id(); eos >= 0) request.stop_ids.push_back(eos);
  auto result = std::make_shared<Answer>();
  model.engine->submit(std::move(request), [result](Delta&& delta) { result->add(delta); });
  return result->wait();
}

using Tallies = std::map<std::pair<std::string, std::string>, Tally>;  // kind, method

// The methods take turns, so that all meet the same load of the machine, and none is always first.
Tallies measure(const SpeculateFlags& f, const std::vector<std::string>& methods,
                std::vector<std::string>& kinds) {
  std::vector<LoadedModel> models;
  for (const std::string& m : methods) models.push_back(load_with_progress(with_method(f, m)));
  std::vector<Case> cases = read_cases(f.cases, models[0]);
  for (const Case& c : cases)
    if (std::find(kinds.begin(), kinds.end(), c.kind) == kinds.end()) kinds.push_back(c.kind);
  ProgressBar bar("bench speculate");
  uint64_t done = 0;
  uint64_t total = cases.size() * methods.size() * static_cast<size_t>(f.repeat);
  Tallies out;
  for (int round = 0; round < f.repeat; ++round)
    for (const Case& c : cases) {
      std::vector<int32_t> first;
      for (size_t turn = 0; turn < methods.size(); ++turn) {
        const size_t m = (turn + static_cast<size_t>(round)) % methods.size();
        auto [ids, tally] = answer(models[m], c, f);
        if (turn == 0) first = ids;
        if (ids != first)
          fail(ErrorCode::kInternal,
               "{}: the answer to a case \"{}\" differs from the one of another method", methods[m],
               c.kind);
        out[{c.kind, methods[m]}].add(tally, static_cast<size_t>(round));
        bar.update(++done, total);
      }
    }
  return out;
}

Value row_of(const std::string& kind, const std::string& method, const Tally& t, const Tally& off) {
  auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  // Two answers in a row meet the same machine; those of different rounds may not.
  auto against = [&](const std::vector<double>& plain, const std::vector<double>& own) {
    std::vector<double> ratios;
    for (size_t i = 0; i < own.size(); ++i) ratios.push_back(ratio(plain[i], own[i]));
    return median(ratios);
  };
  auto number = [](int64_t n) { return static_cast<double>(n); };
  const double tokens = number(t.tokens) / static_cast<double>(t.seconds.size());  // of a round
  return Value::Object{{"kind", kind},
                       {"method", method},
                       {"tokens", t.tokens},
                       {"steps", t.steps},
                       {"tokens_per_step", ratio(number(t.tokens), number(t.steps))},
                       {"drafted", t.drafted},
                       {"accepted", t.accepted},
                       {"tokens_per_second", ratio(tokens, median(t.seconds))},
                       {"cpu_ms_per_token", ratio(1e3 * median(t.cpu_seconds), tokens)},
                       {"speed_against_off", against(off.seconds, t.seconds)},
                       {"cpu_against_off", against(off.cpu_seconds, t.cpu_seconds)}};
}

void bench_speculate(const SpeculateFlags& f) {
  std::vector<std::string> methods = {"off"};
  for (const std::string& m : f.methods)
    if (m != "off") methods.push_back(m);
  if (!f.model.draft_model.empty() &&
      std::find(methods.begin(), methods.end(), "draft_model") == methods.end())
    methods.push_back("draft_model");
  std::vector<std::string> kinds;
  Tallies tallies = measure(f, methods, kinds);
  Value rows = Value::array();
  for (const std::string& kind : kinds)
    for (const std::string& method : methods)
      rows.push(row_of(kind, method, tallies[{kind, method}], tallies[{kind, "off"}]));
  if (f.json) {
    fmt::print("{}\n", dump_json(rows, 2));
    return;
  }
  fmt::print("{:<12} {:<12} {:>11} {:>9} {:>9} {:>13} {:>10} {:>8} {:>8}\n", "kind", "method",
             "tokens/step", "drafted", "accepted", "CPU ms/token", "tokens/s", "to off", "CPU");
  for (const Value& r : rows.as_array())
    fmt::print("{:<12} {:<12} {:>11.2f} {:>9} {:>9} {:>13.2f} {:>10.1f} {:>8.3f} {:>8.3f}\n",
               r.at("kind").as_string(), r.at("method").as_string(),
               r.at("tokens_per_step").as_double(), r.at("drafted").as_int(),
               r.at("accepted").as_int(), r.at("cpu_ms_per_token").as_double(),
               r.at("tokens_per_second").as_double(), r.at("speed_against_off").as_double(),
               r.at("cpu_against_off").as_double());
}

}  // namespace

void add_bench_speculate(CLI::App& bench) {
  auto f = std::make_shared<SpeculateFlags>();
  CLI::App* verb = bench.add_subcommand(
      "speculate", "tokens per step and per second with drafters and without, by kind of text");
  add_model_argument(*verb, f->model);
  verb->add_option("--methods", f->methods, "drafters to compare with off")
      ->delimiter(',')
      ->check(CLI::IsMember({"off", "ngram", "suffix", "early_exit", "lookahead", "draft_model"}))
      ->capture_default_str();
  verb->add_option("--draft-model", f->model.draft_model,
                   "a smaller model, compared as draft_model");
  verb->add_option("--cases", f->cases, "JSON file with prompts and their kinds")
      ->capture_default_str();
  verb->add_option("--tokens", f->tokens, "maximum number of tokens per answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_option("--drafts", f->drafts, "maximum number of drafted tokens per step")
      ->check(CLI::Range(1, EngineStats::kDraftPositions))
      ->capture_default_str();
  verb->add_option("--branches", f->branches,
                   "maximum number of drafts that continue the same token")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  verb->add_option("--repeat", f->repeat,
                   "rounds; medians of their times and of their ratios are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--temperature", f->temperature, "sampling temperature")
      ->check(CLI::Range(0.0, 2.0));
  verb->add_flag_callback(
      "--no-adaptive", [f] { f->adaptive = false; }, "always draft as many as allowed");
  verb->add_flag("--json", f->json, "print the rows as JSON");
  add_model_flags(*verb, f->model);
  verb->footer("Example:\n  tokamak bench speculate model.gguf --methods ngram,suffix --repeat 5");
  verb->callback([f] { bench_speculate(*f); });
}

}  // namespace tokamak
