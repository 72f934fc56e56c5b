#pragma once
// Attributes as part of a node's identity: bit for bit, so that 0.0 and -0.0, and 1 and 1.0, stay
// apart.
#include <cstdint>

#include "base/hash.h"
#include "base/value.h"

namespace tokamak {

// An object with sorted keys and extents in canonical form; null becomes the empty object. Other
// kinds and repeated keys throw.
Value canonical_attrs(Value attrs);
bool same_bits(const Value& a, const Value& b);
void hash_value(const Value& value, Hash128& hash);

// Whether an attribute of this name holds extents (an expression's text, or an array of them):
// these take part in the substitution of symbols.
bool is_extent_attr(std::string_view key);

}  // namespace tokamak
