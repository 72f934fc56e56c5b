#pragma once
// Rotary frequencies for every scaling scheme, computed once at compile time.
#include <vector>

#include "compile/import/model_config.h"

namespace tokamak {

struct RopeTable {
  std::vector<double> inv_freq;  // dims / 2 angles per position
  double scale = 1.0;            // multiplies sin and cos (yarn, longrope)
};

// `context` is the longest sequence to be served; it decides which factor list longrope uses.
RopeTable rope_table(const RopeConfig& rope, int64_t context);

// What llama3 scaling divides each frequency by: the tensor rope_freqs of GGUF files.
std::vector<double> llama3_divisors(const RopeConfig& rope);

}  // namespace tokamak
