#include "text/grammar/json_schema.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/json_compiler.h"
#include "text/grammar/json_derived.h"
#include "text/grammar/json_format.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMaxExclusive = 64;         // alternatives of oneOf
constexpr size_t kMaxTogether = 5;           // alternatives of anyOf, where each set of them counts
constexpr uint32_t kMaxLength = 100'000;     // characters that are counted
constexpr uint32_t kNoLength = 100'000'000;  // more characters than any answer has
constexpr size_t kFsmStatesForLengths = 8000;
constexpr size_t kSharedStates = 100;  // strings with more than these are one rule for all schemas
constexpr uint32_t kShortest = 16;     // a maxLength that is lowered is not below this
constexpr size_t kMaxNotes = 16;       // kept of a schema
const Value kFalse(false);             // the schema of nothing
const Value kAnything = Value::object();
struct NumberFormat {
  std::string_view name;
  int64_t min;
  uint64_t max;
};
constexpr NumberFormat kNumberFormats[] = {
    {"int8", INT8_MIN, INT8_MAX},    {"int16", INT16_MIN, INT16_MAX},
    {"int32", INT32_MIN, INT32_MAX}, {"int64", INT64_MIN, INT64_MAX},
    {"uint8", 0, UINT8_MAX},         {"uint16", 0, UINT16_MAX},
    {"uint32", 0, UINT32_MAX},       {"uint64", 0, UINT64_MAX}};

}  // namespace

Ir json_schema_grammar(const Value& schema, const std::optional<std::string>& space, bool strict) {
  return SchemaCompiler(schema, {{}, {}, space}, strict).compile();
}

Ir arguments_grammar(const Value& parameters, const ArgumentNotation& notation, bool strict) {
  return SchemaCompiler(parameters, notation, strict).compile();
}

Ir json_object_grammar(const std::optional<std::string>& space) {
  Ir ir;
  RuleId root = ir.add_rule("root");
  JsonRules rules(ir, space);
  ir.define(root, rules.object());
  return ir;
}

Ir SchemaCompiler::compile() {
  RuleId root = ir_.add_rule("#");
  ir_.define(root,
             reference(document_.single(document_.root(), "#"), syntax_ ? kArguments : kValue));
  // A list instead of recursion: schemas may refer to each other in long chains.
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const Waiting next = waiting_[i];
    place_ = next.place;
    set_place(next.rule, next.all);
    try {
      ir_.define(next.rule, body(next.all));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kOutOfRange) throw;
      const std::string& place = ir_.rules()[next.rule].place;
      fail(ErrorCode::kOutOfRange, "{}", schema_message(place, "", e.what()));
    }
  }
  return std::move(ir_);
}

void SchemaCompiler::set_place(RuleId rule, const Conjunction& all) {
  const auto [path, keyword] = largest_part(all);
  ir_.set_place(rule, keyword.empty() ? path : fmt::format("{}/{}", path, keyword));
}

// The keyword that most of the rule comes from, and its schema: limits of size are reached there.
std::pair<std::string, std::string> SchemaCompiler::largest_part(const Conjunction& all) {
  for (const char* keyword : {"enum",
                              "const",
                              "anyOf",
                              "oneOf",
                              "pattern",
                              "format",
                              "contentEncoding",
                              "multipleOf",
                              "patternProperties",
                              "properties",
                              "propertyNames",
                              "prefixItems",
                              "items",
                              "contains",
                              "maxLength",
                              "minLength",
                              "maxItems",
                              "minItems",
                              "maxProperties",
                              "minProperties",
                              "not",
                              "if",
                              "required"})
    for (const SchemaRef& s : all.schemas) {
      const bool done = keyword == std::string_view("anyOf")   ? s.any_of_done
                        : keyword == std::string_view("oneOf") ? s.one_of_done
                                                               : false;
      if (s.schema->has(keyword) && !done) return {s.path, keyword};
    }
  return {all.schemas[0].path, ""};
}

