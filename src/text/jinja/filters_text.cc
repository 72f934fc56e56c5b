// Filters on text.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/jinja/filters.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

Val upper(Interp& i, const Val& v, Args&) { return i.str(to_upper(to_str(v))); }
Val lower(Interp& i, const Val& v, Args&) { return i.str(to_lower_words(to_str(v))); }
Val capitalize(Interp& i, const Val& v, Args&) { return i.str(py_capitalize(to_str(v))); }
Val string(Interp& i, const Val& v, Args&) { return v.is_string() ? v : i.str(to_str(v)); }

Val trim(Interp& i, const Val& v, Args& args) {
  const Val* chars = args.get(0, "chars");
  return i.str(std::string(py_strip(to_str(v), chars, true, true)));
}

// Words begin after white space, - and opening brackets.
Val title(Interp& i, const Val& v, Args&) {
  std::string out, rest;  // rest: of a word after its first character
  bool start = true;
  const std::string text = to_str(v);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    if (start) {
      append_upper(out, c.cp);
    } else {
      rest.append(text, pos, c.length);
    }
    pos += c.length;
    start = is_py_space(c.cp) || c.cp == '-' || c.cp == '(' || c.cp == '{' || c.cp == '[' ||
            c.cp == '<';
    if (start || pos == text.size()) out += to_lower_words(std::exchange(rest, {}));
  }
  return i.str(std::move(out));
}

Val replace(Interp& i, const Val& v, Args& args) {
  const Val *from = args.get(0, "old"), *to = args.get(1, "new"), *count = args.get(2, "count");
  if (!from || !to) raise("replace needs two arguments");
  const int64_t limit = count && !count->is_none() ? int_arg(*count, "count") : -1;
  return i.str(py_replace(i, to_str(v), to_str(*from), to_str(*to), limit));
}

Val indent(Interp& i, const Val& v, Args& args) {
  const Val *width = args.get(0, "width"), *first = args.get(1, "first"),
            *blank = args.get(2, "blank");
  const std::string pad =
      !width ? std::string(4, ' ')
      : width->is_string()
          ? width->str()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(int_arg(*width, "width"), 0, 4096)),
                        ' ');
  if (!v.is_string()) str_arg(v, "the input of indent");
  const bool pad_first = first && truthy(*first), pad_blank = blank && truthy(*blank);
  std::string out;
  bool is_first = true;
  for (const std::string& line : py_splitlines(v.str() + "\n", false)) {
    if (!is_first) out += '\n';
    if (is_first ? pad_first : pad_blank || !line.empty()) out += pad;
    is_first = false;
    out += line;
    i.heap().check_room(out.size());
  }
  return i.str(std::move(out));
}

Val format(Interp& i, const Val& v, Args& args) {
  const Val text = v.is_string() ? v : i.str(to_str(v));
  Val values = i.heap().list(args.pos, true);
  if (!args.named.empty()) {
    if (!args.pos.empty()) raise("format takes positional or named values, not both");
    Dict* dict = i.heap().dict();
    for (const auto& [name, value] : args.named) dict->set(i.str(name), value);
    values = Val::dict(dict);
  }
  return i.str(percent_format(i, *text.text(), values), text.text()->markup);
}

Val escape(Interp& i, const Val& v, Args&) {
  if (v.is_string() && v.text()->markup) return v;
  return i.str(html_escape(to_str(v)), true);
}
Val forceescape(Interp& i, const Val& v, Args&) { return i.str(html_escape(to_str(v)), true); }
Val safe(Interp& i, const Val& v, Args&) { return i.str(to_str(v), true); }

Val center(Interp& i, const Val& v, Args& args) {
  const Val* width = args.get(0, "width");
  const std::string text = to_str(v);
  const int64_t size = static_cast<int64_t>(utf8_length(text)),
                wide = width ? int_arg(*width, "width") : 80;
  if (wide <= size) return i.str(text);
  i.heap().check_room(static_cast<size_t>(wide));
  const int64_t pad = wide - size, left = pad / 2 + (pad & wide & 1);
  return i.str(std::string(static_cast<size_t>(left), ' ') + text +
               std::string(static_cast<size_t>(pad - left), ' '));
}

