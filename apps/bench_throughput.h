#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_throughput(CLI::App& bench);

}  // namespace tokamak
