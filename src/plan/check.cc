#include <algorithm>
#include <set>

#include "base/error.h"
#include "plan/plan.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

constexpr size_t kMaxPlans = 64;
constexpr uint64_t kAlignment = 64;

[[noreturn]] void bad(std::string_view where, std::string_view what) {
  fail(ErrorCode::kCorrupt, "{}: {}", where, what);
}

template <class Entries>
void need_names(const Entries& entries, std::string_view kind) {
  std::set<std::string_view> seen;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].name.empty()) bad(fmt::format("{} {}", kind, i), "it has no name");
    if (!seen.insert(entries[i].name).second) {
      bad(fmt::format("{} {}", kind, i),
          fmt::format("the name \"{}\" is used twice", entries[i].name));
    }
  }
}

int64_t tensor_bytes(const TensorType& type) { return type.bytes().constant().value(); }

// Bytes of a tensor with constant extents; every product is checked.
int64_t constant_bytes(DType dtype, const std::vector<int64_t>& dims, std::string_view where,
                       int64_t (*bytes)(const TensorType&) = tensor_bytes) {
  TensorType type{dtype, {}};
  for (int64_t d : dims) {
    if (d < 0) bad(where, fmt::format("the extent {} is negative", d));
    type.dims.push_back({"", d, false});
  }
  try {
    return bytes(type);
  } catch (const Error& e) {
    bad(where, e.what());
  }
}

void check_symbol_range(int64_t lo, int64_t hi, int64_t multiple, std::string_view where) {
  if (lo < 0 || lo > hi) bad(where, fmt::format("the range {}..{} is empty or negative", lo, hi));
  if (multiple < 1) bad(where, "the multiple must be at least 1");
}

void check_weight(const WeightEntry& w) {
  const std::string where = fmt::format("weight {}", w.name);
  const int64_t bytes = constant_bytes(w.dtype, w.dims, where);
  if (w.constant.empty()) {
    if (w.recipe.sources.empty() && bytes > 0) bad(where, "it has neither a source nor values");
    return;
  }
  if (!w.recipe.sources.empty()) bad(where, "it has both a source and values");
  if (w.dtype != DType::kF32 && w.dtype != DType::kI32) bad(where, "a constant must be f32 or i32");
  if (bytes != static_cast<int64_t>(w.constant.size()) * 4) {
    bad(where, fmt::format("{} values for {} bytes", w.constant.size(), bytes));
  }
}

void check_table_region(const PlanSet& set, size_t index) {
  const Region& region = set.regions[index];
  const std::string where = fmt::format("region {}", index);
  try {
    check_region(region, region.inputs, region.results.size());
  } catch (const Error& e) {
    bad(where, e.what());
  }
  for (const RegionPiece& piece : region.pieces) {
    if (piece.is_anchor()) continue;
    for (const std::string& symbol : loop::program_symbols(*piece.program))
      if (std::none_of(set.symbols.begin(), set.symbols.end(),
                       [&](const SymbolDecl& s) { return s.name == symbol; }))
        bad(where, fmt::format("a program uses the symbol {}, which is not declared", symbol));
  }
}

void check_tables(const PlanSet& set) {
  need_names(set.symbols, "symbol");
  need_names(set.inputs, "input");
  need_names(set.groups, "group");
  need_names(set.states, "state");
  need_names(set.kernels, "kernel");
  for (const SymbolDecl& s : set.symbols) {
    check_symbol_range(s.lo, s.hi, s.multiple, fmt::format("symbol {}", s.name));
  }
  for (const InputEntry& in : set.inputs) {
    if (is_block_type(in.dtype))
      bad(fmt::format("input {}", in.name), "it has a block type; inputs have plain types");
  }
  for (const GroupEntry& g : set.groups) {
    if (g.window < 0 || g.block_size < 1) {
      bad(fmt::format("group {}", g.name),
          fmt::format("a window of {} tokens in blocks of {} is not valid", g.window,
                      g.block_size));
    }
  }
  for (const StateEntry& s : set.states) {
    const std::string where = fmt::format("state {}", s.name);
    if (s.group >= set.groups.size()) bad(where, fmt::format("there is no group {}", s.group));
    if (s.per_sequence != set.groups[s.group].per_sequence())
      bad(where, "states per sequence and per token cannot share a group");
    if (s.planes.empty()) bad(where, "it has no planes");
    need_names(s.planes, where + ", plane");
    for (const PlaneEntry& p : s.planes) {
      const int64_t bytes =
          constant_bytes(p.dtype, p.dims, where + ", plane " + p.name, plane_bytes);
      if (bytes != p.bytes_per_token) {
        bad(where, fmt::format("plane {} takes {} bytes per token, the table says {}", p.name,
                               bytes, p.bytes_per_token));
      }
    }
  }
  need_names(set.weights, "weight");  // each is held once, in one layout
  for (const WeightEntry& w : set.weights) check_weight(w);
  for (size_t i = 0; i < set.regions.size(); ++i) check_table_region(set, i);
  for (size_t i = 0; i < set.code.size(); ++i) {
    const std::string where = fmt::format("code {}", i);
    if (set.code[i].target.empty()) bad(where, "it names no target");
    if (set.code[i].entry.empty()) bad(where, "it names no function");
  }
  for (const KernelEntry& k : set.kernels) {
    if (k.abi < 1)
      bad(fmt::format("kernel {}", k.name), fmt::format("ABI version {} is not valid", k.abi));
  }
}

