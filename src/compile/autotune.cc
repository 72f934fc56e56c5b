#include "compile/autotune.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/log.h"
#include "compile/explain/step_shape.h"
#include "compile/fuse/report.h"

namespace tokamak {
namespace {

// Sizes of measured steps: large enough for a plan's kernels to be busy, small enough for many
// runs.
constexpr int64_t kTokens = 128, kSequences = 16, kLength = 256;
constexpr size_t kBestFew = 3;         // alternatives of a group of calls
constexpr double kWorthTrying = 4;     // times the predicted time of the best one
constexpr double kFaster = 0.99;       // an alternative replaces the prediction below this share
constexpr double kTrialSeconds = 0.2;  // for all runs of one alternative
constexpr double kMostSeconds = 60;    // for all of them; plans that are left keep the prediction

struct Alternative {
  std::string group, kernel, predicted;
};

struct TunedRequest {
  size_t index;  // of the request
  StepShape shape;
  std::vector<Alternative> alternatives;
};

// The shape at which the plan of a request is measured; `below`: the largest size of the plans that
// are more specific.
StepShape trial_shape(const PlanRequest& request, int64_t below, int64_t context) {
  const std::string& name = request.plan_function();
  int64_t rows = rows_per_sequence(name), size = 1;
  const bool chunk = rows == 0;
  for (const GuardRange& g : request.guard)
    if (g.symbol == (chunk ? "T" : "B"))
      size = std::min(g.hi, std::max(chunk ? kTokens : kSequences, below + 1));
  StepShape shape;
  shape.sequences = chunk ? (size + context - 1) / context : size;
  shape.tokens = chunk ? size : rows * size;
  shape.kv_len = std::min(context, std::max(kLength, shape.tokens / shape.sequences + 1));
  shape.logit_rows = chunk ? shape.sequences : shape.tokens;
  return shape;
}

int64_t largest_size(const PlanRequest& request) {
  for (const GuardRange& g : request.guard)
    if (g.symbol == "T" || g.symbol == "B") return g.hi;
  return 0;
}

bool measurable(const PlanRequest& request) {
  const std::string& name = request.plan_function();
  return name == "step" || rows_per_sequence(name) > 0;
}

std::vector<Alternative> alternatives_of(const FusionReport& report, size_t plan) {
  std::vector<Alternative> out;
  std::set<std::string> seen;
  for (const KernelChoice& choice : report.choices) {
    if (choice.plan != plan || !seen.insert(choice.group).second) continue;
    std::vector<KernelChoice::Loser> rest = choice.losers;
    std::erase_if(rest, [&](const KernelChoice::Loser& l) {
      return l.reason != "slower" || !(l.seconds <= kWorthTrying * choice.seconds);
    });
    std::stable_sort(rest.begin(), rest.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    rest.resize(std::min(rest.size(), kBestFew));
    for (const auto& l : rest) out.push_back({choice.group, l.kernel, choice.kernel});
  }
  return out;
}

std::vector<TunedRequest> find_alternatives(const std::vector<PlanRequest>& requests,
                                            const PlanSet& empty, const Backend& backend,
                                            const Machine& machine) {
  PlanSet predicted = empty;
  FusionReport report;
  plan_functions(predicted, requests, backend, machine, &report);
  std::vector<TunedRequest> out;
  std::map<std::string, int64_t> below;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!measurable(requests[i])) continue;
    int64_t& smaller = below[requests[i].plan_function()];
    TunedRequest t{i, trial_shape(requests[i], smaller, empty.context), alternatives_of(report, i)};
    smaller = std::max(smaller, largest_size(requests[i]));
    if (!t.alternatives.empty()) out.push_back(std::move(t));
  }
  return out;
}

// A loaded set of plans, among them trials with names of their own.
class Trials {
 public:
  Trials(const std::vector<PlanRequest>& requests, const std::vector<TunedRequest>& tuned,
         const PlanSet& empty, const Backend& backend, const Machine& machine,
         const CompileOptions& options)
      : set_(empty) {
    plan_functions(set_, requests, backend, machine);
    LoadOptions load;
    load.blocks.resize(set_.groups.size());
    for (const TunedRequest& t : tuned) {
      std::vector<int64_t> blocks = blocks_for(set_, t.shape);
      for (size_t g = 0; g < blocks.size(); ++g)
        load.blocks[g] = std::max(load.blocks[g], blocks[g]);
      load.max_rows = std::max(load.max_rows, t.shape.sequences);
    }
    executable_ = options.load_trial(set_, load);
  }

  // Shortest time of a step with each plan. They take turns, so that what disturbs the machine
  // disturbs all of them.
  std::vector<double> seconds(const StepShape& shape, const std::vector<std::string>& names) {
    std::vector<StepInputs> steps;
    for (const std::string& name : names) {
      steps.push_back(make_step(set_, name, shape));
      for (SampleRow& row : steps.back().samples) row.mode = SampleRow::Mode::kHidden;
    }
    for (StepInputs& step : steps) run(step);  // the first touches memory
    std::vector<double> best(steps.size(), INFINITY);
    int rounds = 3;
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < steps.size(); ++i) best[i] = std::min(best[i], run(steps[i]));
      if (round == 0)
        rounds = std::clamp(static_cast<int>(kTrialSeconds / std::max(best[0], 1e-9)), 3, 50);
    }
    return best;
  }

 private:
  double run(const StepInputs& step) {
    Nanos start = SteadyClock().now();
    executable_->collect(executable_->submit(step), result_);
    return tokamak::seconds(SteadyClock().now() - start);
  }

  PlanSet set_;
  std::unique_ptr<Executable> executable_;
  StepResult result_;
};

