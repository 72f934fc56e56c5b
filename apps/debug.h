#pragma once
// The tools of `tokamak debug`, for work on the compiler. One file each; debug.cc lists
// them.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "compile/pass.h"

namespace tokamak {

void add_debug_opt(CLI::App& debug);
void add_debug_check(CLI::App& debug);
void add_debug_bisect(CLI::App& debug);
void add_debug_rule(CLI::App& debug);
void add_debug_pack(CLI::App& debug);
void add_debug_passes(CLI::App& debug);

// A graph and the passes to run on it.
struct GraphFlags {
  std::string graph, fn, backend = "cpu", machine, rules, storage;
  std::vector<std::string> passes, disabled, dump_after;
  bool unverified = false, quantize = false;
};
void add_graph_flags(CLI::App& tool, GraphFlags& flags);

// Runs `read` and turns its errors into kInvalidArgument (exit code 2), because exit code 1 is a
// result of the tool: differs, refused, does not fit.
template <class F>
auto reading(F read) {
  try {
    return read();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal || e.code() == ErrorCode::kInvalidArgument) throw;
    fail(ErrorCode::kInvalidArgument, "{}", e.what());
  }
}

// Graph text (.tkg), or the plain graph of a model file.
Module load_graph(const std::string& path);
// The function that --fn names, or all functions.
std::vector<std::string> chosen_functions(const Module& module, const GraphFlags& flags);
CompileOptions graph_options(const GraphFlags& flags);

}  // namespace tokamak
