#pragma once
#include <string>

#include "api/open.h"
#include "base/value.h"

namespace tokamak {

// What `tokamak explain` reports about a function (decode, step) of a model at the default shape.
// The model is compiled again, without loading its weights.
Value explain_report(const OpenOptions& model, const std::string& function);

}  // namespace tokamak
