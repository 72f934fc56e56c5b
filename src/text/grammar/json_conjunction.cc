#include "text/grammar/json_conjunction.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/grammar/json_references.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

constexpr int kMaxRefs = 64;           // references that lead to references
constexpr size_t kMaxAncestors = 200;  // schemas that lead to an alternative, for the same value
constexpr const char* kNegatable =
    "is only supported with type, enum, const, pattern, bounds, required, properties, items, "
    "contains, $ref, allOf and anyOf";
constexpr const char* kDerived[] = {"if", "not", "dependentRequired", "dependentSchemas",
                                    "dependencies"};

}  // namespace

uint32_t declared_types(const Value& type, const std::string& path) {
  uint32_t bits = 0;
  auto add = [&](const Value& name) {
    uint32_t one = name.is_string() ? type_bits(name.as_string()) : 0;
    if (one == 0) schema_error(path, "type", "is not a JSON type");
    bits |= one;
  };
  if (type.is_array())
    for (const Value& name : type.as_array()) add(name);
  else
    add(type);
  return bits;
}

std::string schema_message(const std::string& path, std::string_view keyword,
                           std::string_view what) {
  return fmt::format("the JSON schema, {}{}{}: {}", path, keyword.empty() ? "" : "/", keyword,
                     what);
}

void schema_error(const std::string& path, std::string_view keyword, std::string_view what) {
  fail(ErrorCode::kInvalidArgument, "{}", schema_message(path, keyword, what));
}

bool json_equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a == b || a.as_double() == b.as_double();
  if (a.is_array() && b.is_array())
    return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(),
                      b.as_array().end(), json_equal);
  if (!a.is_object() || !b.is_object()) return a == b;
  return a.size() == b.size() &&
         std::all_of(a.as_object().begin(), a.as_object().end(), [&](const Value::Member& m) {
           const Value* other = b.find(m.first);
           return other != nullptr && json_equal(m.second, *other);
         });
}

SchemaDocument::SchemaDocument(const Value& root) : root_(&root) {
  const Value* draft = root.find("$schema");
  old_draft_ = draft != nullptr && draft->is_string() &&
               draft->as_string().find("/draft-0") != std::string::npos;
  contains_is_silent_ = draft != nullptr && draft->is_string() &&
                        draft->as_string().find("/2019-09/") != std::string::npos;
  plain_ = with_plain_references(root, old_draft_);
  if (plain_) root_ = &*plain_;
}

std::pair<const Value*, std::string> SchemaDocument::resolve(const std::string& ref,
                                                             const std::string& path) const {
  if (ref != "#" && !ref.starts_with("#/"))
    schema_error(path, "$ref", fmt::format("'{}' is not in this document", ref.substr(0, 100)));
  const Value* target = find_pointer(*root_, std::string_view(ref).substr(1));
  if (target == nullptr)
    schema_error(path, "$ref", fmt::format("'{}' leads nowhere", ref.substr(0, 100)));
  return {target, ref};
}

void SchemaDocument::add_ref(Conjunction& all, const Value& ref, const std::string& path, int depth,
                             size_t parent) const {
  if (!ref.is_string()) schema_error(path, "$ref", "must be a string");
  if (depth > kMaxRefs) schema_error(path, "$ref", "references lead to references without end");
  auto [target, where] = resolve(ref.as_string(), path);
  if (std::find(open_.begin(), open_.end(), target) != open_.end())
    schema_error(path, "$ref", "references lead to references without end");
  add(all, *target, where, depth + 1, parent);
}

