#include "text/grammar/unique_items.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace tokamak::grammar {
namespace {

// Equal for equal values: members in order, and numbers as they are computed with.
std::string ordered(const Value& v) {
  if (v.is_number()) return fmt::format("{}", v.as_double() + 0.0);  // -0 is 0
  std::string out(1, v.is_array() ? '[' : '{');
  if (v.is_array()) {
    for (const Value& item : v.as_array()) out += ordered(item) + ",";
  } else if (v.is_object()) {
    std::vector<std::string> members;
    for (const auto& [name, value] : v.as_object())
      members.push_back(dump_json(Value(name)) + ":" + ordered(value) + ",");
    std::sort(members.begin(), members.end());
    for (const std::string& member : members) out += member;
  } else {
    return dump_json(v);
  }
  return out;
}

// Numbers beyond those of a double cannot be read; then the text itself is compared.
std::string ordered_text(std::string object) {
  try {
    return ordered(parse_json(object));
  } catch (const Error&) {
    return object;
  }
}

}  // namespace

const UniqueItems::Open* UniqueItems::array() const {
  if (open_.empty()) return nullptr;
  if (open_.back().bracket == '[') return &open_.back();
  if (open_.size() < 2 || open_[open_.size() - 2].bracket != '[') return nullptr;
  return &open_[open_.size() - 2];
}

void UniqueItems::read_bracket(char byte) {
  if (arrays_ == 1 && open_.back().bracket == '[') text_ = {};
  if (byte == '[' || byte == '{') {
    open_.push_back({.bracket = byte, .begin = text_.size()});
    arrays_ += byte == '[';
  } else if ((byte == ']' || byte == '}') && !open_.empty()) {
    arrays_ -= open_.back().bracket == '[';
    open_.pop_back();
  }
}

bool UniqueItems::read(char byte, bool unique) {
  if (!in_string_) {
    read_bracket(byte);
    if (begins_item(byte) && unique) {
      item_ = true;
      string_.clear();
    }
    in_string_ = byte == '"';
    if (arrays_ > 0) text_.add(byte);
    return true;
  }
  if (arrays_ > 0) text_.add(byte);
  if (escaped_ || byte != '"') {
    escaped_ = !escaped_ && byte == '\\';
    if (item_) string_ += byte;
    return true;
  }
  in_string_ = false;
  if (!std::exchange(item_, false)) return true;
  Known one{parse_json('"' + string_ + '"').as_string(), {}};
  if (open_.back().bracket == '{') one.members = ordered_text(text_.from(open_.back().begin) + "}");
  auto& known = array()->known;
  if (known.any([&](const Known& other) { return other == one; })) return false;
  known.add(std::move(one));
  return true;
}

// With an escape in it, the text is not compared.
bool UniqueItems::may_repeat() const {
  const Open* items = array();
  if (!item_ || items->known.size() == 0) return false;
  if (string_.find('\\') != std::string::npos) return true;
  return items->known.any([&](const Known& other) { return other.text.starts_with(string_); });
}

}  // namespace tokamak::grammar