std::string trial_name(const PlanRequest& request, size_t plan, size_t trial) {
  return fmt::format("{}#{}.{}", request.plan_function(), plan, trial);
}

// Runs every alternative by itself, and forces the fastest of each group.
void force_fastest(std::vector<PlanRequest>& requests, const std::vector<TunedRequest>& tuned,
                   const PlanSet& empty, const Backend& backend, const Machine& machine,
                   const CompileOptions& options) {
  std::vector<PlanRequest> all = requests;
  for (const TunedRequest& t : tuned)
    for (size_t i = 0; i < t.alternatives.size(); ++i) {
      all.push_back(requests[t.index]);
      all.back().forced = {{t.alternatives[i].group, t.alternatives[i].kernel}};
      all.back().name = trial_name(requests[t.index], t.index, i);
    }
  Trials trials(all, tuned, empty, backend, machine, options);
  const Nanos start = SteadyClock().now();
  for (const TunedRequest& t : tuned) {
    if (seconds(SteadyClock().now() - start) > kMostSeconds) {
      log::warn("max-autotune: out of time at plan {} of {}", t.index, requests.size());
      break;
    }
    std::vector<std::string> names = {requests[t.index].plan_function()};
    for (size_t i = 0; i < t.alternatives.size(); ++i)
      names.push_back(trial_name(requests[t.index], t.index, i));
    std::vector<double> times = trials.seconds(t.shape, names);
    std::map<std::string, double> best;  // by group
    for (size_t i = 0; i < t.alternatives.size(); ++i) {
      const Alternative& a = t.alternatives[i];
      auto [it, fresh] = best.try_emplace(a.group, kFaster * times[0]);
      if (times[i + 1] >= it->second) continue;
      it->second = times[i + 1];
      requests[t.index].forced[a.group] = a.kernel;
    }
  }
}

TunedPlan plan_report(const PlanRequest& request, const TunedRequest& t,
                      const std::vector<double>& seconds) {
  TunedPlan out{
      request.plan_function(), t.index, t.alternatives.size(), seconds[0], seconds[0], {}};
  if (request.forced.empty()) return out;
  out.seconds_after = seconds[1];
  for (const auto& [group, kernel] : request.forced)
    for (const Alternative& a : t.alternatives)
      if (a.group == group && a.kernel == kernel)
        out.changes.push_back(fmt::format("{}: {} instead of {}", group, kernel, a.predicted));
  return out;
}

// Keeps the changes of a plan only if all of them together are faster than the prediction.
std::vector<TunedPlan> keep_faster(std::vector<PlanRequest>& requests,
                                   const std::vector<TunedRequest>& tuned, const PlanSet& empty,
                                   const Backend& backend, const Machine& machine,
                                   const CompileOptions& options) {
  std::vector<PlanRequest> all = requests;
  for (const TunedRequest& t : tuned) {
    all[t.index].forced.clear();
    all.push_back(requests[t.index]);
    all.back().name = trial_name(requests[t.index], t.index, 0);
  }
  Trials trials(all, tuned, empty, backend, machine, options);
  std::vector<TunedPlan> out;
  for (const TunedRequest& t : tuned) {
    PlanRequest& request = requests[t.index];
    std::vector<double> seconds =
        trials.seconds(t.shape, {request.plan_function(), trial_name(request, t.index, 0)});
    if (seconds[1] >= kFaster * seconds[0]) request.forced.clear();
    out.push_back(plan_report(request, t, seconds));
  }
  return out;
}

}  // namespace

TrialLoader trial_loader(Backend& backend, const WeightSource& weights) {
  return [&](const PlanSet& plans, const LoadOptions& options) {
    return backend.load(plans, weights, options);
  };
}

void tune_requests(std::vector<PlanRequest>& requests, const PlanSet& empty, const Backend& backend,
                   const Machine& machine, const CompileOptions& options) {
  if (!options.load_trial || empty.states.empty() || options.tree_mask) {
    log::warn("max-autotune: encoders and models with draft trees are not measured");
    return;
  }
  Nanos start = SteadyClock().now();
  std::vector<TunedRequest> tuned = find_alternatives(requests, empty, backend, machine);
  if (tuned.empty()) return;
  force_fastest(requests, tuned, empty, backend, machine, options);
  std::vector<TunedPlan> plans = keep_faster(requests, tuned, empty, backend, machine, options);
  size_t trials = 0, changed = 0;
  for (const TunedPlan& p : plans) {
    trials += p.trials;
    changed += !p.changes.empty();
    for (const std::string& change : p.changes)
      log::info("max-autotune: {} (plan {}), {:.3f} -> {:.3f} ms: {}", p.function, p.plan,
                1e3 * p.seconds_before, 1e3 * p.seconds_after, change);
  }
  log::info("max-autotune: measured {} alternatives of {} plans in {:.1f} s; {} plans changed",
            trials, plans.size(), seconds(SteadyClock().now() - start), changed);
  if (options.fusion) options.fusion->tuned = std::move(plans);
}

}  // namespace tokamak
