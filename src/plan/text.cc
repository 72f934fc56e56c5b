#include "base/error.h"
#include "base/json.h"
#include "plan/plan.h"

namespace tokamak {
namespace {

std::string human(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

template <class Dims>
std::string shape(DType dtype, const Dims& dims) {
  std::string out;
  for (const auto& d : dims) out += (out.empty() ? "" : ", ") + SymExpr(d).text();
  return fmt::format("{}[{}]", dtype_name(dtype), out);
}

std::string range(int64_t lo, int64_t hi, int64_t multiple) {
  std::string out = lo == hi ? fmt::format("{}", lo) : fmt::format("{}..{}", lo, hi);
  return multiple > 1 ? fmt::format("{} multiple {}", out, multiple) : out;
}

// Indices out of range are printed as they are: a dump must also show what the checker refuses.
template <class Entries>
std::string entry_name(const Entries& entries, uint32_t index) {
  return index < entries.size() ? entries[index].name : fmt::format("?{}", index);
}

std::string arg_text(const PlanSet& set, const CallArg& a) {
  switch (a.kind) {
    case CallArg::Kind::kArena:
      return fmt::format("v{}@{}:{}", a.index, a.offset, shape(a.dtype, a.dims));
    case CallArg::Kind::kWeight:
      return "@" + entry_name(set.weights, a.index);
    case CallArg::Kind::kInput:
      return fmt::format("{}:{}", entry_name(set.inputs, a.index), shape(a.dtype, a.dims));
    case CallArg::Kind::kState:
      return fmt::format("state<{}>", entry_name(set.states, a.index));
    case CallArg::Kind::kView:
      return fmt::format("view<{}>", entry_name(set.groups, a.index));
  }
  return "?";
}

std::string args_text(const PlanSet& set, const std::vector<CallArg>& args) {
  std::string out;
  for (const CallArg& a : args) out += (out.empty() ? "" : ", ") + arg_text(set, a);
  return out;
}

void print_tables(const PlanSet& set, std::string& out) {
  for (const SymbolDecl& s : set.symbols) {
    out += fmt::format("symbol {} in {}\n", s.name, range(s.lo, s.hi, s.multiple));
  }
  for (const InputEntry& in : set.inputs) {
    out += fmt::format("input {} : {}\n", in.name, shape(in.dtype, in.dims));
  }
  for (size_t i = 0; i < set.groups.size(); ++i) {
    const GroupEntry& g = set.groups[i];
    out += fmt::format("group {} window {} block {}, {} bytes per token\n", g.name, g.window,
                       g.block_size, kv_bytes_per_token(set, static_cast<uint32_t>(i)));
  }
  for (const StateEntry& s : set.states) {
    out += fmt::format("state {} in {} {} {{", s.name, entry_name(set.groups, s.group),
                       s.per_sequence ? "per_sequence" : "per_token");
    for (size_t i = 0; i < s.planes.size(); ++i) {
      out += fmt::format("{}{}: {}", i > 0 ? ", " : "", s.planes[i].name,
                         shape(s.planes[i].dtype, s.planes[i].dims));
    }
    out += "}\n";
  }
  for (const WeightEntry& w : set.weights) {
    out += fmt::format("weight {} : {}", w.name, shape(w.dtype, w.dims));
    if (!w.layout.empty()) out += " layout " + w.layout;
    out += w.constant.empty() ? " from " + recipe_to_text(w.recipe)
                              : fmt::format(" = {} values", w.constant.size());
    out += '\n';
  }
  for (const KernelEntry& k : set.kernels) {
    out += fmt::format("kernel {} abi {} class \"{}\"\n", k.name, k.abi, k.numeric_class);
  }
  for (size_t i = 0; i < set.regions.size(); ++i)
    out += fmt::format("region {} {}", i, region_text(set.regions[i]));
  for (size_t i = 0; i < set.code.size(); ++i) {
    const CodeObject& c = set.code[i];
    out += fmt::format("code {} for {} entry {} options \"{}\" hash {}, {}\n", i, c.target, c.entry,
                       c.options, c.hash, human(c.bytes.size()));
  }
}

void print_plan(const PlanSet& set, const Plan& plan, std::string& out) {
  out += fmt::format("\nplan {} for", plan.function);
  for (size_t i = 0; i < plan.guard.size(); ++i) {
    const GuardRange& g = plan.guard[i];
    out += fmt::format("{} {} in {}", i > 0 ? "," : "", g.symbol, range(g.lo, g.hi, g.multiple));
    if (g.pad > 0)
      out += g.multiple > 1 ? " padded to multiples" : fmt::format(" padded to {}", g.pad);
  }
  for (const auto& [symbol, expr] : plan.bound_symbols)
    out += fmt::format(", {} = {}", symbol, expr);
  out += fmt::format(" {{  // {} calls, arena {}", plan.calls.size(), human(plan.arena_bytes));
  if (plan.arena_lower_bound > 0 && plan.arena_bytes >= plan.arena_lower_bound)
    out += fmt::format(" = {} bytes, lower bound {}, gap {:.2f} %, {}", plan.arena_bytes,
                       plan.arena_lower_bound,
                       static_cast<double>(plan.arena_bytes - plan.arena_lower_bound) * 100 /
                           static_cast<double>(plan.arena_lower_bound),
                       plan.arena_method);
  out += '\n';
  for (const PlanLaunch& l : plan.launches)
    out += fmt::format("  launch {} instead of calls {}..{}, {:.1f} us predicted\n",
                       entry_name(set.kernels, l.kernel), l.first, int64_t{l.first} + l.calls - 1,
                       l.seconds * 1e6);
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    const KernelCall& c = plan.calls[i];
    out += fmt::format("  {:>4}  {} = {}({})", i, args_text(set, c.out),
                       entry_name(set.kernels, c.kernel), args_text(set, c.in));
    if (c.attrs.size() > 0) out += ' ' + dump_json(c.attrs);
    if (c.region >= 0) out += fmt::format(" region {}", c.region);
    if (c.code >= 0) out += fmt::format(" code {}", c.code);
    if (c.scratch > 0) out += fmt::format(" scratch {}", c.scratch);
    out += fmt::format("  # {}{}{}\n", c.op, c.label.empty() ? "" : " ", c.label);
  }
  for (const PlanOutput& o : plan.outputs) {
    out += fmt::format("  return {} = {}\n", o.name, arg_text(set, o.arg));
  }
  out += "}\n";
}

}  // namespace

std::string plan_set_text(const PlanSet& set) {
  uint64_t weights = 0;
  for (const WeightEntry& w : set.weights) {
    try {
      weights += static_cast<uint64_t>(weight_bytes(w));
    } catch (const Error&) {  // the checker says what is wrong; the dump goes on
    }
  }
  std::string out = fmt::format("plans for {} on {}, version {}, numerics {}\n", set.model,
                                set.backend, set.version, set.numerics_id);
  out += fmt::format(
      "// {} plans, weights {}, arena {}, scratch {}; vocabulary {}, hidden {}, layers {}, context "
      "{}\n",
      set.plans.size(), human(weights), human(set.arena_bytes), human(set.scratch_bytes), set.vocab,
      set.hidden, set.layers, set.context);
  print_tables(set, out);
  for (const Plan& p : set.plans) print_plan(set, p, out);
  return out;
}

}  // namespace tokamak
