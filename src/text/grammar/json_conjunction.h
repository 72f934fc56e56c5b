#pragma once
// Schemas that hold at the same time, with references and allOf resolved.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"
#include "text/grammar/char_fsm.h"
#include "text/grammar/json_derived.h"
#include "text/grammar/value_types.h"

namespace tokamak::grammar {

struct SchemaRef {
  const Value* schema = nullptr;  // an object
  std::string path;               // "#/properties/a"
  bool any_of_done = false, one_of_done = false;
  // Schemas of the conjunction that apply it to the same value: by allOf, anyOf, $ref ...
  std::vector<size_t> parents = {};
  const Value* find(std::string_view key) const { return schema->find(key); }
};

// All of these hold; without any, every value is valid.
struct Conjunction {
  bool never = false;  // no value is valid
  std::vector<SchemaRef> schemas;
  std::string never_path = {};  // of the schema `false`
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
  static constexpr size_t kNoParent = SIZE_MAX;

  explicit SchemaDocument(const Value& root);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const Value& root() const { return *root_; }

  // Adds a schema to a conjunction; throws Error(kInvalidArgument) for keywords that no grammar
  // holds to.
  void add(Conjunction& all, const Value& schema, const std::string& path, int depth = 0,
           size_t parent = kNoParent) const;
  // An alternative of the schema `index` of the conjunction.
  void add_alternative(Conjunction& all, const Value& schema, const std::string& path,
                       size_t index) const;
  Conjunction single(const Value& schema, const std::string& path) const {
    Conjunction out;
    add(out, schema, path);
    return out;
  }

  // A schema for what is not valid under this one; nullptr: none is known. `closed`: it names no
  // members that may be added.
  const Value* negation(const Value& schema, bool closed) const;
  // A schema for some of the values of `all` that are not valid under this one.
  const Value* exclusion(const Value& schema, const Conjunction& all) const;

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
  Conjunction item(const Conjunction& all, size_t index) const;
  // A member that the schemas with a `declared` of false do not name.
  void add_other_member(Conjunction& out, const Conjunction& all, std::vector<bool> declared) const;
  // The schemas on whose members or items unevaluatedProperties or unevaluatedItems depend.
  std::vector<bool> tracked(const Conjunction& all) const;
  bool requires_member(const Conjunction& all, std::string_view name) const;
  // Members that are not declared: see docs/structured.md.
  bool closed(const Conjunction& all) const;
  const CharFsm& pattern(const std::string& regex, const std::string& path) const;
  bool old_draft() const { return old_draft_; }  // draft 7 or before
  const Value::Array* prefix_items(const SchemaRef& s) const;

 private:
  void add_ref(Conjunction& all, const Value& ref, const std::string& path, int depth,
               size_t parent) const;
  std::pair<const Value*, std::string> resolve(const std::string& ref,
                                               const std::string& path) const;
  FindSchema finder() const;
  // What other keywords of the schema say (json_derived.h).
  const std::vector<Derived>& derived_from(const Value& schema, const std::string& path) const;
  uint32_t types_without(const SchemaRef& s, uint32_t bits) const;
  std::vector<bool> in_place(const Conjunction& all, size_t index) const;
  template <typename Add>
  void add_unevaluated(const Conjunction& all, const char* keyword,
                       const std::vector<bool>& declared, Add&& add_rest) const;
  const Value& unless_contained(const Conjunction& all, const std::vector<bool>& holding,
                                const Value& rest) const;
  void refuse_unevaluated(const SchemaRef& s, const char* keyword) const;
  bool valid_members(const Value& value, const SchemaRef& s) const;
  bool valid_items(const Value& value, const SchemaRef& s) const;
  bool valid_scalar(const Value& value, const SchemaRef& s) const;

  std::optional<Value> plain_;  // with_plain_references()
  const Value* root_;
  bool old_draft_ = false;                  // siblings of $ref are ignored, items may be an array
  bool contains_is_silent_ = false;         // draft 2019-09: `contains` does not evaluate items
  mutable int validation_depth_ = 0;        // calls of valid() inside of each other
  mutable int64_t validations_ = 0;         // the work of all such calls
  mutable int64_t validations_before_ = 0;  // the outermost call that is running
  mutable std::map<std::string, CharFsm> patterns_;
  mutable std::map<const Value*, std::vector<Derived>> derived_;
  mutable std::map<std::pair<const Value*, bool>, std::optional<Value>> negations_;
  mutable std::deque<Value> exclusions_;
  mutable std::vector<const Value*> open_;  // being added: one inside itself would never end
  mutable std::map<std::vector<const Value*>, Value> either_;
  // Derived schemas that evaluate nothing: those that say what does not hold.
  mutable std::set<const Value*> silent_;
};

bool json_equal(const Value& a, const Value& b);  // 1 equals 1.0; the order of members is free

}  // namespace tokamak::grammar
