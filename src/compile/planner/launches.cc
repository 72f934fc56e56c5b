#include "compile/planner/launches.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/hash.h"

namespace tokamak {
namespace {

struct LaunchCandidate {
  const LaunchDesc* desc;
  LaunchMatch match;
  double seconds = 0;
};

std::string launch_guard_text(const GuardRange& g) {
  return g.lo > 1 ? fmt::format("guard {} <= {} <= {}", g.lo, g.symbol, g.hi)
                  : fmt::format("guard {} <= {}", g.symbol, g.hi);
}

// The range that a plan leaves a symbol.
GuardRange range_in(const PlanSet& set, const Plan& plan, const std::string& symbol) {
  for (const GuardRange& g : plan.guard)
    if (g.symbol == symbol) return g;
  for (const SymbolDecl& s : set.symbols)
    if (s.name == symbol) return {symbol, s.lo, s.hi};
  return {symbol, 0, std::numeric_limits<int64_t>::max()};
}

std::string refusal(const LaunchDesc& desc, const PlanSet& set, const Plan& plan,
                    const Backend& backend, LaunchMatch& match) {
  if (!isa_has(backend.isa(), desc.needs)) return "needs " + desc.needs;
  match = desc.match(desc, set, plan);
  if (!match.refused.empty()) return match.refused;
  for (const GuardRange& g : desc.guard)
    if (GuardRange in = range_in(set, plan, g.symbol); in.lo < g.lo || in.hi > g.hi)
      return launch_guard_text(g);
  return {};
}

uint32_t kernel_index(PlanSet& set, const LaunchDesc& desc) {
  for (size_t i = 0; i < set.kernels.size(); ++i)
    if (set.kernels[i].name == desc.name) return static_cast<uint32_t>(i);
  set.kernels.push_back({desc.name, desc.abi, desc.numeric_class});
  return static_cast<uint32_t>(set.kernels.size() - 1);
}

LaunchChoice choose_launches(PlanSet& set, size_t index, const Backend& backend,
                             const Machine& machine) {
  Plan& plan = set.plans[index];
  LaunchChoice out{index, plan.seconds, {}};
  std::vector<LaunchChoice::Option> losers;
  std::vector<LaunchCandidate> candidates;
  for (const LaunchDesc& desc : backend.launches()) {
    LaunchMatch match;
    if (std::string why = refusal(desc, set, plan, backend, match); !why.empty())
      losers.push_back({desc.name, desc.steps, 0, why});
    else
      candidates.push_back({&desc, match, desc.cost(desc, set, plan, machine)});
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const LaunchCandidate& a, const LaunchCandidate& b) { return a.seconds < b.seconds; });
  for (const LaunchCandidate& c : candidates) {
    const bool known = std::any_of(out.options.begin(), out.options.end(),
                                   [&](const auto& o) { return o.steps == c.desc->steps; });
    if (known || c.seconds >= plan.seconds) {
      losers.push_back({c.desc->name, c.desc->steps, c.seconds, "slower"});
      continue;
    }
    plan.launches.push_back({kernel_index(set, *c.desc), c.match.first, c.match.calls, c.seconds});
    out.options.push_back({c.desc->name, c.desc->steps, c.seconds, {}});
  }
  out.options.insert(out.options.end(), losers.begin(), losers.end());
  return out;
}

}  // namespace

void plan_launches(PlanSet& set, const Backend& backend, const Machine& machine,
                   FusionReport* report) {
  if (backend.launches().empty()) return;
  std::vector<LaunchChoice> choices;
  std::set<std::string> classes;
  for (size_t i = 0; i < set.plans.size(); ++i) {
    choices.push_back(choose_launches(set, i, backend, machine));
    for (const PlanLaunch& l : set.plans[i].launches)
      classes.insert(set.kernels[l.kernel].numeric_class);
  }
  if (!classes.empty()) {
    Hash128 hash;
    hash.add(set.numerics_id);
    for (const std::string& c : classes) hash.add(c);
    set.numerics_id = hash.hex();
  }
  if (report) report->launches = std::move(choices);
}

}  // namespace tokamak
