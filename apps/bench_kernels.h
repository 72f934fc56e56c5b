#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_kernels(CLI::App& bench);

}  // namespace tokamak
