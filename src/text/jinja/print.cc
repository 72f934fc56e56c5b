// Values as text: Python's str and repr, and JSON as json.dumps writes it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "text/jinja/value.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

constexpr int kMaxPrintDepth = 300;
constexpr size_t kMaxPrintBytes = size_t{1} << 27;

void append_hex(std::string& out, uint32_t v, int digits) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = digits - 1; i >= 0; --i) out += kHex[v >> (4 * i) & 15];
}

void append_escape(std::string& out, char32_t c) {
  out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  append_hex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    const char32_t cp = c.cp;
    if (cp == static_cast<unsigned char>(quote) || cp == '\\') {
      out += '\\';
      out += static_cast<char>(cp);
    } else if (cp == '\n') {
      out += "\\n";
    } else if (cp == '\r') {
      out += "\\r";
    } else if (cp == '\t') {
      out += "\\t";
    } else if (is_printable(cp)) {
      out.append(text.substr(pos, c.length));
    } else {
      append_escape(out, cp);
    }
    pos += c.length;
  }
  out += quote;
}

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    const char32_t cp = c.cp;
    switch (cp) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (cp < 0x20 || (ascii && cp >= 0x7F && cp < 0x10000)) {
          out += "\\u";
          append_hex(out, cp, 4);
        } else if (ascii && cp >= 0x10000) {
          out += "\\u";
          append_hex(out, 0xD800 + ((cp - 0x10000) >> 10), 4);
          out += "\\u";
          append_hex(out, 0xDC00 + ((cp - 0x10000) & 0x3FF), 4);
        } else {
          out.append(text.substr(pos, c.length));
        }
    }
    pos += c.length;
  }
  out += '"';
}

std::string json_number(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return float_repr(d);
}

std::string json_key(const Val& key) {
  switch (key.kind()) {
    case Kind::kString:
      return key.str();
    case Kind::kBool:
      return key.as_int() ? "true" : "false";
    case Kind::kNone:
      return "null";
    case Kind::kInt:
      return std::to_string(key.as_int());
    case Kind::kFloat:
      return json_number(key.as_double());
    default:
      raise(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
  }
}

void newline(std::string& out, const JsonStyle& style, int depth) {
  out += '\n';
  for (int level = 0; level < depth; ++level) out += style.indent;
}

}  // namespace

bool is_printable(char32_t c) { return c == ' ' || (!is_other(c) && !is_white_space(c)); }

std::string ascii_only(std::string text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    if (c.cp < 0x80) {
      out += static_cast<char>(c.cp);
    } else {
      append_escape(out, c.cp);
    }
  }
  return out;
}

// Shortest digits that round-trip, formatted as in Python: exponent form below 1e-4 and from 1e16.
std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* from = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(from, text.data() + text.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(".").append(digits, 1);
    const int magnitude = std::abs(exponent);
    out += exponent < 0 ? "e-" : "e+";
    if (magnitude < 10) out += '0';
    return out + std::to_string(magnitude);
  }
  if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    return out + digits;
  }
  if (count <= exponent + 1) {
    out += digits;
    out.append(static_cast<size_t>(exponent + 1 - count), '0');
    return out + ".0";
  }
  return out.append(digits, 0, static_cast<size_t>(exponent) + 1)
      .append(".")
      .append(digits, static_cast<size_t>(exponent) + 1);
}

void append_str(std::string& out, const Val& v) {
  if (v.is_string()) {
    out += v.str();
  } else if (!v.is_undefined()) {
    append_repr(out, v);
  }
}

std::string to_str(const Val& v) {
  std::string out;
  append_str(out, v);
  return out;
}

static void append_sequence(std::string& out, const Val& v, int depth) {
  const List& list = *v.items();
  if (list.flavor == Flavor::kGenerator) {
    out += "<generator object>";
    return;
  }
  if (list.flavor == Flavor::kRange) {
    out += "range(" + std::to_string(list.start) + ", " + std::to_string(list.stop);
    out += list.step == 1 ? ")" : ", " + std::to_string(list.step) + ")";
    return;
  }
  const bool view = v.is_list() && list.flavor != Flavor::kPlain;
  if (view) out.append(type_name(v)).push_back('(');
  out += v.is_tuple() ? '(' : '[';
  bool first = true;
  for (const Val& item : list.values) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, item, depth + 1);
  }
  if (v.is_tuple() && list.values.size() == 1) out += ',';
  out += v.is_tuple() ? ')' : ']';
  if (view) out += ')';
}

