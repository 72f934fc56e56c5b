#pragma once
// The attributes of attend that name planes of its state.
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace tokamak {

// The attribute that allows operands of the products to be rounded to its value, "bf16".
inline constexpr std::string_view kAttendProducts = "products";

std::vector<std::string> attend_key_planes(const Attrs& attrs);  // "key", default {"k"}
std::string attend_value_plane(const Attrs& attrs);              // "value", default "v"

}  // namespace tokamak
