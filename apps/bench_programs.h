#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_programs(CLI::App& bench);

}  // namespace tokamak
