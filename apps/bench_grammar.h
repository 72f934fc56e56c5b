#pragma once
// tokamak bench grammar: how long token masks take.
#include <CLI/CLI.hpp>

namespace tokamak {

void add_bench_grammar(CLI::App& bench);

}  // namespace tokamak
