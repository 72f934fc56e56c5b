#pragma once
#include <vector>

#include "api/open.h"

namespace tokamak {

// Prints the memory that was counted, and what the system reports for the process.
void print_ledger(const std::vector<LoadedModel>& models);

}  // namespace tokamak
