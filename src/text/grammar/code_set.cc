#include "text/grammar/code_set.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "text/regex.h"
#include "text/unicode.h"

namespace tokamak::grammar {

CodeSet normalized(CodeSet set) {
  std::sort(set.begin(), set.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.lo < b.lo; });
  CodeSet out;
  for (const CodeRange& r : set) {
    if (!out.empty() && r.lo <= out.back().hi + 1)
      out.back().hi = std::max(out.back().hi, r.hi);
    else
      out.push_back(r);
  }
  return out;
}

CodeSet unite(const CodeSet& a, const CodeSet& b) {
  CodeSet all = a;
  all.insert(all.end(), b.begin(), b.end());
  return normalized(std::move(all));
}

CodeSet intersect(const CodeSet& a, const CodeSet& b) {
  CodeSet out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    char32_t lo = std::max(a[i].lo, b[j].lo), hi = std::min(a[i].hi, b[j].hi);
    if (lo <= hi) out.push_back({lo, hi});
    (a[i].hi < b[j].hi ? i : j) += 1;
  }
  return out;
}

CodeSet complement(const CodeSet& set) {
  CodeSet out;
  char32_t next = 0;
  for (const CodeRange& r : set) {
    if (r.lo > next) out.push_back({next, r.lo - 1});
    next = r.hi + 1;
  }
  if (next <= kMaxCode) out.push_back({next, kMaxCode});
  return out;
}

bool contains(const CodeSet& set, char32_t c) {
  auto after = std::upper_bound(set.begin(), set.end(), c,
                                [](char32_t v, const CodeRange& r) { return v < r.lo; });
  return after != set.begin() && c <= std::prev(after)->hi;
}

namespace {

template <class Test>
CodeSet codes_where(Test&& test) {
  CodeSet out;
  for (char32_t c = 0; c <= kMaxCode; ++c) {
    if (!test(c)) continue;
    if (!out.empty() && out.back().hi + 1 == c)
      out.back().hi = c;
    else
      out.push_back({c, c});
  }
  return out;
}

bool build_property(const std::string& name, CodeSet& out) {
  if (name == "Any") {
    out = any_code();
  } else if (name == "ASCII") {
    out = {{0, 0x7F}};
  } else if (name == "White_Space") {
    out = codes_where(is_white_space);
  } else {
    out = codes_where([&](char32_t c) {
      const char* category = general_category(c);
      return name[0] == category[0] && (name.size() == 1 || name[1] == category[1]);
    });
  }
  return !out.empty();
}

// "Uppercase_Letter" -> "Lu"; names that need no translation as they are.
std::string short_name(std::string_view name) {
  for (std::string_view prefix : {"General_Category=", "gc="})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (name.size() <= 2 || name == "Any" || name == "ASCII" || name == "White_Space")
    return std::string(name);
  std::string key;
  for (char c : name)
    if (c != '_') key += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return std::string(regex_property_name(key));
}

}  // namespace

const CodeSet* unicode_property(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, CodeSet> known;
  std::string key = short_name(name);
  bool simple = key.size() == 1 || key.size() == 2;
  if (!simple && key != "Any" && key != "ASCII" && key != "White_Space") return nullptr;
  std::lock_guard lock(mutex);
  if (auto it = known.find(key); it != known.end()) return &it->second;
  CodeSet set;
  if (!build_property(key, set)) return nullptr;
  return &(known[key] = std::move(set));
}

}  // namespace tokamak::grammar
