// What holds for the members and items of a value, by all schemas that hold for the value.
#include <fmt/format.h>

#include <algorithm>

#include "text/grammar/json_conjunction.h"

namespace tokamak::grammar {
namespace {

bool restricts(const Value* schema) {
  return schema != nullptr && !(schema->is_bool() && schema->as_bool());
}

}  // namespace

// A schema and those that apply to the same value because of it: unevaluatedProperties and
// unevaluatedItems look at what these declare.
std::vector<bool> SchemaDocument::in_place(const Conjunction& all, size_t index) const {
  std::vector<bool> out(all.schemas.size(), false);
  out[index] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < out.size(); ++i) {
      const std::vector<size_t>& parents = all.schemas[i].parents;
      if (out[i] || std::none_of(parents.begin(), parents.end(), [&](size_t p) { return out[p]; }))
        continue;
      out[i] = changed = true;
    }
  }
  return out;
}

std::vector<bool> SchemaDocument::tracked(const Conjunction& all) const {
  std::vector<bool> out(all.schemas.size(), false);
  for (size_t i = 0; i < all.schemas.size(); ++i)
    for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"}) {
      if (!restricts(all.schemas[i].find(keyword))) continue;
      const std::vector<bool> holding = in_place(all, i);
      for (size_t k = 0; k < out.size(); ++k) out[k] = out[k] || holding[k];
    }
  return out;
}

template <typename Add>
void SchemaDocument::add_unevaluated(const Conjunction& all, const char* keyword,
                                     const std::vector<bool>& declared, Add&& add_rest) const {
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    const Value* rest = all.schemas[i].find(keyword);
    if (!restricts(rest)) continue;
    const std::vector<bool> holding = in_place(all, i);
    bool evaluated = false;
    for (size_t k = 0; k < holding.size(); ++k) {
      const SchemaRef& s = all.schemas[k];
      // As long as alternatives are not chosen, nothing is known to be unevaluated.
      bool pending = !s.any_of_done || !s.one_of_done;
      evaluated |= holding[k] && (declared[k] || pending || (k != i && s.schema->has(keyword)));
    }
    if (!evaluated) add_rest(all.schemas[i], *rest, holding);
  }
}

void SchemaDocument::add_other_member(Conjunction& out, const Conjunction& all,
                                      std::vector<bool> declared) const {
  for (size_t i = 0; i < all.schemas.size(); ++i)
    if (const Value* rest = all.schemas[i].find("additionalProperties"); rest && !declared[i]) {
      add(out, *rest, all.schemas[i].path + "/additionalProperties");
      declared[i] = true;
    }
  add_unevaluated(all, "unevaluatedProperties", declared,
                  [&](const SchemaRef& s, const Value& rest, const std::vector<bool>&) {
                    add(out, rest, s.path + "/unevaluatedProperties");
                  });
}

bool SchemaDocument::closed(const Conjunction& all) const {
  bool declares = false;
  for (const SchemaRef& s : all.schemas) {
    if (s.schema->has("additionalProperties") || s.schema->has("unevaluatedProperties"))
      return false;
    declares |= s.schema->has("properties") || s.schema->has("patternProperties");
  }
  return declares;
}

Conjunction SchemaDocument::member(const Conjunction& all, const std::string& name) const {
  Conjunction out;
  std::vector<bool> declared(all.schemas.size(), false);
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    const SchemaRef& s = all.schemas[i];
    if (const Value* properties = s.find("properties"))
      if (const Value* own = properties->find(name)) {
        add(out, *own, s.path + "/properties/" + name);
        declared[i] = true;
      }
    if (const Value* patterns = s.find("patternProperties"))
      for (const auto& [regex, schema] : patterns->as_object())
        if (pattern(regex, s.path + "/patternProperties").matches(std::string_view(name))) {
          add(out, schema, s.path + "/patternProperties/" + regex);
          declared[i] = true;
        }
  }
  add_other_member(out, all, std::move(declared));
  return out;
}

const Value::Array* SchemaDocument::prefix_items(const SchemaRef& s) const {
  const Value* items = s.find("prefixItems");
  if (items != nullptr && !items->is_array())
    schema_error(s.path, "prefixItems", "must be an array");
  if (items == nullptr) items = s.find("items");
  return items != nullptr && items->is_array() ? &items->as_array() : nullptr;
}

Conjunction SchemaDocument::item(const Conjunction& all, size_t index) const {
  Conjunction out;
  std::vector<bool> declared(all.schemas.size(), true);
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    const SchemaRef& s = all.schemas[i];
    const Value::Array* prefix = prefix_items(s);
    const Value* items = s.find("items");
    const Value* rest = s.find("additionalItems");
    if (prefix != nullptr && index < prefix->size())
      add(out, (*prefix)[index], fmt::format("{}/prefixItems/{}", s.path, index));
    else if (items != nullptr && !items->is_array())
      add(out, *items, s.path + "/items");
    else if (items != nullptr && rest != nullptr)
      add(out, *rest, s.path + "/additionalItems");
    else
      declared[i] = false;
  }
  add_unevaluated(all, "unevaluatedItems", declared,
                  [&](const SchemaRef& s, const Value& rest, const std::vector<bool>& holding) {
                    add(out, unless_contained(all, holding, rest), s.path + "/unevaluatedItems");
                  });
  return out;
}

// An item that `contains` counts is evaluated.
const Value& SchemaDocument::unless_contained(const Conjunction& all,
                                              const std::vector<bool>& holding,
                                              const Value& rest) const {
  std::vector<const Value*> parts{&rest};
  for (size_t i = 0; i < holding.size(); ++i)
    if (const Value* wanted = all.schemas[i].find("contains"); wanted && holding[i])
      parts.push_back(wanted);
  if (parts.size() == 1 || contains_is_silent_) return rest;
  auto [it, fresh] = either_.try_emplace(parts);
  if (fresh) {
    Value::Array list;
    for (const Value* part : parts) list.push_back(*part);
    it->second = Value::Object{{"anyOf", Value(std::move(list))}};
  }
  return it->second;
}

void SchemaDocument::refuse_unevaluated(const SchemaRef& s, const char* keyword) const {
  if (!restricts(s.find(keyword))) return;
  for (const char* other : {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
    if (s.schema->has(other))
      schema_error(s.path, keyword,
                   fmt::format("is not supported together with '{}' and an enum or const", other));
}

}  // namespace tokamak::grammar
