#pragma once
// Arrays whose strings must differ (uniqueItems). No automaton remembers them, so that they are
// looked for in the text.
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::grammar {

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
  std::string open_;  // brackets
  std::vector<std::vector<std::string>> known_{
      {}};  // strings, by open bracket; the first is unused
  bool in_string_ = false, escaped_ = false, item_ = false;
  std::string text_;  // of the item, with its escapes
};

}  // namespace tokamak::grammar
