#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_vs(CLI::App& bench);

}  // namespace tokamak
