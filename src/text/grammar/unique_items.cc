#include "text/grammar/unique_items.h"

#include <utility>

#include "base/json.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kMaxLast = 32;

}  // namespace

void KnownStrings::add(std::string text) {
  last_.push_back(std::move(text));
  if (last_.size() < kMaxLast) return;
  std::vector<std::string> all;
  if (older_ != nullptr) all = *older_;
  for (std::string& each : last_) all.push_back(std::move(each));
  last_.clear();
  older_ = std::make_shared<const std::vector<std::string>>(std::move(all));
}

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
  KnownStrings& known = known_.back();
  if (known.any([&](const std::string& other) { return other == text; })) return false;
  known.add(std::move(text));
  return true;
}

// With an escape in it, the text is not compared.
bool UniqueItems::may_repeat() const {
  const KnownStrings& known = known_.back();
  if (!item_ || known.empty()) return false;
  if (text_.find('\\') != std::string::npos) return true;
  return known.any([&](const std::string& other) { return other.starts_with(text_); });
}

}  // namespace tokamak::grammar