ExprId SchemaCompiler::reference(const Conjunction& all, Place place) {
  if (all.never) return never(all.never_path, "", "is false: no value is valid");
  Key key;
  const std::vector<bool> tracked = document_.tracked(all);
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    const SchemaRef& s = all.schemas[i];
    key.emplace_back(s.schema, s.any_of_done * 2 + s.one_of_done, nullptr);
    if (!tracked[i]) continue;
    for (size_t parent : s.parents) key.emplace_back(s.schema, 4, all.schemas[parent].schema);
  }
  std::sort(key.begin(), key.end());
  if (key.empty()) {
    if (place == kValue) return rules_.value();
    return reference({.schemas = {{&kAnything, "#", true, true}}}, place);
  }
  auto [it, fresh] = known_.emplace(std::pair(place, std::move(key)), 0);
  if (fresh) {
    it->second = ir_.add_rule(all.schemas[0].path);
    waiting_.push_back({it->second, all, place});
  }
  return ir_.ref(it->second);
}

ExprId SchemaCompiler::body(const Conjunction& all) {
  std::vector<const Value*> listed;
  if (document_.values(all, listed)) {
    if (place_ == kUniqueItem) not_comparable(all.schemas[0].path);
    if (listed.empty())
      return never(all, {"const", "enum"}, "has no value that the other keywords allow");
    return listed_values(listed);
  }
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    if (!all.schemas[i].any_of_done) return alternatives(all, i, false);
    if (!all.schemas[i].one_of_done) return alternatives(all, i, true);
  }
  return of_types(all);
}

ExprId SchemaCompiler::listed_values(const std::vector<const Value*>& values) {
  std::vector<std::string> scalars, texts;
  std::vector<ExprId> parts;
  for (const Value* v : values) {
    if (place_ == kArguments) {
      if (v->is_object()) parts.push_back(listed_arguments(*v));
    } else if (v->is_object() || v->is_array()) {
      parts.push_back(rules_.exactly(*v));
    } else if (place_ >= kArgument && v->is_string()) {
      texts.push_back(v->as_string());
    } else {
      for (std::string& text : v->is_string() || v->is_number() ? rules_.spellings(*v) : words(*v))
        scalars.push_back(std::move(text));
    }
  }
  if (!texts.empty()) parts.push_back(argument_text(fsm_of_texts(texts)));
  if (!scalars.empty()) parts.push_back(ir_.one_of(std::move(scalars)));
  return ir_.alt(std::move(parts));
}

ExprId SchemaCompiler::alternatives(const Conjunction& all, size_t index, bool one_of) {
  const SchemaRef s = all.schemas[index];
  const char* keyword = one_of ? "oneOf" : "anyOf";
  const Value& list = *s.find(keyword);
  if (!list.is_array()) schema_error(s.path, keyword, "must be an array");
  combinations_ += list.size();
  if (combinations_ > kMaxCombinations)
    schema_error(s.path, keyword, "has too many alternatives in combination with others");
  std::vector<Conjunction> parts;
  std::vector<const Value*> schemas;  // parallel
  auto add = [&](const std::vector<size_t>& chosen) {
    Conjunction part = all;
    (one_of ? part.schemas[index].one_of_done : part.schemas[index].any_of_done) = true;
    for (size_t i : chosen)
      document_.add_alternative(part, list.as_array()[i],
                                fmt::format("{}/{}/{}", s.path, keyword, i), index);
    if (part.never) return;
    parts.push_back(std::move(part));
    schemas.push_back(&list.as_array()[chosen[0]]);
  };
  for (size_t i = 0; i < list.size(); ++i) add({i});
  // What is evaluated is what all alternatives that hold declare.
  if (!one_of && list.size() <= kMaxTogether && document_.tracked(all)[index])
    for (size_t set = 1; set < size_t{1} << list.size(); ++set) {
      std::vector<size_t> chosen;
      for (size_t i = 0; i < list.size(); ++i)
        if ((set >> i & 1) != 0) chosen.push_back(i);
      if (chosen.size() > 1) add(chosen);
    }
  if (one_of) make_exclusive(parts, schemas, s);
  if (parts.empty()) return never(s.path, keyword, "has no alternative that can hold");
  std::vector<ExprId> exprs;
  for (const Conjunction& part : parts) exprs.push_back(reference(part, place_));
  return ir_.alt(std::move(exprs));
}

