#include "compile/explain/explain.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "compile/explain/call_table.h"
#include "compile/explain/fold.h"
#include "compile/function_plans.h"

namespace tokamak {
namespace {

Value shape_value(const ExplainRequest& r) {
  return Value::Object{{"B", r.shape.sequences},
                       {"T", r.shape.tokens},
                       {"S", r.shape.kv_len},
                       {"R", r.shape.logit_rows}};
}

template <class Items, class Make>
Value list_of(const Items& items, Make make) {
  Value out = Value::array();
  for (const auto& item : items) out.push(make(item));
  return out;
}

Value guard_value(const Plan& plan) {
  return list_of(plan.guard, [](const GuardRange& g) {
    return Value::Object{
        {"symbol", g.symbol}, {"lo", g.lo}, {"hi", g.hi}, {"multiple", g.multiple}, {"pad", g.pad}};
  });
}

// Every arena value as a rectangle: its first and last call, and its bytes.
Value arena_values(const PlanSet& set, const Plan& plan) {
  struct Box {
    std::string name;
    uint64_t offset, bytes;
    size_t first, last;
  };
  std::map<uint32_t, Box> boxes;
  for (size_t c = 0; c < plan.calls.size(); ++c) {
    const KernelCall& call = plan.calls[c];
    for (const CallArg& arg : call.in)
      if (auto it = boxes.find(arg.index); arg.kind == CallArg::Kind::kArena && it != boxes.end())
        it->second.last = c;
    for (const CallArg& arg : call.out)
      if (arg.kind == CallArg::Kind::kArena)
        boxes.insert({arg.index, {call.label, arg.offset, planned_bytes(set, plan, arg), c, c}});
  }
  for (const PlanOutput& o : plan.outputs)
    if (auto it = boxes.find(o.arg.index); o.arg.kind == CallArg::Kind::kArena && it != boxes.end())
      it->second.last = plan.calls.empty() ? 0 : plan.calls.size() - 1;
  return list_of(boxes, [](const auto& item) {
    const Box& b = item.second;
    return Value::Object{{"name", b.name},
                         {"offset", b.offset},
                         {"bytes", b.bytes},
                         {"first", b.first},
                         {"last", b.last}};
  });
}

Value memory_value(const PlanSet& set, const Plan& plan) {
  uint64_t bound = plan.arena_lower_bound;
  double gap =
      bound > 0 ? static_cast<double>(plan.arena_bytes) / static_cast<double>(bound) - 1 : 0;
  uint64_t weights = 0;
  for (const WeightEntry& w : set.weights) weights += static_cast<uint64_t>(weight_bytes(w));
  return Value::Object{{"peak", plan.arena_bytes},
                       {"lower_bound", bound},
                       {"gap", gap},
                       {"method", plan.arena_method},
                       {"all_plans_peak", set.arena_bytes},
                       {"scratch", set.scratch_bytes},
                       {"weights", weights},
                       {"values", arena_values(set, plan)}};
}

// Edges that differ only in the layer share one line with a count.
Value not_fused_value(const FusionReport& report, const std::string& function) {
  struct Line {
    const NotFused* first;
    int64_t count = 0;
    double saving = 0, bytes = 0;
    std::vector<int> layers;
  };
  std::vector<std::pair<std::string, Line>> lines;
  for (const NotFused& n : report.not_fused) {
    if (n.function != function) continue;
    std::string key = fmt::format("{}>{}>{}>{}", without_layer(n.producer),
                                  without_layer(n.consumer), n.reason, without_layer(n.detail));
    auto it = std::find_if(lines.begin(), lines.end(), [&](auto& l) { return l.first == key; });
    if (it == lines.end()) it = lines.insert(lines.end(), {key, Line{&n, 0, 0, 0, {}}});
    Line& line = it->second;
    ++line.count;
    line.saving += n.saving;
    line.bytes += n.bytes;
    int layer = std::max(layer_of(n.producer), layer_of(n.consumer));
    if (line.layers.empty() || line.layers.back() < layer) line.layers.push_back(layer);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](auto& a, auto& b) { return a.second.saving > b.second.saving; });
  Value out = Value::array();
  for (const auto& [key, l] : lines)
    out.push(Value::Object{{"producer", without_layer(l.first->producer)},
                           {"consumer", without_layer(l.first->consumer)},
                           {"count", l.count},
                           {"layers", layer_ranges(l.layers)},
                           {"reason", l.first->reason},
                           {"detail", without_layer(l.first->detail)},
                           {"saving_us", l.saving * 1e6},
                           {"bytes", l.bytes}});
  return out;
}

// Regions that this plan runs op by op, with the kernels that could not or need not run them. Those
// that differ only in the layer share one line.
Value op_by_op_value(const FusionReport& report, size_t plan) {
  std::vector<std::pair<std::string, Value>> lines;
  for (const KernelChoice& c : report.choices) {
    if (c.plan != plan || c.kernel != kOpByOp) continue;
    Value losers = list_of(c.losers, [](const KernelChoice::Loser& l) {
      return Value::Object{
          {"kernel", l.kernel}, {"predicted_us", l.seconds * 1e6}, {"reason", l.reason}};
    });
    std::string key = without_layer(c.call) + dump_json(losers);
    auto it = std::find_if(lines.begin(), lines.end(), [&](auto& l) { return l.first == key; });
    if (it != lines.end()) {
      it->second.set("count", it->second.at("count").as_int() + 1);
      continue;
    }
    lines.emplace_back(key, Value::Object{{"name", without_layer(c.call)},
                                          {"count", 1},
                                          {"predicted_us", c.seconds * 1e6},
                                          {"losers", std::move(losers)}});
  }
  return list_of(lines, [](const auto& l) { return l.second; });
}

Value fusion_total(const FusionReport& report, const std::string& function) {
  auto it = report.totals.find(function);
  if (it == report.totals.end()) return nullptr;
  const FusionReport::Total& t = it->second;
  return Value::Object{{"calls_before", t.calls_before},
                       {"calls_after", t.calls_after},
                       {"us_before", t.seconds_before * 1e6},
                       {"us_after", t.seconds_after * 1e6},
                       {"bytes_before", t.bytes_before},
                       {"bytes_after", t.bytes_after},
                       {"candidates", t.candidates},
                       {"states", t.states},
                       {"exact", t.exact}};
}

// Launches of many calls: those that the plan names, then those it does not, with the reason.
Value launches_value(const ExplainRequest& r, size_t index) {
  const Plan& plan = r.set->plans[index];
  const LaunchChoice* considered = nullptr;
  if (r.fusion)
    for (const LaunchChoice& c : r.fusion->launches)
      if (c.plan == index) considered = &c;
  Value out = Value::array();
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const PlanLaunch& l = plan.launches[i];
    out.push(Value::Object{{"kernel", r.set->kernels[l.kernel].name},
                           {"first_call", l.first},
                           {"calls", l.calls},
                           {"predicted_us", l.seconds * 1e6},
                           {"steps", considered ? considered->options[i].steps : std::string()},
                           {"reason", ""}});
  }
  for (size_t i = plan.launches.size(); considered && i < considered->options.size(); ++i) {
    const LaunchChoice::Option& o = considered->options[i];
    out.push(Value::Object{{"kernel", o.kernel},
                           {"predicted_us", o.seconds * 1e6},
                           {"steps", o.steps},
                           {"reason", o.reason}});
  }
  return out;
}