Val truncate(Interp& i, const Val& v, Args& args) {
  if ((v.is_dict() || v.is_sequence()) && !v.is_generator()) return v;
  if (!v.is_undefined()) str_arg(v, "the input of truncate");
  const Val *length = args.get(0, "length"), *kill = args.get(1, "killwords"),
            *end = args.get(2, "end"), *leeway = args.get(3, "leeway");
  const int64_t limit = length ? int_arg(*length, "length") : 255,
                slack = leeway && !leeway->is_none() ? int_arg(*leeway, "leeway") : 5;
  const std::u32string text = utf8_to_u32(to_str(v)),
                       tail = utf8_to_u32(end ? to_str(*end) : "...");
  if (limit < static_cast<int64_t>(tail.size())) raise("truncate: length is shorter than the end");
  if (static_cast<int64_t>(text.size()) <= limit + slack) return i.str(u32_to_utf8(text));
  std::u32string head = text.substr(0, static_cast<size_t>(limit) - tail.size());
  if (!(kill && truthy(*kill)))
    if (const size_t space = head.rfind(U' '); space != std::u32string::npos) head.resize(space);
  return i.str(u32_to_utf8(head + tail));
}

Val wordcount(Interp&, const Val& v, Args&) {
  int64_t count = 0;
  bool inside = false;
  const std::string text = to_str(v);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    const bool word = is_word(c.cp);
    count += word && !inside;
    inside = word;
  }
  return Val::integer(count);
}

// Words alternating with the white space between them.
std::vector<std::u32string_view> wrap_chunks(std::u32string_view line) {
  std::vector<std::u32string_view> chunks;
  const auto blank = [](char32_t c) { return c == ' ' || (c >= 9 && c <= 13); };
  for (size_t at = 0; at < line.size();) {
    size_t end = at;
    while (end < line.size() && blank(line[end]) == blank(line[at])) ++end;
    chunks.push_back(line.substr(at, end - at));
    at = end;
  }
  std::reverse(chunks.begin(), chunks.end());
  return chunks;
}

// Python's textwrap without breaks at hyphens.
void wrap_line(std::u32string_view line, size_t width, bool break_words, std::string& out,
               const std::string& newline, const Heap& heap) {
  const auto blank = [](std::u32string_view c) {
    return c.empty() || c[0] == ' ' || (c[0] >= 9 && c[0] <= 13);
  };
  std::vector<std::u32string_view> chunks = wrap_chunks(line), row;
  for (bool first = true; !chunks.empty();) {
    if (!first && blank(chunks.back())) chunks.pop_back();
    row.clear();
    size_t size = 0;
    while (!chunks.empty() && size + chunks.back().size() <= width) {
      size += chunks.back().size();
      row.push_back(chunks.back());
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > width) {
      if (break_words) {
        row.push_back(chunks.back().substr(0, width - size));
        chunks.back().remove_prefix(width - size);
      } else if (row.empty()) {
        row.push_back(chunks.back());
        chunks.pop_back();
      }
    }
    if (!row.empty() && blank(row.back())) row.pop_back();
    if (row.empty()) continue;
    heap.check_room(out.size() + newline.size());
    if (!first) out += newline;
    first = false;
    for (const std::u32string_view word : row) out += u32_to_utf8(word);
  }
}

Val wordwrap(Interp& i, const Val& v, Args& args) {
  const Val *width = args.get(0, "width"), *words = args.get(1, "break_long_words"),
            *wrap = args.get(2, "wrapstring"), *hyphens = args.get(3, "break_on_hyphens");
  const auto limit =
      static_cast<size_t>(std::clamp<int64_t>(width ? int_arg(*width, "width") : 79, 1, 1 << 20));
  const std::string newline = wrap && !wrap->is_none() ? to_str(*wrap) : "\n";
  const bool at_hyphens = !hyphens || truthy(*hyphens), break_words = !words || truthy(*words);
  std::string out;
  bool first = true;
  for (const std::string& line : py_splitlines(str_arg(v, "the input of wordwrap"), false)) {
    if (!first) out += newline;
    first = false;
    const std::u32string chars = utf8_to_u32(line);
    if (at_hyphens && chars.size() > limit && chars.find(U'-') != std::u32string::npos)
      raise("wordwrap at hyphens is not supported: use break_on_hyphens=false");
    wrap_line(chars, limit, break_words, out, newline, i.heap());
    i.heap().check_room(out.size());
  }
  return i.str(std::move(out));
}

void url_quote(std::string& out, std::string_view text, bool query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if ((u < 0x80 && isalnum(u)) || c == '_' || c == '.' || c == '-' || c == '~' ||
        (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += '%';
      out += kHex[u >> 4];
      out += kHex[u & 15];
    }
  }
}