// Where two alternatives may both hold, each also excludes the other, or more if that cannot be
// written as a schema.
void SchemaCompiler::make_exclusive(std::vector<Conjunction>& parts,
                                    const std::vector<const Value*>& schemas, const SchemaRef& s) {
  if (parts.size() > kMaxExclusive) schema_error(s.path, "oneOf", "has too many alternatives");
  const std::vector<Conjunction> before = parts;
  std::pair<size_t, size_t> unclear;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t k = 0; k < parts.size(); ++k) {
      if (i == k || document_.disjoint(before[i], before[k])) continue;
      const Value* negation = document_.negation(*schemas[k], document_.closed(before[i]));
      if (negation == nullptr) {
        unclear = {std::min(i, k), std::max(i, k)};
        negation = document_.exclusion(*schemas[k], before[i]);
      }
      document_.add(parts[i], negation ? *negation : kFalse, s.path + "/oneOf");
    }
  if (unclear.second == 0) return;
  std::erase_if(parts, [&](const Conjunction& part) { return document_.types(part) == 0; });
  if (parts.empty())
    schema_error(s.path, "oneOf",
                 fmt::format("alternatives {} and {} may both hold; give them different types, "
                             "or a required property with different constants, or use anyOf",
                             unclear.first, unclear.second));
}

ExprId SchemaCompiler::of_types(const Conjunction& all) {
  if (place_ == kUniqueItem && !comparable(all)) not_comparable(all.schemas[0].path);
  uint32_t types = document_.types(all);
  if (place_ == kArguments) return types & kObject ? object(all) : no_type(all);
  std::vector<ExprId> parts;
  std::vector<std::string> texts;
  auto add = [&](const Value& word) {
    for (std::string& text : words(word)) texts.push_back(std::move(text));
  };
  if (types & kNull) add(Value());
  for (bool word : {true, false})
    if ((types & kBoolean) && document_.valid(Value(word), all)) add(Value(word));
  if (!texts.empty()) parts.push_back(ir_.one_of(std::move(texts)));
  if (types & kString) parts.push_back(string(all));
  if (types & (kInteger | kFraction)) parts.push_back(number(all, types));
  if (types & kArray) parts.push_back(array(all));
  if (types & kObject) parts.push_back(object(all));
  if (parts.empty()) return no_type(all);
  return ir_.alt(std::move(parts));
}

// The schema that excludes the last of the types.
ExprId SchemaCompiler::no_type(const Conjunction& all) {
  Conjunction some;
  for (const SchemaRef& s : all.schemas) {
    some.schemas.push_back(s);
    if (document_.types(some) == 0)
      return never(s.path, s.schema->has("type") ? "type" : "not",
                   "leaves no type that the other keywords allow");
  }
  return never(all, {"not", "type"}, "leaves no value that the other keywords allow");
}

ExprId SchemaCompiler::never(const Conjunction& all, std::initializer_list<const char*> keywords,
                             std::string_view what) {
  for (const char* keyword : keywords)
    for (const SchemaRef& s : all.schemas)
      if (s.schema->has(keyword)) return never(s.path, keyword, what);
  return never(all.schemas[0].path, "", what);
}

// --- strings

std::pair<uint32_t, uint32_t> SchemaCompiler::limits(const Conjunction& all, const char* least,
                                                     const char* most) {
  uint32_t min = 0, max = kUnbounded;
  auto read = [&](const SchemaRef& s, const char* keyword, uint32_t fallback) {
    const Value* v = s.find(keyword);
    if (v == nullptr) return fallback;
    if (!v->is_number() || v->as_double() < 0 || v->as_double() > 1e15 ||
        v->as_double() != static_cast<double>(v->as_int()))
      schema_error(s.path, keyword, "must be a whole number that is not negative");
    return static_cast<uint32_t>(std::min<int64_t>(v->as_int(), kUnbounded - 1));
  };
  for (const SchemaRef& s : all.schemas) {
    min = std::max(min, read(s, least, 0));
    max = std::min(max, read(s, most, kUnbounded));
  }
  return {min, max};
}

