#pragma once
#include <unordered_map>

#include "text/jinja/interp.h"

namespace tokamak::jinja {

void add_text_filters(std::unordered_map<std::string_view, FilterFn>& table);
void add_number_filters(std::unordered_map<std::string_view, FilterFn>& table);
// Raises if the filter has no such argument.
void check_filter_args(std::string_view name, const Args& args);
bool py_float(std::string_view text, double& out);  // float(text)
// fallback: what stands for every part that is missing; nullptr: a missing part has no parts.
Val attribute_path(Interp& interp, const Val& v, const Val& path, const Val* fallback = nullptr);

}  // namespace tokamak::jinja
