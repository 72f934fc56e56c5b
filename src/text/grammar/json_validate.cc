// Whether a value is valid under a schema: for the values of enum and const.
#include <algorithm>
#include <cmath>

#include "text/grammar/json_conjunction.h"
#include "text/grammar/json_format.h"
#include "text/grammar/json_number.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

uint32_t type_of(const Value& v) {
  if (v.is_null()) return kNull;
  if (v.is_bool()) return kBoolean;
  if (v.is_object()) return kObject;
  if (v.is_array()) return kArray;
  if (v.is_string()) return kString;
  return v.is_int() || v.as_double() == std::floor(v.as_double()) ? kInteger : kFraction;
}

bool is_multiple(const Value& v, const Value& divisor) {
  double ratio = v.as_double() / divisor.as_double();
  return std::abs(ratio - std::round(ratio)) < 1e-9;
}

bool in_range(const Value& s, const char* least, const char* most, size_t size) {
  const Value* low = s.find(least);
  const Value* high = s.find(most);
  auto count = static_cast<double>(size);
  return (low == nullptr || !low->is_number() || count >= low->as_double()) &&
         (high == nullptr || !high->is_number() || count <= high->as_double());
}

constexpr int kMaxValidationDepth = 400;
// Validations inside of others, for one value and for all values of a document.
constexpr int64_t kMaxValidationsOfAValue = 100'000;
constexpr int64_t kMaxValidations = 1'000'000;
constexpr int64_t kComparisons = 64;  // with values of an enum, that count as one validation

Conjunction alone(const SchemaRef& s) { return {false, {{s.schema, s.path, true, true}}}; }

}  // namespace

bool SchemaDocument::valid(const Value& value, const Value& schema, const std::string& path) const {
  return valid(value, single(schema, path));
}

bool SchemaDocument::valid(const Value& value, const Conjunction& all,
                           const Value* chosen_from) const {
  if (all.never) return false;
  // References may lead back to a schema for the same value, or to one by very many ways.
  struct Level {
    int& depth;
    ~Level() { --depth; }
  } level{++validation_depth_};
  const bool inside = validation_depth_ > 1;
  if (inside)
    ++validations_;
  else
    validations_before_ = validations_;
  const bool too_many = validations_ > kMaxValidations ||
                        validations_ - validations_before_ > kMaxValidationsOfAValue;
  if (validation_depth_ > kMaxValidationDepth || too_many)
    schema_error(all.schemas.empty() ? "#" : all.schemas[0].path, "",
                 too_many ? "has too many alternatives in combination with others"
                          : "references lead to references without end");
  for (const SchemaRef& s : all.schemas) {
    const Value* type = s.find("type");
    if (type != nullptr && (declared_types(*type, s.path) & type_of(value)) == 0) return false;
    const Value* one = s.find("const");
    if (one != nullptr && !json_equal(*one, value)) return false;
    const Value* list = s.find("enum");
    if (list != nullptr && list->is_array() && s.schema != chosen_from) {
      const Value::Array& listed = list->as_array();
      auto found = std::find_if(listed.begin(), listed.end(),
                                [&](const Value& v) { return json_equal(v, value); });
      if (inside) validations_ += (found - listed.begin()) / kComparisons;
      if (found == listed.end()) return false;
    }
    if (!valid_scalar(value, s)) return false;
    if (value.is_object() && !valid_members(value, s)) return false;
    if (value.is_array() && !valid_items(value, s)) return false;
    const Value* excluded = s.find("not");
    if (excluded != nullptr && valid(value, *excluded, s.path + "/not")) return false;
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const Value* parts = s.find(keyword);
      const bool chosen = keyword[0] == 'a' ? s.any_of_done : s.one_of_done;
      if (parts == nullptr || !parts->is_array() || chosen) continue;
      auto holds = std::count_if(
          parts->as_array().begin(), parts->as_array().end(),
          [&](const Value& part) { return valid(value, part, s.path + "/" + keyword); });
      if (holds == 0 || (keyword[0] == 'o' && holds > 1)) return false;
    }
  }
  return true;
}

bool SchemaDocument::valid_scalar(const Value& value, const SchemaRef& s) const {
  if (value.is_number()) {
    double v = value.as_double();
    auto holds = [&](const char* keyword, auto&& compare) {
      const Value* bound = s.find(keyword);
      return bound == nullptr || !bound->is_number() || compare(v, bound->as_double());
    };
    const Value* divisor = s.find("multipleOf");
    return holds("minimum", [](double x, double b) { return x >= b; }) &&
           holds("maximum", [](double x, double b) { return x <= b; }) &&
           holds("exclusiveMinimum", [](double x, double b) { return x > b; }) &&
           holds("exclusiveMaximum", [](double x, double b) { return x < b; }) &&
           (divisor == nullptr || !divisor->is_number() || is_multiple(value, *divisor));
  }
  if (!value.is_string()) return true;
  if (!in_range(*s.schema, "minLength", "maxLength", utf8_length(value.as_string()))) return false;
  const Value* regex = s.find("pattern");
  if (regex != nullptr && regex->is_string() &&
      !pattern(regex->as_string(), s.path + "/pattern")
           .matches(std::string_view(value.as_string())))
    return false;
  const Value* format = s.find("format");
  if (format == nullptr || !format->is_string()) return true;
  const CharFsm* fsm = format_fsm(format->as_string());
  return fsm == nullptr || fsm->matches(std::string_view(value.as_string()));
}

bool SchemaDocument::valid_members(const Value& value, const SchemaRef& s) const {
  refuse_unevaluated(s, "unevaluatedProperties");
  const Conjunction own = alone(s);
  if (const Value* names = s.find("required"); names != nullptr && names->is_array())
    for (const Value& n : names->as_array())
      if (n.is_string() && !value.has(n.as_string())) return false;
  if (!in_range(*s.schema, "minProperties", "maxProperties", value.size())) return false;
  const Value* keys = s.find("propertyNames");
  for (const auto& [key, item] : value.as_object()) {
    if (!valid(item, member(own, key))) return false;
    if (keys != nullptr && !valid(Value(key), *keys, s.path + "/propertyNames")) return false;
  }
  return true;
}

bool SchemaDocument::valid_items(const Value& value, const SchemaRef& s) const {
  const Value::Array& items = value.as_array();
  refuse_unevaluated(s, "unevaluatedItems");
  const Conjunction own = alone(s);
  if (!in_range(*s.schema, "minItems", "maxItems", items.size())) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!valid(items[i], item(own, i))) return false;
    for (size_t k = 0; k < i && s.schema->get_bool("uniqueItems", false); ++k)
      if (json_equal(items[i], items[k])) return false;
  }
  const Value* wanted = s.find("contains");
  if (wanted == nullptr) return true;
  auto count = std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return valid(item, *wanted, s.path + "/contains");
  });
  if (old_draft_) return count > 0;
  return in_range(*s.schema, "minContains", "maxContains", static_cast<size_t>(count)) &&
         (count > 0 || s.schema->has("minContains"));
}

}  // namespace tokamak::grammar
