// Methods of strings.
#include <algorithm>

#include "text/jinja/methods.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

const Val* given(const Args& args, size_t i, const char* name = "") {
  const Val* v = args.get(i, name);
  return v && !v->is_none() ? v : nullptr;
}
int64_t number(const Args& args, size_t i, const char* name, int64_t fallback) {
  const Val* v = given(args, i, name);
  return v ? int_arg(*v, name) : fallback;
}
const std::string& text(const Args& args, size_t i, const char* what) {
  if (i >= args.pos.size()) raise(std::string("missing argument: ") + what);
  return str_arg(args.pos[i], what);
}
Val strings(Interp& i, std::vector<std::string> parts) {
  std::vector<Val> out;
  out.reserve(parts.size());
  for (std::string& p : parts) out.push_back(i.str(std::move(p)));
  return i.list(std::move(out));
}

// A substring by character positions, for methods that take (start, end).
struct Window {
  std::string_view view;
  size_t start_chars = 0;
  bool valid = true;
};
size_t byte_offset(std::string_view s, size_t chars) {
  size_t pos = 0;
  while (chars-- > 0 && pos < s.size()) pos += utf8_decode(s, pos).length;
  return pos;
}
Window window(const Val& self, const Args& args, size_t first) {
  const auto size = static_cast<int64_t>(self.text()->chars);
  int64_t start = number(args, first, "start", 0), end = number(args, first + 1, "end", size);
  if (start < 0) start = std::max<int64_t>(0, start + size);
  if (end < 0) end = std::max<int64_t>(0, end + size);
  end = std::min(end, size);
  if (start > end) return {{}, 0, false};
  const size_t a = byte_offset(self.str(), static_cast<size_t>(start));
  const size_t b = byte_offset(self.str(), static_cast<size_t>(end));
  return {std::string_view(self.str()).substr(a, b - a), static_cast<size_t>(start), true};
}

Val upper(Interp& i, const Val& s, Args&) { return i.str(to_upper(s.str())); }
Val lower(Interp& i, const Val& s, Args&) { return i.str(to_lower_words(s.str())); }
Val casefold(Interp& i, const Val& s, Args&) { return i.str(fold_case(s.str())); }
Val title(Interp& i, const Val& s, Args&) { return i.str(py_title(s.str())); }
Val capitalize(Interp& i, const Val& s, Args&) { return i.str(py_capitalize(s.str())); }
Val swapcase(Interp& i, const Val& s, Args&) {
  std::string out;
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    pos += c.length;
    if (is_upper(c.cp)) {
      append_lower(out, c.cp);
    } else if (is_lower(c.cp)) {
      append_upper(out, c.cp);
    } else {
      utf8_append(out, c.cp);
    }
  }
  return i.str(std::move(out));
}

Val strip(Interp& i, const Val& s, Args& a) {
  return i.str(std::string(py_strip(s.str(), given(a, 0), true, true)));
}
Val lstrip(Interp& i, const Val& s, Args& a) {
  return i.str(std::string(py_strip(s.str(), given(a, 0), true, false)));
}
Val rstrip(Interp& i, const Val& s, Args& a) {
  return i.str(std::string(py_strip(s.str(), given(a, 0), false, true)));
}
Val removeprefix(Interp& i, const Val& s, Args& a) {
  const std::string& p = text(a, 0, "prefix");
  return s.str().starts_with(p) ? i.str(s.str().substr(p.size())) : s;
}
Val removesuffix(Interp& i, const Val& s, Args& a) {
  const std::string& p = text(a, 0, "suffix");
  return !p.empty() && s.str().ends_with(p) ? i.str(s.str().substr(0, s.str().size() - p.size()))
                                            : s;
}

Val split(Interp& i, const Val& s, Args& a) {
  i.spend_bytes(s.str().size());
  return strings(i, py_split(s.str(), given(a, 0, "sep"), number(a, 1, "maxsplit", -1)));
}
Val rsplit(Interp& i, const Val& s, Args& a) {
  i.spend_bytes(s.str().size());
  return strings(i, py_rsplit(s.str(), given(a, 0, "sep"), number(a, 1, "maxsplit", -1)));
}

Val splitlines(Interp& i, const Val& s, Args& a) {
  const Val* keep = given(a, 0, "keepends");
  return strings(i, py_splitlines(s.str(), keep && truthy(*keep)));
}

Val partition(Interp& i, const Val& s, Args& a, bool from_right) {
  const std::string& separator = text(a, 0, "sep");
  if (separator.empty()) raise("empty separator");
  const size_t at = from_right ? s.str().rfind(separator) : s.str().find(separator);
  if (at == std::string::npos)
    return from_right ? i.heap().list({i.str(""), i.str(""), s}, true)
                      : i.heap().list({s, i.str(""), i.str("")}, true);
  return i.heap().list({i.str(s.str().substr(0, at)), i.str(separator),
                        i.str(s.str().substr(at + separator.size()))},
                       true);
}
Val left_partition(Interp& i, const Val& s, Args& a) { return partition(i, s, a, false); }
Val right_partition(Interp& i, const Val& s, Args& a) { return partition(i, s, a, true); }

