#pragma once
// A JSON-like value, used for configs, metadata, chat messages and attributes. Objects keep their
// insertion order (chat templates print them). Text form: base/json.h.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tokamak {

class Value {
 public:
  using Array = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Object = std::vector<Member>;

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool b) : data_(b) {}
  Value(int i) : data_(int64_t{i}) {}
  Value(int64_t i) : data_(i) {}
  Value(uint32_t i) : data_(int64_t{i}) {}
  Value(uint64_t i) : data_(static_cast<int64_t>(i)) {}
  Value(double d) : data_(d) {}
  Value(const char* s) : data_(std::string(s)) {}
  Value(std::string s) : data_(std::move(s)) {}
  Value(std::string_view s) : data_(std::string(s)) {}
  Value(Array a) : data_(std::move(a)) {}
  Value(Object o) : data_(std::move(o)) {}
  static Value array() { return Value(Array{}); }
  static Value object() { return Value(Object{}); }

  bool is_null() const { return data_.index() == 0; }
  bool is_bool() const { return data_.index() == 1; }
  bool is_int() const { return data_.index() == 2; }
  bool is_double() const { return data_.index() == 3; }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return data_.index() == 4; }
  bool is_array() const { return data_.index() == 5; }
  bool is_object() const { return data_.index() == 6; }
  const char* type_name() const;

  // Typed access; throws Error(kInvalidArgument) naming the type found.
  bool as_bool() const;
  int64_t as_int() const;    // also a double without a fraction
  double as_double() const;  // also an int
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Object access. find: nullptr when absent (or not an object). set: replaces or appends.
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  const Value& at(
      std::string_view key) const;  // throws Error(kInvalidArgument) "missing field ..."
  bool has(std::string_view key) const { return find(key) != nullptr; }
  Value& set(std::string_view key, Value value);
  void push(Value value);  // arrays
  size_t size() const;     // of arrays, objects, strings; 0 otherwise

  // find + typed access with a default for absent or null members.
  bool get_bool(std::string_view key, bool fallback) const;
  int64_t get_int(std::string_view key, int64_t fallback) const;
  double get_double(std::string_view key, double fallback) const;
  std::string get_string(std::string_view key, std::string_view fallback) const;

  bool operator==(const Value&) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> data_;
};

}  // namespace tokamak
