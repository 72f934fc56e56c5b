#include "text/grammar/json_derived.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tokamak::grammar {
namespace {

constexpr int kMaxNegations = 20;  // nested
constexpr int kMaxShallow = 3;     // nested, where a part is enough
constexpr size_t kFewNegations = 8;
constexpr int kMaxNegated = 500;  // schemas of one negation

Value any_of(Value::Array parts) { return Value::Object{{"anyOf", Value(std::move(parts))}}; }
Value only(const char* key, Value value) { return Value::Object{{key, std::move(value)}}; }
Value of_type(const char* type, const char* key, Value value) {
  return Value::Object{{"type", type}, {key, std::move(value)}};
}
Value without_member(const std::string& name) {
  return of_type("object", "properties", Value::Object{{name, Value(false)}});
}

// All values but these; numbers are left out between bounds.
Value none_of(const Value::Array& values) {
  Value::Array numbers, others;
  for (const Value& v : values) (v.is_number() ? numbers : others).push_back(v);
  if (numbers.empty()) return only("not", only("enum", Value(std::move(others))));
  std::sort(numbers.begin(), numbers.end(),
            [](const Value& a, const Value& b) { return a.as_double() < b.as_double(); });
  Value::Array parts{only("not", only("type", "number"))};
  for (size_t i = 0; i <= numbers.size(); ++i) {
    Value between = Value::Object{{"type", "number"}};
    if (i > 0) between.set("exclusiveMinimum", numbers[i - 1]);
    if (i < numbers.size()) between.set("exclusiveMaximum", numbers[i]);
    parts.push_back(std::move(between));
  }
  if (others.empty()) return any_of(std::move(parts));
  return only("allOf", Value(Value::Array{only("not", only("enum", Value(std::move(others)))),
                                          any_of(std::move(parts))}));
}

bool is_annotation(std::string_view key) {
  for (std::string_view known :
       {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly",
        "writeOnly", "$schema", "$id", "$defs", "definitions", "$anchor", "$dynamicAnchor"})
    if (key == known) return true;
  return false;
}

using Negations = std::vector<Value>;  // the negation of a schema is any of these

bool negate_bound(const std::string& key, const Value& bound, Negations& out) {
  constexpr std::pair<std::string_view, const char*> kNumbers[] = {{"minimum", "exclusiveMaximum"},
                                                                   {"maximum", "exclusiveMinimum"},
                                                                   {"exclusiveMinimum", "maximum"},
                                                                   {"exclusiveMaximum", "minimum"}};
  for (const auto& [name, other] : kNumbers)
    if (key == name && bound.is_number()) {
      out.push_back(of_type("number", other, bound));
      return true;
    }
  struct Count {
    std::string_view name;
    const char *type, *other;
    int64_t change;
  };
  constexpr Count kCounts[] = {{"minLength", "string", "maxLength", -1},
                               {"maxLength", "string", "minLength", 1},
                               {"minItems", "array", "maxItems", -1},
                               {"maxItems", "array", "minItems", 1},
                               {"minProperties", "object", "maxProperties", -1},
                               {"maxProperties", "object", "minProperties", 1}};
  for (const Count& c : kCounts)
    if (key == c.name && bound.is_int()) {
      if (bound.as_int() + c.change < 0) return true;  // always holds
      out.push_back(of_type(c.type, c.other, Value(bound.as_int() + c.change)));
      return true;
    }
  return false;
}

// Owner: negated_schema(), excluding_schema(); for one call.
class Negator {
 public:
  // `names`: members that the value may have; one that the schema forbids is a negation. `shallow`:
  // few and simple negations.
  Negator(const FindSchema& find, std::vector<std::string> names, bool shallow)
      : find_(find),
        names_(std::move(names)),
        shallow_(shallow),
        left_(shallow ? kMaxNegated / 5 : kMaxNegated) {}

  std::optional<Value> schema(const Value& schema, int depth = 0);
  // Something has no negation, and was left out of the result.
  bool left_out() const { return left_out_; }

 private:
  void add(Negations& out, const Value& schema, int depth);
  std::optional<Value> inner(const Value& schema, int depth);
  void members(const Value& properties, Negations& out, int depth);
  void other_members(const Value& schema, Negations& out);
  void items(const Value& schema, Negations& out, int depth);
  bool keyword(const std::string& key, const Value& value, Negations& out, int depth);

