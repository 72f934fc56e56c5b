#pragma once
// The attributes of attend that name planes of its state.
#include <string>
#include <vector>

#include "ops/op.h"

namespace tokamak {

std::vector<std::string> attend_key_planes(const Attrs& attrs);  // "key", default {"k"}
std::string attend_value_plane(const Attrs& attrs);              // "value", default "v"

}  // namespace tokamak
