#pragma once
// Packing instances as text: a header id,lower,upper,size (any order, optionally alignment), then
// one buffer per line, alive in [lower, upper).
#include <string_view>

#include "compile/planner/pack.h"

namespace tokamak {

struct PackInstance {
  std::vector<std::string> ids;  // unique
  std::vector<PackBuffer> buffers;
};

// Throws Error(kCorrupt) "WHAT, line 7: ..."; what it returns is safe to give to pack().
PackInstance parse_pack_csv(std::string_view text, std::string_view what);

}  // namespace tokamak
