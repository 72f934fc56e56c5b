#pragma once
// Typed access to a request object: every error names the parameter, worded as in the OpenAI API.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak::openai {

// One thread; the object outlives it. null counts as absent everywhere, as in the OpenAI API.
class Fields {
 public:
  // path: prefix of parameter names, "messages[0]".
  explicit Fields(const Value& object, std::string path = "");
  // Field names are not copied: they must outlive this object.

  std::string name(std::string_view field) const;
  const Value* find(std::string_view field);     // nullptr: absent or null
  const Value& require(std::string_view field);  // 400 if absent
  const std::string& require_string(std::string_view field);
  std::optional<bool> boolean(std::string_view field);
  std::optional<int64_t> integer(std::string_view field, int64_t low, int64_t high);
  std::optional<double> number(std::string_view field, double low, double high);
  std::optional<std::string> string(std::string_view field);
  const Value::Array* array(std::string_view field);

  // Known, but ignored here.
  void ignore(std::initializer_list<std::string_view> fields);
  // Known, and rejected unless absent, null, false, 0 or empty.
  void refuse(std::string_view field, const std::string& why);
  // Members that were not read.
  std::vector<std::string> unknown() const;
  // The fields that were looked up, whether present or not; without those ignored and refused.
  const std::vector<std::string_view>& known() const { return known_; }

 private:
  const Value& object_;
  std::string path_;
  std::vector<std::string_view> known_, other_;
};

// 400 "Invalid type for 'x': expected a string, but got an integer instead."
[[noreturn]] void wrong_type(const std::string& param, std::string_view expected, const Value& got);
int64_t checked_integer(const std::string& param, const Value& value, int64_t low, int64_t high);

// Logs each unknown field once.
void log_unknown_fields(const std::vector<std::string>& names);
// JSON text in which escapes of half a character (\ud83d alone) are replaced by \ufffd: clients in
// JavaScript send them when they cut a text within an emoji.
std::string mend_surrogates(std::string_view json);
// `text` in printable ASCII, for logs and headers.
std::string printable(std::string_view text);
// Logs the printable text once, and at most 256 texts of a kind: a client can choose texts, but
// cannot fill the log, nor use up the limit of another kind.
enum class Notice : uint8_t { kUnknownField, kSchema, kTools };
void log_once(Notice kind, std::string_view text);

}  // namespace tokamak::openai
