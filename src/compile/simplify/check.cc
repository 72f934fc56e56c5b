#include "compile/simplify/check.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/region.h"
#include "graph/sensitivity.h"

namespace tokamak {
namespace {

constexpr double kLossy = 1e-2;      // squared error of passes that change values on purpose
constexpr double kDelta = 1e-10;     // relative change with which sensitivity is measured
constexpr double kRounding = 1e-6;   // relative error of a few float32 operations
constexpr double kSmallest = 1e-37;  // differences that are underflow
// Kernels also round inside an op (1 + tanh x in gelu): relative to the root mean square of a
// result.
constexpr double kInside = 0x1p-24;

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += std::isfinite(v) ? v * v : 0;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(values.size(), 1)));
}

// Values of all results and planes by name.
std::map<std::string, std::vector<double>> values_of(const EvalResults<double>& results) {
  std::map<std::string, std::vector<double>> out;
  for (const auto& [name, t] : results.tensors)
    if (!t.integer) out[name] = t.f;
  for (const auto& [name, s] : results.states)
    for (const auto& p : s.planes) out[fmt::format("{}.{}", name, p.name)] = p.data;
  return out;
}

// The relative error of storing a value in a plane of this type.
double storing_error(DType dtype) {
  if (dtype == DType::kF32) return 0;
  return dtype == DType::kF16 ? 0x1p-10 : dtype == DType::kBF16 ? 0x1p-7 : 0x1p-6;
}

// Values that are stored in a state are rounded more: by how much, for the nodes that compute them.
std::map<const Node*, double> stored_nodes(const Function& function) {
  std::map<const Node*, double> out;
  auto walk = [&](const Function& fn) {
    for (const Node& node : fn.nodes()) {
      if (!node.op->writes_state || is_region(node)) continue;
      const StateDecl* state = fn.module().find_state(node.outputs[0].name);
      for (size_t p = 0; state && p < state->planes.size(); ++p)
        out[&fn.node(node.inputs.at(4 + p).node)] =
            1 + storing_error(state->planes[p].type.dtype) / kRounding;
    }
  };
  walk(function);
  for (const std::string& name : body_names(function.module()))
    walk(*function.module().find_function(name));
  return out;
}

template <class S>
class Comparer {
 public:
  Comparer(const ErrorBounds& bounds, const CheckOptions& options, CheckReport& report)
      : bounds_(bounds), options_(options), report_(report) {}

  void compare(const EvalResults<S>& a, const EvalResults<S>& b) {
    for (const auto& [name, t] : a.tensors) {
      auto other = b.tensors.find(name);
      if (other == b.tensors.end()) {
        differs(name, "the result is missing");
        continue;
      }
      if (t.dims != other->second.dims) differs(name, "another shape");
      if (t.i != other->second.i) differs(name, "integers differ");
      values(name, t.f, other->second.f);
    }
    for (const auto& [name, s] : a.states) {
      auto other = b.states.find(name);
      if (other == b.states.end()) {
        differs(name, "the state is missing");
        continue;
      }
      for (size_t p = 0; p < s.planes.size(); ++p)
        values(fmt::format("{}.{}", name, s.planes[p].name), s.planes[p].data,
               other->second.planes[p].data);
    }
  }

  void differs(const std::string& where, const std::string& what) {
    report_.same = report_.bits = false;
    if (report_.message.empty()) report_.message = fmt::format("{}: {}", where, what);
  }

 private:
  static bool same_bits(S a, S b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  }

