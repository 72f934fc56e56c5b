#include "text/grammar/json_schema.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/json_compiler.h"
#include "text/grammar/json_derived.h"
#include "text/grammar/json_format.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMaxCombinations = 2000;    // of alternatives of anyOf and oneOf
constexpr size_t kMaxExclusive = 64;         // alternatives of oneOf
constexpr uint32_t kMaxItems = 5000;         // items that are counted one by one
constexpr uint64_t kMaxItemStates = 20'000;  // with `contains`: items times those that count
constexpr uint32_t kMaxLength = 100'000;     // characters that are counted
constexpr uint32_t kNoLength = 100'000'000;  // more characters than any answer has
constexpr std::pair<std::string_view, std::pair<int64_t, int64_t>> kNumberFormats[] = {
    {"int32", {INT32_MIN, INT32_MAX}}, {"int64", {INT64_MIN, INT64_MAX}}};

}  // namespace

Ir json_schema_grammar(const Value& schema, const std::optional<std::string>& space) {
  return SchemaCompiler(schema, space).compile(schema);
}

Ir json_object_grammar(const std::optional<std::string>& space) {
  Ir ir;
  RuleId root = ir.add_rule("root");
  JsonRules rules(ir, space);
  ir.define(root, rules.object());
  return ir;
}

Ir SchemaCompiler::compile(const Value& schema) {
  RuleId root = ir_.add_rule("#");
  ir_.define(root, reference(document_.single(schema, "#")));
  // A list instead of recursion: schemas may refer to each other in long chains.
  for (size_t i = 0; i < waiting_.size(); ++i) {
    auto [rule, all] = waiting_[i];
    ir_.define(rule, body(all));
  }
  return std::move(ir_);
}

ExprId SchemaCompiler::reference(const Conjunction& all) {
  if (all.never) return never(all.never_path, "", "is false: no value is valid");
  Key key;
  for (const SchemaRef& s : all.schemas)
    key.emplace_back(s.schema, s.any_of_done * 2 + s.one_of_done);
  std::sort(key.begin(), key.end());
  if (key.empty()) return rules_.value();
  auto [it, fresh] = known_.emplace(std::move(key), 0);
  if (fresh) {
    it->second = ir_.add_rule(all.schemas[0].path);
    waiting_.emplace_back(it->second, all);
  }
  return ir_.ref(it->second);
}

ExprId SchemaCompiler::body(const Conjunction& all) {
  std::vector<const Value*> listed;
  if (document_.values(all, listed)) {
    if (listed.empty())
      return never(all, {"const", "enum"}, "has no value that the other keywords allow");
    std::vector<std::string> scalars;
    std::vector<ExprId> parts;
    for (const Value* v : listed)
      if (v->is_object() || v->is_array())
        parts.push_back(rules_.exactly(*v));
      else
        scalars.push_back(dump_json(*v));
    if (!scalars.empty()) parts.push_back(ir_.one_of(std::move(scalars)));
    return ir_.alt(std::move(parts));
  }
  for (size_t i = 0; i < all.schemas.size(); ++i) {
    if (!all.schemas[i].any_of_done) return alternatives(all, i, false);
    if (!all.schemas[i].one_of_done) return alternatives(all, i, true);
  }
  return of_types(all);
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
  for (size_t i = 0; i < list.size(); ++i) {
    Conjunction part = all;
    (one_of ? part.schemas[index].one_of_done : part.schemas[index].any_of_done) = true;
    document_.add(part, list.as_array()[i], fmt::format("{}/{}/{}", s.path, keyword, i));
    if (part.never) continue;
    parts.push_back(std::move(part));
    schemas.push_back(&list.as_array()[i]);
  }
  if (one_of) make_exclusive(parts, schemas, s);
  if (parts.empty()) return never(s.path, keyword, "has no alternative that can hold");
  std::vector<ExprId> exprs;
  for (const Conjunction& part : parts) exprs.push_back(reference(part));
  return ir_.alt(std::move(exprs));
}