// The strings of enum, const or pattern. False: there are none.
bool SchemaCompiler::excluded_strings(const Value& schema, const std::string& path, CharFsm& out) {
  const Value* regex = schema.is_object() ? schema.find("pattern") : nullptr;
  if (regex != nullptr && regex->is_string()) {
    out = document_.pattern(regex->as_string(), path + "/not/pattern");
    return true;
  }
  std::vector<std::string> texts;
  if (const Value* one = schema.is_object() ? schema.find("const") : nullptr)
    if (one->is_string()) texts.push_back(one->as_string());
  if (const Value* list = schema.is_object() ? schema.find("enum") : nullptr)
    for (const Value& v : list->as_array())
      if (v.is_string()) texts.push_back(v.as_string());
  out = fsm_of_texts(texts);
  return !texts.empty();
}

const CharFsm* SchemaCompiler::known_format(const SchemaRef& s) {
  const Value* format = s.find("format");
  if (format == nullptr) return nullptr;
  if (!format->is_string()) schema_error(s.path, "format", "must be a string");
  const std::string& name = format->as_string();
  if (is_hint_format(name)) return nullptr;
  const CharFsm* fsm = format_fsm(name);
  if (fsm != nullptr) return fsm;
  if (strict_)
    schema_error(s.path, "format",
                 fmt::format("is not supported; those that are: {}", format_names()));
  std::string note = schema_message(
      s.path, "format", fmt::format("'{}' is not known and has no effect", name.substr(0, 64)));
  if (std::find(ir_.notes.begin(), ir_.notes.end(), note) == ir_.notes.end() &&
      ir_.notes.size() < kMaxNotes)
    ir_.notes.push_back(std::move(note));
  return nullptr;
}

bool SchemaCompiler::string_fsm(const Conjunction& all, CharFsm& out) {
  bool any = false;
  auto restrict_to = [&](const CharFsm& fsm) {
    out = any ? intersect(out, fsm) : fsm;
    any = true;
  };
  for (const SchemaRef& s : all.schemas) {
    if (const Value* regex = s.find("pattern")) {
      if (!regex->is_string()) schema_error(s.path, "pattern", "must be a string");
      restrict_to(document_.pattern(regex->as_string(), s.path + "/pattern"));
    }
    if (const Value* excluded = s.find("not"); excluded && is_plain_negation(*excluded))
      if (CharFsm fsm; excluded_strings(*excluded, s.path, fsm)) restrict_to(complement(fsm));
    if (const Value* encoding = s.find("contentEncoding")) {
      const CharFsm* fsm = encoding->is_string() ? encoding_fsm(encoding->as_string()) : nullptr;
      if (fsm == nullptr)
        schema_error(s.path, "contentEncoding",
                     "is not supported; those that are: base64, base64url, base32 and base16");
      restrict_to(*fsm);
    }
    if (const CharFsm* fsm = known_format(s)) restrict_to(*fsm);
  }
  return any;
}

// Every length is a state. Where that is too much, the strings are shorter than they might be.
CharFsm SchemaCompiler::of_length(const CharFsm& fsm, uint32_t min, uint32_t max,
                                  const std::string& path) {
  const auto fewer = static_cast<uint32_t>(kFsmStatesForLengths / std::max<size_t>(1, fsm.size()));
  for (uint32_t most : {max, std::max(fewer, kShortest)}) {
    if (most > max || most < min) continue;
    try {
      return intersect(fsm, fsm_of_length(min, most));
    } catch (const Error&) {
      if (most != max) break;
    }
  }
  schema_error(path, "", "pattern or format together with minLength or maxLength is too large");
}

