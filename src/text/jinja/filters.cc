// Filters on sequences and numbers, and the table of all filters.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja/filters.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

using Fn = std::function<Val(const Val&)>;

Val length(Interp&, const Val& v, Args&) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return Val::integer(0);
    case Kind::kString:
      return Val::integer(static_cast<int64_t>(v.text()->chars));
    case Kind::kList:
    case Kind::kTuple:
      return Val::integer(static_cast<int64_t>(v.items()->values.size()));
    case Kind::kDict:
      return Val::integer(static_cast<int64_t>(v.dict()->members.size()));
    default:
      raise(std::string("object of type '") + type_name(v) + "' has no len()");
  }
}

Val default_filter(Interp& i, const Val& v, Args& args) {
  const Val* fallback = args.get(0, "default_value");
  const Val* boolean = args.get(1, "boolean");
  if (v.is_undefined() || (boolean && truthy(*boolean) && !truthy(v)))
    return fallback ? *fallback : i.str("");
  return v;
}

Val list_filter(Interp& i, const Val& v, Args&) { return i.list(i.iterate(v)); }

Val first(Interp& i, const Val& v, Args&) {
  const std::vector<Val> values = i.iterate(v);
  return values.empty() ? Val::undefined(nullptr) : values.front();
}
Val last(Interp& i, const Val& v, Args&) {
  if (v.is_generator()) raise("'generator' object is not reversible");
  const std::vector<Val> values = i.iterate(v);
  return values.empty() ? Val::undefined(nullptr) : values.back();
}

Val items(Interp& i, const Val& v, Args&) {
  if (v.is_undefined()) return i.generator({});
  if (!v.is_dict()) raise("Can only get item pairs from a mapping.");
  std::vector<Val> out;
  for (const auto& [key, item] : v.dict()->members) out.push_back(i.heap().list({key, item}, true));
  return i.generator(std::move(out));
}

Val reverse(Interp& i, const Val& v, Args&) {
  if (v.is_string()) return i.slice(v, Val::none(), Val::none(), Val::integer(-1));
  std::vector<Val> values = i.iterate(v);
  std::reverse(values.begin(), values.end());
  return i.generator(std::move(values));
}

// Case-insensitive keys for sorting and comparing, as in jinja2 by default.
Val fold(Interp& i, const Val& v) { return v.is_string() ? i.str(to_lower_words(v.str())) : v; }

bool flag(const Args& args, size_t index, const char* name, bool fallback) {
  const Val* v = args.get(index, name);
  return v ? truthy(*v) : fallback;
}

// Equal keys need no ordering: None next to None is fine.
void sort_by(Interp& i, std::vector<std::pair<Val, Val>>& keyed, bool descending) {
  i.spend(keyed.size() * 4);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    i.spend(1);
    if (equal(a.first, b.first)) return false;
    return descending ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
}

// attribute="a.b, c": one key, or a list of keys.
Val sort_key(Interp& i, const Val& v, const Val* attribute, bool case_sensitive) {
  const auto one = [&](const Val& path) {
    const Val key = attribute_path(i, v, path);
    return case_sensitive ? key : fold(i, key);
  };
  if (!attribute || attribute->is_none()) return case_sensitive ? v : fold(i, v);
  if (!attribute->is_string() || attribute->str().find(',') == std::string::npos)
    return one(*attribute);
  std::vector<Val> keys;
  const Val comma = i.str(",");
  for (const std::string& part : py_split(attribute->str(), &comma, -1))
    keys.push_back(one(i.str(part)));
  return i.list(std::move(keys));
}

