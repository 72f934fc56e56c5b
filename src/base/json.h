#pragma once
// JSON text <-> Value. Only json.cc includes the JSON library.
#include <string>
#include <string_view>

#include "base/value.h"

namespace tokamak {

struct JsonLimits {
  int max_depth = 256;
  bool unique_keys = false;  // refuse a repeated key instead of keeping the last value
};

// Throws Error(kInvalidArgument) with line and column. `what` names the text in the message
// ("config.json").
Value parse_json(std::string_view text, std::string_view what = "JSON", JsonLimits limits = {});

// Compact by default; indent >= 0 pretty-prints. Invalid UTF-8 is replaced by U+FFFD, NaN and
// infinities become null. Doubles print with the shortest form that reads back equal.
std::string dump_json(const Value& value, int indent = -1);

}  // namespace tokamak
