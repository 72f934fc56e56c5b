#include "serve/openai/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <system_error>

#include "base/log.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

const char* described(const Value& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a boolean";
  if (value.is_int()) return "an integer";
  if (value.is_double()) return "a decimal";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

}  // namespace

void wrong_type(const std::string& param, std::string_view expected, const Value& got) {
  bad_request(param, "invalid_type", "Invalid type for '{}': expected {}, but got {} instead.",
              param, expected, described(got));
}

int64_t checked_integer(const std::string& param, const Value& value, int64_t low, int64_t high) {
  bool whole = value.is_int();
  if (value.is_double()) {  // 16.0 is an integer in JSON
    double d = value.as_double();
    whole = std::isfinite(d) && d == std::floor(d) && std::abs(d) < 0x1p53;
    if (!whole && std::abs(d) >= 0x1p53)
      bad_request(param, d > 0 ? "integer_above_max_value" : "integer_below_min_value",
                  "Invalid '{}': {} is out of range. Expected an integer from {} to {}.", param, d,
                  low, high);
  }
  if (!whole) wrong_type(param, "an integer", value);
  int64_t i = value.is_int() ? value.as_int() : static_cast<int64_t>(value.as_double());
  if (i < low)
    bad_request(
        param, "integer_below_min_value",
        "Invalid '{}': integer below minimum value. Expected a value >= {}, but got {} instead.",
        param, low, i);
  if (i > high)
    bad_request(
        param, "integer_above_max_value",
        "Invalid '{}': integer above maximum value. Expected a value <= {}, but got {} instead.",
        param, high, i);
  return i;
}

Fields::Fields(const Value& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) wrong_type(path_.empty() ? "body" : path_, "an object", object);
}

std::string Fields::name(std::string_view field) const {
  return path_.empty() ? std::string(field) : path_ + "." + std::string(field);
}

const Value* Fields::find(std::string_view field) {
  known_.push_back(field);
  const Value* value = object_.find(field);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Value& Fields::require(std::string_view field) {
  const Value* value = find(field);
  if (value == nullptr)
    bad_request(name(field), "missing_required_parameter", "Missing required parameter: '{}'.",
                name(field));
  return *value;
}

const std::string& Fields::require_string(std::string_view field) {
  const Value& value = require(field);
  if (!value.is_string()) wrong_type(name(field), "a string", value);
  return value.as_string();
}

std::optional<bool> Fields::boolean(std::string_view field) {
  const Value* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) wrong_type(name(field), "a boolean", *value);
  return value->as_bool();
}

std::optional<int64_t> Fields::integer(std::string_view field, int64_t low, int64_t high) {
  const Value* value = find(field);
  if (value == nullptr) return std::nullopt;
  return checked_integer(name(field), *value, low, high);
}

std::optional<double> Fields::number(std::string_view field, double low, double high) {
  const Value* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong_type(name(field), "a number", *value);
  double d = value->as_double();
  if (!(d >= low))
    bad_request(
        name(field), "decimal_below_min_value",
        "Invalid '{}': decimal below minimum value. Expected a value >= {}, but got {} instead.",
        name(field), low, d);
  if (!(d <= high))
    bad_request(
        name(field), "decimal_above_max_value",
        "Invalid '{}': decimal above maximum value. Expected a value <= {}, but got {} instead.",
        name(field), high, d);
  return d;
}

std::optional<std::string> Fields::string(std::string_view field) {
  const Value* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong_type(name(field), "a string", *value);
  return value->as_string();
}

const Value::Array* Fields::array(std::string_view field) {
  const Value* value = find(field);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) wrong_type(name(field), "an array", *value);
  return &value->as_array();
}

void Fields::ignore(std::initializer_list<std::string_view> fields) {
  other_.insert(other_.end(), fields.begin(), fields.end());
}

void Fields::refuse(std::string_view field, const std::string& why) {
  other_.push_back(field);
  const Value* value = object_.find(field);
  if (value == nullptr || value->is_null()) return;
  bool idle =
      (value->is_bool() && !value->as_bool()) || (value->is_number() && value->as_double() == 0) ||
      ((value->is_array() || value->is_object() || value->is_string()) && value->size() == 0);
  if (!idle) unsupported(name(field), why);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  auto in = [](const std::vector<std::string_view>& list, const std::string& key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  for (const auto& [key, value] : object_.as_object())
    if (!in(known_, key) && !in(other_, key)) names.push_back(name(key));
  return names;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 0x20 && c < 0x7f ? c : '?';
  return out;
}

void log_once(Notice kind, std::string_view text) {
  constexpr size_t kMaxTexts = 256, kMaxLength = 200;
  static std::mutex mutex;
  static std::map<Notice, std::set<std::string>> logged;
  std::string line = printable(text.substr(0, kMaxLength));
  {
    std::lock_guard lock(mutex);
    std::set<std::string>& texts = logged[kind];
    if (texts.size() >= kMaxTexts || !texts.insert(line).second) return;
  }
  log::info("{}", line);
}

std::string mend_surrogates(std::string_view json) {
  // The number of an escape \uXXXX at i; 0: there is none.
  auto code = [&](size_t i) -> unsigned {
    unsigned value = 0;
    if (i + 6 > json.size() || json[i] != '\\' || json[i + 1] != 'u') return 0;
    auto [end, error] = std::from_chars(json.data() + i + 2, json.data() + i + 6, value, 16);
    return error == std::errc() && end == json.data() + i + 6 ? value : 0;
  };
  std::string out;
  out.reserve(json.size());
  for (size_t i = 0; i < json.size();) {
    size_t length = json[i] == '\\' ? 2 : 1;
    if (const unsigned c = code(i); c >= 0xd800 && c < 0xe000) {
      const unsigned next = code(i + 6);
      const bool whole = c < 0xdc00 && next >= 0xdc00 && next < 0xe000;
      out += whole ? json.substr(i, 12) : "\\ufffd";
      i += whole ? 12 : 6;
      continue;
    }
    out += json.substr(i, length);
    i += length;
  }
  return out;
}

void log_unknown_fields(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    log_once(Notice::kUnknownField,
             fmt::format("unknown request field '{}' ignored", name.substr(0, 64)));
}

}  // namespace tokamak::openai