Val affix(Interp&, const Val& s, Args& a, bool end) {
  if (a.pos.empty()) raise("missing argument");
  const Window w = window(s, a, 1);
  const auto matches = [&](const Val& v) {
    const std::string& t = str_arg(v, "prefix or suffix");
    return w.valid && (end ? w.view.ends_with(t) : w.view.starts_with(t));
  };
  if (!a.pos[0].is_tuple()) return Val::boolean(matches(a.pos[0]));
  const auto& all = a.pos[0].items()->values;
  return Val::boolean(std::any_of(all.begin(), all.end(), matches));
}
Val startswith(Interp& i, const Val& s, Args& a) { return affix(i, s, a, false); }
Val endswith(Interp& i, const Val& s, Args& a) { return affix(i, s, a, true); }

Val search(Interp& i, const Val& s, Args& a, bool from_right, bool must) {
  const std::string& wanted = text(a, 0, "sub");
  i.spend_bytes(s.str().size());
  const Window w = window(s, a, 1);
  const size_t at = !w.valid     ? std::string::npos
                    : from_right ? w.view.rfind(wanted)
                                 : w.view.find(wanted);
  if (at != std::string::npos)
    return Val::integer(static_cast<int64_t>(w.start_chars + utf8_length(w.view.substr(0, at))));
  if (must) raise("substring not found");
  return Val::integer(-1);
}
Val find(Interp& i, const Val& s, Args& a) { return search(i, s, a, false, false); }
Val rfind(Interp& i, const Val& s, Args& a) { return search(i, s, a, true, false); }
Val index(Interp& i, const Val& s, Args& a) { return search(i, s, a, false, true); }
Val rindex(Interp& i, const Val& s, Args& a) { return search(i, s, a, true, true); }

Val count(Interp& i, const Val& s, Args& a) {
  const std::string& wanted = text(a, 0, "sub");
  i.spend_bytes(s.str().size());
  const Window w = window(s, a, 1);
  if (!w.valid) return Val::integer(0);
  if (wanted.empty()) return Val::integer(static_cast<int64_t>(utf8_length(w.view)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = w.view.find(wanted, at)) != std::string_view::npos; at += wanted.size())
    ++n;
  return Val::integer(n);
}

Val replace(Interp& i, const Val& s, Args& a) {
  return i.str(
      py_replace(i, s.str(), text(a, 0, "old"), text(a, 1, "new"), number(a, 2, "count", -1)));
}

Val join(Interp& i, const Val& s, Args& a) {
  if (a.pos.empty()) raise("join() needs a sequence");
  std::string out;
  bool first = true;
  for (const Val& v : i.iterate(a.pos[0])) {
    if (!first) out += s.str();
    first = false;
    out += str_arg(v, "sequence item");
    i.heap().check_room(out.size());
  }
  return i.str(std::move(out));
}

Val pad(Interp& i, const Val& s, Args& a, int mode) {
  const int64_t width = number(a, 0, "width", 0), size = static_cast<int64_t>(s.text()->chars);
  const std::string fill = a.pos.size() > 1 ? text(a, 1, "fillchar") : " ";
  if (utf8_length(fill) != 1) raise("the fill character must be exactly one character long");
  if (width <= size) return s;
  const int64_t total = width - size;
  i.heap().check_room(static_cast<size_t>(total) * fill.size());
  const int64_t left = mode == 0 ? 0 : mode == 1 ? total : total / 2 + (total & width & 1);
  std::string out;
  for (int64_t k = 0; k < left; ++k) out += fill;
  out += s.str();
  for (int64_t k = left; k < total; ++k) out += fill;
  return i.str(std::move(out));
}
Val ljust(Interp& i, const Val& s, Args& a) { return pad(i, s, a, 0); }
Val rjust(Interp& i, const Val& s, Args& a) { return pad(i, s, a, 1); }
Val center(Interp& i, const Val& s, Args& a) { return pad(i, s, a, 2); }
Val zfill(Interp& i, const Val& s, Args& a) {
  const int64_t width = number(a, 0, "width", 0), size = static_cast<int64_t>(s.text()->chars);
  if (width <= size) return s;
  i.heap().check_room(static_cast<size_t>(width));
  const bool sign = s.str().starts_with('-') || s.str().starts_with('+');
  const std::string zeros(static_cast<size_t>(width - size), '0');
  return i.str(sign ? s.str().substr(0, 1) + zeros + s.str().substr(1) : zeros + s.str());
}
Val expandtabs(Interp& i, const Val& s, Args& a) {
  const int64_t size = std::clamp<int64_t>(number(a, 0, "tabsize", 8), 0, 1024);
  std::string out;
  int64_t column = 0;
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    if (c.cp == '\t') {
      const int64_t n = size == 0 ? 0 : size - column % size;
      out.append(static_cast<size_t>(n), ' ');
      column += n;
      i.heap().check_room(out.size());
    } else {
      out.append(s.str(), pos, c.length);
      column = c.cp == '\n' || c.cp == '\r' ? 0 : column + 1;
    }
    pos += c.length;
  }
  return i.str(std::move(out));
}
Val format(Interp& i, const Val& s, Args& a) {
  return i.str(brace_format(i, *s.text(), a), s.text()->markup);
}
Val format_map(Interp& i, const Val& s, Args& a) {
  if (a.pos.size() != 1 || !a.pos[0].is_dict()) raise("format_map() needs a mapping");
  Args named;
  for (const auto& [key, v] : a.pos[0].dict()->members) named.named.emplace_back(to_str(key), v);
  return format(i, s, named);
}

