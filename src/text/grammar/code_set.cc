#include "text/grammar/code_set.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"
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

// "Lu", "L" ...; "LC": cased letters.
CodeSet of_category(const std::string& name) {
  return codes_where([&](char32_t c) {
    const char* category = general_category(c);
    if (name == "LC") return category[0] == 'L' && category[1] != 'm' && category[1] != 'o';
    return name[0] == category[0] && (name.size() == 1 || name[1] == category[1]);
  });
}

// Names of properties are compared without case, blanks, hyphens and underscores.
std::string loose(std::string_view name) {
  std::string key;
  for (char c : name)
    if (c != '_' && c != '-' && c != ' ')
      key += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return key;
}

// "uppercaseletter" and "lu" -> "Lu"; empty: no category.
std::string category_name(const std::string& key) {
  if (key == "lc" || key == "casedletter") return "LC";
  std::string name = key.size() > 2 ? std::string(regex_property_name(key)) : key;
  if (name.empty() || name.size() > 2) return {};
  if (name[0] >= 'a' && name[0] <= 'z') name[0] -= 32;
  return name;
}

bool build_property(const std::string& kind, const std::string& key, CodeSet& out) {
  const bool any_kind = kind.empty();
  if (any_kind && key == "any") out = any_code();
  if (any_kind && key == "ascii") out = {{0, 0x7F}};
  if (any_kind && key == "assigned") out = complement(of_category("Cn"));
  if (any_kind && (key == "whitespace" || key == "space" || key == "wspace"))
    out = codes_where(is_white_space);
  if (out.empty() && (any_kind || kind == "gc" || kind == "generalcategory"))
    if (const std::string category = category_name(key); !category.empty())
      out = of_category(category);
  if (!out.empty()) return true;
  std::vector<CharRange> found;
  const auto of_pcre = [&](std::string_view prefix) {
    return regex_property(fmt::format("{}{}", prefix, key), found);
  };
  const bool extensions = kind == "scx" || kind == "scriptextensions";
  const bool script = extensions || any_kind || kind == "sc" || kind == "script";
  const bool known = (script && of_pcre(extensions ? "scx:" : "sc:")) || (any_kind && of_pcre(""));
  for (const CharRange& r : found) out.push_back({r.first, r.last});
  out = normalized(std::move(out));
  return known;
}

}  // namespace

const CodeSet* unicode_property(std::string_view name) {
  constexpr size_t kLongest = 60;
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, CodeSet> known;
  if (name.size() > kLongest) return nullptr;
  const size_t sign = name.find_first_of("=:");
  const bool named = sign != name.npos;
  std::pair key{loose(named ? name.substr(0, sign) : ""),
                loose(named ? name.substr(sign + 1) : name)};
  if (key.second.empty() || (named && key.first.empty())) return nullptr;
  std::lock_guard lock(mutex);
  if (auto it = known.find(key); it != known.end()) return &it->second;
  CodeSet set;
  if (!build_property(key.first, key.second, set)) return nullptr;
  return &(known[key] = std::move(set));
}

}  // namespace tokamak::grammar
