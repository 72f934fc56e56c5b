#include "compile/explain/call_table.h"

#include <algorithm>

#include "base/json.h"
#include "compile/explain/fold.h"
#include "compile/explain/traffic.h"

namespace tokamak {
namespace {

constexpr double kMostCountedOps = 3e9;  // counting more takes too long

// The memory levels of a call's bytes.
struct ByKind {
  double weights = 0, state = 0, activations = 0;
};
ByKind by_kind(const KernelCall& call, const CallTraffic& t) {
  ByKind out;
  auto add = [&](const CallArg& arg, double bytes) {
    (arg.kind == CallArg::Kind::kWeight  ? out.weights
     : arg.kind == CallArg::Kind::kState ? out.state
                                         : out.activations) += bytes;
  };
  for (size_t i = 0; i < call.in.size(); ++i) add(call.in[i], t.in[i].read);
  for (size_t o = 0; o < call.out.size(); ++o) add(call.out[o], t.out[o].written);
  return out;
}

struct Bound {
  double memory = 0, compute = 0, overhead = 0;  // seconds
};
// Weights and KV are read from the level that holds all of them, activations from the nearest level
// that holds the value.
Bound bound_of(const Machine& m, double all_weights, const KernelCall& call, const CallTraffic& t,
               const CallWork& w) {
  Bound b;
  double far = m.level_of(all_weights / 2).bandwidth;
  auto add = [&](const CallArg& arg, double bytes) {
    bool near = arg.kind == CallArg::Kind::kArena || arg.kind == CallArg::Kind::kInput;
    b.memory += bytes / (near ? m.level_of(bytes).bandwidth : far);
  };
  for (size_t i = 0; i < call.in.size(); ++i) add(call.in[i], t.in[i].read);
  for (size_t o = 0; o < call.out.size(); ++o) add(call.out[o], t.out[o].written);
  b.compute = w.i8 / m.i8_ops + w.f32 / m.f32_flops + w.vector / m.vector_ops;
  b.overhead = m.call_seconds + m.barrier_seconds;
  return b;
}

std::string arg_text(const PlanSet& set, const CallArg& a) {
  std::string dims;
  for (const SymExpr& e : a.dims) dims += fmt::format("{}{}", dims.empty() ? "" : ", ", e.text());
  switch (a.kind) {
    case CallArg::Kind::kState:
      return "state";
    case CallArg::Kind::kView:
      return "view " + set.groups[a.index].name;
    case CallArg::Kind::kWeight:
      return fmt::format("{} {}[{}]", without_layer(set.weights[a.index].name), dtype_name(a.dtype),
                         dims);
    case CallArg::Kind::kInput:
      return fmt::format("{} {}[{}]", set.inputs[a.index].name, dtype_name(a.dtype), dims);
    default:
      return fmt::format("{}[{}]", dtype_name(a.dtype), dims);
  }
}

// A group of calls that differ only in their layer.
struct Group {
  std::vector<size_t> calls;
  std::vector<int> layers;
};

class TableBuilder {
 public:
  TableBuilder(const ExplainRequest& r, size_t plan)
      : r_(r),
        set_(*r.set),
        plan_index_(plan),
        plan_(set_.plans[plan]),
        bound_step_(bind_step(set_, r.function, r.shape)),
        layers_(call_layers(set_, plan_)) {
    for (const WeightEntry& w : set_.weights) all_weights_ += static_cast<double>(weight_bytes(w));
    if (r.fusion)
      for (const FusedRegion& region : r.fusion->regions)
        if (region.function == r.function) regions_[region.id] = &region;
    if (r.fusion)
      for (const KernelChoice& c : r.fusion->choices)
        if (c.plan == plan) choices_[c.call] = &c;
  }

  CallTable run() {
    measure();
    group();
    CallTable out{Value::array(), Value::array(), Value::object()};
    for (size_t g = 0; g < groups_.size(); ++g) out.kernels.push(kernel(groups_[g]));
    std::vector<size_t> group_of(plan_.calls.size());
    for (size_t g = 0; g < groups_.size(); ++g)
      for (size_t c : groups_[g].calls) group_of[c] = g;
    for (size_t c = 0; c < plan_.calls.size(); ++c) out.calls.push(call(c, group_of[c]));
    out.totals = totals();
    return out;
  }

