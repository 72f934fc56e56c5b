#pragma once
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_serve(CLI::App& bench);  // tokamak bench serve

}  // namespace tokamak