ExprId SchemaCompiler::string(const Conjunction& all) {
  auto [min, max] = limits(all, "minLength", "maxLength");
  if (min > max) return never(all, {"minLength"}, "is above maxLength");
  if (max >= kNoLength) max = kUnbounded;
  for (const SchemaRef& s : all.schemas)
    if (min > kMaxLength && s.schema->has("minLength"))
      schema_error(s.path, "minLength", fmt::format("is only supported up to {}", kMaxLength));
  if (place_ == kUniqueItem) return unique_string(all, min);
  if (max != kUnbounded) max = std::min(max, kMaxLength);
  std::string key = place_ == kValue ? "" : fmt::format("{} ", place_);
  for (const SchemaRef& s : all.schemas)
    for (const char* keyword :
         {"pattern", "format", "contentEncoding", "not", "minLength", "maxLength"})
      if (const Value* v = s.find(keyword)) key += fmt::format("{} {}\n", keyword, dump_json(*v));
  if (auto it = strings_.find(key); it != strings_.end()) return ir_.ref(it->second);
  const bool counted = min > 0 || max != kUnbounded, bare = place_ >= kArgument;
  CharFsm fsm;
  bool limited = string_fsm(all, fsm);
  if (!limited && (bare || (counted && !rules_.is_plain()))) {
    fsm = fsm_of_length(0, kUnbounded);
    limited = true;
  }
  if (limited) {
    fsm = rules_.writable(std::move(fsm));
    if (counted) fsm = of_length(fsm, min, max, all.schemas[0].path);
    if (is_empty(fsm))
      return never(all, {"pattern", "format", "contentEncoding", "not"},
                   "no string is valid under it and the other keywords");
    const bool large = fsm.size() > kSharedStates;
    ExprId expr = bare ? argument_text(fsm) : rules_.quoted(fsm);
    if (!large) return expr;
    RuleId rule = ir_.add_rule(all.schemas[0].path);
    set_place(rule, all);
    ir_.define(rule, expr);
    strings_.emplace(std::move(key), rule);
    return ir_.ref(rule);
  }
  if (!counted) return rules_.string();
  return rules_.string(min, max);
}

// --- numbers

NumberBounds SchemaCompiler::number_bounds(const Conjunction& all) {
  NumberBounds out;
  for (const SchemaRef& s : all.schemas) {
    auto read = [&](const char* keyword) {
      const Value* v = s.find(keyword);
      if (v != nullptr && !v->is_number()) schema_error(s.path, keyword, "must be a number");
      return v == nullptr ? std::optional<Decimal>() : decimal_of(*v);
    };
    // OpenAPI's formats of numbers are bounds.
    const Value* format = s.find("format");
    for (const NumberFormat& f : kNumberFormats)
      if (format != nullptr && format->is_string() && format->as_string() == f.name) {
        Decimal low = decimal_of(Value(f.min)), high{false, std::to_string(f.max), ""};
        if (!out.min || compare(low, *out.min) > 0) out.min = low, out.above_min = false;
        if (!out.max || compare(high, *out.max) < 0) out.max = high, out.below_max = false;
      }
    for (bool exclusive : {false, true}) {
      if (auto low = read(exclusive ? "exclusiveMinimum" : "minimum")) {
        int order = out.min ? compare(*low, *out.min) : 1;
        if (order > 0) out.min = low, out.above_min = exclusive;
        if (order == 0) out.above_min |= exclusive;
      }
      if (auto high = read(exclusive ? "exclusiveMaximum" : "maximum")) {
        int order = out.max ? compare(*high, *out.max) : -1;
        if (order < 0) out.max = high, out.below_max = exclusive;
        if (order == 0) out.below_max |= exclusive;
      }
    }
    if (auto divisor = read("multipleOf")) out.multiples_of.push_back(*divisor);
  }
  return out;
}

ExprId SchemaCompiler::number(const Conjunction& all, uint32_t types) {
  NumberBounds bounds = number_bounds(all);
  bool integers = (types & kInteger) != 0, fractions = (types & kFraction) != 0;
  if (bounds.any() && integers) return fractions ? rules_.number() : rules_.integer();
  if (bounds.min && bounds.max && compare(*bounds.min, *bounds.max) > 0)
    return never(all, {"minimum", "exclusiveMinimum", "format"}, "is above the maximum");
  try {
    CharFsm fsm = number_fsm(bounds, integers, fractions);
    if (is_empty(fsm))
      return never(all,
                   {"multipleOf", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"},
                   "no number is valid under it and the other keywords");
    return expr_of(ir_, fsm);
  } catch (const Error& e) {
    schema_error(all.schemas[0].path, "multipleOf", e.what());
  }
}

}  // namespace tokamak::grammar
