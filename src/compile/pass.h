#pragma once
// A pass turns one function into another. Every pass is named and timed, can be switched off, and
// the graph is verified after it. compile/pipeline.cc is THE ordered list.
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/compiler.h"

namespace tokamak {

struct PassContext {
  const Backend& backend;
  const CompileOptions& options;
};

struct Pass {
  std::string_view name;
  std::string_view what;  // one line for people
  void (*run)(Module& module, Function& function, const PassContext& context);
};

struct PassTiming {
  std::string name;
  double seconds = 0;
  size_t nodes_before = 0, nodes_after = 0;
  bool skipped = false;
};

std::span<const Pass> pipeline();
std::vector<PassTiming> run_passes(Module& module, Function& function, const PassContext& context);

// Rebuilds a function node by node, inputs first. `map` returns what stands for the node's outputs
// in the new function (usually by calling to.add_multi with the given inputs). Unreachable nodes
// are dropped.
using NodeMap =
    std::function<std::vector<Ref>(Function& to, const Node& node, const std::vector<Ref>& inputs)>;
void rebuild(Module& module, Function& function, const NodeMap& map);

// Passes.
void quantize_activations(Module& module, Function& function, const PassContext& context);
void remove_dead_code(Module& module, Function& function, const PassContext& context);

}  // namespace tokamak