// Who wrote which bytes of the arena last; calls run in the order of the list.
class ArenaOwners {
 public:
  void write(uint64_t begin, uint64_t end, uint32_t value) {
    auto it = parts_.lower_bound(begin);
    if (it != parts_.begin() && std::prev(it)->second.end > begin) {
      Part& before = std::prev(it)->second;
      const Part old = before;
      before.end = begin;
      if (old.end > end) parts_[end] = old;
    }
    while ((it = parts_.lower_bound(begin)) != parts_.end() && it->first < end) {
      const Part old = it->second;
      parts_.erase(it);
      if (old.end > end) parts_[end] = old;
    }
    parts_[begin] = {end, value};
  }

  bool holds(uint64_t begin, uint64_t end, uint32_t value) const {
    auto it = parts_.upper_bound(begin);
    if (it == parts_.begin()) return false;
    --it;
    return it->second.value == value && it->second.end >= end;
  }

 private:
  struct Part {
    uint64_t end;
    uint32_t value;
  };
  std::map<uint64_t, Part> parts_;  // by begin
};

class PlanChecker {
 public:
  PlanChecker(const PlanSet& set, size_t index)
      : set_(set),
        plan_(set.plans[index]),
        where_(fmt::format("plan {} ({})", index, plan_.function)) {}

  void run() {
    if (plan_.function.empty()) bad(where_, "it names no function");
    check_guard();
    if (plan_.arena_bytes > set_.arena_bytes && plan_.function != kSampleFunction) {
      bad(where_, fmt::format("its arena of {} bytes is larger than the set's {}",
                              plan_.arena_bytes, set_.arena_bytes));
    }
    for (size_t i = 0; i < plan_.calls.size(); ++i) {
      call_where_ = fmt::format("plan {}, call {} ({})", plan_.function, i, plan_.calls[i].op);
      check_call(plan_.calls[i]);
    }
    std::set<std::string_view> names;
    for (const PlanOutput& o : plan_.outputs) {
      call_where_ = fmt::format("plan {}, output {}", plan_.function, o.name);
      if (o.name.empty() || !names.insert(o.name).second)
        bad(call_where_, "its name is empty or used twice");
      if (o.arg.kind == CallArg::Kind::kState || o.arg.kind == CallArg::Kind::kView) {
        bad(call_where_, "an output must be a tensor");
      }
      check_arg(o.arg);
      check_read(o.arg);
    }
    for (const PlanLaunch& launch : plan_.launches) check_launch(launch);
  }

 private:
  void check_guard() {
    std::set<std::string_view> seen;
    for (const GuardRange& g : plan_.guard) {
      const std::string where = fmt::format("{}, guard of {}", where_, g.symbol);
      if (!declared(g.symbol)) bad(where, "the symbol is not declared");
      if (!seen.insert(g.symbol).second) bad(where, "the symbol has two ranges");
      check_symbol_range(g.lo, g.hi, g.multiple, where);
      if (g.pad != 0 && (g.pad != g.hi || g.pad % g.multiple != 0))
        bad(where, "the padded value is not the largest one");
      bounds_.push_back({g.symbol, g.lo, g.hi, g.multiple});
    }
    for (const auto& [symbol, expr] : plan_.bound_symbols) {
      const std::string where = fmt::format("{}, {} = {}", where_, symbol, expr);
      if (!declared(symbol)) bad(where, "the symbol is not declared");
      if (!seen.insert(symbol).second) bad(where, "the symbol has a range or a value already");
      try {
        SymExpr::parse(expr).upper(bounds_);
      } catch (const Error& e) {
        bad(where, e.what());
      }
    }
  }