// Text is quoted; a mapping or a list of pairs becomes a query.
Val urlencode(Interp& i, const Val& v, Args&) {
  std::string out;
  if (!v.is_dict() && !v.is_sequence()) {
    url_quote(out, to_str(v), false);
    return i.str(std::move(out));
  }
  std::vector<std::pair<Val, Val>> pairs;
  if (v.is_dict()) {
    pairs = v.dict()->members;
  } else {
    for (const Val& item : i.iterate(v)) {
      const std::vector<Val> both = i.iterate(item);
      if (both.size() != 2) raise("urlencode needs pairs");
      pairs.emplace_back(both[0], both[1]);
    }
  }
  for (const auto& [key, value] : pairs) {
    if (!out.empty()) out += '&';
    url_quote(out, to_str(key), true);
    out += '=';
    url_quote(out, to_str(value), true);
    i.heap().check_room(out.size());
  }
  return i.str(std::move(out));
}

Val striptags(Interp& i, const Val& v, Args&) {
  std::string text = to_str(v), bare;
  for (size_t from; (from = text.find("<!--")) != std::string::npos;) {
    const size_t end = text.find("-->", from);
    if (end == std::string::npos) break;
    text.erase(from, end + 3 - from);
    i.spend_bytes(text.size());
  }
  bool tag = false;
  const size_t last_close = text.rfind('>');
  for (size_t k = 0; k < text.size(); ++k) {
    if (text[k] == '<') tag = tag || (last_close != std::string::npos && k < last_close);
    if (!tag) bare += text[k];
    if (text[k] == '>') tag = false;
  }
  if (bare.find('&') != std::string::npos)
    raise("striptags of text with entities is not supported");
  std::string out;
  for (const std::string& word : py_split(bare, nullptr, -1))
    out += (out.empty() ? "" : " ") + word;
  return i.str(std::move(out));
}

Val filesizeformat(Interp& i, const Val& v, Args& args) {
  const Val* binary = args.get(0, "binary");
  const double base = binary && truthy(*binary) ? 1024 : 1000;
  double bytes = v.is_number() ? v.as_double() : 0;
  if (!v.is_number() && !(v.is_string() && py_float(v.str(), bytes)))
    raise("filesizeformat needs a number");
  if (bytes == 1) return i.str("1 Byte");
  if (bytes < base) return i.str(fmt::format("{} Bytes", static_cast<int64_t>(bytes)));
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  static constexpr const char* kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  double unit = base;
  size_t k = 0;
  while (k + 1 < 8 && bytes >= unit * base) {
    unit *= base;
    ++k;
  }
  return i.str(fmt::format("{:.1f} {}", bytes / unit, base == 1024 ? kBinary[k] : kUnits[k]));
}

// A copy with sorted dicts.
Val sorted_dicts(Interp& i, const Val& v, int depth) {
  if (depth > 100) raise("values are nested too deeply");
  i.spend(1);
  if (v.is_plain_sequence()) {
    std::vector<Val> out;
    for (const Val& item : v.items()->values) out.push_back(sorted_dicts(i, item, depth + 1));
    return i.heap().list(std::move(out), v.is_tuple());
  }
  if (!v.is_dict()) return v;
  auto members = v.dict()->members;
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
  Dict* out = i.heap().dict();
  for (const auto& [key, item] : members) out->set(key, sorted_dicts(i, item, depth + 1));
  return Val::dict(out);
}

Val pprint(Interp& i, const Val& v, Args&) {
  std::string out;
  append_repr(out, sorted_dicts(i, v, 0));
  if (utf8_length(out) > 80) raise("pprint of more than one line is not supported");
  return i.str(std::move(out));
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void add_text_filters(std::unordered_map<std::string_view, FilterFn>& table) {
  const std::pair<std::string_view, FilterFn> more[] = {{"upper", upper},
                                                        {"lower", lower},
                                                        {"capitalize", capitalize},
                                                        {"string", string},
                                                        {"safe", safe},
                                                        {"trim", trim},
                                                        {"strip", trim},
                                                        {"title", title},
                                                        {"replace", replace},
                                                        {"indent", indent},
                                                        {"format", format},
                                                        {"e", escape},
                                                        {"escape", escape},
                                                        {"forceescape", forceescape},
                                                        {"center", center},
                                                        {"truncate", truncate},
                                                        {"wordcount", wordcount},
                                                        {"wordwrap", wordwrap},
                                                        {"urlencode", urlencode},
                                                        {"striptags", striptags},
                                                        {"filesizeformat", filesizeformat},
                                                        {"pprint", pprint}};
  for (const auto& entry : more) table.insert(entry);
}

}  // namespace tokamak::jinja
