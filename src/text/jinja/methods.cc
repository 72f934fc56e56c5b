// Methods of lists, tuples and dicts, and the text helpers that methods and filters share.
#include "text/jinja/methods.h"

#include <algorithm>

#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

const Val& need(const Args& args, size_t i) {
  if (i >= args.pos.size()) raise("an argument is missing");
  return args.pos[i];
}

Val append(Interp& i, const Val& self, Args& a) {
  i.heap().charge(2 * sizeof(Val));
  self.items()->values.push_back(need(a, 0));
  return Val::none();
}
Val extend(Interp& i, const Val& self, Args& a) {
  for (Val& v : i.iterate(need(a, 0))) {
    i.heap().charge(2 * sizeof(Val));
    self.items()->values.push_back(std::move(v));
  }
  return Val::none();
}
Val insert(Interp& i, const Val& self, Args& a) {
  auto& values = self.items()->values;
  int64_t at = int_arg(need(a, 0), "index");
  const auto size = static_cast<int64_t>(values.size());
  if (at < 0) at += size;
  at = std::clamp<int64_t>(at, 0, size);
  i.heap().charge(2 * sizeof(Val));
  i.spend(values.size() / 8);
  values.insert(values.begin() + at, need(a, 1));
  return Val::none();
}
Val pop(Interp& i, const Val& self, Args& a) {
  auto& values = self.items()->values;
  int64_t at = a.pos.empty() ? -1 : int_arg(a.pos[0], "index");
  if (at < 0) at += static_cast<int64_t>(values.size());
  if (at < 0 || at >= static_cast<int64_t>(values.size())) raise("pop index out of range");
  i.spend(values.size() / 8);
  Val out = values[static_cast<size_t>(at)];
  values.erase(values.begin() + at);
  return out;
}
Val remove(Interp& i, const Val& self, Args& a) {
  auto& values = self.items()->values;
  i.spend(values.size());
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const Val& v) { return equal(v, need(a, 0)); });
  if (found == values.end()) raise("list.remove(x): x not in list");
  values.erase(found);
  return Val::none();
}
Val clear(Interp&, const Val& self, Args&) {
  if (self.is_dict()) {
    self.dict()->members.clear();
    self.dict()->index.clear();
  } else {
    self.items()->values.clear();
  }
  return Val::none();
}
Val reverse(Interp&, const Val& self, Args&) {
  std::reverse(self.items()->values.begin(), self.items()->values.end());
  return Val::none();
}
Val list_index(Interp& i, const Val& self, Args& a) {
  const auto& values = self.items()->values;
  i.spend(values.size());
  for (size_t k = 0; k < values.size(); ++k)
    if (equal(values[k], need(a, 0))) return Val::integer(static_cast<int64_t>(k));
  raise("the value is not in the list");
}
Val list_count(Interp& i, const Val& self, Args& a) {
  const auto& values = self.items()->values;
  i.spend(values.size());
  return Val::integer(std::count_if(values.begin(), values.end(),
                                    [&](const Val& v) { return equal(v, need(a, 0)); }));
}
Val copy(Interp& i, const Val& self, Args&) {
  if (!self.is_dict()) return i.heap().list(self.items()->values, self.is_tuple());
  Dict* dict = i.heap().dict();
  i.heap().charge(self.dict()->members.size() * 2 * sizeof(Val));
  for (const auto& [k, v] : self.dict()->members) dict->set(k, v);
  return Val::dict(dict);
}

Val get(Interp&, const Val& self, Args& a) {
  const Val* found = self.dict()->find(need(a, 0));
  if (found) return *found;
  const Val* fallback = a.get(1, "default");
  return fallback ? *fallback : Val::none();
}
Val keys(Interp& i, const Val& self, Args&) {
  return i.heap().flavored(i.iterate(self), Flavor::kKeys);
}
Val values(Interp& i, const Val& self, Args&) {
  std::vector<Val> out;
  for (const auto& [k, v] : self.dict()->members) out.push_back(v);
  return i.heap().flavored(std::move(out), Flavor::kValues);
}
Val items(Interp& i, const Val& self, Args&) {
  std::vector<Val> out;
  for (const auto& [k, v] : self.dict()->members) out.push_back(i.heap().list({k, v}, true));
  return i.heap().flavored(std::move(out), Flavor::kItems);
}
Val dict_pop(Interp& i, const Val& self, Args& a) {
  i.spend(self.dict()->members.size());
  if (const Val* found = self.dict()->find(need(a, 0))) {
    Val out = *found;
    self.dict()->erase(a.pos[0]);
    return out;
  }
  if (a.pos.size() > 1) return a.pos[1];
  std::string key;
  append_repr(key, a.pos[0]);
  raise("KeyError: " + key);
}
Val update(Interp& i, const Val& self, Args& a) {
  if (!a.pos.empty()) {
    if (!a.pos[0].is_dict()) raise("update() needs a mapping");
    const auto more = a.pos[0].dict()->members;
    for (const auto& [k, v] : more) {
      i.heap().charge(2 * sizeof(Val));
      self.dict()->set(k, v);
    }
  }
  for (const auto& [name, v] : a.named) self.dict()->set(i.str(name), v);
  return Val::none();
}
Val setdefault(Interp& i, const Val& self, Args& a) {
  if (const Val* found = self.dict()->find(need(a, 0))) return *found;
  i.heap().charge(2 * sizeof(Val));
  const Val value = a.pos.size() > 1 ? a.pos[1] : Val::none();
  self.dict()->set(a.pos[0], value);
  return value;
}

}  // namespace

