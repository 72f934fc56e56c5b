// "%s" % x, "{}".format(x) and strftime.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <ctime>

#include "text/jinja/interp.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 16;

struct Spec {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  char align = '\0', group = '\0';
  std::string fill = " ";
  int64_t width = 0, precision = -1;
  char type = '\0';
};

// The length of a prefix "0x", "0o" or "0b", which only # adds.
size_t base_prefix(const Spec& spec, std::string_view digits) {
  bool has = spec.alternate && digits.size() > 2 && digits[0] == '0' &&
             std::string_view("xXob").find(digits[1]) != std::string_view::npos;
  return has ? 2 : 0;
}

void pad(std::string& out, const Spec& spec, std::string body, bool numeric) {
  const auto length = static_cast<int64_t>(utf8_length(body));
  if (length >= spec.width) {
    out += body;
    return;
  }
  const int64_t total = spec.width - length;
  const auto repeat = [&](int64_t n, const std::string& fill) {
    for (int64_t i = 0; i < n; ++i) out += fill;
  };
  char align = spec.align ? spec.align : spec.left ? '<' : numeric ? '>' : '<';
  if (spec.zero && !spec.left && (!spec.align || spec.align == '=') && numeric) align = '=';
  if (align == '=') {
    size_t sign = !body.empty() && (body[0] == '-' || body[0] == '+' || body[0] == ' ') ? 1 : 0;
    sign += base_prefix(spec, std::string_view(body).substr(sign));
    out += body.substr(0, sign);
    repeat(total, spec.zero ? "0" : spec.fill);
    out += body.substr(sign);
  } else if (align == '<') {
    out += body;
    repeat(total, spec.fill);
  } else if (align == '^') {
    repeat(total / 2, spec.fill);
    out += body;
    repeat(total - total / 2, spec.fill);
  } else {
    repeat(total, spec.fill);
    out += body;
  }
}

std::string signed_text(const Spec& spec, bool negative, std::string digits) {
  if (spec.group) {
    if (spec.zero && spec.width > 0)
      raise("zero padding together with digit groups is not supported");
    const size_t start = base_prefix(spec, digits);
    const size_t size = std::string_view("xXob").find(spec.type) < 4 ? 4 : 3;
    size_t end = digits.find_first_of(".e%");
    if (end == std::string::npos || size == 4) end = digits.size();
    for (size_t i = end; i > size + start; i -= size) digits.insert(i - size, 1, spec.group);
  }
  return (negative ? "-" : spec.plus ? "+" : spec.space ? " " : "") + digits;
}

std::string integer_text(const Spec& spec, int64_t value) {
  const bool negative = value < 0;
  const uint64_t magnitude =
      negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits;
  switch (spec.type) {
    case 'x':
      digits = spec.alternate ? fmt::format("{:#x}", magnitude) : fmt::format("{:x}", magnitude);
      break;
    case 'X':
      digits = spec.alternate ? fmt::format("{:#X}", magnitude) : fmt::format("{:X}", magnitude);
      break;
    case 'o':
      digits = (spec.alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
      break;
    case 'b':
      digits = spec.alternate ? fmt::format("{:#b}", magnitude) : fmt::format("{:b}", magnitude);
      break;
    default:
      digits = std::to_string(magnitude);
  }
  return signed_text(spec, negative, std::move(digits));
}

std::string float_text(const Spec& spec, double value, char type) {
  if (!std::isfinite(value))
    return signed_text(spec, std::signbit(value), std::isnan(value) ? "nan" : "inf");
  const int precision =
      static_cast<int>(spec.precision < 0 ? 6 : std::min<int64_t>(spec.precision, 300));
  const double magnitude = std::fabs(value);
  std::string digits;
  switch (type) {
    case 'e':
      digits = fmt::format("{:.{}e}", magnitude, precision);
      break;
    case 'E':
      digits = fmt::format("{:.{}E}", magnitude, precision);
      break;
    case 'g':
    case 'n':
      digits = fmt::format("{:.{}g}", magnitude, std::max(1, precision));
      break;
    case 'G':
      digits = fmt::format("{:.{}G}", magnitude, std::max(1, precision));
      break;
    case '%':
      digits = fmt::format("{:.{}f}%", magnitude * 100, precision);
      break;
    default:
      digits = fmt::format("{:.{}f}", magnitude, precision);
  }
  return signed_text(spec, std::signbit(value), std::move(digits));
}

// No type, but a precision: like g, but always with a point, and exponents start one digit earlier.
std::string short_float(const Spec& spec, double value) {
  if (!std::isfinite(value)) return float_text(spec, value, 'g');
  const int precision = static_cast<int>(std::clamp<int64_t>(spec.precision, 1, 300));
  std::string text = fmt::format("{:.{}e}", std::fabs(value), precision - 1);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent + 1 > precision - 1) {
    std::string digits = text.substr(0, e);
    if (digits.find('.') != std::string::npos) {
      digits.resize(digits.find_last_not_of('0') + 1);
      if (digits.back() == '.') digits.pop_back();
    }
    return signed_text(spec, std::signbit(value), digits + text.substr(e));
  }
  text = fmt::format("{:.{}g}", std::fabs(value), precision);
  if (text.find('.') == std::string::npos) text += ".0";
  return signed_text(spec, std::signbit(value), std::move(text));
}

