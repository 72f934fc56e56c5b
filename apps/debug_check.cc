// tokamak debug check: a graph before and after passes, on random inputs. tokamak debug bisect:
// which pass, and which application of which rule, makes the difference.
#include "apps/debug.h"
#include "base/error.h"
#include "base/json.h"
#include "compile/simplify/check.h"
#include "compile/simplify/check_backend.h"

namespace tokamak {
namespace {

struct CheckFlags {
  GraphFlags graph;
  uint64_t seed = 1;
  int runs = 4;
  bool json = false;
};

void add_flags(CLI::App& tool, CheckFlags& f) {
  add_graph_flags(tool, f.graph);
  tool.add_option("--seed", f.seed, "seed of inputs, states and weights")->capture_default_str();
  tool.add_option("--runs", f.runs, "random inputs to try")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  tool.add_flag("--json", f.json, "print as JSON");
}

// Quantisation changes values on purpose: it is compared only when it is asked for.
CompileOptions check_options(const CheckFlags& f) {
  CompileOptions options = graph_options(f.graph);
  if (options.passes.empty())
    for (const Pass& p : pipeline())
      if (p.cls == PassClass::kLossy) options.disabled_passes.emplace(p.name);
  return options;
}

PassClass class_for(const CompileOptions& options) {
  std::vector<const Pass*> passes;
  for (const Pass* p : chosen_passes(options))
    if (!options.disabled_passes.contains(std::string(p->name))) passes.push_back(p);
  return class_of(passes);
}

Value to_value(const std::string& fn, const CheckReport& r) {
  return Value::Object{{"function", fn},   {"same", r.same},         {"bit_equal", r.bits},
                       {"error", r.error}, {"of_bound", r.of_bound}, {"nmse", r.nmse},
                       {"where", r.where}, {"runs", r.runs},         {"message", r.message}};
}

void check(const CheckFlags& f) {
  Module module = load_graph(f.graph.graph);
  CompileOptions options = check_options(f);
  auto backend = make_backend(f.graph.backend);
  CheckOptions how{f.seed, f.runs, class_for(options)};
  bool same = true;
  Value all = Value::array();
  for (const std::string& name : chosen_functions(module, f.graph)) {
    Module after = module.clone();
    run_passes(after, *after.find_function(name), {*backend, options});
    // Kernels round more than the meaning does, so the passes are first checked by the meaning.
    const Function &from = *module.find_function(name), &to = *after.find_function(name);
    CheckReport report = check_functions(from, to, how);
    if (f.graph.backend != "ref" && report.same) report = check_on_backend(from, to, *backend, how);
    if (report.runs == 0)
      fail(ErrorCode::kUnsupported, "function {}: none of {} random inputs fits it{}{}", name,
           f.runs, report.message.empty() ? "" : ": ", report.message);
    same &= report.same;
    all.push(to_value(name, report));
    if (!f.json)
      fmt::print("{}: {}, largest error {:.3g}{} ({:.2g} of its bound), nmse {:.3g}, {} runs{}{}\n",
                 name, report.same ? (report.bits ? "same bits" : "same") : "DIFFERENT",
                 report.error, report.where.empty() ? "" : " in " + report.where, report.of_bound,
                 report.nmse, report.runs, report.message.empty() ? "" : "\n  ", report.message);
  }
  if (f.json) fmt::print("{}\n", dump_json(all, 2));
  if (!same) fail(ErrorCode::kCorrupt, "the passes change what {} computes", f.graph.graph);
}

void find_culprit(const CheckFlags& f) {
  Module module = load_graph(f.graph.graph);
  CompileOptions options = check_options(f);
  auto backend = make_backend(f.graph.backend);
  bool found = false;
  Value all = Value::array();
  for (const std::string& name : chosen_functions(module, f.graph)) {
    Culprit c = bisect(module, name, {*backend, options}, {f.seed, f.runs, class_for(options)});
    found |= c.found;
    all.push(Value::Object{{"function", name},
                           {"found", c.found},
                           {"pass", c.pass},
                           {"firing", c.firing},
                           {"checks", c.checks}});
    if (f.json) continue;
    if (!c.found)
      fmt::print("{}: no pass breaks it ({} checks)\n", name, c.checks);
    else
      fmt::print("{}: pass {}{}{} ({} checks)\n", name, c.pass, c.firing.empty() ? "" : ", ",
                 c.firing, c.checks);
  }
  if (f.json) fmt::print("{}\n", dump_json(all, 2));
  if (found) fail(ErrorCode::kCorrupt, "a pass changes what {} computes", f.graph.graph);
}

}  // namespace

void add_debug_check(CLI::App& debug) {
  auto flags = std::make_shared<CheckFlags>();
  flags->graph.backend = "ref";
  CLI::App* tool = debug.add_subcommand(
      "check", "run a graph before and after the passes on random inputs and compare");
  add_flags(*tool, *flags);
  tool->footer(
      "Examples:\n  tokamak debug check graph.tkg\n  tokamak debug check graph.tkg --passes "
      "recognize "
      "--seed 7 --backend cpu\nExit code 1 when they differ: bit for bit after exact passes; after "
      "the others by more than float32 rounding explains for each value (quantisation: 1e-2 in "
      "all). States are compared too.");
  tool->callback([flags] { check(*flags); });
}

void add_debug_bisect(CLI::App& debug) {
  auto flags = std::make_shared<CheckFlags>();
  flags->graph.backend = "ref";
  CLI::App* tool = debug.add_subcommand("bisect", "find the pass and the rule that break a graph");
  add_flags(*tool, *flags);
  tool->footer("Example: tokamak debug bisect graph.tkg --rules suspects.rules --unverified");
  tool->callback([flags] { find_culprit(*flags); });
}

}  // namespace tokamak