  void check_launch(const PlanLaunch& launch) const {
    if (launch.kernel >= set_.kernels.size())
      bad(where_, fmt::format("a launch uses kernel {}, but the set has no kernel of that number",
                              launch.kernel));
    const std::string where =
        fmt::format("{}, launch of {}", where_, set_.kernels[launch.kernel].name);
    if (launch.calls == 0 || launch.first > plan_.calls.size() ||
        launch.calls > plan_.calls.size() - launch.first)
      bad(where, fmt::format("it runs {} calls from {} on, the plan has {}", launch.calls,
                             launch.first, plan_.calls.size()));
    if (!(launch.seconds >= 0)) bad(where, "the predicted time is not a number of seconds");
  }

  bool declared(std::string_view symbol) const {
    return std::any_of(set_.symbols.begin(), set_.symbols.end(),
                       [&](const SymbolDecl& s) { return s.name == symbol; });
  }

  void check_call(const KernelCall& call) {
    if (call.kernel >= set_.kernels.size())
      bad(call_where_, fmt::format("there is no kernel {}", call.kernel));
    if (call.op.empty()) bad(call_where_, "it names no op");
    if (!call.attrs.is_object() && !call.attrs.is_null())
      bad(call_where_, "attributes must be an object");
    if (call.out.empty()) bad(call_where_, "it has no output");
    for (const CallArg& a : call.in) check_arg(a);
    for (const CallArg& a : call.out) check_arg(a);
    for (const CallArg& a : call.in) check_read(a);
    check_states(call);
    check_call_region(call);
    if (call.code < -1 || call.code >= static_cast<int64_t>(set_.code.size()))
      bad(call_where_, fmt::format("there is no code object {}", call.code));
    if (call.scratch > set_.scratch_bytes)
      bad(call_where_, fmt::format("it needs {} bytes of scratch, the plans reserve {}",
                                   call.scratch, set_.scratch_bytes));
    for (size_t i = 0; i < call.out.size(); ++i) {
      const CallArg& out = call.out[i];
      if (out.kind == CallArg::Kind::kState) continue;
      if (out.kind != CallArg::Kind::kArena)
        bad(call_where_, "an output is neither in the arena nor a state");
      for (size_t j = 0; j < i; ++j) {
        if (overlap(out, call.out[j]))
          bad(call_where_, fmt::format("outputs {} and {} overlap", j, i));
      }
      // In place is fine, element by element; a shifted overlap would be read after it was written.
      for (const CallArg& in : call.in) {
        if (overlap(out, in) && !(in.offset == out.offset && bytes(in) == bytes(out))) {
          bad(call_where_, fmt::format("output {} overlaps an input", i));
        }
      }
    }
    for (const CallArg& a : call.out) {
      if (a.kind == CallArg::Kind::kArena && bytes(a) > 0)
        owners_.write(a.offset, a.offset + bytes(a), a.index);
    }
  }

  // The call's arguments are what the region was built for; further inputs only order the call.
  void check_call_region(const KernelCall& call) const {
    if (call.region < -1 || call.region >= static_cast<int64_t>(set_.regions.size()))
      bad(call_where_, fmt::format("there is no region {}", call.region));
    if ((call.region >= 0) != (call.op == "region"))
      bad(call_where_, call.region < 0 ? "it names no region" : "a single op with a region");
    if (call.region < 0) return;
    const Region& region = set_.regions[static_cast<size_t>(call.region)];
    try {
      check_region(region, call.in.size(), call.out.size());
    } catch (const Error& e) {
      bad(call_where_, e.what());
    }
    for (uint32_t i = 0; i < region.inputs; ++i)
      check_region_value(call.in[i], region.values[i], fmt::format("input {}", i));
    for (size_t o = 0; o < call.out.size(); ++o)
      check_region_value(call.out[o], region.values[region.results[o]],
                         fmt::format("output {}", o));
  }

  void check_region_value(const CallArg& arg, const Type& type, std::string_view what) const {
    bool same = false;
    if (arg.kind == CallArg::Kind::kState) {
      same = type.kind == Type::Kind::kState;
    } else if (arg.kind == CallArg::Kind::kView) {
      same = type.kind == Type::Kind::kView;
    } else if (type.kind == Type::Kind::kTensor) {
      SymExpr elements = 1;
      for (const SymExpr& d : arg.dims) elements = elements * d;
      same = arg.dtype == type.tensor.dtype && elements == type.tensor.elements();
    }
    if (!same) bad(call_where_, fmt::format("{} is not the region's {}", what, type.text()));
  }

