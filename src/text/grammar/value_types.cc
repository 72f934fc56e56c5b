#include "text/grammar/value_types.h"

#include "text/grammar/json_references.h"

namespace tokamak::grammar {
namespace {

constexpr int kMaxTypeDepth = 16, kMaxTypeSchemas = 1000;

// `left`: schemas that may still be visited. References can make a small schema visit very many.
uint32_t schema_types(const Value& schema, const Value& root, int depth, int& left) {
  if (!schema.is_object() || depth > kMaxTypeDepth || left <= 0) return kAllTypes;
  --left;
  uint32_t bits = kAllTypes;
  auto each = [](const Value& list, auto&& bits_of) {
    uint32_t any = 0;
    for (const Value& item : list.as_array()) any |= bits_of(item);
    return any;
  };
  auto named = [](const Value& name) {
    uint32_t one = name.is_string() ? type_bits(name.as_string()) : 0;
    return one != 0 ? one : uint32_t{kAllTypes};
  };
  if (const Value* type = schema.find("type"))
    bits &= type->is_array() ? each(*type, named) : named(*type);
  if (const Value* list = schema.find("enum"); list && list->is_array())
    bits &= each(*list, [](const Value& v) { return types_of(v); });
  if (const Value* value = schema.find("const")) bits &= types_of(*value);
  for (const char* keyword : {"anyOf", "oneOf"})
    if (const Value* list = schema.find(keyword); list && list->is_array())
      bits &= each(*list, [&](const Value& s) { return schema_types(s, root, depth + 1, left); });
  if (const Value* list = schema.find("allOf"); list && list->is_array())
    for (const Value& s : list->as_array()) bits &= schema_types(s, root, depth + 1, left);
  if (const Value* ref = schema.find("$ref");
      ref && ref->is_string() && ref->as_string().starts_with('#'))
    if (const Value* to = find_pointer(root, std::string_view(ref->as_string()).substr(1)))
      bits &= schema_types(*to, root, depth + 1, left);
  return bits;
}

}  // namespace

uint32_t type_bits(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "object") return kObject;
  if (name == "array") return kArray;
  if (name == "string") return kString;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumbers;
  return 0;
}

uint32_t types_of(const Value& value) {
  if (value.is_null()) return kNull;
  if (value.is_bool()) return kBoolean;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  return value.is_string() ? uint32_t{kString} : kNumbers;
}

uint32_t parameter_types(const Value& parameters, std::string_view name) {
  const Value* properties = parameters.is_object() ? parameters.find("properties") : nullptr;
  const Value* schema =
      properties != nullptr && properties->is_object() ? properties->find(name) : nullptr;
  int left = kMaxTypeSchemas;
  return schema == nullptr ? uint32_t{kAllTypes} : schema_types(*schema, parameters, 0, left);
}

}  // namespace tokamak::grammar
