#pragma once
#include <string>

#include "base/value.h"

namespace tokamak {

// What a bundle says of itself: sections, limits, plans. Throws like BundleFile::open.
Value bundle_summary(const std::string& path);
void print_bundle_summary(const Value& summary);

}  // namespace tokamak
