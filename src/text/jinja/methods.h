#pragma once
#include <unordered_map>

#include "text/jinja/interp.h"

namespace tokamak::jinja {

using MethodTable = std::unordered_map<std::string_view, MethodFn>;
const MethodTable& string_methods();

}  // namespace tokamak::jinja
