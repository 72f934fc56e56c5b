// tokamak debug opt: graph text in, optimised graph text out. tokamak debug passes: the list of
// passes.
#include <algorithm>

#include "apps/debug.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct OptFlags {
  GraphFlags graph;
  std::vector<std::string> shape;
  bool json = false;
};

using SymbolValues = std::map<std::string, int64_t, std::less<>>;

// Symbols that --shape does not name are 64, clamped to their range.
SymbolValues symbol_values(const Module& module, const std::vector<std::string>& shape) {
  SymbolValues values;
  for (const SymbolDecl& s : module.symbols) {
    int64_t v = std::clamp<int64_t>(64, s.lo, s.hi);
    values[s.name] = std::max(v / s.multiple * s.multiple, s.lo);
  }
  for (const std::string& item : shape) {
    size_t eq = item.find('=');
    std::string name = item.substr(0, eq);
    const SymbolDecl* s = module.find_symbol(name);
    if (!s || eq == std::string::npos)
      fail(ErrorCode::kInvalidArgument, "--shape {}: write NAME=NUMBER with a symbol of the graph",
           item);
    int64_t v = 0;
    if (!CLI::detail::lexical_cast(item.substr(eq + 1), v) || v < s->lo || v > s->hi)
      fail(ErrorCode::kInvalidArgument, "--shape {}: {} must be in {}..{}", item, name, s->lo,
           s->hi);
    values[name] = v;
  }
  return values;
}

// Nodes that a backend launches: all but structural ones and views.
int64_t kernel_count(const Function& fn) {
  int64_t n = 0;
  for (const Node& node : fn.nodes())
    n += node.op->tier != Tier::kStructural && node.op->name != "reshape";
  return n;
}

Value counts(const Function& fn, const SymbolValues& values) {
  GraphStats s = graph_stats(fn, values);
  Value per_op = Value::object();
  for (const auto& [op, n] : s.per_op) per_op.set(op, static_cast<int64_t>(n));
  int64_t ops = 0;
  for (const Node& node : fn.nodes()) ops += node.op->tier != Tier::kStructural;
  return Value::Object{{"nodes", ops},
                       {"kernels", kernel_count(fn)},
                       {"flops", s.flops},
                       {"weight_bytes", s.weight_bytes},
                       {"activation_bytes", s.activation_bytes},
                       {"ops", per_op},
                       {"hash", fmt::format("{:016x}", structural_hash(fn))}};
}

// Sums over the functions, for scripts that look at one graph.
Value totals(const Value& functions) {
  Value out = Value::object(), rules = Value::object();
  for (const char* when : {"before", "after"}) {
    int64_t nodes = 0, kernels = 0;
    double bytes = 0;
    for (const auto& [name, f] : functions.as_object()) {
      const Value& c = f.at(when);
      nodes += c.at("nodes").as_int();
      kernels += c.at("kernels").as_int();
      bytes += c.at("weight_bytes").as_double() + c.at("activation_bytes").as_double();
    }
    out.set(when, Value::Object{{"nodes", nodes}, {"kernels", kernels}, {"bytes", bytes}});
  }
  for (const auto& [name, f] : functions.as_object())
    for (const auto& [rule, n] : f.at("rules_fired").as_object())
      rules.set(rule, rules.get_int(rule, 0) + n.as_int());
  out.set("rules_fired", rules);
  return out;
}

Value pass_value(const PassTiming& t) {
  Value rules = Value::object();
  for (const auto& [name, n] : t.rules) rules.set(name, static_cast<int64_t>(n));
  Value refused = Value::object();
  for (const auto& [reason, n] : t.refused) refused.set(reason, static_cast<int64_t>(n));
  return Value::Object{{"name", t.name},
                       {"skipped", t.skipped},
                       {"seconds", t.seconds},
                       {"nodes_before", static_cast<int64_t>(t.nodes_before)},
                       {"nodes_after", static_cast<int64_t>(t.nodes_after)},
                       {"fired", static_cast<int64_t>(t.fired)},
                       {"rules", rules},
                       {"refused", refused}};
}

void run(const OptFlags& f) {
  Module module = load_graph(f.graph.graph);
  CompileOptions options = graph_options(f.graph);
  auto backend = make_backend(f.graph.backend);
  SymbolValues values = symbol_values(module, f.shape);
  Value functions = Value::object();
  for (const std::string& name : chosen_functions(module, f.graph)) {
    Function& fn = *module.find_function(name);
    Value before = counts(fn, values);
    Value passes = Value::array(), fired = Value::object();
    for (const PassTiming& t : run_passes(module, fn, {*backend, options})) {
      passes.push(pass_value(t));
      for (const auto& [rule, n] : t.rules)
        fired.set(rule, fired.get_int(rule, 0) + static_cast<int64_t>(n));
    }
    functions.set(name, Value::Object{{"before", before},
                                      {"after", counts(fn, values)},
                                      {"rules_fired", fired},
                                      {"passes", passes}});
  }
  verify_module(module);
  if (!f.json) {
    fmt::print("{}", print_module(module));
    return;
  }
  Value symbols = Value::object();
  for (const auto& [name, v] : values) symbols.set(name, v);
  Value out = totals(functions);
  out.set("graph", f.graph.graph);
  out.set("symbols", symbols);
  out.set("functions", functions);
  out.set("text", print_module(module));
  fmt::print("{}\n", dump_json(out, 2));
}

void list_passes(bool json) {
  static constexpr const char* kClasses[] = {"exact", "real", "lossy"};
  Value out = Value::array();
  for (const Pass& p : pipeline()) {
    const char* cls = kClasses[static_cast<int>(p.cls)];
    if (!json) fmt::print("{:<22} {:<6} {:<4} {}\n", p.name, cls, p.on ? "on" : "off", p.what);
    out.push(Value::Object{{"name", p.name}, {"class", cls}, {"on", p.on}, {"what", p.what}});
  }
  if (json) fmt::print("{}\n", dump_json(out, 2));
}

}  // namespace

void add_debug_opt(CLI::App& debug) {
  auto flags = std::make_shared<OptFlags>();
  CLI::App* tool = debug.add_subcommand("opt", "graph text in, optimised graph text out");
  add_graph_flags(*tool, flags->graph);
  tool->add_option("--shape", flags->shape, "symbol values for the counts: B=8,T=512")
      ->delimiter(',');
  tool->add_flag("--json", flags->json,
                 "print counts of nodes, kernels and bytes, and the rules that fired");
  tool->footer(
      "Examples:\n  tokamak debug opt graph.tkg\n  tokamak debug opt graph.tkg --passes "
      "canonicalize,recognize --json\n  tokamak inspect model.gguf --graph > m.tkg && tokamak "
      "debug "
      "opt m.tkg --disable-pass quantize-activations");
  tool->callback([flags] { run(*flags); });
}

void add_debug_passes(CLI::App& debug) {
  auto json = std::make_shared<bool>(false);
  CLI::App* tool = debug.add_subcommand("passes", "the pipeline: names, classes, what they do");
  tool->add_flag("--json", *json, "print as JSON");
  tool->footer("Example: tokamak debug passes");
  tool->callback([json] { list_passes(*json); });
}

}  // namespace tokamak