std::string one_char(const Val& v) {
  if (v.is_string() && v.text()->chars == 1) return v.str();
  if (!v.is_integral()) raise("%c requires int or char");
  if (v.as_int() < 0 || v.as_int() > 0x10FFFF) raise("%c arg not in range(0x110000)");
  std::string c;
  utf8_append(c, static_cast<char32_t>(v.as_int()));
  return c;
}

std::string cut(std::string text, int64_t chars) {
  if (chars < 0) return text;
  size_t pos = 0;
  while (chars-- > 0 && pos < text.size()) pos += utf8_decode(text, pos).length;
  text.resize(pos);
  return text;
}

int64_t read_number(std::string_view format, size_t& pos) {
  int64_t n = 0;
  while (pos < format.size() && format[pos] >= '0' && format[pos] <= '9')
    n = std::min<int64_t>(n * 10 + (format[pos++] - '0'), kMaxWidth + 1);
  if (n > kMaxWidth) raise("a format width is too large");
  return n;
}

std::string escaped_text(const Val& v, bool escape) {
  return escape && !(v.is_string() && v.text()->markup) ? html_escape(to_str(v)) : to_str(v);
}

void percent_one(std::string& out, const Spec& spec, char type, const Val& v, bool escape) {
  switch (type) {
    case 's':
      return pad(out, spec, cut(escaped_text(v, escape), spec.precision), true);
    case 'r':
    case 'a': {
      std::string text;
      append_repr(text, v);
      if (type == 'a') text = ascii_only(std::move(text));
      if (escape) text = html_escape(text);
      return pad(out, spec, cut(std::move(text), spec.precision), true);
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool hex = type == 'x' || type == 'X' || type == 'o';
      if (!(hex ? v.is_integral() : v.is_number()))
        raise(std::string("%") + type + " format: a number is required, not " + type_name(v));
      Spec s = spec;
      s.type = type;
      s.alternate = s.alternate && hex;
      const double d = v.as_double();
      if (v.is_float() && !std::isfinite(d)) raise("cannot convert float infinity to integer");
      if (v.is_float() && !(std::fabs(d) < 9e18))
        return pad(out, s, signed_text(s, d < 0, fmt::format("{:.0f}", std::fabs(d))), true);
      return pad(out, s, integer_text(s, v.is_float() ? static_cast<int64_t>(d) : v.as_int()),
                 true);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!v.is_number()) raise(std::string("must be real number, not ") + type_name(v));
      return pad(out, spec, float_text(spec, v.as_double(), type), true);
    case 'c':
      return pad(out, spec, one_char(v), true);
    default:
      raise(std::string("unsupported format character '") + type + "'");
  }
}

Spec parse_spec(std::string_view text) {
  Spec s;
  size_t pos = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = utf8_decode(text, 0).length;
    if (first < text.size() && is_align(text[first])) {
      s.fill = std::string(text.substr(0, first));
      s.align = text[first];
      pos = first + 1;
    } else if (is_align(text[0])) {
      s.align = text[0];
      pos = 1;
    }
  }
  const auto skip = [&](char c) {
    return pos < text.size() && text[pos] == c ? (++pos, true) : false;
  };
  if (skip('+'))
    s.plus = true;
  else if (skip(' '))
    s.space = true;
  else
    skip('-');
  s.alternate = skip('#');
  if (skip('0')) {
    s.zero = true;
    if (!s.align) s.align = '=';
  }
  s.width = read_number(text, pos);
  if (skip(','))
    s.group = ',';
  else if (skip('_'))
    s.group = '_';
  if (skip('.')) s.precision = read_number(text, pos);
  if (pos < text.size()) s.type = text[pos++];
  if (pos != text.size()) raise("invalid format specifier");
  return s;
}