  void values(const std::string& where, const std::vector<S>& a, const std::vector<S>& b) {
    if (a.size() != b.size()) return differs(where, "another number of values");
    double error = 0, power = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      double x = a[i], y = b[i];
      if (std::isfinite(x)) power += x * x;
      if (same_bits(a[i], b[i]) || (options_.wide && !std::isfinite(x))) continue;
      report_.bits = false;
      if (options_.cls == PassClass::kExact)
        differs(where, fmt::format("value {} is {} before and {} after", i, x, y));
      if (options_.cls == PassClass::kReal) check_bound(where, i, x, y);
      if (!std::isfinite(x - y)) continue;
      if (std::abs(x - y) > report_.error || report_.where.empty()) report_.where = where;
      report_.error = std::max(report_.error, std::abs(x - y));
      error += (x - y) * (x - y);
    }
    double nmse = error / std::max(power, 1e-30);
    report_.nmse = std::max(report_.nmse, nmse);
    if (options_.cls == PassClass::kLossy && nmse > kLossy)
      differs(where, fmt::format("the squared error is {:.3g} of the values'", nmse));
  }

  // Rounding must explain the difference to the value before, or to the exact one (the value before
  // may have overflowed).
  void check_bound(const std::string& where, size_t i, double x, double y) {
    double bound = bounds_.error.at(where)[i], exact = bounds_.exact.at(where)[i];
    if (std::isinf(bound)) return;
    double off = std::min(std::abs(x - y), std::abs(exact - y));
    if (std::isnan(x) || std::isnan(exact))
      off = std::isnan(x) ? std::abs(exact - y) : std::abs(x - y);
    if (std::isfinite(off)) report_.of_bound = std::max(report_.of_bound, off / bound);
    if (!(off <= bound))
      differs(where, fmt::format("value {} is {} before and {} after; rounding explains {:.3g}", i,
                                 x, y, bound));
  }

  const ErrorBounds& bounds_;
  const CheckOptions& options_;
  CheckReport& report_;
};

// The interpreter keeps every value, so a graph that would take gigabytes is not run.
void check_size(const Function& fn, const SymbolValues& symbols) {
  double elements = 0;
  for (const Node& node : fn.nodes())
    for (const Type& t : node.outputs) {
      if (t.kind != Type::Kind::kTensor) continue;
      double n = 1;
      for (const Dim& d : t.tensor.dims) n *= static_cast<double>(d.extent.eval(symbols));
      elements += n;
    }
  if (elements > 3e8)
    fail(ErrorCode::kUnsupported,
         "the function has {:.3g} values in total, the limit is 3e8; give its symbols smaller "
         "ranges",
         elements);
}

template <class S>
void run_once(const Function& before, const Function& after, Rng& rng, Values kind,
              const CheckOptions& options, CheckReport& report) {
  EvalInputs<double> exact;
  EvalInputs<S> inputs;
  EvalResults<S> want;
  try {
    SymbolValues symbols = random_symbols(before, rng);
    check_size(before, symbols);
    exact = random_inputs(before, symbols, rng, kind);
    inputs = convert_inputs<S>(exact);
    want = evaluate<S>(before, inputs);
  } catch (const Error& e) {  // symbol values that do not fit together: nothing to compare
    if (report.message.empty() && report.runs == 0) report.message = e.what();
    return;
  }
  if (report.runs++ == 0) report.message.clear();
  ErrorBounds bounds;
  Comparer<S> comparer(bounds, options, report);
  try {
    EvalResults<S> have = evaluate<S>(after, inputs);
    if (options.cls == PassClass::kReal) bounds = error_bounds(before, after, exact, 1);
    comparer.compare(want, have);
  } catch (const Error& e) {
    comparer.differs(after.name(), fmt::format("it fails after the passes: {}", e.what()));
  }
}

}  // namespace

ErrorBounds error_bounds(const Function& before, const Function& after,
                         const EvalInputs<double>& inputs, double roundings) {
  ErrorBounds out;
  for (const Function* fn : {&before, &after}) {
    std::map<const Node*, double> stored = stored_nodes(*fn);
    auto weight = [&](const Node& node) {
      auto it = stored.find(&node);
      return it == stored.end() ? 1 : it->second;
    };
    std::vector<std::string> names;
    Spread spread = measure_spread(
        [&](const EvalVisitor<double>& visit) {
          std::vector<std::vector<double>> values;
          names.clear();
          for (auto& [name, v] : values_of(evaluate<double>(*fn, inputs, visit))) {
            names.push_back(name);
            values.push_back(std::move(v));
          }
          return values;
        },
        kDelta, 3, 1, weight);
    for (size_t r = 0; r < names.size(); ++r) {
      if (fn == &before) out.exact[names[r]] = spread.values[r];
      std::vector<double>& error = out.error[names[r]];
      error.resize(std::max(error.size(), spread.by[r].size()), kSmallest);
      const double inside = roundings > 1 ? kInside * root_mean_square(spread.values[r]) : 0;
      for (size_t i = 0; i < spread.by[r].size(); ++i) {
        double own = std::abs(spread.values[r][i]);
        error[i] += inside + roundings * kRounding *
                                 (spread.by[r][i] / kDelta + (std::isfinite(own) ? own : 0));
      }
    }
  }
  return out;
}