// What --mode max-autotune measured for the plan; null: nothing.
Value tuned_value(const FusionReport& report, size_t plan) {
  for (const TunedPlan& t : report.tuned)
    if (t.plan == plan)
      return Value::Object{
          {"trials", t.trials},
          {"before_us", t.seconds_before * 1e6},
          {"after_us", t.seconds_after * 1e6},
          {"changes", list_of(t.changes, [](const std::string& c) { return Value(c); })}};
  return {};
}

// The function that the plan was made from: with --activations mixed another one for many rows.
std::string source_function(const ExplainRequest& r, size_t plan) {
  bool known = r.fusion && plan < r.fusion->plan_functions.size();
  return known ? r.fusion->plan_functions[plan] : r.function;
}

Value graph_value(const std::string& stage, const Function& function) {
  return Value::Object{{"stage", stage},
                       {"function", function.name()},
                       {"nodes", function.nodes().size()},
                       {"segments", folded_graph(function)}};
}

Value warnings(const ExplainRequest& r) {
  Value out = Value::array();
  if (r.machine.name == Machine{}.name)
    out.push("the machine is not measured: `tokamak calibrate` does that, on an idle machine");
  return out;
}

}  // namespace

PassRecord::PassRecord(const std::string& function) {
  usual_.function = function;
  many_.function = many_rows_name(function);
}