Val sort(Interp& i, const Val& v, Args& args) {
  const bool descending = flag(args, 0, "reverse", false),
             cased = flag(args, 1, "case_sensitive", false);
  const Val* attribute = args.get(2, "attribute");
  std::vector<std::pair<Val, Val>> keyed;
  for (Val& item : i.iterate(v)) {
    Val key = sort_key(i, item, attribute, cased);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  sort_by(i, keyed, descending);
  std::vector<Val> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return i.list(std::move(out));
}

Val dictsort(Interp& i, const Val& v, Args& args) {
  if (!v.is_dict()) raise("dictsort needs a mapping");
  const bool cased = flag(args, 0, "case_sensitive", false),
             descending = flag(args, 2, "reverse", false);
  const Val* by = args.get(1, "by");
  const bool by_value = by && by->is_string() && by->str() == "value";
  if (by && !by_value && !(by->is_string() && by->str() == "key"))
    raise("dictsort: you can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Val, Val>> keyed;
  for (const auto& [key, item] : v.dict()->members) {
    const Val& k = by_value ? item : key;
    keyed.emplace_back(cased ? k : fold(i, k), i.heap().list({key, item}, true));
  }
  sort_by(i, keyed, descending);
  std::vector<Val> out;
  for (auto& [key, pair] : keyed) out.push_back(std::move(pair));
  return i.list(std::move(out));
}

Val unique(Interp& i, const Val& v, Args& args) {
  const bool cased = flag(args, 0, "case_sensitive", false);
  const Val* attribute = args.get(1, "attribute");
  std::vector<Val> keys, out;
  for (Val& item : i.iterate(v)) {
    Val key = sort_key(i, item, attribute, cased);
    if (key.is_plain_list() || key.is_dict())
      raise(std::string("unhashable type: '") + type_name(key) + "'");
    i.spend(keys.size() / 4);
    if (std::any_of(keys.begin(), keys.end(), [&](const Val& k) { return equal(k, key); }))
      continue;
    keys.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return i.generator(std::move(out));
}

Val extreme(Interp& i, const Val& v, const Args& args, int sign) {
  const bool cased = flag(args, 0, "case_sensitive", false);
  const Val* attribute = args.get(1, "attribute");
  Val best, best_key;
  bool found = false;
  for (Val& item : i.iterate(v)) {
    Val key = sort_key(i, item, attribute, cased);
    if (found && compare(key, best_key) * sign <= 0) continue;
    best = std::move(item);
    best_key = std::move(key);
    found = true;
  }
  return found ? best : Val::undefined(nullptr);
}
Val min_filter(Interp& i, const Val& v, Args& args) { return extreme(i, v, args, -1); }
Val max_filter(Interp& i, const Val& v, Args& args) { return extreme(i, v, args, 1); }

Val sum(Interp& i, const Val& v, Args& args) {
  const Val* attribute = args.get(0, "attribute");
  const Val* start = args.get(1, "start");
  Val total = start ? *start : Val::integer(0);
  if (total.is_string()) raise("sum() can't sum strings [use join instead]");
  for (const Val& item : i.iterate(v))
    total =
        i.binary(Op::kAdd, total,
                 attribute && !attribute->is_none() ? attribute_path(i, item, *attribute) : item);
  return total;
}

Val join(Interp& i, const Val& v, Args& args) {
  const Val* separator = args.get(0, "d");
  const Val* attribute = args.get(1, "attribute");
  const std::string between = separator ? to_str(*separator) : "";
  std::string out;
  bool is_first = true;
  for (const Val& item : i.iterate(v)) {
    if (!is_first) out += between;
    is_first = false;
    append_str(out,
               attribute && !attribute->is_none() ? attribute_path(i, item, *attribute) : item);
    i.heap().check_room(out.size());
  }
  return i.str(std::move(out));
}

Val map(Interp& i, const Val& v, Args& args) {
  std::vector<Val> out;
  if (!truthy(v)) return i.generator({});  // none counts as empty here
  const Val* attribute = args.keyword("attribute");
  if (args.pos.empty() && attribute) {
    const Val* fallback = args.keyword("default");
    for (const Val& item : i.iterate(v))
      out.push_back(attribute_path(i, item, *attribute, fallback));
    return i.generator(std::move(out));
  }
  if (args.pos.empty()) raise("map requires a filter argument");
  const std::string name = str_arg(args.pos[0], "the filter's name");
  const FilterFn filter = find_filter(name);
  if (!filter) raise("no filter named '" + name + "'");
  for (const Val& item : i.iterate(v)) {
    Args rest;
    rest.pos.assign(args.pos.begin() + 1, args.pos.end());
    rest.named = args.named;
    i.spend(1);
    check_filter_args(name, rest);
    out.push_back(filter(i, item, rest));
  }
  return i.generator(std::move(out));
}

// select, reject and their attr forms.
Val choose(Interp& i, const Val& v, Args& args, bool by_attribute, bool wanted) {
  const size_t skip = by_attribute ? 1 : 0;
  if (args.pos.size() < skip) raise("an attribute name is missing");
  TestFn test = nullptr;
  if (args.pos.size() > skip) {
    const std::string name = str_arg(args.pos[skip], "the test's name");
    test = find_test(name);
    if (!test) raise("no test named '" + name + "'");
  }
  std::vector<Val> out;
  if (!truthy(v)) return i.generator({});  // none counts as empty here
  for (Val& item : i.iterate(v)) {
    i.spend(1);
    const Val subject = by_attribute ? attribute_path(i, item, args.pos[0]) : item;
    Args rest;
    if (test) rest.pos.assign(args.pos.begin() + static_cast<ptrdiff_t>(skip) + 1, args.pos.end());
    if ((test ? test(i, subject, rest) : truthy(subject)) == wanted) out.push_back(std::move(item));
  }
  return i.generator(std::move(out));
}
Val select(Interp& i, const Val& v, Args& a) { return choose(i, v, a, false, true); }
Val reject(Interp& i, const Val& v, Args& a) { return choose(i, v, a, false, false); }
Val selectattr(Interp& i, const Val& v, Args& a) { return choose(i, v, a, true, true); }
Val rejectattr(Interp& i, const Val& v, Args& a) { return choose(i, v, a, true, false); }

Val groupby(Interp& i, const Val& v, Args& args) {
  const Val* attribute = args.get(0, "attribute");
  if (!attribute) raise("groupby needs an attribute");
  const Val* fallback = args.get(1, "default");
  const bool cased = flag(args, 2, "case_sensitive", false);
  std::vector<std::pair<Val, Val>> keyed;
  for (Val& item : i.iterate(v)) {
    Val key = attribute_path(i, item, *attribute, fallback);
    keyed.emplace_back(cased ? key : fold(i, key), std::move(item));
  }
  i.spend(keyed.size() * 4);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    i.spend(1);
    return compare(a.first, b.first) < 0;
  });
  std::vector<Val> out;
  for (size_t a = 0; a < keyed.size();) {
    std::vector<Val> group;
    size_t b = a;
    for (; b < keyed.size() && equal(keyed[b].first, keyed[a].first); ++b)
      group.push_back(keyed[b].second);
    Val key = attribute_path(i, group[0], *attribute, fallback);
    out.push_back(i.heap().flavored({key, i.list(std::move(group))}, Flavor::kGroup));
    a = b;
  }
  return i.list(std::move(out));
}

Val batch(Interp& i, const Val& v, Args& args) {
  const Val* count = args.get(0, "linecount");
  const int64_t size = count ? int_arg(*count, "linecount") : 0;
  if (size <= 0) raise("batch needs a positive size");
  const Val* fill = args.get(1, "fill_with");
  std::vector<Val> out, row;
  for (Val& item : i.iterate(v)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size) out.push_back(i.list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    i.spend(static_cast<size_t>(size));
    while (fill && !fill->is_none() && static_cast<int64_t>(row.size()) < size)
      row.push_back(*fill);
    out.push_back(i.list(std::move(row)));
  }
  return i.generator(std::move(out));
}

Val slice_filter(Interp& i, const Val& v, Args& args) {
  const Val* count = args.get(0, "slices");
  const int64_t n = count ? int_arg(*count, "slices") : 0;
  if (n <= 0) raise("slice needs a positive number");
  i.spend(static_cast<size_t>(n));
  const Val* fill = args.get(1, "fill_with");
  const std::vector<Val> values = i.iterate(v);
  const size_t per = values.size() / static_cast<size_t>(n),
               extra = values.size() % static_cast<size_t>(n);
  std::vector<Val> out;
  size_t at = 0;
  for (size_t k = 0; k < static_cast<size_t>(n); ++k) {
    const size_t take = per + (k < extra ? 1 : 0);
    std::vector<Val> row(values.begin() + static_cast<ptrdiff_t>(at),
                         values.begin() + static_cast<ptrdiff_t>(at + take));
    at += take;
    if (fill && !fill->is_none() && k >= extra) row.push_back(*fill);
    out.push_back(i.list(std::move(row)));
  }
  return i.generator(std::move(out));
}

Val attr(Interp& i, const Val& v, Args& args) {
  const Val* name = args.get(0, "name");
  if (!name) raise("attr needs a name");
  const TextPtr key = i.str(to_str(*name)).text();
  if (v.is_dict() && !find_method(v, key->bytes))
    return Val::undefined(key, v.kind());  // attributes only, never items
  return i.attribute(v, key);
}

Val tojson(Interp& i, const Val& v, Args& args) {
  JsonStyle style;
  const auto given = [&](size_t index, const char* name) {
    const Val* a = args.get(index, name);
    return a && !a->is_none() ? a : nullptr;
  };
  if (const Val* a = given(0, "ensure_ascii")) style.ascii = truthy(*a);
  const Val* indent = given(1, "indent");
  if (indent) {
    style.indent =
        indent->is_string()
            ? indent->str()
            : std::string(
                  static_cast<size_t>(std::clamp<int64_t>(int_arg(*indent, "indent"), 0, 64)), ' ');
    style.newline_indent = true;
    style.item_separator = ",";
  }
  if (const Val* a = given(2, "separators");
      a && a->is_sequence() && a->items()->values.size() == 2) {
    style.item_separator = to_str(a->items()->values[0]);
    style.key_separator = to_str(a->items()->values[1]);
  }
  if (const Val* a = given(3, "sort_keys")) style.sort_keys = truthy(*a);
  if (v.is_undefined()) raise("Object of type Undefined is not JSON serializable");
  std::string out;
  append_json(out, v, style);
  return i.str(std::move(out));
}

Val from_json(Interp& i, const Val& v, Args&) {
  try {
    return from_value(i.heap(), parse_json(str_arg(v, "from_json's input"), "from_json"));
  } catch (const Error& e) {
    raise(e.what());
  }
}

}  // namespace