  void check_states(const KernelCall& call) const {
    auto is_state = [](const CallArg& a) { return a.kind == CallArg::Kind::kState; };
    for (const CallArg& out : call.out) {
      if (!is_state(out)) continue;
      if (std::none_of(call.in.begin(), call.in.end(),
                       [&](const CallArg& in) { return is_state(in) && in.index == out.index; })) {
        bad(call_where_, "it returns a state that is not among its arguments");
      }
    }
    for (const CallArg& s : call.in) {
      for (const CallArg& v : call.in) {
        if (is_state(s) && v.kind == CallArg::Kind::kView &&
            set_.states[s.index].group != v.index) {
          bad(call_where_, fmt::format("state {} with the view of group {}",
                                       set_.states[s.index].name, set_.groups[v.index].name));
        }
      }
    }
  }

  void check_arg(const CallArg& a) const {
    auto need_index = [&](size_t size, std::string_view kind) {
      if (a.index >= size) bad(call_where_, fmt::format("there is no {} {}", kind, a.index));
    };
    switch (a.kind) {
      case CallArg::Kind::kArena:
        if (a.offset % kAlignment != 0)
          bad(call_where_, fmt::format("arena offset {} is not aligned", a.offset));
        if (a.offset > plan_.arena_bytes || bytes(a) > plan_.arena_bytes - a.offset) {
          bad(call_where_, fmt::format("{} bytes at {} leave the arena of {}", bytes(a), a.offset,
                                       plan_.arena_bytes));
        }
        break;
      case CallArg::Kind::kWeight: {
        need_index(set_.weights.size(), "weight");
        const WeightEntry& w = set_.weights[a.index];
        if (a.dtype != w.dtype || bytes(a) != static_cast<uint64_t>(weight_bytes(w))) {
          bad(call_where_, fmt::format("weight {} has another type or size", w.name));
        }
        break;
      }
      case CallArg::Kind::kInput:
        need_index(set_.inputs.size(), "input");
        if (a.dtype != set_.inputs[a.index].dtype) {
          bad(call_where_, fmt::format("input {} has another type", set_.inputs[a.index].name));
        }
        bytes(a);
        break;
      case CallArg::Kind::kState:
        need_index(set_.states.size(), "state");
        break;
      case CallArg::Kind::kView:
        need_index(set_.groups.size(), "group");
        break;
      default:
        bad(call_where_, "an argument of an unknown kind");
    }
  }

  void check_read(const CallArg& a) const {
    if (a.kind != CallArg::Kind::kArena || bytes(a) == 0) return;
    if (!owners_.holds(a.offset, a.offset + bytes(a), a.index)) {
      bad(call_where_,
          fmt::format("it reads value {} at {}, which is not there (not written yet, or "
                      "overwritten)",
                      a.index, a.offset));
    }
  }

  bool overlap(const CallArg& a, const CallArg& b) const {
    return a.kind == CallArg::Kind::kArena && b.kind == CallArg::Kind::kArena &&
           a.offset < b.offset + bytes(b) && b.offset < a.offset + bytes(a);
  }

  // At the largest values the guard admits.
  uint64_t bytes(const CallArg& a) const {
    TensorType type{a.dtype, {}};
    for (const SymExpr& d : a.dims) type.dims.push_back({"", d, false});
    try {
      const int64_t n = type.bytes().upper(bounds_);
      if (n >= 0) return static_cast<uint64_t>(n);
    } catch (const Error& e) {
      bad(call_where_, e.what());
    }
    bad(call_where_, "an extent is negative");
  }

  const PlanSet& set_;
  const Plan& plan_;
  std::string where_, call_where_;
  std::vector<SymbolDecl> bounds_;
  ArenaOwners owners_;
};

}  // namespace

void check_plan_set(const PlanSet& set) {
  if (set.version != PlanSet::kVersion) {
    fail(ErrorCode::kUnsupported, "its plans have version {}, this program runs version {}",
         set.version, PlanSet::kVersion);
  }
  if (set.plans.size() > kMaxPlans)
    bad("plan set", fmt::format("{} plans, {} are the most", set.plans.size(), kMaxPlans));
  check_tables(set);
  for (size_t i = 0; i < set.plans.size(); ++i) PlanChecker(set, i).run();
}

}  // namespace tokamak
