#pragma once
// Schemas that hold at the same time, with references and allOf resolved.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"
#include "text/grammar/char_fsm.h"

namespace tokamak::grammar {

struct SchemaRef {
  const Value* schema = nullptr;  // an object
  std::string path;               // "#/properties/a"
  bool any_of_done = false, one_of_done = false;
  const Value* find(std::string_view key) const { return schema->find(key); }
};

// All of these hold; without any, every value is valid.
struct Conjunction {
  bool never = false;  // no value is valid
  std::vector<SchemaRef> schemas;
  std::string never_path = {};  // of the schema `false`
};

// JSON types as bits. Numbers with and without a fraction are two types.
enum TypeBit : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kString = 16,
  kInteger = 32,
  kFraction = 64,
  kAllTypes = 127,
};

std::string schema_message(const std::string& path, std::string_view keyword,
                           std::string_view what);
[[noreturn]] void schema_error(const std::string& path, std::string_view keyword,
                               std::string_view what);

uint32_t declared_types(const Value& type, const std::string& path);  // of the keyword `type`

// Resolves references within one document. Owner: one front end; one thread; the document
// outlives it.
class SchemaDocument {
 public:
  explicit SchemaDocument(const Value& root);

  // Adds a schema to a conjunction; throws Error(kInvalidArgument) for keywords that no grammar
  // holds to.
  void add(Conjunction& all, const Value& schema, const std::string& path, int depth = 0) const;
  Conjunction single(const Value& schema, const std::string& path) const {
    Conjunction out;
    add(out, schema, path);
    return out;
  }

  // A schema for what is not valid under this one; nullptr: none is known. `closed`: it names no
  // members that may be added.
  const Value* negation(const Value& schema, bool closed) const;

  uint32_t types(const Conjunction& all) const;
  // chosen_from: a schema of `all` whose enum has the value.
  bool valid(const Value& value, const Conjunction& all, const Value* chosen_from = nullptr) const;
  bool valid(const Value& value, const Value& schema, const std::string& path) const;
  // The values of enum and const, if any schema has one; only those that are valid.
  bool values(const Conjunction& all, std::vector<const Value*>& out) const;
  // Certainly no value is valid under both.
  bool disjoint(const Conjunction& a, const Conjunction& b, int depth = 0) const;
  // What holds for a member or an item.
  Conjunction member(const Conjunction& all, const std::string& name) const;
  bool requires_member(const Conjunction& all, std::string_view name) const;
  // Members that are not declared: see docs/structured.md.
  bool closed(const Conjunction& all) const;
  const CharFsm& pattern(const std::string& regex, const std::string& path) const;
  bool old_draft() const { return old_draft_; }  // draft 7 or before
  // `items` without prefix items, and the latter.
  const Value::Array* prefix_items(const SchemaRef& s) const;
  std::pair<const Value*, const char*> rest_items(const SchemaRef& s) const;
  const Value* additional_members(const SchemaRef& s, const char** keyword) const;

 private:
  void add_ref(Conjunction& all, const Value& ref, const std::string& path, int depth) const;
  std::pair<const Value*, std::string> resolve(const std::string& ref,
                                               const std::string& path) const;
  // What other keywords of the schema say (json_derived.h).
  const std::vector<Value>& derived_from(const Value& schema, const std::string& path) const;
  uint32_t types_without(const SchemaRef& s, uint32_t bits) const;
  void find_anchors(const Value& schema, const std::string& path, int depth);
  bool valid_members(const Value& value, const SchemaRef& s) const;
  bool valid_items(const Value& value, const SchemaRef& s) const;
  bool valid_scalar(const Value& value, const SchemaRef& s) const;

  const Value& root_;
  bool old_draft_ = false;  // siblings of $ref are ignored, items may be an array
  std::map<std::string, std::pair<const Value*, std::string>> anchors_;  // "#name", "$id"
  mutable std::map<std::string, CharFsm> patterns_;
  mutable std::map<const Value*, std::vector<Value>> derived_;
  mutable std::map<std::pair<const Value*, bool>, std::optional<Value>> negations_;
};

bool json_equal(const Value& a, const Value& b);  // 1 equals 1.0; the order of members is free

}  // namespace tokamak::grammar
