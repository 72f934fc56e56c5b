#pragma once
// Separates a model's thoughts from its answer: <think> ... </think>, or other marks.
#include <string>
#include <string_view>

#include "text/output/parser.h"

namespace tokamak {

// Owner: one parser. Text may arrive in any pieces, the result is the same.
class ThoughtSplit {
 public:
  ThoughtSplit(const ThoughtMarks* marks, ThoughtStart start)
      : marks_(marks == nullptr ? ThoughtMarks{} : *marks),
        state_(marks == nullptr ? State::kText : static_cast<State>(start)) {}

  struct Result {
    std::string thoughts, text;
  };
  Result push(std::string_view text);
  Result finish();
  bool inside() const { return state_ == State::kInside; }

 private:
  enum class State { kText, kMaybe, kInside, kAfter };  // the first three as in ThoughtStart
  void begin(Result& result);
  void think(Result& result);

  ThoughtMarks marks_;
  State state_;
  bool fresh_ = true;  // no thoughts were returned yet
  std::string held_;
};

}  // namespace tokamak
