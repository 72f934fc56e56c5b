#pragma once
// Arrays whose items must differ (uniqueItems). An automaton cannot remember them, so the matcher
// searches the text.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::grammar {

// A list that only grows. Copies share all but the last elements: the matcher makes a copy for
// every token that it checks.
template <class T, size_t kMaxLast>
class SharedList {
 public:
  void add(typename T::value_type one) {
    last_.push_back(std::move(one));
    if (last_.size() < kMaxLast) return;
    T all = older_ == nullptr ? T() : *older_;
    all.insert(all.end(), last_.begin(), last_.end());
    last_.clear();
    older_ = std::make_shared<const T>(std::move(all));
  }
  size_t size() const { return older() + last_.size(); }
  T from(size_t begin) const {  // the elements from this one on
    T out;
    if (begin < older()) out.assign(older_->begin() + static_cast<ptrdiff_t>(begin), older_->end());
    const size_t skipped = std::max(begin, older()) - older();
    out.insert(out.end(), last_.begin() + static_cast<ptrdiff_t>(skipped), last_.end());
    return out;
  }
  template <class Test>
  bool any(const Test& test) const {
    return (older_ != nullptr && std::any_of(older_->begin(), older_->end(), test)) ||
           std::any_of(last_.begin(), last_.end(), test);
  }

 private:
  size_t older() const { return older_ == nullptr ? 0 : older_->size(); }
  std::shared_ptr<const T> older_;  // nullptr: none
  T last_;
};

// JSON text up to some byte. Items are told apart by a string that the grammar marks: the item
// itself, or a member of it; then together with the members before it. Owner: one Matcher; a copy
// is a fork.
class UniqueItems {
 public:
  // `unique`: the byte begins such a string. False: it completes an item that is there already.
  bool read(char byte, bool unique);
  // The byte would begin a string that may be marked.
  bool begins_item(char byte) const { return byte == '"' && !in_string_ && array() != nullptr; }
  // The string that is being read could still become one that is there already, if its next quote
  // ended it.
  bool may_repeat() const;

 private:
  struct Known {
    std::string text;     // of the string
    std::string members;  // until its end, in an order that does not depend on the text
    bool operator==(const Known&) const = default;
  };
  struct Open {
    char bracket;
    size_t begin = 0;                            // in text_, of an item's brace
    SharedList<std::vector<Known>, 32> known{};  // items of an array
  };
  // The array of an item whose text, or whose member, may begin here; nullptr: there is none.
  const Open* array() const;
  Open* array() { return const_cast<Open*>(static_cast<const UniqueItems&>(*this).array()); }
  void read_bracket(char byte);

  std::vector<Open> open_;
  size_t arrays_ = 0;  // in open_
  bool in_string_ = false, escaped_ = false, item_ = false;
  std::string string_;                 // of the item, with its escapes
  SharedList<std::string, 256> text_;  // of the item of the outermost array
};

}  // namespace tokamak::grammar