void PassRecord::captured(const Function& step) {
  for (Line* line : {&usual_, &many_}) {
    line->last_hash = structural_hash(step);
    line->graphs.push(graph_value("captured", step));
  }
}

void PassRecord::add(const Function& function, const PassTiming& timing) {
  const Pass* pass = find_pass(timing.name);
  // The function for many rows is specialised before the final passes.
  bool shared =
      pass && !pass->final && (function.name() == "step" || function.name() == usual_.function);
  bool usual = shared || function.name() == usual_.function;
  bool many = shared || function.name() == many_.function;
  if (!usual && !many) return;
  uint64_t hash = structural_hash(function);
  Value rules = Value::object();
  for (const auto& [name, n] : timing.rules) rules.set(name, n);
  Value refused = Value::object();
  for (const auto& [reason, n] : timing.refused) refused.set(reason, n);
  static constexpr const char* kClasses[] = {"exact", "real", "lossy"};
  Value what = Value::Object{{"name", timing.name},
                             {"function", function.name()},
                             {"what", pass ? std::string(pass->what) : std::string()},
                             {"class", pass ? kClasses[static_cast<int>(pass->cls)] : ""},
                             {"skipped", timing.skipped},
                             {"ms", timing.seconds * 1e3},
                             {"nodes_before", timing.nodes_before},
                             {"nodes_after", timing.nodes_after},
                             {"fired", timing.fired},
                             {"rules", std::move(rules)},
                             {"refused", std::move(refused)}};
  for (Line* line : {&usual_, &many_}) {
    if (!(line == &usual_ ? usual : many)) continue;
    line->passes.push(what);
    if (hash != line->last_hash) line->graphs.push(graph_value(timing.name, function));
    line->last_hash = hash;
  }
}

Value explain(const ExplainRequest& r) {
  const PlanSet& set = *r.set;
  size_t index = bind_step(set, r.function, r.shape).plan;
  const Plan& plan = set.plans[index];
  const std::string source = source_function(r, index);
  CallTable table = call_table(r, index);
  Value out = Value::Object{
      {"format", "tokamak-explain"},
      {"version", 1},
      {"model", r.model},
      {"function", r.function},
      {"shape", shape_value(r)},
      {"mode", r.mode},
      {"backend", r.backend},
      {"isa", r.isa},
      {"numerics_id", set.numerics_id},
      {"machine", machine_value(r.machine)},
      {"warnings", warnings(r)},
      {"plan",
       Value::Object{{"index", index}, {"guard", guard_value(plan)}, {"plans", set.plans.size()}}},
      {"totals", std::move(table.totals)},
      {"kernels", std::move(table.kernels)},
      {"calls", std::move(table.calls)},
      {"memory", memory_value(set, plan)}};
  out.set("launches", launches_value(r, index));
  out.set("calls_us", plan.seconds * 1e6);
  out.set("passes", r.passes ? r.passes->passes(source) : Value::array());
  out.set("graphs", r.passes ? r.passes->graphs(source) : Value::array());
  out.set("fusion", r.fusion ? fusion_total(*r.fusion, source) : Value());
  if (Value tuned = r.fusion ? tuned_value(*r.fusion, index) : Value(); !tuned.is_null())
    out.set("tuned", std::move(tuned));
  out.set("op_by_op", r.fusion ? op_by_op_value(*r.fusion, index) : Value::array());
  out.set("not_fused", r.fusion ? not_fused_value(*r.fusion, source) : Value::array());
  return out;
}

}  // namespace tokamak