void SchemaDocument::add(Conjunction& all, const Value& schema, const std::string& path, int depth,
                         size_t parent) const {
  if (schema.is_bool()) {
    if (schema.as_bool()) return;
    all.never = true;
    all.never_path = path;
    return;
  }
  if (!schema.is_object()) schema_error(path, "", "a schema is an object, true or false");
  if (silent_.contains(&schema)) parent = kNoParent;
  for (SchemaRef& known : all.schemas)
    if (known.schema == &schema) {
      if (parent != kNoParent) known.parents.push_back(parent);
      return;
    }
  const Value* ref = schema.find("$ref");
  if (ref != nullptr && old_draft_) return add_ref(all, *ref, path, depth, parent);
  for (const char* keyword : {"$dynamicRef", "$recursiveRef"})
    if (schema.has(keyword))
      schema_error(path, keyword,
                   "is only supported where one target in this document is possible");
  for (const char* keyword : {"extends", "disallow"})
    if (schema.has(keyword)) schema_error(path, keyword, "is not supported");
  const size_t own = all.schemas.size();
  all.schemas.push_back({&schema, path, !schema.has("anyOf"), !schema.has("oneOf")});
  if (parent != kNoParent) all.schemas[own].parents.push_back(parent);
  open_.push_back(&schema);
  if (ref != nullptr) add_ref(all, *ref, path, depth, own);
  for (const Derived& derived : derived_from(schema, path)) {
    if (depth > kMaxRefs) schema_error(path, "", "is nested too deeply");
    add(all, derived.schema, path, depth + 1, own);
  }
  if (const Value* parts = schema.find("allOf")) {
    if (!parts->is_array()) schema_error(path, "allOf", "must be an array");
    if (depth > kMaxRefs) schema_error(path, "allOf", "is nested too deeply");
    for (size_t i = 0; i < parts->size(); ++i)
      add(all, parts->as_array()[i], fmt::format("{}/allOf/{}", path, i), depth + 1, own);
  }
  open_.pop_back();
}

void SchemaDocument::add_alternative(Conjunction& all, const Value& schema, const std::string& path,
                                     size_t index) const {
  // What led to this schema, for the same value: an alternative that leads there never ends.
  std::vector<size_t> ancestors{index};
  std::vector<bool> known(all.schemas.size(), false);
  known[index] = true;
  for (size_t i = 0; i < ancestors.size(); ++i)
    for (size_t parent : all.schemas[ancestors[i]].parents) {
      if (!known[parent]) ancestors.push_back(parent);
      known[parent] = true;
    }
  if (ancestors.size() > kMaxAncestors) schema_error(path, "", "is nested too deeply");
  open_.clear();
  for (size_t i : ancestors) open_.push_back(all.schemas[i].schema);
  add(all, schema, path, 0, index);
  open_.clear();
}

const std::vector<Derived>& SchemaDocument::derived_from(const Value& schema,
                                                         const std::string& path) const {
  static const std::vector<Derived> kNone;
  if (std::none_of(std::begin(kDerived), std::end(kDerived),
                   [&](const char* keyword) { return schema.has(keyword); }))
    return kNone;
  auto [it, fresh] = derived_.try_emplace(&schema);
  if (!fresh) return it->second;
  const char* refused = nullptr;
  it->second = derived_schemas(schema, finder(), &refused);
  if (refused != nullptr)
    schema_error(path, refused,
                 std::string_view(refused) == "if" ? kNegatable : "must be an object");
  for (const Derived& derived : it->second)
    silent_.insert(find_pointer(derived.schema, derived.silent));
  return it->second;
}

FindSchema SchemaDocument::finder() const {
  return [this](const std::string& ref) {
    return ref.starts_with("#") ? find_pointer(*root_, std::string_view(ref).substr(1)) : nullptr;
  };
}

const Value* SchemaDocument::negation(const Value& schema, bool closed) const {
  auto [it, fresh] = negations_.try_emplace({&schema, closed});
  if (fresh) {
    it->second = negated_schema(schema, finder());
    if (closed && it->second) close_members(*it->second);
    if (it->second) silent_.insert(&*it->second);
  }
  return it->second ? &*it->second : nullptr;
}

const Value* SchemaDocument::exclusion(const Value& schema, const Conjunction& all) const {
  std::vector<std::string> names;
  for (const SchemaRef& s : all.schemas)
    if (const Value* named = s.find("properties"); named != nullptr && named->is_object())
      for (const auto& [name, member] : named->as_object()) names.push_back(name);
  std::optional<Value> excluding = excluding_schema(schema, finder(), std::move(names));
  if (!excluding) return nullptr;
  if (closed(all)) close_members(*excluding);
  exclusions_.push_back(std::move(*excluding));
  silent_.insert(&exclusions_.back());
  return &exclusions_.back();
}