  const FindSchema& find_;
  std::vector<std::string> names_;
  const bool shallow_;
  bool left_out_ = false;
  int left_;
};

std::optional<Value> Negator::schema(const Value& schema, int depth) {
  const bool simple = schema.is_object() && depth <= (shallow_ ? kMaxShallow : kMaxNegations);
  if (!schema.is_bool() && (!simple || --left_ < 0)) {
    left_out_ = true;
    return std::nullopt;
  }
  if (schema.is_bool()) return Value(!schema.as_bool());
  Negations parts;
  bool complete = !std::exchange(left_out_, false);
  for (const auto& [key, value] : schema.as_object())
    if (!keyword(key, value, parts, depth)) left_out_ = true;
  items(schema, parts, depth);
  other_members(schema, parts);
  if (shallow_ && parts.size() > kFewNegations) {  // those of missing or other members first
    std::stable_partition(parts.begin(), parts.end(), [](const Value& part) {
      return !part.has("properties") || !part.has("required");
    });
    parts.resize(kFewNegations);
  }
  std::optional<Value> out;
  if (parts.size() > 1)
    out = any_of(Value::Array(parts.begin(), parts.end()));
  else if (!parts.empty())
    out = std::move(parts[0]);
  else if (!left_out_)
    out = Value(false);
  left_out_ = left_out_ || !complete;
  return out;
}

void Negator::add(Negations& out, const Value& schema, int depth) {
  if (std::optional<Value> negation = this->schema(schema, depth + 1))
    out.push_back(std::move(*negation));
}

// The negation for a member or an item, whose own members are others.
std::optional<Value> Negator::inner(const Value& schema, int depth) {
  std::vector<std::string> names;
  names.swap(names_);
  std::optional<Value> out = this->schema(schema, depth + 1);
  names.swap(names_);
  return out;
}

// With `additionalProperties: false`, those of the names that the schema does not have.
void Negator::other_members(const Value& schema, Negations& out) {
  const Value *others = schema.find("additionalProperties"), *named = schema.find("properties");
  if (others == nullptr || (others->is_bool() && others->as_bool())) return;
  left_out_ = true;
  if (!others->is_bool() || schema.has("patternProperties")) return;
  for (const std::string& name : names_)
    if (named == nullptr || !named->has(name))
      out.push_back(Value::Object{{"type", "object"}, {"required", Value::Array{name}}});
}

void Negator::members(const Value& properties, Negations& out, int depth) {
  for (const auto& [name, schema] : properties.as_object()) {
    std::optional<Value> negation = inner(schema, depth);
    if (!negation || (negation->is_bool() && !negation->as_bool())) continue;
    Value member = Value::object();
    member.set(name, std::move(*negation));
    out.push_back(Value::Object{{"type", "object"},
                                {"properties", std::move(member)},
                                {"required", Value::Array{name}},
                                {"additionalProperties", true}});
  }
}

// Some item is not valid, or too few are.
void Negator::items(const Value& schema, Negations& out, int depth) {
  const Value* prefix = schema.find("prefixItems");
  const Value* rest = schema.find("items");
  if (prefix == nullptr && rest != nullptr && rest->is_array()) {
    prefix = rest;
    rest = schema.find("additionalItems");
  }
  const Value* wanted = schema.find("contains");
  if (prefix == nullptr && rest == nullptr && wanted == nullptr) return;
  if (shallow_ || (prefix != nullptr && !prefix->is_array())) {
    left_out_ = true;
    return;
  }
  const int64_t listed = prefix != nullptr ? static_cast<int64_t>(prefix->size()) : 0;
  for (int64_t i = 0; i < listed; ++i) {
    std::optional<Value> negation = inner(prefix->as_array()[static_cast<size_t>(i)], depth);
    if (!negation) continue;
    Value::Array before(static_cast<size_t>(i), Value(true));
    before.push_back(std::move(*negation));
    out.push_back(Value::Object{
        {"type", "array"}, {"minItems", i + 1}, {"prefixItems", Value(std::move(before))}});
  }
  if (rest != nullptr && !(rest->is_bool() && rest->as_bool())) {
    std::optional<Value> negation = inner(*rest, depth);
    if (negation && negation->is_bool() && negation->as_bool())
      out.push_back(of_type("array", "minItems", Value(listed + 1)));
    else if (negation && listed == 0)
      out.push_back(of_type("array", "contains", std::move(*negation)));
    else
      left_out_ = true;
  }
  if (wanted == nullptr) return;
  std::optional<Value> negation = inner(*wanted, depth);
  if (negation && !schema.has("minContains") && !schema.has("maxContains"))
    out.push_back(of_type("array", "items", std::move(*negation)));
  else
    left_out_ = true;
}

bool Negator::keyword(const std::string& key, const Value& value, Negations& out, int depth) {
  for (const char* elsewhere :
       {"prefixItems", "items", "additionalItems", "contains", "additionalProperties"})
    if (key == elsewhere) return true;  // items(), other_members()
  if (key == "$ref" && value.is_string()) {
    const Value* target = find_(value.as_string());
    if (target != nullptr) add(out, *target, depth);
    return target != nullptr;
  }
  if (is_annotation(key)) return true;
  if (key == "type") {
    out.push_back(only("not", only("type", value)));
    return true;
  }
  if (key == "const" || (key == "enum" && value.is_array())) {
    out.push_back(none_of(key == "enum" ? value.as_array() : Value::Array{value}));
    return true;
  }
  if (key == "pattern") {
    out.push_back(of_type("string", "not", only("pattern", value)));
    return true;
  }
  if (key == "not") {
    out.push_back(value);
    return true;
  }
  if (key == "required" && value.is_array()) {
    for (const Value& name : value.as_array()) {
      if (!name.is_string()) return false;
      Value missing = without_member(name.as_string());
      missing.set("additionalProperties", true);
      out.push_back(std::move(missing));
    }
    return true;
  }
  if (key == "properties" && value.is_object()) {
    members(value, out, depth);
    return true;
  }
  if (key == "allOf" && value.is_array()) {
    for (const Value& part : value.as_array()) add(out, part, depth);
    return true;
  }
  if (key == "anyOf" && value.is_array()) {
    Negations parts;
    for (const Value& part : value.as_array()) add(parts, part, depth);
    if (parts.size() < value.size()) return false;
    out.push_back(only("allOf", Value(Value::Array(parts.begin(), parts.end()))));
    return true;
  }
  return negate_bound(key, value, out);
}

// Members that the schema leaves open stay so in what is derived from it.
void keep_open(const Value& schema, Value& derived) {
  if (schema.has("additionalProperties") || !schema.has("properties"))
    derived.set("additionalProperties", true);
}

// If the member is there, so is what depends on it.
Value dependency(const Value& schema, const std::string& name, Value then) {
  Value missing = Value::Object{{"properties", Value::Object{{name, Value(false)}}}};
  keep_open(schema, missing);
  Value present =
      Value::Object{{"required", Value::Array{name}}, {"allOf", Value::Array{std::move(then)}}};
  return any_of({std::move(missing), std::move(present)});
}

// What is derived opens no object that the schema itself closes.
void close_again(const Value& schema, Value& derived) {
  if (!schema.has("additionalProperties") && schema.has("properties")) close_members(derived);
}

}  // namespace

