// Arrays: items by position, those that `contains` counts, and different ones.
#include <algorithm>
#include <map>
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

bool SchemaCompiler::free_strings(const Conjunction& one) {
  std::vector<const Value*> values;
  CharFsm fsm;
  for (const SchemaRef& s : one.schemas)
    if (!s.any_of_done || !s.one_of_done || s.schema->has("not")) return false;
  return !one.never && rules_.is_plain() && document_.types(one) == kString &&
         !document_.values(one, values) && !string_fsm(one, fsm) &&
         limits(one, "minLength", "maxLength").second == kUnbounded;
}

// The grammar allows repetitions; unique_items.h finds them.
ExprId SchemaCompiler::unique_strings(const Conjunction& all, const ItemCounts& counts) {
  Graph graph;
  const uint32_t last = counts.last();
  if (last > kMaxItems)
    schema_error(all.schemas[0].path, "",
                 fmt::format("minItems and maxItems of more than {} are not supported", kMaxItems));
  graph.states = last + 1;
  std::map<uint32_t, RuleId> rules;  // by minLength
  auto item = [&](uint32_t index) {
    const Conjunction one = document_.item(all, std::min(index, counts.listed));
    const uint32_t min = limits(one, "minLength", "maxLength").first;
    auto [it, fresh] = rules.emplace(min, 0);
    if (fresh) {
      it->second = ir_.add_rule(one.schemas[0].path);
      ir_.define(it->second, rules_.string(min, kUnbounded));
      ir_.set_unique(it->second);
    }
    ExprId text = ir_.ref(it->second);
    return index == 0 ? text : ir_.seq({rules_.comma(), text});
  };
  for (uint32_t i = 0; i < last; ++i) {
    graph.edges.push_back({i, i + 1, item(i)});
    if (i + 1 >= counts.min) graph.finals.push_back(i + 1);
  }
  if (counts.max == kUnbounded) graph.edges.push_back({last, last, item(last)});
  return rules_.braces("[", ir_.add(std::move(graph)), "]", counts.min == 0);
}

// States are the sets of values that were used.
ExprId SchemaCompiler::unique_items(const Conjunction& all, const SchemaRef& s,
                                    const ItemCounts& counts) {
  constexpr size_t kMaxUniqueEdges = 6000;
  std::vector<const Value*> values;
  std::vector<std::vector<size_t>> allowed;  // by position; the last is for the rest
  for (uint32_t p = 0; p <= counts.listed && p < counts.max; ++p) {
    std::vector<const Value*> found;
    if (!few_values(document_.item(all, p), found))
      schema_error(
          s.path, "uniqueItems",
          "is only supported with a maxItems of 1, with items of enum, const or boolean, and with "
          "strings that nothing but minLength restricts");
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
    rest = counted_item(document_.item(all, counts.listed), contained);
  for (uint32_t i = 0; i < last; ++i)
    add(i, i + 1, i < counts.listed ? counted_item(document_.item(all, i), contained) : rest,
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
    bool free = true;
    for (uint32_t i = 0; i <= counts.listed && i < counts.max; ++i)
      free = free && free_strings(document_.item(all, i));
    return free ? unique_strings(all, counts) : unique_items(all, *unique, counts);
  }
  if (counts.max == 0) return ir_.bytes("[]");
  return item_list(all, counts, contains);
}

}  // namespace tokamak::grammar