MethodFn find_method(const Val& object, std::string_view name) {
  static const MethodTable list = {
      {"append", append},    {"extend", extend}, {"insert", insert},   {"pop", pop},
      {"remove", remove},    {"clear", clear},   {"reverse", reverse}, {"index", list_index},
      {"count", list_count}, {"copy", copy}};
  static const MethodTable tuple = {{"index", list_index}, {"count", list_count}};
  static const MethodTable dict = {
      {"get", get},      {"keys", keys},     {"values", values},         {"items", items},
      {"pop", dict_pop}, {"update", update}, {"setdefault", setdefault}, {"copy", copy},
      {"clear", clear}};
  const MethodTable* table =
      object.is_string()       ? &string_methods()
      : object.is_plain_list() ? &list
      : object.is_tuple() || (object.is_list() && object.items()->flavor == Flavor::kRange) ? &tuple
      : object.is_dict()                                                                    ? &dict
                         : nullptr;
  if (!table) return nullptr;
  const auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

bool is_py_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view py_strip(std::string_view text, const Val* chars, bool left, bool right) {
  const std::u32string set =
      chars && !chars->is_none() ? utf8_to_u32(str_arg(*chars, "strip characters")) : U"";
  const bool spaces = !chars || chars->is_none();
  const auto drops = [&](char32_t c) {
    return spaces ? is_py_space(c) : set.find(c) != std::u32string::npos;
  };
  while (left && !text.empty()) {
    const Utf8Char c = utf8_decode(text, 0);
    if (!drops(c.cp)) break;
    text.remove_prefix(c.length);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && is_utf8_continuation(text[last])) --last;
    if (!drops(utf8_decode(text, last).cp)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string> py_split(std::string_view text, const Val* separator, int64_t limit) {
  std::vector<std::string> out;
  if (separator && !separator->is_none()) {
    const std::string& s = str_arg(*separator, "separator");
    if (s.empty()) raise("empty separator");
    size_t at;
    while ((limit < 0 || static_cast<int64_t>(out.size()) < limit) &&
           (at = text.find(s)) != std::string_view::npos) {
      out.emplace_back(text.substr(0, at));
      text.remove_prefix(at + s.size());
    }
    out.emplace_back(text);
    return out;
  }
  while (true) {
    text = py_strip(text, nullptr, true, false);
    if (text.empty()) return out;
    if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) {
      out.emplace_back(text);  // the rest keeps its inner and trailing spaces
      return out;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Char c = utf8_decode(text, end);
      if (is_py_space(c.cp)) break;
      end += c.length;
    }
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<std::string> py_rsplit(std::string_view text, const Val* separator, int64_t limit) {
  if (limit < 0) return py_split(text, separator, limit);
  std::vector<std::string> out;
  if (separator && !separator->is_none()) {
    const std::string& s = str_arg(*separator, "separator");
    if (s.empty()) raise("empty separator");
    size_t at;
    while (static_cast<int64_t>(out.size()) < limit &&
           (at = text.rfind(s)) != std::string_view::npos) {
      out.emplace_back(text.substr(at + s.size()));
      text = text.substr(0, at);
    }
    out.emplace_back(text);
  } else {
    while (true) {
      text = py_strip(text, nullptr, false, true);
      if (text.empty()) break;
      if (static_cast<int64_t>(out.size()) >= limit) {
        out.emplace_back(text);
        break;
      }
      size_t start = text.size();
      while (start > 0) {
        size_t last = start - 1;
        while (last > 0 && is_utf8_continuation(text[last])) --last;
        if (is_py_space(utf8_decode(text, last).cp)) break;
        start = last;
      }
      out.emplace_back(text.substr(start));
      text = text.substr(0, start);
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::string py_replace(Interp& i, std::string_view text, std::string_view from, std::string_view to,
                       int64_t count) {
  i.spend_bytes(text.size());
  std::string out;
  if (from.empty()) {  // between all characters
    for (size_t pos = 0;;) {
      if (count != 0) {
        out += to;
        --count;
      }
      i.heap().check_room(out.size());
      if (pos >= text.size()) return out;
      const size_t length = utf8_decode(text, pos).length;
      out += text.substr(pos, length);
      pos += length;
    }
  }
  size_t done = 0, at;
  while (count != 0 && (at = text.find(from, done)) != std::string_view::npos) {
    out.append(text.substr(done, at - done)).append(to);
    i.heap().check_room(out.size());
    done = at + from.size();
    --count;
  }
  return out.append(text.substr(done));
}

std::string py_title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    if (inside) {
      append_lower(out, c.cp);
    } else {
      append_title(out, c.cp);
    }
    inside = is_upper(c.cp) || is_lower(c.cp) || is_title(c.cp);
  }
  return out;
}

std::string py_capitalize(std::string_view text) {
  std::string out;
  if (text.empty()) return out;
  const Utf8Char c = utf8_decode(text, 0);
  append_title(out, c.cp);
  return out + to_lower_words(text.substr(c.length));
}

std::vector<std::string> py_splitlines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    size_t end = pos + c.length;
    const bool line_break = (c.cp >= 0x0A && c.cp <= 0x0D) || (c.cp >= 0x1C && c.cp <= 0x1E) ||
                            c.cp == 0x85 || c.cp == 0x2028 || c.cp == 0x2029;
    if (line_break) {
      if (c.cp == '\r' && end < text.size() && text[end] == '\n') ++end;
      out.emplace_back(text.substr(begin, (keep_ends ? end : pos) - begin));
      begin = end;
    }
    pos = end;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

}  // namespace tokamak::jinja
