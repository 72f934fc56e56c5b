#include "text/grammar/unique_items.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace tokamak::grammar {

bool UniqueItems::read(char byte, bool unique) {
  if (!in_string_) {
    if (begins_item(byte) && unique) {
      item_ = true;
      text_.clear();
    }
    in_string_ = byte == '"';
    if (byte == '[' || byte == '{') {
      open_ += byte;
      known_.emplace_back();
    } else if ((byte == ']' || byte == '}') && !open_.empty()) {
      open_.pop_back();
      known_.pop_back();
    }
    return true;
  }
  if (escaped_ || byte != '"') {
    escaped_ = !escaped_ && byte == '\\';
    if (item_) text_ += byte;
    return true;
  }
  in_string_ = false;
  if (!std::exchange(item_, false)) return true;
  std::string text = parse_json('"' + text_ + '"').as_string();
  std::vector<std::string>& known = known_.back();
  if (std::find(known.begin(), known.end(), text) != known.end()) return false;
  known.push_back(std::move(text));
  return true;
}

// With an escape in it, the text is not compared.
bool UniqueItems::may_repeat() const {
  const std::vector<std::string>& known = known_.back();
  if (!item_ || known.empty()) return false;
  if (text_.find('\\') != std::string::npos) return true;
  return std::any_of(known.begin(), known.end(),
                     [&](const std::string& other) { return other.starts_with(text_); });
}

}  // namespace tokamak::grammar