[[noreturn]] void bad_code(const Spec& s, const Val& v) {
  raise(std::string("unknown format code '") + s.type + "' for object of type '" + type_name(v) +
        "'");
}

std::string number_body(const Spec& s, const Val& v) {
  const bool float_type = s.type != '\0' && std::string_view("eEfFgG%").find(s.type) < 7;
  if (v.is_float() || float_type) {
    if (s.type != '\0' && s.type != 'n' && !float_type) bad_code(s, v);
    if (s.alternate) raise("'#' with a float is not supported");
    if (s.type != '\0') return float_text(s, v.as_double(), s.type);
    if (s.precision >= 0) return short_float(s, v.as_double());
    return signed_text(s, std::signbit(v.as_double()), float_repr(std::fabs(v.as_double())));
  }
  if (s.precision >= 0) raise("precision is not allowed in an integer format specifier");
  if (s.type == 'c') return one_char(v);
  if (s.type != '\0' && std::string_view("dxXobn").find(s.type) == std::string_view::npos)
    bad_code(s, v);
  return integer_text(s, v.as_int());
}

void brace_one(std::string& out, const Val& v, std::string_view spec_text) {
  if (spec_text.empty()) return append_str(out, v);
  Spec s = parse_spec(spec_text);
  if (v.is_number()) {
    if (s.type != '\0' && std::string_view("xXob").find(s.type) == std::string_view::npos)
      s.alternate = s.alternate && !v.is_integral();
    return pad(out, s, number_body(s, v), true);
  }
  if (!v.is_string())
    raise(std::string("unsupported format string passed to ") + type_name(v) + ".__format__");
  if (s.type != '\0' && s.type != 's') bad_code(s, v);
  if (s.plus || s.space || s.alternate || s.group)
    raise("signs, '#' and digit groups are not allowed in a string format specifier");
  if (s.align == '=' && !s.zero) raise("'=' alignment not allowed in string format specifier");
  if (s.align == '=') s.align = '<';
  if (s.zero && s.fill == " ") s.fill = "0";
  pad(out, s, cut(to_str(v), s.precision), false);
}

// Flags, width and precision of a %-specifier.
Spec percent_spec(std::string_view format, size_t& pos) {
  Spec spec;
  for (; pos < format.size(); ++pos) {
    const char c = format[pos];
    bool* const flag = c == '-'   ? &spec.left
                       : c == '+' ? &spec.plus
                       : c == ' ' ? &spec.space
                       : c == '0' ? &spec.zero
                       : c == '#' ? &spec.alternate
                                  : nullptr;
    if (!flag) break;
    *flag = true;
  }
  spec.width = read_number(format, pos);
  if (pos < format.size() && format[pos] == '.') {
    ++pos;
    spec.precision = read_number(format, pos);
  }
  return spec;
}

// The member that %(key)s names; pos is at the parenthesis.
const Val& percent_member(std::string_view format, size_t& pos, const Val& values) {
  const size_t end = format.find(')', pos);
  if (end == std::string_view::npos) raise("incomplete format key");
  if (!values.is_dict()) raise("format requires a mapping");
  const std::string key(format.substr(pos + 1, end - pos - 1));
  const Val* found = values.dict()->find(key);
  if (!found) raise("KeyError: '" + key + "'");
  pos = end + 1;
  return *found;
}

// The argument that a replacement field of str.format names: "", "0" or "name", and any .name and
// [key] that follow.
Val brace_argument(Interp& interp, std::string_view field, const Args& args, size_t& automatic) {
  const size_t head_end = field.find_first_of(".[");
  const std::string_view head = field.substr(0, head_end);
  Val v;
  size_t index = automatic;
  const bool number = std::from_chars(head.data(), head.data() + head.size(), index).ptr ==
                      head.data() + head.size();
  if (head.empty()) index = automatic++;
  if (head.empty() || number) {
    if (index >= args.pos.size())
      raise("Replacement index " + std::to_string(index) + " out of range");
    v = args.pos[index];
  } else {
    const Val* found = args.keyword(head);
    if (!found) raise("KeyError: '" + std::string(head) + "'");
    v = *found;
  }
  std::string_view rest;
  if (head_end != std::string_view::npos) rest = field.substr(head_end);
  while (!rest.empty()) {
    const bool bracket = rest[0] == '[';
    const size_t stop = bracket ? rest.find(']') : rest.find_first_of(".[", 1);
    const std::string key(
        rest.substr(1, (stop == std::string_view::npos ? rest.size() : stop) - 1));
    int64_t i = 0;
    const bool digits =
        !key.empty() &&
        std::from_chars(key.data(), key.data() + key.size(), i).ptr == key.data() + key.size();
    v = bracket && digits ? interp.item(v, Val::integer(i)) : interp.item(v, interp.str(key));
    rest =
        stop == std::string_view::npos ? std::string_view() : rest.substr(stop + (bracket ? 1 : 0));
  }
  return v;
}

}  // namespace

