#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_replay(CLI::App& bench);  // tokamak bench replay

}  // namespace tokamak