// What `not` leaves of the types, where it excludes some of their values.
uint32_t SchemaDocument::types_without(const SchemaRef& s, uint32_t bits) const {
  const Value& excluded = s.schema->at("not");
  if (excluded.has("type")) return bits & ~declared_types(excluded.at("type"), s.path + "/not");
  // Whatever is no string matches every pattern. Strings: string_fsm().
  if (excluded.has("pattern")) return bits & kString;
  const Value* list = excluded.find("enum");
  if (list != nullptr && !list->is_array()) schema_error(s.path, "not/enum", "must be an array");
  Value::Array one{excluded.has("const") ? excluded.at("const") : Value()};
  for (const Value& v : list != nullptr ? list->as_array() : one) {
    if (v.is_null()) bits &= ~uint32_t{kNull};
    uint32_t kept = v.is_object() ? kObject : kArray;
    if ((v.is_object() || v.is_array()) && (bits & kept) != 0)
      schema_error(s.path, "not", "is only supported for strings, numbers, booleans and null");
  }
  return bits;
}

uint32_t SchemaDocument::types(const Conjunction& all) const {
  uint32_t bits = all.never ? 0u : uint32_t{kAllTypes};
  for (const SchemaRef& s : all.schemas) {
    if (const Value* type = s.find("type")) bits &= declared_types(*type, s.path);
    const Value* excluded = s.find("not");
    if (excluded == nullptr) continue;
    if (excluded->is_bool() || (excluded->is_object() && excluded->size() == 0)) {
      if (!excluded->is_bool() || excluded->as_bool()) bits = 0;
      continue;
    }
    std::vector<const Value*> listed;
    if (is_plain_negation(*excluded))
      bits = types_without(s, bits);
    else if (const std::vector<Derived>& derived = derived_from(*s.schema, s.path);
             std::none_of(derived.begin(), derived.end(),
                          [](const Derived& d) { return d.of_not; }) &&
             !values(all, listed))
      schema_error(s.path, "not", kNegatable);
  }
  return bits;
}

bool SchemaDocument::values(const Conjunction& all, std::vector<const Value*>& out) const {
  for (const SchemaRef& s : all.schemas) {
    const Value* list = s.find("enum");
    const Value* one = s.find("const");
    if (list == nullptr && one == nullptr) continue;
    if (one == nullptr && !list->is_array()) schema_error(s.path, "enum", "must be an array");
    if (one != nullptr) {
      if (valid(*one, all)) out.push_back(one);
    } else {
      for (const Value& v : list->as_array())
        if (valid(v, all, s.schema)) out.push_back(&v);
    }
    return true;
  }
  return false;
}

bool SchemaDocument::requires_member(const Conjunction& all, std::string_view name) const {
  for (const SchemaRef& s : all.schemas)
    if (const Value* names = s.find("required"); names != nullptr && names->is_array())
      for (const Value& n : names->as_array())
        if (n.is_string() && n.as_string() == name) return true;
  return false;
}

const CharFsm& SchemaDocument::pattern(const std::string& regex, const std::string& path) const {
  auto known = patterns_.find(regex);
  if (known != patterns_.end()) return known->second;
  try {
    return patterns_.emplace(regex, parse_regex(regex, RegexUse::kSearch)).first->second;
  } catch (const Error& e) {
    schema_error(path, "", e.what());
  }
}

bool SchemaDocument::disjoint(const Conjunction& a, const Conjunction& b, int depth) const {
  uint32_t common = types(a) & types(b);
  if (common == 0) return true;
  std::vector<const Value*> listed;
  for (const auto& pair : {std::pair(&a, &b), std::pair(&b, &a)}) {
    listed.clear();
    if (values(*pair.first, listed))
      return std::none_of(listed.begin(), listed.end(),
                          [&](const Value* v) { return valid(*v, *pair.second); });
  }
  if (common != kObject || depth > 4) return false;
  for (const Conjunction* side : {&a, &b})
    for (const SchemaRef& s : side->schemas) {
      const Value* names = s.find("required");
      if (names == nullptr || !names->is_array()) continue;
      for (const Value& n : names->as_array()) {
        if (!n.is_string()) continue;
        const Conjunction& other = side == &a ? b : a;
        Conjunction here = member(*side, n.as_string()), there = member(other, n.as_string());
        if (there.never || here.never) return true;
        if (requires_member(other, n.as_string()) && disjoint(here, there, depth + 1)) return true;
      }
    }
  return false;
}

}  // namespace tokamak::grammar