template <bool (*Test)(char32_t)>
Val all_chars(Interp&, const Val& s, Args&) {
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    if (!Test(c.cp)) return Val::boolean(false);
    pos += c.length;
  }
  return Val::boolean(!s.str().empty());
}
bool alnum(char32_t c) { return is_letter(c) || is_numeric(c); }
template <bool Upper>
Val is_case(Interp&, const Val& s, Args&) {
  bool cased = false;
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    if (Upper ? is_lower(c.cp) : is_upper(c.cp)) return Val::boolean(false);
    cased = cased || is_lower(c.cp) || is_upper(c.cp);
    pos += c.length;
  }
  return Val::boolean(cased);
}
// Upper case only at the start of a word, lower case only after it, and at least one word.
Val is_title_text(Interp&, const Val& s, Args&) {
  bool inside = false, cased = false;
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    pos += c.length;
    const bool starts = is_upper(c.cp) || is_title(c.cp);
    if (starts ? inside : is_lower(c.cp) && !inside) return Val::boolean(false);
    inside = starts || is_lower(c.cp);
    cased = cased || inside;
  }
  return Val::boolean(cased);
}
Val is_identifier(Interp&, const Val& s, Args&) {
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    if (!(pos == 0 ? is_letter(c.cp) || c.cp == '_' : is_word(c.cp))) return Val::boolean(false);
    pos += c.length;
  }
  return Val::boolean(!s.str().empty());
}
Val is_printable_text(Interp&, const Val& s, Args&) {
  for (size_t pos = 0; pos < s.str().size();) {
    const Utf8Char c = utf8_decode(s.str(), pos);
    if (!is_printable(c.cp)) return Val::boolean(false);
    pos += c.length;
  }
  return Val::boolean(true);
}
Val is_ascii(Interp&, const Val& s, Args&) { return Val::boolean(s.text()->ascii()); }

}  // namespace

const MethodTable& string_methods() {
  static const MethodTable table = {{"upper", upper},
                                    {"lower", lower},
                                    {"casefold", casefold},
                                    {"title", title},
                                    {"capitalize", capitalize},
                                    {"swapcase", swapcase},
                                    {"strip", strip},
                                    {"lstrip", lstrip},
                                    {"rstrip", rstrip},
                                    {"removeprefix", removeprefix},
                                    {"removesuffix", removesuffix},
                                    {"split", split},
                                    {"rsplit", rsplit},
                                    {"splitlines", splitlines},
                                    {"partition", left_partition},
                                    {"rpartition", right_partition},
                                    {"startswith", startswith},
                                    {"endswith", endswith},
                                    {"find", find},
                                    {"rfind", rfind},
                                    {"index", index},
                                    {"rindex", rindex},
                                    {"count", count},
                                    {"replace", replace},
                                    {"join", join},
                                    {"ljust", ljust},
                                    {"rjust", rjust},
                                    {"center", center},
                                    {"zfill", zfill},
                                    {"expandtabs", expandtabs},
                                    {"format", format},
                                    {"format_map", format_map},
                                    {"isidentifier", is_identifier},
                                    {"isprintable", is_printable_text},
                                    {"isalpha", all_chars<is_letter>},
                                    {"isdigit", all_chars<is_digit_like>},
                                    {"isdecimal", all_chars<is_decimal_digit>},
                                    {"isnumeric", all_chars<is_numeric>},
                                    {"isspace", all_chars<is_py_space>},
                                    {"isalnum", all_chars<alnum>},
                                    {"isupper", is_case<true>},
                                    {"islower", is_case<false>},
                                    {"istitle", is_title_text},
                                    {"isascii", is_ascii}};
  return table;
}

}  // namespace tokamak::jinja
