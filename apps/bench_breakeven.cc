// tokamak bench breakeven: the acceptance rate above which drafts pay off, as the cost model
// predicts it and as it is measured with drafts of a known acceptance.
#include "apps/bench_breakeven.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "apps/model_flags.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "engine/draft/step_cost.h"

namespace tokamak {
namespace {

struct BreakevenFlags {
  OpenOptions model;
  int32_t tokens = 96, drafts = 4, prompt = 32;
  int repeat = 3;
  bool json = false;
};

// Knows the answer and proposes its next tokens, each of them right with a set probability.
class KnownAnswer final : public Drafter {
 public:
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      auto at = static_cast<size_t>(std::ssize(r.ids) - r.prompt_length);
      for (int32_t i = 0; i < r.most && at < answer.size(); ++i, ++at) {
        bool right = rng_.uniform() < acceptance;
        r.tokens.push_back({right ? answer[at] : (answer[at] + 1) % vocab, i - 1});
      }
    }
  }
  // Set while no request runs.
  std::vector<int32_t> answer;
  double acceptance = 0;
  int32_t vocab = 2;

 private:
  Rng rng_{1};
};

// One answer: its tokens, and the process's CPU time from its first token on. Machines with other
// work give the same, unlike the time of a clock.
struct Timed {
  std::vector<int32_t> ids;
  int64_t tokens = 0, steps = 0, rows = 0;  // after the first step
  double seconds = 0;
};

class TimedAnswer {
 public:
  void add(const Delta& delta) {
    std::lock_guard lock(mutex_);
    if (out_.ids.empty()) {
      begin_ = process_cpu_seconds();
    } else {
      ++out_.steps;
      out_.tokens += std::ssize(delta.ids);
      out_.rows += 1 + delta.drafted;
    }
    out_.ids.insert(out_.ids.end(), delta.ids.begin(), delta.ids.end());
    if (delta.finish == Finish::kNone) return;
    out_.seconds = process_cpu_seconds() - begin_;
    error_ = delta.error;
    done_ = true;
    ready_.notify_all();
  }
  Timed wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return done_; });
    if (!error_.empty()) fail(ErrorCode::kInternal, "{}", error_);
    return out_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  Timed out_;
  std::string error_;
  double begin_ = 0;
  bool done_ = false;
};

Timed timed_answer(const LoadedModel& model, const BreakevenFlags& f, int32_t drafts) {
  RequestSpec request;
  for (int32_t i = 0; i < f.prompt; ++i) request.prompt.push_back(10 + (i * 37) % 101);
  request.max_tokens = f.tokens;
  request.draft_tokens = drafts;
  SampleSpec sample;
  sample.temperature = 0;
  request.sample = std::make_shared<const SampleSpec>(sample);
  auto result = std::make_shared<TimedAnswer>();
  model.engine->submit(std::move(request), [result](Delta&& delta) { result->add(delta); });
  return result->wait();
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The acceptance a with which a step with k drafts gives this many tokens, 1 + a + ... + a^k. With
// the time of such a step, in plain steps, as the tokens: where drafts begin to pay; 1: never.
double acceptance_for(double tokens_per_step, int32_t drafts) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    double a = (low + high) / 2, tokens = 0, chance = 1;
    for (int32_t k = 0; k <= drafts; ++k, chance *= a) tokens += chance;
    (tokens < tokens_per_step ? low : high) = a;
  }
  return (low + high) / 2;
}

// Speed against plain decoding at each acceptance, in turns.
struct Curve {
  std::vector<double> acceptance, measured, speed;
};

Curve measure_curve(const LoadedModel& model, KnownAnswer& oracle, const BreakevenFlags& f,
                    const std::vector<int32_t>& answer, StepCost& cost) {
  Curve out;
  for (int i = 0; i <= 10; ++i) out.acceptance.push_back(0.1 * i);
  std::vector<std::vector<double>> speeds(out.acceptance.size());
  out.measured.assign(out.acceptance.size(), 0);
  auto run = [&](int32_t drafts) {
    Timed t = timed_answer(model, f, drafts);
    if (t.ids != answer) fail(ErrorCode::kInternal, "the answer with drafts differs");
    cost.observe(1 + drafts, t.seconds / static_cast<double>(t.steps));
    return t;
  };
  for (int round = 0; round < f.repeat; ++round)
    for (size_t i = 0; i < out.acceptance.size(); ++i) {
      Timed t = run(0);
      const double plain = static_cast<double>(t.tokens) / t.seconds;
      oracle.acceptance = out.acceptance[i];
      t = run(f.drafts);
      speeds[i].push_back(static_cast<double>(t.tokens) / t.seconds / plain);
      out.measured[i] += static_cast<double>(t.tokens) / static_cast<double>(t.steps) / f.repeat;
    }
  for (auto& s : speeds) out.speed.push_back(median_of(s));
  return out;
}