// "key: value" of a dict (keys are values) or a namespace (keys are names).
template <class Members>
static void append_members(std::string& out, const Members& members, int depth) {
  bool first = true;
  for (const auto& [key, item] : members) {
    if (!first) out += ", ";
    first = false;
    if constexpr (std::is_same_v<decltype(key), const Val>)
      append_repr(out, key, depth + 1);
    else
      append_quoted(out, key);
    out += ": ";
    append_repr(out, item, depth + 1);
  }
}

void append_repr(std::string& out, const Val& v, int depth) {
  if (depth > kMaxPrintDepth) raise("values are nested too deeply");
  if (out.size() > kMaxPrintBytes) raise("a value is too large to print");
  spend_steps(1);
  switch (v.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBool:
      out += v.as_int() ? "True" : "False";
      break;
    case Kind::kInt:
      out += std::to_string(v.as_int());
      break;
    case Kind::kFloat:
      out += float_repr(v.as_double());
      break;
    case Kind::kString:
      if (v.text()->markup) out += "Markup(";
      append_quoted(out, v.str());
      if (v.text()->markup) out += ')';
      break;
    case Kind::kList:
    case Kind::kTuple:
      append_sequence(out, v, depth);
      break;
    case Kind::kDict:
      out += '{';
      append_members(out, v.dict()->members, depth);
      out += '}';
      break;
    case Kind::kNamespace:
      out += "<Namespace {";
      append_members(out, v.space()->members, depth);
      out += "}>";
      break;
    case Kind::kCallable:
      out += "<function " + v.callable()->name + ">";
      break;
    case Kind::kLoop:
      out += "<LoopContext " + std::to_string(v.loop()->index0 + 1) + "/" +
             std::to_string(v.loop()->values->size()) + ">";
      break;
  }
}

// Sorted as values: 2 before 10; keys that cannot be ordered raise an error.
static std::vector<const std::pair<Val, Val>*> members_of(const Dict& dict, bool sorted) {
  std::vector<const std::pair<Val, Val>*> members;
  for (const auto& member : dict.members) members.push_back(&member);
  if (sorted)
    std::stable_sort(members.begin(), members.end(),
                     [](const auto* a, const auto* b) { return compare(a->first, b->first) < 0; });
  return members;
}

void append_json(std::string& out, const Val& v, const JsonStyle& style, int depth) {
  if (depth > kMaxPrintDepth) raise("values are nested too deeply");
  if (out.size() > kMaxPrintBytes) raise("a value is too large for tojson");
  spend_steps(1);
  const auto between = [&](bool& first) {
    if (!first) out += style.item_separator;
    first = false;
    if (style.newline_indent) newline(out, style, depth + 1);
  };
  switch (v.kind()) {
    case Kind::kNone:
      out += "null";
      break;
    case Kind::kBool:
      out += v.as_int() ? "true" : "false";
      break;
    case Kind::kInt:
      out += std::to_string(v.as_int());
      break;
    case Kind::kFloat:
      out += json_number(v.as_double());
      break;
    case Kind::kString:
      append_json_string(out, v.str(), style.ascii);
      break;
    case Kind::kList:
    case Kind::kTuple: {
      if (!v.is_plain_sequence())
        raise(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
      out += '[';
      bool first = true;
      for (const Val& item : v.items()->values) {
        between(first);
        append_json(out, item, style, depth + 1);
      }
      if (!first && style.newline_indent) newline(out, style, depth);
      out += ']';
      break;
    }
    case Kind::kDict: {
      out += '{';
      bool first = true;
      for (const auto* member : members_of(*v.dict(), style.sort_keys)) {
        between(first);
        append_json_string(out, json_key(member->first), style.ascii);
        out += style.key_separator;
        append_json(out, member->second, style, depth + 1);
      }
      if (!first && style.newline_indent) newline(out, style, depth);
      out += '}';
      break;
    }
    default:
      raise(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
  }
}

}  // namespace tokamak::jinja
