#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_breakeven(CLI::App& bench);

}  // namespace tokamak