// "a.b.0": attributes and items, one after the other.
Val attribute_path(Interp& i, const Val& v, const Val& path, const Val* fallback) {
  const auto found = [&](Val part) {
    return part.is_undefined() && fallback && !fallback->is_none() ? *fallback : std::move(part);
  };
  if (path.is_integral()) return found(i.item(v, path));
  const std::string& text = str_arg(path, "an attribute");
  Val at = v;
  size_t begin = 0;
  while (true) {
    const size_t dot = text.find('.', begin);
    const std::string part =
        text.substr(begin, dot == std::string::npos ? std::string::npos : dot - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    at = found(
        i.item(at, number && part.size() < 10 ? Val::integer(std::stoll(part)) : i.str(part)));
    if (dot == std::string::npos) return at;
    begin = dot + 1;
  }
}

FilterFn find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> table = [] {
    std::unordered_map<std::string_view, FilterFn> t = {{"length", length},
                                                        {"count", length},
                                                        {"default", default_filter},
                                                        {"d", default_filter},
                                                        {"list", list_filter},
                                                        {"first", first},
                                                        {"last", last},
                                                        {"items", items},
                                                        {"reverse", reverse},
                                                        {"sort", sort},
                                                        {"dictsort", dictsort},
                                                        {"unique", unique},
                                                        {"min", min_filter},
                                                        {"max", max_filter},
                                                        {"sum", sum},
                                                        {"join", join},
                                                        {"map", map},
                                                        {"select", select},
                                                        {"reject", reject},
                                                        {"selectattr", selectattr},
                                                        {"rejectattr", rejectattr},
                                                        {"groupby", groupby},
                                                        {"batch", batch},
                                                        {"slice", slice_filter},
                                                        {"attr", attr},
                                                        {"tojson", tojson},
                                                        {"from_json", from_json},
                                                        {"fromjson", from_json}};
    add_text_filters(t);
    add_number_filters(t);
    return t;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace tokamak::jinja
