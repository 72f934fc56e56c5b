#pragma once
// Arrays whose strings must differ (uniqueItems). An automaton cannot remember them, so the matcher
// searches the text.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::grammar {

// The strings of one array. Copies share all but the last ones: the matcher makes a copy for every
// token that it checks.
class KnownStrings {
 public:
  void add(std::string text);
  bool empty() const { return older_ == nullptr && last_.empty(); }
  template <class Test>
  bool any(const Test& test) const {
    return (older_ != nullptr && std::any_of(older_->begin(), older_->end(), test)) ||
           std::any_of(last_.begin(), last_.end(), test);
  }

 private:
  std::shared_ptr<const std::vector<std::string>> older_;  // nullptr: none
  std::vector<std::string> last_;
};

// JSON text up to some byte. Owner: one Matcher; a copy is a fork.
class UniqueItems {
 public:
  // `unique`: the byte begins a string that must differ from the others of its array. False: it
  // completes one that is there already.
  bool read(char byte, bool unique);
  bool in_array() const { return !open_.empty() && open_.back() == '['; }
  // The byte would begin a string that may be such a one.
  bool begins_item(char byte) const { return byte == '"' && !in_string_ && in_array(); }
  bool in_item() const { return item_; }
  // The string that is being read could still become one that is there already, if its next quote
  // ended it.
  bool may_repeat() const;

 private:
  std::string open_;                     // brackets
  std::vector<KnownStrings> known_{{}};  // by open bracket; the first is unused
  bool in_string_ = false, escaped_ = false, item_ = false;
  std::string text_;  // of the item, with its escapes
};

}  // namespace tokamak::grammar
