#include "plan/plan.h"

#include <algorithm>
#include <atomic>
#include <charconv>

#include "base/error.h"
#include "plan/dispatch.h"

namespace tokamak {
namespace {

int symbol_index(const PlanSet& set, std::string_view name) {
  for (size_t i = 0; i < set.symbols.size(); ++i)
    if (set.symbols[i].name == name) return static_cast<int>(i);
  return -1;
}

// Value of "B" or "4*B" without allocating: plans are selected in every step. Other expressions go
// the slow way.
int64_t bound_value(const PlanSet& set, std::string_view text, std::span<const int64_t> values) {
  int64_t factor = 1;
  std::string_view name = text;
  if (const size_t star = text.find('*'); star != std::string_view::npos) {
    auto [end, status] = std::from_chars(text.data(), text.data() + star, factor);
    if (status == std::errc() && end == text.data() + star) name = text.substr(star + 1);
  }
  int64_t result;
  if (int i = symbol_index(set, name);
      i >= 0 && !__builtin_mul_overflow(factor, values[static_cast<size_t>(i)], &result)) {
    return result;
  }
  std::map<std::string, int64_t, std::less<>> by_name;
  for (size_t s = 0; s < set.symbols.size(); ++s) by_name[set.symbols[s].name] = values[s];
  return SymExpr::parse(text).eval(by_name);
}

bool admits(const PlanSet& set, const Plan& plan, std::span<const int64_t> values) {
  for (const GuardRange& g : plan.guard) {
    const int i = symbol_index(set, g.symbol);
    if (i < 0) return false;
    const int64_t v = values[static_cast<size_t>(i)];
    if (v < g.lo || v > g.hi) return false;
    if (g.pad == 0 && g.multiple > 1 && v % g.multiple != 0) return false;
  }
  for (const auto& [symbol, expr] : plan.bound_symbols) {
    const int i = symbol_index(set, symbol);
    if (i < 0 || values[static_cast<size_t>(i)] != bound_value(set, expr, values)) return false;
  }
  return true;
}

bool is_bucket(const Plan& plan) {
  return std::any_of(plan.guard.begin(), plan.guard.end(),
                     [](const GuardRange& g) { return g.pad > 0; });
}

// How many value tuples the guard admits, as if the symbols were independent.
double volume(const PlanSet& set, const Plan& plan) {
  auto count = [](int64_t lo, int64_t hi, int64_t multiple) {
    return (static_cast<double>(hi) - static_cast<double>(lo)) /
               static_cast<double>(std::max<int64_t>(multiple, 1)) +
           1;
  };
  double v = 1;
  for (const SymbolDecl& s : set.symbols) {
    auto bound = std::find_if(plan.bound_symbols.begin(), plan.bound_symbols.end(),
                              [&](const auto& b) { return b.first == s.name; });
    if (bound != plan.bound_symbols.end()) continue;
    auto guard = std::find_if(plan.guard.begin(), plan.guard.end(),
                              [&](const GuardRange& g) { return g.symbol == s.name; });
    v *= guard == plan.guard.end() ? count(s.lo, s.hi, s.multiple)
                                   : count(guard->lo, guard->hi, guard->multiple);
  }
  return v;
}

}  // namespace

int64_t kv_bytes_per_token(const PlanSet& set, uint32_t group) {
  int64_t bytes = 0;
  for (const StateEntry& s : set.states) {
    if (s.group != group || s.per_sequence) continue;
    for (const PlaneEntry& p : s.planes) bytes += p.bytes_per_token;
  }
  return bytes;
}

int64_t block_bytes(const PlanSet& set, uint32_t group) {
  int64_t bytes = 0;
  for (const StateEntry& s : set.states)
    for (const PlaneEntry& p : s.planes)
      if (s.group == group) bytes += p.bytes_per_token;
  return bytes * set.groups[group].block_rows();
}

bool has_recurrent_states(const PlanSet& set) {
  return std::any_of(set.states.begin(), set.states.end(),
                     [](const StateEntry& s) { return s.per_sequence; });
}

int64_t weight_bytes(const WeightEntry& weight) {
  TensorType type{weight.dtype, {}};
  for (int64_t d : weight.dims) type.dims.push_back({"", d, false});
  return type.bytes().constant().value();  // throws on broken blocks and on overflow
}

namespace {
std::atomic<int64_t> g_compiles{0};
}  // namespace
void count_compile() { g_compiles.fetch_add(1, std::memory_order_relaxed); }
int64_t compile_count() { return g_compiles.load(std::memory_order_relaxed); }

std::string plan_name(const Plan& plan) {
  std::string out = plan.function;
  for (const GuardRange& g : plan.guard) {
    if (g.lo == g.hi)
      out += fmt::format(" {}={}", g.symbol, g.hi);
    else if (g.lo <= 1)
      out += fmt::format(" {}<={}", g.symbol, g.hi);
    else
      out += fmt::format(" {}={}..{}", g.symbol, g.lo, g.hi);
    if (g.pad > 0 && g.multiple > 1)
      out += fmt::format(" padded to multiples of {}", g.multiple);
    else if (g.multiple > 1)
      out += fmt::format(" multiple of {}", g.multiple);
    else if (g.pad > 0)
      out += fmt::format(" padded to {}", g.pad);
  }
  return out;
}

std::vector<SymbolDecl> symbol_bounds(const PlanSet& set, const Plan& plan) {
  std::vector<SymbolDecl> out = set.symbols;
  for (SymbolDecl& s : out)
    for (const GuardRange& g : plan.guard)
      if (g.symbol == s.name) s = {g.symbol, g.lo, g.hi, g.multiple};
  return out;
}

bool has_function(const PlanSet& set, std::string_view function) {
  return std::any_of(set.plans.begin(), set.plans.end(),
                     [&](const Plan& plan) { return plan.function == function; });
}

int select_plan(const PlanSet& set, std::string_view function, std::span<const int64_t> values,
                bool buckets) {
  TK_CHECK(values.size() == set.symbols.size(), "{} symbol values for {} symbols", values.size(),
           set.symbols.size());
  int best = -1;
  std::pair<bool, double> best_key;  // a bucket before plans of any size, then the narrowest guard
  for (size_t i = 0; i < set.plans.size(); ++i) {
    const Plan& plan = set.plans[i];
    if (plan.function != function || !admits(set, plan, values)) continue;
    if (!buckets && is_bucket(plan)) continue;
    std::pair key{!is_bucket(plan), volume(set, plan)};
    if (best < 0 || key < best_key) {
      best = static_cast<int>(i);
      best_key = key;
    }
  }
  return best;
}

}  // namespace tokamak
