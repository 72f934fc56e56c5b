#include "base/value.h"

#include <cmath>

#include "base/error.h"

namespace tokamak {
namespace {
[[noreturn]] void wrong_type(const char* wanted, const Value& found) {
  fail(ErrorCode::kInvalidArgument, "expected {}, found {}", wanted, found.type_name());
}
}  // namespace

const char* Value::type_name() const {
  static const char* kNames[] = {"null",   "boolean", "integer", "number",
                                 "string", "array",   "object"};
  return kNames[data_.index()];
}

bool Value::as_bool() const {
  if (const bool* b = std::get_if<bool>(&data_)) return *b;
  wrong_type("a boolean", *this);
}

int64_t Value::as_int() const {
  if (const int64_t* i = std::get_if<int64_t>(&data_)) return *i;
  if (const double* d = std::get_if<double>(&data_))
    if (std::trunc(*d) == *d && std::abs(*d) < 0x1p62) return static_cast<int64_t>(*d);
  wrong_type("an integer", *this);
}

double Value::as_double() const {
  if (const double* d = std::get_if<double>(&data_)) return *d;
  if (const int64_t* i = std::get_if<int64_t>(&data_)) return static_cast<double>(*i);
  wrong_type("a number", *this);
}

const std::string& Value::as_string() const {
  if (const auto* s = std::get_if<std::string>(&data_)) return *s;
  wrong_type("a string", *this);
}

const Value::Array& Value::as_array() const {
  if (const auto* a = std::get_if<Array>(&data_)) return *a;
  wrong_type("an array", *this);
}
Value::Array& Value::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }

const Value::Object& Value::as_object() const {
  if (const auto* o = std::get_if<Object>(&data_)) return *o;
  wrong_type("an object", *this);
}
Value::Object& Value::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Value* Value::find(std::string_view key) const {
  if (const auto* o = std::get_if<Object>(&data_))
    for (const Member& m : *o)
      if (m.first == key) return &m.second;
  return nullptr;
}
Value* Value::find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

const Value& Value::at(std::string_view key) const {
  if (const Value* v = find(key)) return *v;
  fail(ErrorCode::kInvalidArgument, "missing field \"{}\"", key);
}

Value& Value::set(std::string_view key, Value value) {
  if (is_null()) data_ = Object{};
  if (Value* v = find(key)) return *v = std::move(value);
  return as_object().emplace_back(std::string(key), std::move(value)).second;
}

void Value::push(Value value) {
  if (is_null()) data_ = Array{};
  as_array().push_back(std::move(value));
}

size_t Value::size() const {
  if (const auto* s = std::get_if<std::string>(&data_)) return s->size();
  if (const auto* a = std::get_if<Array>(&data_)) return a->size();
  if (const auto* o = std::get_if<Object>(&data_)) return o->size();
  return 0;
}

bool Value::get_bool(std::string_view key, bool fallback) const {
  const Value* v = find(key);
  return v && !v->is_null() ? v->as_bool() : fallback;
}
int64_t Value::get_int(std::string_view key, int64_t fallback) const {
  const Value* v = find(key);
  return v && !v->is_null() ? v->as_int() : fallback;
}
double Value::get_double(std::string_view key, double fallback) const {
  const Value* v = find(key);
  return v && !v->is_null() ? v->as_double() : fallback;
}
std::string Value::get_string(std::string_view key, std::string_view fallback) const {
  const Value* v = find(key);
  return v && !v->is_null() ? v->as_string() : std::string(fallback);
}

}  // namespace tokamak
