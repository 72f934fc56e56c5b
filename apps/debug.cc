// tokamak debug: tools that run parts of the compiler.
#include "apps/debug.h"

#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "compile/import/import_model.h"
#include "compile/simplify/rules.h"
#include "graph/region.h"
#include "plan/machine.h"

namespace tokamak {
namespace {

// One line per tool.
constexpr void (*kTools[])(CLI::App&) = {
    add_debug_opt,  add_debug_check, add_debug_bisect,
    add_debug_rule, add_debug_pack,  add_debug_passes,
};

}  // namespace

void add_debug_verb(CLI::App& app) {
  CLI::App* debug = app.add_subcommand("debug", "run parts of the compiler: passes, rules, checks");
  debug->require_subcommand(1);
  debug->footer(
      "Examples:\n  tokamak debug opt graph.tkg --passes canonicalize,recognize\n"
      "  tokamak debug check graph.tkg --seed 7\n  tokamak debug rule my.rule\n"
      "Exit codes: 0 success; 1 differs, refused or does not fit; 2 bad input.");
  for (auto add : kTools) add(*debug);
}

void add_graph_flags(CLI::App& tool, GraphFlags& flags) {
  tool.add_option("GRAPH", flags.graph, "graph text (.tkg), or a model file")->required();
  tool.add_option("--fn", flags.fn, "only this function");
  tool.add_option("--passes", flags.passes, "run exactly these, in this order: a,b,c")
      ->delimiter(',');
  tool.add_option("--disable-pass", flags.disabled, "do not run these passes")->delimiter(',');
  tool.add_option("--dump-after", flags.dump_after, "print the graph to stderr after these passes")
      ->delimiter(',');
  tool.add_option("--rules", flags.rules, "a file of rewrite rules for the pass user-rules");
  tool.add_flag("--unverified", flags.unverified, "use those rules without verifying them");
  tool.add_option("--machine", flags.machine,
                  "machine file (JSON) for the cost model of the pass fuse");
  tool.add_option("--storage", flags.storage, "types for the pass choose-storage: bf16, f16 ...");
  tool.add_option("--backend", flags.backend, "the backend to optimise for")
      ->check(CLI::IsMember({"cpu", "cuda", "ref"}))
      ->capture_default_str();
}

Module load_graph(const std::string& path) {
  if (std::filesystem::path(path).extension() != ".tkg" && path != "-") {
    std::error_code ec;
    bool model = std::filesystem::is_directory(path, ec) ||
                 std::filesystem::path(path).extension() == ".gguf";
    if (model) return reading([&] { return build_module(import_model(path).config, {}); });
  }
  Module module =
      reading([&] { return parse_module(read_text_file(path == "-" ? "/dev/stdin" : path)); });
  verify_module(module);
  return module;
}

std::vector<std::string> chosen_functions(const Module& module, const GraphFlags& flags) {
  std::vector<std::string> names;
  std::set<std::string> bodies = body_names(module);
  for (const auto& fn : module.functions)
    if (flags.fn.empty() ? !bodies.contains(fn->name()) : fn->name() == flags.fn)
      names.push_back(fn->name());
  if (names.empty())
    fail(ErrorCode::kInvalidArgument, "{} has no function {}", flags.graph,
         flags.fn.empty() ? "at all" : "\"" + flags.fn + "\"");
  return names;
}

CompileOptions graph_options(const GraphFlags& flags) {
  CompileOptions options;
  options.passes = flags.passes;
  options.disabled_passes = {flags.disabled.begin(), flags.disabled.end()};
  options.dump_after = {flags.dump_after.begin(), flags.dump_after.end()};
  if (!flags.rules.empty())
    options.rules =
        reading([&] { return load_rules(read_text_file(flags.rules), flags.unverified); });
  options.machine = flags.machine;
  options.storage = flags.storage;
  if (!flags.machine.empty())  // fails early
    reading([&] { return load_machine_file(flags.machine); });
  chosen_passes(options);  // fails on unknown names
  return options;
}

}  // namespace tokamak