// Where two alternatives may both hold, each also excludes the other.
void SchemaCompiler::make_exclusive(std::vector<Conjunction>& parts,
                                    const std::vector<const Value*>& schemas, const SchemaRef& s) {
  if (parts.size() > kMaxExclusive) schema_error(s.path, "oneOf", "has too many alternatives");
  const std::vector<Conjunction> before = parts;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t k = 0; k < parts.size(); ++k) {
      if (i == k || document_.disjoint(before[i], before[k])) continue;
      const Value* negation = document_.negation(*schemas[k], document_.closed(before[i]));
      if (negation == nullptr)
        schema_error(s.path, "oneOf",
                     fmt::format("alternatives {} and {} may both hold; give them different types, "
                                 "or a required property with different constants, or use anyOf",
                                 std::min(i, k), std::max(i, k)));
      document_.add(parts[i], *negation, s.path + "/oneOf");
    }
}

ExprId SchemaCompiler::of_types(const Conjunction& all) {
  uint32_t types = document_.types(all);
  std::vector<ExprId> parts;
  std::vector<std::string> words;
  if (types & kNull) words.push_back("null");
  for (bool word : {true, false})
    if ((types & kBoolean) && document_.valid(Value(word), all))
      words.push_back(word ? "true" : "false");
  if (!words.empty()) parts.push_back(ir_.one_of(std::move(words)));
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
    if (const Value* format = s.find("format")) {
      if (format->is_string() && is_hint_format(format->as_string())) continue;
      const CharFsm* fsm = format->is_string() ? format_fsm(format->as_string()) : nullptr;
      if (fsm == nullptr)
        schema_error(s.path, "format",
                     fmt::format("is not supported; those that are: {}", format_names()));
      restrict_to(*fsm);
    }
  }
  return any;
}