void close_members(Value& derived) {
  if (derived.is_array())
    for (Value& part : derived.as_array()) close_members(part);
  if (!derived.is_object()) return;
  for (const char* key : {"anyOf", "allOf"})
    if (Value* parts = derived.find(key)) close_members(*parts);
  std::erase_if(derived.as_object(),
                [](const Value::Member& m) { return m.first == "additionalProperties"; });
}

bool is_plain_negation(const Value& excluded) {
  if (excluded.is_bool()) return true;
  if (!excluded.is_object()) return false;
  if (excluded.size() == 0) return true;
  if (excluded.size() != 1) return false;
  auto number = [](const Value& v) { return v.is_number(); };
  if (const Value* one = excluded.find("const")) return !number(*one);
  const Value* list = excluded.find("enum");
  if (list != nullptr && list->is_array())
    return std::none_of(list->as_array().begin(), list->as_array().end(), number);
  return list != nullptr || excluded.has("type") || excluded.has("pattern");
}

std::optional<Value> negated_schema(const Value& schema, const FindSchema& find) {
  Negator negator(find, {}, false);
  std::optional<Value> out = negator.schema(schema);
  return negator.left_out() ? std::nullopt : out;
}

std::optional<Value> excluding_schema(const Value& schema, const FindSchema& find,
                                      std::vector<std::string> names) {
  return Negator(find, std::move(names), true).schema(schema);
}

std::vector<Derived> derived_schemas(const Value& schema, const FindSchema& find,
                                     const char** refused) {
  std::vector<Derived> out;
  if (const Value* excluded = schema.find("not"); excluded && !is_plain_negation(*excluded)) {
    std::optional<Value> negation = negated_schema(*excluded, find);
    if (negation) {
      close_again(schema, *negation);
      out.push_back({std::move(*negation), "", true});
    }
  }
  const Value* condition = schema.find("if");
  const Value *then = schema.find("then"), *otherwise = schema.find("else");
  if (condition != nullptr && (then != nullptr || otherwise != nullptr)) {
    std::optional<Value> negation = negated_schema(*condition, find);
    if (negation)
      close_again(schema, *negation);
    else
      *refused = "if";
    Value::Array holds{*condition}, fails{negation ? *negation : Value(false)};
    if (then != nullptr) holds.push_back(*then);
    if (otherwise != nullptr) fails.push_back(*otherwise);
    out.push_back(
        {any_of({only("allOf", Value(std::move(holds))), only("allOf", Value(std::move(fails)))}),
         "/anyOf/1/allOf/0"});
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Value* list = schema.find(keyword);
    if (list == nullptr) continue;
    if (!list->is_object()) {
      *refused = keyword;
      continue;
    }
    for (const auto& [name, then_schema] : list->as_object())
      out.push_back(
          {dependency(schema, name,
                      then_schema.is_array() ? only("required", then_schema) : then_schema),
           "/anyOf/0"});
  }
  return out;
}

}  // namespace tokamak::grammar
