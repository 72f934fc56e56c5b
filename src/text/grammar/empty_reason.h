#pragma once
// Why a grammar matches nothing, in words for its author.
#include <cstdint>
#include <string>
#include <vector>

#include "text/grammar/ir.h"

namespace tokamak::grammar {

// live[r]: rule r of the grammar matches some text. The root does not.
std::string empty_reason(const Ir& ir, const std::vector<uint8_t>& live);

}  // namespace tokamak::grammar