 private:
  // Median time of each call over the measured steps.
  void measure() {
    measured_.assign(plan_.calls.size(), -1);
    if (!r_.profile) return;
    std::vector<std::vector<double>> times(plan_.calls.size());
    for (const CallProfile::Span& s : r_.profile->spans)
      if (s.plan == plan_index_) times.at(s.call).push_back(double(s.end - s.begin) * 1e-9);
    for (size_t c = 0; c < times.size(); ++c) {
      if (times[c].empty()) continue;
      std::sort(times[c].begin(), times[c].end());
      measured_[c] = times[c][times[c].size() / 2];
    }
  }

  void group() {
    std::map<std::string, size_t> index;
    std::map<std::pair<int, std::string>, int> seen;  // how often in this layer
    for (size_t c = 0; c < plan_.calls.size(); ++c) {
      const KernelCall& call = plan_.calls[c];
      std::string key = fmt::format("{} {} {} {}", call.kernel, call.op, without_layer(call.label),
                                    dump_json(call.attrs));
      for (const auto* list : {&call.in, &call.out})
        for (const CallArg& a : *list) key += " " + arg_text(set_, a);
      key += fmt::format(" {}", seen[{layers_[c], key}]++);
      auto [it, fresh] = index.emplace(key, groups_.size());
      if (fresh) groups_.emplace_back();
      groups_[it->second].calls.push_back(c);
      groups_[it->second].layers.push_back(layers_[c]);
    }
  }

  TrafficSite site() const { return {set_, bound_step_.step, bound_step_.symbols}; }

  // What the fusion planner said about this call; null when it is no region.
  const FusedRegion* region_of(const KernelCall& call) const {
    auto it = regions_.find(call.label);
    return call.region >= 0 && it != regions_.end() ? it->second : nullptr;
  }

  Value fused_ops(const KernelCall& call) const {
    Value ops = Value::array();
    if (const FusedRegion* region = region_of(call)) {
      for (const std::string& op : region->ops) ops.push(without_layer(op));
      return ops;
    }
    CallBody body = call_body(set_, call);
    for (const CallStep& s : body.steps) {
      if (s.op) ops.push(std::string(s.op->name));
      if (!s.program) continue;
      for (const loop::Instr& i : s.program->code)
        if (loop::op_info(i.op).kind != loop::OpKind::kSource)
          ops.push(std::string(loop::op_info(i.op).name));
    }
    return ops;
  }

  std::string why(const KernelCall& call) const {
    if (const FusedRegion* region = region_of(call)) return without_layer(region->why);
    if (call.region >= 0) return "fused";
    return choices_.contains(call.label) ? "one op; the cheapest kernel that takes it"
                                         : "one op; the only kernel that takes it";
  }

  // What else would have run the call, with its predicted time or the reason why it could not.
  Value losers(const KernelCall& call) const {
    Value out = Value::array();
    auto it = choices_.find(call.label);
    if (it == choices_.end()) return out;
    for (const KernelChoice::Loser& l : it->second->losers)
      out.push(Value::Object{
          {"kernel", l.kernel}, {"predicted_us", l.seconds * 1e6}, {"reason", l.reason}});
    return out;
  }

  Value arena(const KernelCall& call) const {
    Value out = Value::array();
    for (const CallArg& a : call.out)
      if (a.kind == CallArg::Kind::kArena)
        out.push(Value::Object{{"offset", a.offset}, {"bytes", planned_bytes(set_, plan_, a)}});
    return out;
  }

