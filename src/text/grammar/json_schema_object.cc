// Objects: members in the order of the schema, then those that it does not name.
#include <algorithm>

#include "base/error.h"
#include "text/grammar/json_compiler.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMaxPatterns = 6;        // of patternProperties
constexpr uint32_t kMaxCounted = 20'000;  // states that count members

}  // namespace

std::vector<std::string> SchemaCompiler::member_names(const Conjunction& all) {
  std::vector<std::string> names;
  std::map<std::string, bool> seen;
  auto add = [&](const std::string& name) {
    if (seen.emplace(name, true).second) names.push_back(name);
  };
  for (const SchemaRef& s : all.schemas)
    if (const Value* properties = s.find("properties")) {
      if (!properties->is_object()) schema_error(s.path, "properties", "must be an object");
      for (const auto& [name, schema] : properties->as_object()) add(name);
    }
  for (const SchemaRef& s : all.schemas)
    if (const Value* required = s.find("required")) {
      if (!required->is_array()) schema_error(s.path, "required", "must be an array");
      for (const Value& name : required->as_array()) {
        if (!name.is_string()) schema_error(s.path, "required", "must have strings");
        add(name.as_string());
      }
    }
  if (rules_.notation().kind == Notation::Kind::kGemma)
    std::stable_sort(names.begin(), names.end(), precedes_in_dictsort);
  return names;
}

bool SchemaCompiler::name_allowed(const Conjunction& all, const std::string& name) {
  for (const SchemaRef& s : all.schemas)
    if (const Value* keys = s.find("propertyNames"))
      if (!document_.valid(Value(name), *keys, s.path + "/propertyNames")) return false;
  return true;
}

std::vector<SchemaCompiler::Member> SchemaCompiler::members(const Conjunction& all,
                                                            std::optional<ExprId>* impossible) {
  std::vector<Member> out;
  const std::vector<std::string> names = member_names(all);  // checks `required`, too
  std::map<std::string, const SchemaRef*> required;          // and by whom
  for (const SchemaRef& s : all.schemas)
    if (const Value* list = s.find("required"))
      for (const Value& name : list->as_array()) required.emplace(name.as_string(), &s);
  const std::string compared = place_ == kUniqueItem ? unique_member(all) : "";
  for (const std::string& name : names) {
    Conjunction value = document_.member(all, name);
    auto needed = required.find(name);
    if (value.never || !name_allowed(all, name)) {
      if (needed != required.end())
        *impossible = never(needed->second->path, "required",
                            fmt::format("'{}' cannot be there: {}", name,
                                        value.never ? value.never_path + " is false"
                                                    : "propertyNames excludes it"));
      continue;
    }
    const Place place = place_ == kUniqueItem && name == compared ? kUniqueItem : kValue;
    ExprId member = place_ == kArguments
                        ? argument(argument_name(name), reference(value, argument_place(name)))
                        : rules_.member(rules_.key(name), reference(value, place));
    out.push_back({name, member, needed != required.end()});
  }
  return out;
}

CharFsm SchemaCompiler::other_names(const Conjunction& all, const std::vector<std::string>& names) {
  CharFsm base = complement(fsm_of_texts(names));
  for (const SchemaRef& s : all.schemas)
    if (const Value* keys = s.find("propertyNames")) {
      Conjunction key = document_.single(*keys, s.path + "/propertyNames");
      std::vector<const Value*> listed;
      CharFsm fsm;
      if (document_.values(key, listed)) {
        std::vector<std::string> texts;
        for (const Value* v : listed)
          if (v->is_string()) texts.push_back(v->as_string());
        base = intersect(base, fsm_of_texts(texts));
        continue;
      }
      for (const SchemaRef& k : key.schemas)
        if (!k.any_of_done || !k.one_of_done || k.schema->has("not"))
          schema_error(s.path, "propertyNames", "is only supported with simple string keywords");
      if ((document_.types(key) & kString) == 0) return fsm_of_texts({});
      if (string_fsm(key, fsm)) base = intersect(base, fsm);
      auto [min, max] = limits(key, "minLength", "maxLength");
      if (min > 0 || max != kUnbounded) base = intersect(base, fsm_of_length(min, max));
    }
  return base;
}

// Names are told apart by which patterns they match; each such set of names is one alternative.
ExprId SchemaCompiler::other_member(const Conjunction& all, const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const SchemaRef& s : all.schemas)
    if (const Value* own = s.find("patternProperties")) {
      if (!own->is_object()) schema_error(s.path, "patternProperties", "must be an object");
      for (const auto& [regex, schema] : own->as_object())
        if (std::find(patterns.begin(), patterns.end(), regex) == patterns.end())
          patterns.push_back(regex);
    }
  const std::string& path = all.schemas[0].path;
  if (patterns.size() > kMaxPatterns)
    schema_error(path, "patternProperties", "has too many patterns");
  CharFsm base = other_names(all, names);
  std::vector<ExprId> parts;
  for (uint32_t subset = 0; subset < 1u << patterns.size(); ++subset) {
    if (subset == 0 && document_.closed(all)) continue;
    CharFsm keys = base;
    Conjunction value;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const CharFsm& fsm = document_.pattern(patterns[i], path + "/patternProperties");
      keys = intersect(keys, (subset >> i & 1) != 0 ? fsm : complement(fsm));
    }
    std::vector<bool> declared(all.schemas.size(), false);
    for (size_t k = 0; k < all.schemas.size(); ++k) {
      const SchemaRef& s = all.schemas[k];
      const Value* own = s.find("patternProperties");
      for (size_t i = 0; own != nullptr && i < patterns.size(); ++i)
        if (const Value* schema = own->find(patterns[i]); schema && (subset >> i & 1) != 0) {
          document_.add(value, *schema, s.path + "/patternProperties/" + patterns[i]);
          declared[k] = true;
        }
    }
    document_.add_other_member(value, all, std::move(declared));
    if (value.never || is_empty(keys)) continue;
    if (place_ == kArguments) {
      keys = intersect(keys, parse_regex(syntax_->names, RegexUse::kWhole));
      if (is_empty(keys)) continue;
      parts.push_back(argument(expr_of(ir_, keys), reference(value, argument_place(""))));
    } else {
      parts.push_back(rules_.member(rules_.key(keys), reference(value)));
    }
  }
  if (parts.empty()) return kNoExpr;
  RuleId rule = ir_.add_rule(path + "/additionalProperties");
  ir_.define(rule, ir_.alt(std::move(parts)));
  return ir_.ref(rule);
}