// Where the speed becomes 1, between two measured points. Of a few drafts more or less are accepted
// than the oracle was set to: the points are at what was accepted.
double measured_breakeven(const Curve& c, int32_t drafts) {
  auto at = [&](size_t i) { return acceptance_for(c.measured[i], drafts); };
  for (size_t i = 1; i < c.speed.size(); ++i)
    if (c.speed[i - 1] < 1 && c.speed[i] >= 1)
      return at(i - 1) + (at(i) - at(i - 1)) * (1 - c.speed[i - 1]) / (c.speed[i] - c.speed[i - 1]);
  return c.speed.empty() || c.speed[0] >= 1 ? 0 : 1;
}

void bench_breakeven(BreakevenFlags& f) {
  KnownAnswer* oracle = nullptr;
  f.model.make_drafter = [&] {
    auto drafter = std::make_unique<KnownAnswer>();
    oracle = drafter.get();
    return drafter;
  };
  f.model.tune = [&](EngineConfig& config) {
    config.draft_tokens = f.drafts;
    config.adaptive_drafts = false;
    config.prefix_cache = false;
  };
  LoadedModel model = load_with_progress(f.model);
  oracle->vocab = static_cast<int32_t>(model.source->plans().vocab);
  oracle->answer = timed_answer(model, f, 0).ids;
  StepCost cost;
  Curve curve = measure_curve(model, *oracle, f, oracle->answer, cost);
  double ratio = cost.seconds(1 + f.drafts) / cost.seconds(1);
  double predicted = acceptance_for(ratio, f.drafts);
  double measured = measured_breakeven(curve, f.drafts);
  double off = measured > 0 ? std::abs(predicted - measured) / measured : predicted;
  if (f.json) {
    Value points = Value::array();
    for (size_t i = 0; i < curve.speed.size(); ++i)
      points.push(Value::Object{{"acceptance", curve.acceptance[i]},
                                {"tokens_per_step", curve.measured[i]},
                                {"speed_against_off", curve.speed[i]}});
    fmt::print("{}\n", dump_json(Value::Object{{"drafts", f.drafts},
                                               {"step_ratio", ratio},
                                               {"predicted", predicted},
                                               {"measured", measured},
                                               {"difference", off},
                                               {"points", std::move(points)}},
                                 1));
    return;
  }
  fmt::print("{:>10} {:>11} {:>8}\n", "acceptance", "tokens/step", "to off");
  for (size_t i = 0; i < curve.speed.size(); ++i)
    fmt::print("{:>10.2f} {:>11.2f} {:>8.3f}\n", curve.acceptance[i], curve.measured[i],
               curve.speed[i]);
  fmt::print(
      "a step with {} drafts takes {:.2f} times as long as one without\n"
      "drafts pay from an acceptance of {:.3f} (predicted), {:.3f} (measured): {:.1f} % apart\n",
      f.drafts, ratio, predicted, measured, 100 * off);
}

}  // namespace

void add_bench_breakeven(CLI::App& bench) {
  auto f = std::make_shared<BreakevenFlags>();
  CLI::App* verb = bench.add_subcommand(
      "breakeven",
      "the acceptance rate above which drafts pay off: predicted by the cost model, and measured");
  add_model_argument(*verb, f->model);
  verb->add_option("--tokens", f->tokens, "tokens per answer")
      ->check(CLI::Range(8, 1 << 16))
      ->capture_default_str();
  verb->add_option("--prompt", f->prompt, "tokens of the prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  verb->add_option("--drafts", f->drafts, "drafted tokens per step")
      ->check(CLI::Range(1, EngineStats::kDraftPositions))
      ->capture_default_str();
  verb->add_option("--repeat", f->repeat, "rounds; the median time is used")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_flag("--json", f->json, "print the result as JSON");
  add_model_flags(*verb, f->model);
  verb->footer("Example:\n  tokamak bench breakeven model.gguf --threads 1 --drafts 4");
  verb->callback([f] { bench_breakeven(*f); });
}

}  // namespace tokamak