std::string percent_format(Interp& interp, const Text& source, const Val& values) {
  const std::string_view format = source.bytes;
  std::string out;
  size_t next = 0, used = 0;
  const bool tuple = values.is_tuple();
  const auto take = [&]() -> const Val& {
    ++used;
    if (!tuple) {
      if (next++ > 0) raise("not enough arguments for format string");
      return values;
    }
    if (next >= values.items()->values.size()) raise("not enough arguments for format string");
    return values.items()->values[next++];
  };
  for (size_t pos = 0; pos < format.size();) {
    if (format[pos] != '%') {
      out += format[pos++];
      continue;
    }
    if (++pos >= format.size()) raise("incomplete format");
    if (format[pos] == '%') {
      out += '%';
      ++pos;
      continue;
    }
    const Val* named = nullptr;
    if (format[pos] == '(') {
      named = &percent_member(format, pos, values);
      used = 1;
    }
    const Spec spec = percent_spec(format, pos);
    if (pos >= format.size()) raise("incomplete format");
    percent_one(out, spec, format[pos++], named ? *named : take(), source.markup);
    interp.heap().check_room(out.size());
  }
  const bool container = values.is_dict() || values.is_list();
  if (tuple ? next < values.items()->values.size()
            : used == 0 && !container && !values.is_undefined())
    raise("not all arguments converted during string formatting");
  return out;
}

std::string brace_format(Interp& interp, const Text& source, const Args& args) {
  const std::string_view format = source.bytes;
  std::string out;
  size_t automatic = 0;
  for (size_t pos = 0; pos < format.size();) {
    const char c = format[pos];
    if (c == '}' || c == '{') {
      if (pos + 1 < format.size() && format[pos + 1] == c) {
        out += c;
        pos += 2;
        continue;
      }
      if (c == '}') raise("Single '}' encountered in format string");
    } else {
      out += c;
      ++pos;
      continue;
    }
    const size_t end = format.find('}', pos);
    if (end == std::string_view::npos) raise("expected '}' before end of string");
    std::string_view field = format.substr(pos + 1, end - pos - 1), spec;
    pos = end + 1;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      conversion = mark + 1 < field.size() ? field[mark + 1] : '\0';
      field = field.substr(0, mark);
    }
    Val v = brace_argument(interp, field, args, automatic);
    if (conversion == 'r' || conversion == 'a') {
      std::string text;
      append_repr(text, v);
      v = interp.str(conversion == 'a' ? ascii_only(std::move(text)) : std::move(text));
    } else if (conversion == 's') {
      v = interp.str(to_str(v));
    }
    std::string piece;
    brace_one(piece, v, spec);
    const bool plain = !source.markup || (v.is_string() && v.text()->markup);
    out += plain ? piece : html_escape(piece);
    interp.heap().check_room(out.size());
  }
  return out;
}

std::string strftime_text(const TemplateTime& now, std::string_view format) {
  if (format.size() > 1024) raise("the time format is too long");
  std::tm tm{};
  tm.tm_year = now.year - 1900;
  tm.tm_mon = now.month - 1;
  tm.tm_mday = now.day;
  tm.tm_hour = now.hour;
  tm.tm_min = now.minute;
  tm.tm_sec = now.second;
  timegm(&tm);  // fills in the day of the week and of the year
  // A naive time has no zone: %Z and %z are empty; %f is always zero.
  std::string cleaned;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      cleaned += format[i];
      continue;
    }
    const char c = format[++i];
    if (c == 'f')
      cleaned += "000000";
    else if (c != 'Z' && c != 'z')
      cleaned.append("%").append(1, c);
  }
  if (cleaned.empty()) return "";
  std::string out(cleaned.size() * 16 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), cleaned.c_str(), &tm));
  return out;
}

}  // namespace tokamak::jinja