ExprId SchemaCompiler::string(const Conjunction& all) {
  auto [min, max] = limits(all, "minLength", "maxLength");
  if (min > max) return never(all, {"minLength"}, "is above maxLength");
  if (max >= kNoLength) max = kUnbounded;
  if (max != kUnbounded && max > kMaxLength)
    for (const SchemaRef& s : all.schemas)
      if (s.schema->has("maxLength"))
        schema_error(s.path, "maxLength", fmt::format("is only supported up to {}", kMaxLength));
  CharFsm fsm;
  if (string_fsm(all, fsm)) {
    try {
      if (min > 0 || max != kUnbounded) fsm = intersect(fsm, fsm_of_length(min, max));
    } catch (const Error&) {
      schema_error(all.schemas[0].path, "",
                   "pattern or format together with minLength or maxLength is too large");
    }
    if (is_empty(fsm))
      return never(all, {"pattern", "format", "contentEncoding", "not"},
                   "no string is valid under it and the other keywords");
    return ir_.seq({ir_.bytes("\""), json_expr_of(ir_, fsm), ir_.bytes("\"")});
  }
  if (min == 0 && max == kUnbounded) return rules_.string();
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
    for (const auto& [name, bounds] : kNumberFormats)
      if (format != nullptr && format->is_string() && format->as_string() == name) {
        Decimal low = decimal_of(Value(bounds.first)), high = decimal_of(Value(bounds.second));
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

// --- arrays

Conjunction SchemaCompiler::item(const Conjunction& all, size_t index) {
  Conjunction out;
  for (const SchemaRef& s : all.schemas) {
    const Value::Array* prefix = document_.prefix_items(s);
    if (prefix != nullptr && index < prefix->size()) {
      document_.add(out, (*prefix)[index], fmt::format("{}/prefixItems/{}", s.path, index));
      continue;
    }
    auto [rest, keyword] = document_.rest_items(s);
    if (rest != nullptr) document_.add(out, *rest, s.path + "/" + keyword);
  }
  return out;
}

// States are the sets of values that were used.
ExprId SchemaCompiler::unique_items(const Conjunction& all, const SchemaRef& s,
                                    const ItemCounts& counts) {
  constexpr size_t kMaxUniqueEdges = 6000;
  std::vector<const Value*> found, values;
  static const Value kWords[] = {Value(true), Value(false), Value()};
  Conjunction one = item(all, 0);
  bool few = counts.listed == 0 && document_.values(one, found);
  if (counts.listed == 0 && !few && (document_.types(one) & ~uint32_t{kBoolean | kNull}) == 0) {
    few = true;
    for (const Value& word : kWords)
      if (document_.valid(word, one)) found.push_back(&word);
  }
  if (!few)
    schema_error(s.path, "uniqueItems",
                 "is only supported with a maxItems of 1 or with items of enum, const or boolean");
  for (const Value* v : found)
    if (std::none_of(values.begin(), values.end(),
                     [&](const Value* other) { return json_equal(*v, *other); }))
      values.push_back(v);
  if (values.size() < counts.min)
    return never(s.path, "uniqueItems",
                 fmt::format("minItems is {}, and {} different items are possible", counts.min,
                             values.size()));
  std::vector<ExprId> first, later;
  ExprId comma = rules_.comma();
  for (const Value* v : values) {
    RuleId rule = ir_.add_rule(s.path + "/items");
    ir_.define(rule, rules_.exactly(*v));
    first.push_back(ir_.ref(rule));
    later.push_back(ir_.seq({comma, first.back()}));
  }
  using Used = std::vector<uint8_t>;
  std::vector<Used> states{Used(values.size(), 0)};
  std::map<Used, uint32_t> known{{states[0], 0}};
  Graph graph;
  for (uint32_t at = 0; at < states.size(); ++at) {
    auto count = static_cast<uint32_t>(std::count(states[at].begin(), states[at].end(), 1));
    if (count > 0 && count >= counts.min) graph.finals.push_back(at);
    for (size_t i = 0; i < values.size() && count < counts.max; ++i) {
      if (states[at][i]) continue;
      Used next = states[at];
      next[i] = 1;
      auto [it, fresh] = known.emplace(next, static_cast<uint32_t>(states.size()));
      if (fresh) states.push_back(std::move(next));
      graph.edges.push_back({at, it->second, count == 0 ? first[i] : later[i]});
      if (graph.edges.size() > kMaxUniqueEdges)
        schema_error(s.path, "uniqueItems", "has too many combinations of values; set a maxItems");
    }
  }
  graph.states = static_cast<uint32_t>(states.size());
  if (values.empty() || counts.max == 0) return ir_.bytes("[]");
  return rules_.braces("[", ir_.add(std::move(graph)), "]", counts.min == 0);
}

SchemaCompiler::Contained SchemaCompiler::contained(const Conjunction& all) {
  Contained out;
  for (const SchemaRef& s : all.schemas) {
    if (!s.schema->has("contains")) continue;
    Contained one{&s, 1, kUnbounded};
    if (!document_.old_draft()) {
      std::tie(one.min, one.max) = limits({false, {s}}, "minContains", "maxContains");
      if (!s.schema->has("minContains")) one.min = 1;
    }
    if (one.min == 0 && one.max == kUnbounded) continue;
    if (out.schema != nullptr)
      schema_error(s.path, "contains", "is only supported once for an array");
    out = one;
  }
  return out;
}

// Items that do and that do not count for `contains`. Without a most, both may be any item: some
// reading of the array has enough that count.
std::pair<ExprId, ExprId> SchemaCompiler::counted_item(const Conjunction& one,
                                                       const Contained& contained) {
  if (contained.schema == nullptr) return {kNoExpr, reference(one)};
  const SchemaRef& s = *contained.schema;
  const Value& wanted = s.schema->at("contains");
  Conjunction counts = one, others = one;
  document_.add(counts, wanted, s.path + "/contains");
  if (contained.max != kUnbounded) {
    const Value* negation = document_.negation(wanted, false);
    if (negation == nullptr)
      schema_error(s.path, "maxContains", "is only supported if 'contains' can be negated");
    document_.add(others, *negation, s.path + "/contains");
  }
  return {reference(counts), reference(others)};
}

// States are pairs: items so far, and how many of them count for `contains`.
ExprId SchemaCompiler::item_list(const Conjunction& all, const ItemCounts& counts,
                                 const Contained& contained) {
  const uint32_t last = counts.last();
  const uint32_t most = contained.max == kUnbounded ? contained.min : contained.max;
  if (last > kMaxItems)
    schema_error(all.schemas[0].path, "",
                 fmt::format("minItems, maxItems and prefixItems of more than {} are not supported",
                             kMaxItems));
  if (uint64_t{last + 1} * (most + 1) > kMaxItemStates)
    schema_error(contained.schema->path, "contains", "is too large with these numbers of items");
  Graph graph;
  graph.states = (last + 1) * (most + 1);
  ExprId comma = rules_.comma();
  auto add = [&](uint32_t from, uint32_t to, std::pair<ExprId, ExprId> items, bool first) {
    auto [counted, other] = items;
    for (uint32_t k = 0; k <= most; ++k) {
      auto edge = [&](uint32_t next, ExprId one) {
        graph.edges.push_back(
            {from * (most + 1) + k, to * (most + 1) + next, first ? one : ir_.seq({comma, one})});
      };
      edge(k, other);
      if (k < most) edge(k + 1, counted);
    }
  };
  std::pair<ExprId, ExprId> rest{kNoExpr, kNoExpr};
  if (last > counts.listed || counts.max == kUnbounded)
    rest = counted_item(item(all, counts.listed), contained);
  for (uint32_t i = 0; i < last; ++i)
    add(i, i + 1, i < counts.listed ? counted_item(item(all, i), contained) : rest, i == 0);
  if (counts.max == kUnbounded) add(last, last, rest, false);
  for (uint32_t i = std::max(counts.min, 1u); i <= last; ++i)
    for (uint32_t k = contained.min; k <= most; ++k) graph.finals.push_back(i * (most + 1) + k);
  bool maybe_empty = counts.min == 0 && contained.min == 0;
  return rules_.braces("[", ir_.add(std::move(graph)), "]", maybe_empty);
}

ExprId SchemaCompiler::array(const Conjunction& all) {
  ItemCounts counts;
  std::tie(counts.min, counts.max) = limits(all, "minItems", "maxItems");
  if (counts.min > counts.max) return never(all, {"minItems"}, "is above maxItems");
  const SchemaRef* unique = nullptr;
  for (const SchemaRef& s : all.schemas) {
    if (s.schema->get_bool("uniqueItems", false)) unique = &s;
    if (const auto* prefix = document_.prefix_items(s))
      counts.listed = std::max(counts.listed, static_cast<uint32_t>(prefix->size()));
  }
  for (uint32_t i = 0; i <= counts.listed; ++i)
    if (item(all, i).never) counts.max = std::min(counts.max, i);
  if (counts.min > counts.max)
    return never(item(all, counts.max).never_path, "", "is false, but minItems needs it");
  Contained contains = contained(all);
  if (contains.min > std::min(counts.max, contains.max))
    return never(contains.schema->path, "contains",
                 "needs more items than maxItems or maxContains allows");
  if (unique != nullptr && counts.max > 1) {
    if (contains.schema != nullptr)
      schema_error(contains.schema->path, "contains", "is not supported together with uniqueItems");
    return unique_items(all, *unique, counts);
  }
  if (counts.max == 0) return ir_.bytes("[]");
  return item_list(all, counts, contains);
}

}  // namespace tokamak::grammar