  Value kernel(const Group& g) {
    const KernelCall& call = plan_.calls[g.calls[0]];
    CallTraffic traffic = predict_traffic(site(), call);
    CallWork work = predict_work(site(), call);
    ByKind kinds = by_kind(call, traffic);
    Bound bound = bound_of(r_.machine, all_weights_, call, traffic, work);
    bool memory = bound.memory >= bound.compute;
    double seconds = std::max(bound.memory, bound.compute), bytes = traffic.bytes();
    auto n = static_cast<double>(g.calls.size());
    Value args = Value::array();
    for (const auto* list : {&call.in, &call.out})
      for (const CallArg& a : *list) args.push(arg_text(set_, a));
    Value out = Value::Object{{"name", without_layer(call.label)},
                              {"op", call.op},
                              {"kernel", set_.kernels[call.kernel].name},
                              {"numeric_class", set_.kernels[call.kernel].numeric_class},
                              {"fused", call.region >= 0},
                              {"ops", fused_ops(call)},
                              {"why", why(call)},
                              {"calls", g.calls.size()},
                              {"layers", layer_ranges(g.layers)},
                              {"first_call", g.calls[0]},
                              {"arguments", std::move(args)},
                              {"bytes", bytes},
                              {"weight_bytes", kinds.weights},
                              {"state_bytes", kinds.state},
                              {"activation_bytes", kinds.activations},
                              {"flops", work.total()},
                              {"intensity", bytes > 0 ? work.total() / bytes : 0.0},
                              {"bound", memory ? "memory" : "compute"},
                              {"bound_us", seconds * 1e6},
                              {"memory_us", bound.memory * 1e6},
                              {"compute_us", bound.compute * 1e6},
                              {"overhead_us", bound.overhead * 1e6},
                              {"losers", losers(call)},
                              {"arena", arena(call)}};
    if (auto it = choices_.find(call.label); it != choices_.end())
      out.set("predicted_us", it->second->seconds * 1e6);
    if (const FusedRegion* region = region_of(call)) {
      out.set("unfused_bytes", region->unfused_bytes);
      out.set("saved_us", region->saved() * 1e6);
    }
    bytes_ += n * bytes;
    flops_ += n * work.total();
    weights_ += n * kinds.weights;
    bound_ += n * seconds;
    overhead_ += n * bound.overhead;
    add_measured(g, seconds, out);
    if (r_.count) add_counted(call, work.total(), n, out);
    return out;
  }

  void add_measured(const Group& g, double seconds, Value& out) {
    double sum = 0;
    for (size_t c : g.calls) sum += std::max(0.0, measured_[c]);
    if (measured_[g.calls[0]] < 0) return;
    double mean = sum / static_cast<double>(g.calls.size());
    out.set("measured_us", mean * 1e6);
    out.set("of_bound", mean > 0 ? seconds / mean : 0.0);
    measured_total_ += sum;
  }

  void add_counted(const KernelCall& call, double ops, double n, Value& out) {
    std::optional<CallTraffic> counted;
    if (ops <= kMostCountedOps) counted = count_traffic(site(), call);
    out.set("counted_bytes", counted ? Value(counted->bytes()) : Value());
    if (counted)
      counted_ += n * counted->bytes();
    else
      all_counted_ = false;
  }

  Value call(size_t c, size_t group) const {
    const KernelCall& call = plan_.calls[c];
    Value out = Value::Object{
        {"name", call.label}, {"kernel", group}, {"layer", layers_[c]}, {"arena", arena(call)}};
    if (measured_[c] >= 0) out.set("measured_us", measured_[c] * 1e6);
    return out;
  }

  Value totals() const {
    Value out = Value::Object{
        {"calls", plan_.calls.size()},   {"kinds", groups_.size()}, {"bytes", bytes_},
        {"weight_bytes", weights_},      {"flops", flops_},         {"bound_us", bound_ * 1e6},
        {"overhead_us", overhead_ * 1e6}};
    if (r_.profile && measured_total_ > 0) {
      out.set("measured_us", measured_total_ * 1e6);
      out.set("measured_steps", r_.measured_steps);
    }
    if (r_.count) {
      out.set("counted_bytes", all_counted_ ? Value(counted_) : Value());
      out.set("counted_equal", all_counted_ ? Value(counted_ == bytes_) : Value());
    }
    return out;
  }

  const ExplainRequest& r_;
  const PlanSet& set_;
  size_t plan_index_;
  const Plan& plan_;
  BoundStep bound_step_;
  std::vector<int> layers_;
  std::map<std::string, const FusedRegion*> regions_;   // by the label of their call
  std::map<std::string, const KernelChoice*> choices_;  // likewise, of this plan
  std::vector<Group> groups_;
  std::vector<double> measured_;
  double all_weights_ = 0;
  double bytes_ = 0, flops_ = 0, weights_ = 0, bound_ = 0, overhead_ = 0;
  double measured_total_ = 0, counted_ = 0;
  bool all_counted_ = true;
};

}  // namespace

uint64_t planned_bytes(const PlanSet& set, const Plan& plan, const CallArg& arg) {
  std::vector<SymbolDecl> bounds = set.symbols;
  for (SymbolDecl& s : bounds)
    for (const GuardRange& g : plan.guard)
      if (g.symbol == s.name) s = {s.name, g.lo, g.hi, g.multiple};
  TensorType t{arg.dtype, {}};
  for (const SymExpr& e : arg.dims) t.dims.push_back({"x", e, false});
  return static_cast<uint64_t>(t.bytes().upper(bounds));
}

CallTable call_table(const ExplainRequest& request, size_t plan) {
  return TableBuilder(request, plan).run();
}

}  // namespace tokamak
