#pragma once
#include <unordered_map>

#include "engine/text/jinja/interp.h"

namespace tokamak::jinja {

void add_text_filters(std::unordered_map<std::string_view, FilterFn>& table);
Val attribute_path(Interp& interp, const Val& v, const Val& path);

}  // namespace tokamak::jinja
