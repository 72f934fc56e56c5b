#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_startup(CLI::App& bench);

}  // namespace tokamak
