#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_tree(CLI::App& bench);

}  // namespace tokamak
