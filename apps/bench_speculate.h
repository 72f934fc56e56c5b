#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_speculate(CLI::App& bench);

}  // namespace tokamak
