#include "graph/attrs.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "tensor/sym.h"

namespace tokamak {
namespace {

// "2" becomes 2 and "1 + T" becomes "T + 1", so that equal extents are equal attributes.
void canonical_extent(Value& value) {
  if (value.is_array()) {
    for (Value& v : value.as_array()) canonical_extent(v);
  } else if (value.is_string()) {
    try {
      const SymExpr e = SymExpr::parse(value.as_string());
      value = e.is_constant() ? Value(*e.constant()) : Value(e.text());
    } catch (const Error&) {  // the op's own rule says what is wrong with it
    }
  }
}

}  // namespace

Value canonical_attrs(Value attrs) {
  if (attrs.is_null()) return Value::object();
  if (!attrs.is_object()) {
    fail(ErrorCode::kInvalidArgument, "attributes must be an object, got {}", attrs.type_name());
  }
  Value::Object& members = attrs.as_object();
  std::sort(members.begin(), members.end(),
            [](const Value::Member& a, const Value::Member& b) { return a.first < b.first; });
  for (size_t i = 1; i < members.size(); ++i) {
    if (members[i].first == members[i - 1].first) {
      fail(ErrorCode::kInvalidArgument, "attribute \"{}\" is given twice", members[i].first);
    }
  }
  for (auto& [key, value] : members)
    if (is_extent_attr(key)) canonical_extent(value);
  return attrs;
}

bool same_bits(const Value& a, const Value& b) {
  if (a.is_double() && b.is_double()) {
    return std::bit_cast<uint64_t>(a.as_double()) == std::bit_cast<uint64_t>(b.as_double());
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(),
                      b.as_array().end(), same_bits);
  }
  if (a.is_object() && b.is_object()) {
    return std::equal(a.as_object().begin(), a.as_object().end(), b.as_object().begin(),
                      b.as_object().end(), [](const Value::Member& x, const Value::Member& y) {
                        return x.first == y.first && same_bits(x.second, y.second);
                      });
  }
  return a == b;
}

void hash_value(const Value& value, Hash128& hash) {
  if (value.is_bool()) {
    hash.add(value.as_bool() ? 2 : 1);
  } else if (value.is_int()) {
    hash.add(3);
    hash.add(static_cast<uint64_t>(value.as_int()));
  } else if (value.is_double()) {
    hash.add(4);
    hash.add(std::bit_cast<uint64_t>(value.as_double()));
  } else if (value.is_string()) {
    hash.add(5);
    hash.add(value.as_string());
  } else if (value.is_array()) {
    hash.add(6);
    hash.add(value.size());
    for (const Value& v : value.as_array()) hash_value(v, hash);
  } else if (value.is_object()) {
    hash.add(7);
    hash.add(value.size());
    for (const auto& [key, v] : value.as_object()) {
      hash.add(key);
      hash_value(v, hash);
    }
  } else {
    hash.add(uint64_t{0});
  }
}

bool is_extent_attr(std::string_view key) {
  return key == "dims" || key == "n" || key == "start" || key == "end";
}

}  // namespace tokamak