void compare_runs(const EvalResults<float>& before, const EvalResults<float>& after,
                  const ErrorBounds& bounds, const CheckOptions& options, CheckReport& report) {
  Comparer<float>(bounds, options, report).compare(before, after);
}

CheckReport check_functions(const Function& before, const Function& after,
                            const CheckOptions& options) {
  CheckReport report;
  for (int run = 0; run < options.runs; ++run) {
    Rng rng(options.seed * 1000003 + static_cast<uint64_t>(run));
    // The last run of an exact pass uses NaN, infinities and signed zeros.
    bool nasty = options.cls == PassClass::kExact && run + 1 == options.runs && run > 0;
    Values kind = nasty ? Values::kNasty : Values::kNormal;
    if (options.wide)
      run_once<double>(before, after, rng, kind, options, report);
    else
      run_once<float>(before, after, rng, kind, options, report);
  }
  return report;
}

PassClass class_of(const std::vector<const Pass*>& passes) {
  PassClass cls = PassClass::kExact;
  for (const Pass* pass : passes) cls = std::max(cls, pass->cls);
  return cls;
}

namespace {

class Bisection {
 public:
  Bisection(const Module& module, const std::string& function, const PassContext& context,
            const CheckOptions& options)
      : module_(module), function_(function), context_(context), options_(options) {}

  Culprit run() {
    std::vector<const Pass*> passes;
    for (const Pass* pass : chosen_passes(context_.options))
      if (!context_.options.disabled_passes.contains(std::string(pass->name)))
        passes.push_back(pass);
    size_t last = passes.size();
    if (holds(passes, last, SIZE_MAX)) return culprit_;
    // The first `good` passes are right, the first `bad` are not.
    size_t good = 0, bad = last;
    while (bad - good > 1) {
      size_t middle = (good + bad) / 2;
      (holds(passes, middle, SIZE_MAX) ? good : bad) = middle;
    }
    culprit_.found = true;
    culprit_.pass = passes[bad - 1]->name;
    size_t before = firings(passes, bad - 1), all = firings(passes, bad);
    if (all == before) return culprit_;
    size_t fine = before, wrong = all;
    while (wrong - fine > 1) {
      size_t middle = fine + (wrong - fine) / 2;
      (holds(passes, bad, middle) ? fine : wrong) = middle;
    }
    holds(passes, bad, wrong);
    culprit_.firing = last_firing_;
    return culprit_;
  }

 private:
  // Runs the first `count` passes with at most `firings` rewrites.
  size_t apply(Module& copy, const std::vector<const Pass*>& passes, size_t count, size_t firings) {
    CompileOptions options = context_.options;
    options.passes.clear();
    options.dump_after.clear();
    for (size_t i = 0; i < count; ++i) options.passes.emplace_back(passes[i]->name);
    if (count == 0) return 0;
    size_t left = firings;
    PassContext inner{context_.backend, options, nullptr, &left, &last_firing_};
    run_passes(copy, *copy.find_function(function_), inner);
    return firings - left;
  }

  bool holds(const std::vector<const Pass*>& passes, size_t count, size_t firings) {
    ++culprit_.checks;
    Module copy = module_.clone();
    try {
      apply(copy, passes, count, firings);
    } catch (const Error&) {
      return false;  // the verifier refused the result of a pass
    }
    CheckOptions options = options_;
    options.cls = class_of({passes.begin(), passes.begin() + static_cast<std::ptrdiff_t>(count)});
    return check_functions(*module_.find_function(function_), *copy.find_function(function_),
                           options)
        .same;
  }

  size_t firings(const std::vector<const Pass*>& passes, size_t count) {
    Module copy = module_.clone();
    try {
      return apply(copy, passes, count, SIZE_MAX / 2);
    } catch (const Error&) {
      return 0;
    }
  }

  const Module& module_;
  std::string function_;
  const PassContext& context_;
  CheckOptions options_;
  Culprit culprit_;
  std::string last_firing_;
};

}  // namespace

Culprit bisect(const Module& module, const std::string& function, const PassContext& context,
               const CheckOptions& options) {
  return Bisection(module, function, context, options).run();
}

}  // namespace tokamak
