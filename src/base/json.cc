#include "base/json.h"

#include <nlohmann/json.hpp>

#include <unordered_map>

#include "base/error.h"

namespace tokamak {
namespace {

using Json = nlohmann::ordered_json;

// Builds a Value while parsing, so that deep nesting is rejected before the stack overflows.
class ValueBuilder : public nlohmann::json_sax<Json> {
 public:
  ValueBuilder(std::string_view what, JsonLimits limits) : what_(what), limits_(limits) {}

  bool null() override { return add(Value()); }
  bool boolean(bool b) override { return add(Value(b)); }
  bool number_integer(number_integer_t i) override { return add(Value(int64_t{i})); }
  bool number_unsigned(number_unsigned_t u) override {
    return add(u <= INT64_MAX ? Value(static_cast<int64_t>(u)) : Value(static_cast<double>(u)));
  }
  bool number_float(number_float_t d, const string_t&) override { return add(Value(d)); }
  bool string(string_t& s) override { return add(Value(std::move(s))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Value::object()); }
  bool start_array(size_t) override { return open(Value::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    keys_.back() = std::move(k);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    std::string text = e.what();  // "[json.exception.NAME] what is wrong"
    size_t cut = text.find("] ");
    fail(ErrorCode::kInvalidArgument, "{}: {}", what_,
         cut == std::string::npos ? text : text.substr(cut + 2));
  }

  Value take() { return std::move(root_); }

 private:
  bool add(Value v) {
    if (open_.empty()) {
      root_ = std::move(v);
    } else if (open_.back().is_array()) {
      open_.back().push(std::move(v));
    } else {
      // A repeated key keeps the last value, as Python does. Wide objects (vocabularies) are read
      // by the importers with their own index, so appending here must stay O(1): duplicates are
      // resolved on close.
      open_.back().as_object().emplace_back(std::move(keys_.back()), std::move(v));
    }
    return true;
  }
  bool open(Value v) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth)
      fail(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels", what_,
           limits_.max_depth);
    open_.push_back(std::move(v));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    Value v = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    if (v.is_object()) drop_duplicates(v.as_object());
    return add(std::move(v));
  }
  void drop_duplicates(Value::Object& members) const {
    std::unordered_map<std::string_view, size_t> last;
    for (size_t i = 0; i < members.size(); ++i) last[members[i].first] = i;
    if (last.size() == members.size()) return;
    if (limits_.unique_keys) {
      for (size_t i = 0; i < members.size(); ++i)
        if (last[members[i].first] != i)
          fail(ErrorCode::kInvalidArgument, "{}: key \"{}\" appears twice", what_,
               members[i].first);
    }
    Value::Object kept;
    std::unordered_map<std::string, bool> seen;
    for (size_t i = 0; i < members.size(); ++i) {
      if (!seen.emplace(members[i].first, true).second) continue;
      kept.emplace_back(members[i].first, members[last[members[i].first]].second);
    }
    members = std::move(kept);
  }

  std::string_view what_;
  JsonLimits limits_;
  Value root_;
  std::vector<Value> open_;
  std::vector<std::string> keys_;
};

Json to_json(const Value& v) {
  if (v.is_bool()) return v.as_bool();
  if (v.is_int()) return v.as_int();
  if (v.is_double()) return v.as_double();
  if (v.is_string()) return v.as_string();
  if (v.is_array()) {
    Json out = Json::array();
    for (const Value& item : v.as_array()) out.push_back(to_json(item));
    return out;
  }
  if (v.is_object()) {
    Json out = Json::object();
    auto& members = out.get_ref<Json::object_t&>();
    for (const auto& [key, item] : v.as_object())
      members.Container::emplace_back(key, to_json(item));
    return out;
  }
  return nullptr;
}

}  // namespace

Value parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  ValueBuilder builder(what, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string dump_json(const Value& value, int indent) {
  return to_json(value).dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tokamak