// States: the next member that may follow, and how many there were. `min` counts members whose
// names certainly differ: of those that the schema does not name, one.
ExprId SchemaCompiler::members_graph(const std::vector<Member>& members, ExprId other, uint32_t min,
                                     uint32_t max) {
  auto n = static_cast<uint32_t>(members.size());
  bool counted = min > 1 || max != kUnbounded;
  uint32_t most = counted ? std::min(max, std::max(min, max == kUnbounded ? min : n + 1)) : 1;
  if (max != kUnbounded && other != kNoExpr) most = max;
  uint32_t width = most + 1;
  if (uint64_t{n + 2} * width > kMaxCounted)
    fail(ErrorCode::kInvalidArgument, "minProperties or maxProperties is too large");
  Graph graph;
  graph.states = (n + 2) * width;
  // state(n + 1, c): after a member that the schema does not name
  auto state = [&](uint32_t next, uint32_t count) { return next * width + count; };
  ExprId comma = place_ != kArguments || syntax_->commas ? rules_.comma() : ir_.empty();
  auto next_count = [&](uint32_t c) { return max == kUnbounded ? std::min(c + 1, most) : c + 1; };
  for (uint32_t i = 0; i < n; ++i) {
    ExprId later = ir_.seq({comma, members[i].expr});
    for (uint32_t c = 0; c <= most; ++c) {
      if (!members[i].required) graph.edges.push_back({state(i, c), state(i + 1, c), kNoExpr});
      if (next_count(c) <= most)
        graph.edges.push_back(
            {state(i, c), state(i + 1, next_count(c)), c == 0 ? members[i].expr : later});
    }
  }
  ExprId later = other == kNoExpr ? kNoExpr : ir_.seq({comma, other});
  for (uint32_t c = 0; c <= most; ++c) {
    bool enough = c >= std::max(min, 1u);
    if (enough) graph.finals.push_back(state(n, c));
    if (other == kNoExpr) continue;
    // After the first of the others the count no longer grows towards `min`.
    if (next_count(c) <= most)
      graph.edges.push_back({state(n, c), state(n + 1, next_count(c)), c == 0 ? other : later});
    if (max == kUnbounded)
      graph.edges.push_back({state(n + 1, c), state(n + 1, c), later});
    else if (c + 1 <= most && c >= min)
      graph.edges.push_back({state(n + 1, c), state(n + 1, c + 1), later});
    if (enough) graph.finals.push_back(state(n + 1, c));
  }
  return ir_.add(std::move(graph));
}

ExprId SchemaCompiler::object(const Conjunction& all) {
  auto [min, max] = limits(all, "minProperties", "maxProperties");
  if (min > max) return never(all, {"minProperties"}, "is above maxProperties");
  std::optional<ExprId> impossible;
  std::vector<Member> known = members(all, &impossible);
  if (impossible) return *impossible;
  bool restricted = !known.empty() || min > 0 || max != kUnbounded;
  for (const SchemaRef& s : all.schemas)
    for (const char* keyword : {"additionalProperties", "unevaluatedProperties",
                                "patternProperties", "properties", "propertyNames"})
      restricted |= s.schema->has(keyword);
  const bool bare = place_ == kArguments;
  if (!restricted && !bare) return rules_.object();
  auto needed =
      std::count_if(known.begin(), known.end(), [](const Member& m) { return m.required; });
  if (needed > max)
    return never(all, {"maxProperties"}, fmt::format("{} properties are required", needed));
  if (max == 0) return ir_.bytes(bare ? "" : "{}");
  ExprId other = other_member(all, member_names(all));
  if (min > known.size() + (other == kNoExpr ? 0 : 1)) {
    if (other == kNoExpr)
      return never(all, {"minProperties"},
                   fmt::format("only {} properties are possible", known.size()));
    schema_error(all.schemas[0].path, "minProperties",
                 "is only supported up to one more than the properties that the schema names");
  }
  if (known.empty() && other == kNoExpr) return ir_.bytes(bare ? "" : "{}");
  try {
    ExprId list = members_graph(known, other, min, max);
    const bool maybe_empty = needed == 0 && min == 0;
    if (bare) return maybe_empty ? ir_.optional(list) : list;
    return rules_.braces("{", list, "}", maybe_empty);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInvalidArgument) throw;
    schema_error(all.schemas[0].path, "", e.what());
  }
}

}  // namespace tokamak::grammar
