// Filters on numbers, and the arguments of all filters.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "text/jinja/filters.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

// The text of a number as Python parses it: no surrounding white space, digits of any script,
// single underscores between digits. Empty: not a number.
std::string plain_digits(std::string_view text) {
  std::string out;
  char32_t before = 0;
  text = py_strip(text, nullptr, true, true);
  const auto wordy = [](char32_t c) { return is_decimal_digit(c) || (c < 0x80 && isalnum(c)); };
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    if (c.cp == '_') {
      if (!wordy(before) || pos >= text.size() || !wordy(utf8_decode(text, pos).cp)) return "";
    } else if (is_decimal_digit(c.cp)) {
      out += static_cast<char>('0' + decimal_value(c.cp));
    } else if (c.cp < 0x80) {
      out += static_cast<char>(c.cp);
    } else {
      return "";
    }
    before = c.cp;
  }
  return out;
}

Val whole(double d) {
  if (!(std::fabs(d) < 9e18)) raise("int: the number is too large");
  return Val::integer(static_cast<int64_t>(d));
}

std::optional<Val> py_int(std::string_view source, int base) {
  const std::string text = plain_digits(source);
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const char mark = digits.size() > 1 && digits[0] == '0' ? static_cast<char>(digits[1] | 32) : 0;
  const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (marked != 0 && (base == 0 || base == marked)) {
    base = marked;
    digits.remove_prefix(2);
  }
  if (base == 0) base = 10;
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  int64_t n = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), n, base);
  if (result.ptr != digits.data() + digits.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) raise("int: the number is too large");
  if (result.ec != std::errc()) return std::nullopt;
  return Val::integer(negative ? -n : n);
}

Val abs_filter(Interp&, const Val& v, Args&) {
  if (v.is_undefined()) raise_undefined(v);
  if (v.is_float()) return Val::real(std::fabs(v.as_double()));
  if (!v.is_integral()) raise(std::string("bad operand type for abs(): '") + type_name(v) + "'");
  if (v.as_int() == INT64_MIN) raise("integer overflow");
  return Val::integer(std::abs(v.as_int()));
}

Val int_filter(Interp&, const Val& v, Args& args) {
  const Val* fallback = args.get(0, "default");
  const Val* base_arg = args.get(1, "base");
  if (v.is_undefined()) raise_undefined(v);
  const int64_t base = base_arg ? int_arg(*base_arg, "base") : 10;
  if (base != 0 && (base < 2 || base > 36)) raise("int: base must be 0 or 2 to 36");
  if (v.is_integral()) return Val::integer(v.as_int());
  if (v.is_float() && std::isfinite(v.as_double())) return whole(v.as_double());
  if (v.is_string()) {
    if (const auto n = py_int(v.str(), static_cast<int>(base))) return *n;
    double d = 0;
    if (py_float(v.str(), d) && std::isfinite(d)) return whole(d);
  }
  return fallback ? *fallback : Val::integer(0);
}

Val float_filter(Interp&, const Val& v, Args& args) {
  if (v.is_undefined()) raise_undefined(v);
  const Val* fallback = args.get(0, "default");
  double d = 0;
  if (v.is_number()) return Val::real(v.as_double());
  if (v.is_string() && py_float(v.str(), d)) return Val::real(d);
  return fallback ? *fallback : Val::real(0.0);
}

Val round_filter(Interp&, const Val& v, Args& args) {
  if (!v.is_number()) raise(std::string("cannot round '") + type_name(v) + "'");
  const Val* precision_arg = args.get(0, "precision");
  const Val* method = args.get(1, "method");
  const int64_t precision = precision_arg ? int_arg(*precision_arg, "precision") : 0;
  const std::string how = method ? str_arg(*method, "method") : "common";
  if (how == "common") {
    if (v.is_integral() && precision >= 0) return v.is_bool() ? Val::integer(v.as_int()) : v;
    const double d = v.as_double();
    if (precision >= 0 && precision < 300 && std::isfinite(d)) {
      // Decimal rounding of the exact value, as in Python.
      const std::string text = fmt::format("{:.{}f}", d, static_cast<int>(precision));
      double out = 0;
      std::from_chars(text.data(), text.data() + text.size(), out);
      return Val::real(out);
    }
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double out = std::nearbyint(d * scale) / scale;
    return v.is_integral() ? Val::integer(static_cast<int64_t>(out)) : Val::real(out);
  }
  if (how != "ceil" && how != "floor") raise("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_double() * scale;
  return Val::real((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// The arguments of each filter besides its input, in order; "*": any.
std::string_view parameters(std::string_view name) {
  static const std::unordered_map<std::string_view, std::string_view> table = {
      {"default", "default_value boolean"},
      {"d", "default_value boolean"},
      {"sort", "reverse case_sensitive attribute"},
      {"dictsort", "case_sensitive by reverse"},
      {"unique", "case_sensitive attribute"},
      {"min", "case_sensitive attribute"},
      {"max", "case_sensitive attribute"},
      {"sum", "attribute start"},
      {"join", "d attribute"},
      {"map", "*"},
      {"select", "*"},
      {"reject", "*"},
      {"selectattr", "*"},
      {"rejectattr", "*"},
      {"format", "*"},
      {"groupby", "attribute default case_sensitive"},
      {"batch", "linecount fill_with"},
      {"slice", "slices fill_with"},
      {"attr", "name"},
      {"int", "default base"},
      {"float", "default"},
      {"round", "precision method"},
      {"tojson", "ensure_ascii indent separators sort_keys"},
      {"trim", "chars"},
      {"strip", "chars"},
      {"replace", "old new count"},
      {"indent", "width first blank"},
      {"center", "width"},
      {"truncate", "length killwords end leeway"},
      {"wordwrap", "width break_long_words wrapstring break_on_hyphens"},
      {"filesizeformat", "binary"}};
  const auto found = table.find(name);
  return found == table.end() ? std::string_view() : found->second;
}

}  // namespace

bool py_float(std::string_view source, double& out) {
  const std::string text = plain_digits(source);
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || (digits.size() < text.size() && digits[0] == '-')) return false;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (result.ptr != digits.data() + digits.size()) return false;
  if (result.ec == std::errc::result_out_of_range) out = std::strtod(text.c_str(), nullptr);
  return result.ec != std::errc::invalid_argument;
}

void check_filter_args(std::string_view name, const Args& args) {
  const std::string_view allowed = parameters(name);
  if (allowed == "*") return;
  const auto count = allowed.empty() ? 0 : std::count(allowed.begin(), allowed.end(), ' ') + 1;
  if (static_cast<ptrdiff_t>(args.pos.size()) > count)
    raise("the filter '" + std::string(name) + "' takes not more than " + std::to_string(count) +
          " argument(s)");
  const std::string list = " " + std::string(allowed) + " ";
  for (const auto& [key, v] : args.named)
    if (list.find(" " + key + " ") == std::string::npos)
      raise("the filter '" + std::string(name) + "' has no argument '" + key + "'");
}

void add_number_filters(std::unordered_map<std::string_view, FilterFn>& table) {
  const std::pair<std::string_view, FilterFn> more[] = {
      {"abs", abs_filter}, {"int", int_filter}, {"float", float_filter}, {"round", round_filter}};
  for (const auto& entry : more) table.insert(entry);
}

}  // namespace tokamak::jinja
