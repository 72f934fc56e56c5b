// Arrays: items by position, those that `contains` counts, and different ones.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/error.h"
#include "text/grammar/json_compiler.h"

namespace tokamak::grammar {
namespace {

constexpr uint32_t kMaxItems = 5000;         // items that are counted one by one
constexpr uint64_t kMaxItemStates = 20'000;  // with `contains`: items times those that count

}  // namespace

// All values of a schema, if they are few.
bool SchemaCompiler::few_values(const Conjunction& one, std::vector<const Value*>& out) {
  static const Value kWords[] = {Value(true), Value(false), Value()};
  if (one.never || document_.values(one, out)) return true;
  if ((document_.types(one) & ~uint32_t{kBoolean | kNull}) != 0) return false;
  for (const Value& word : kWords)
    if (document_.valid(word, one)) out.push_back(&word);
  return true;
}

// Strings of which there is always a longer one, so that the matcher may forbid any of them.
bool SchemaCompiler::endless_strings(const Conjunction& one) {
  std::vector<const Value*> values;
  CharFsm fsm;
  for (const SchemaRef& s : one.schemas)
    if (!s.any_of_done || !s.one_of_done || s.schema->has("not")) return false;
  return !one.never && rules_.is_plain() && document_.types(one) == kString &&
         !document_.values(one, values) &&
         limits(one, "minLength", "maxLength").second == kUnbounded &&
         (!string_fsm(one, fsm) || is_endless(fsm));
}

// The grammar allows repetitions; unique_items.h finds them.
ExprId SchemaCompiler::unique_string(const Conjunction& one, uint32_t min) {
  const std::string& path = one.schemas[0].path;
  const RuleId rule = ir_.add_rule(path);
  CharFsm fsm;
  if (!string_fsm(one, fsm))
    ir_.define(rule, rules_.string(min, kUnbounded));
  else
    ir_.define(rule, rules_.quoted(min == 0 ? fsm : of_length(fsm, min, kUnbounded, path)));
  ir_.set_unique(rule);
  return ir_.ref(rule);
}

// The last required member that is such a string: objects that differ in it, or in a member before
// it, differ. Empty: there is none.
std::string SchemaCompiler::unique_member(const Conjunction& all) {
  std::string found;
  for (const std::string& name : member_names(all))
    if (document_.requires_member(all, name) && endless_strings(document_.member(all, name)))
      found = name;
  return found;
}

// Whether all these items are such strings, or objects with such a member.
bool SchemaCompiler::comparable(const Conjunction& one) {
  std::vector<const Value*> values;
  if (one.never || !rules_.is_plain() || document_.values(one, values)) return false;
  for (size_t i = 0; i < one.schemas.size(); ++i) {
    const SchemaRef& s = one.schemas[i];
    if (s.any_of_done && s.one_of_done) continue;
    const bool one_of = s.any_of_done;
    const Value& list = *s.find(one_of ? "oneOf" : "anyOf");
    compared_ += list.size();
    if (!list.is_array() || compared_ > kMaxCombinations) return false;
    for (const Value& alternative : list.as_array()) {
      Conjunction part = one;
      (one_of ? part.schemas[i].one_of_done : part.schemas[i].any_of_done) = true;
      document_.add_alternative(part, alternative, s.path + (one_of ? "/oneOf" : "/anyOf"), i);
      if (!part.never && !comparable(part)) return false;
    }
    return true;
  }
  return endless_strings(one) || (document_.types(one) == kObject && !unique_member(one).empty());
}

void SchemaCompiler::not_comparable(const std::string& path) {
  schema_error(path, "uniqueItems",
               "is only supported with a maxItems of 1, with items of enum, const or boolean, with "
               "strings without a greatest length, and with objects that require such a string");
}

// States are the sets of values that were used.
ExprId SchemaCompiler::unique_items(const Conjunction& all, const SchemaRef& s,
                                    const ItemCounts& counts) {
  constexpr size_t kMaxUniqueEdges = 6000;
  std::vector<const Value*> values;
  std::vector<std::vector<size_t>> allowed;  // by position; the last is for the rest
  for (uint32_t p = 0; p <= counts.listed && p < counts.max; ++p) {
    std::vector<const Value*> found;
    if (!few_values(document_.item(all, p), found)) not_comparable(s.path);
    std::vector<size_t>& here = allowed.emplace_back();
    for (const Value* v : found) {
      size_t i = 0;
      while (i < values.size() && !json_equal(*v, *values[i])) ++i;
      if (i == values.size()) values.push_back(v);
      if (std::find(here.begin(), here.end(), i) == here.end()) here.push_back(i);
    }
  }
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
  using Used = std::vector<bool>;
  std::vector<Used> states{Used(values.size())};
  std::map<Used, uint32_t> known{{states[0], 0}};
  Graph graph;
  for (uint32_t at = 0; at < states.size(); ++at) {
    auto count = static_cast<uint32_t>(std::count(states[at].begin(), states[at].end(), true));
    if (count > 0 && count >= counts.min) graph.finals.push_back(at);
    if (count >= counts.max) continue;
    for (size_t i : allowed[std::min<size_t>(count, allowed.size() - 1)]) {
      if (states[at][i]) continue;
      Used next = states[at];
      next[i] = true;
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
      std::tie(one.min, one.max) = limits(Conjunction{false, {s}}, "minContains", "maxContains");
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
                                                       const Contained& contained, Place place) {
  if (contained.schema == nullptr) return {kNoExpr, reference(one, place)};
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
                                 const Contained& contained, Place place) {
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
    rest = counted_item(document_.item(all, counts.listed), contained, place);
  for (uint32_t i = 0; i < last; ++i)
    add(i, i + 1, i < counts.listed ? counted_item(document_.item(all, i), contained, place) : rest,
        i == 0);
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
    if (document_.item(all, i).never) counts.max = std::min(counts.max, i);
  if (counts.min > counts.max)
    return never(document_.item(all, counts.max).never_path, "", "is false, but minItems needs it");
  Contained contains = contained(all);
  if (contains.min > std::min(counts.max, contains.max))
    return never(contains.schema->path, "contains",
                 "needs more items than maxItems or maxContains allows");
  if (unique != nullptr && counts.max > 1) {
    if (contains.schema != nullptr)
      schema_error(contains.schema->path, "contains", "is not supported together with uniqueItems");
    bool compared = true;
    for (uint32_t i = 0; i <= counts.listed && i < counts.max; ++i)
      compared = compared && comparable(document_.item(all, i));
    return compared ? item_list(all, counts, contains, kUniqueItem)
                    : unique_items(all, *unique, counts);
  }
  if (counts.max == 0) return ir_.bytes("[]");
  return item_list(all, counts, contains, kValue);
}

}  // namespace tokamak::grammar
