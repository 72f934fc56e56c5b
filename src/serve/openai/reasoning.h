#pragma once
// Separates a model's reasoning from its answer: <think> ... </think>.
#include <string>
#include <string_view>

namespace tokamak::openai {

// Owner: one choice; one thread at a time. Text may arrive in any pieces, the result is the same.
class ReasoningSplit {
 public:
  enum class Start {
    kOff,     // everything is answer
    kMaybe,   // reasoning if the answer begins with <think>
    kInside,  // the prompt has already opened <think>
  };
  explicit ReasoningSplit(Start start) : state_(static_cast<State>(start)) {}

  struct Result {
    std::string reasoning, text;
  };
  Result push(std::string_view text);
  Result finish();
  bool inside() const { return state_ == State::kInside; }

 private:
  enum class State { kText, kMaybe, kInside, kAfter };  // the first three as in Start
  void begin(Result& result);
  void think(Result& result);

  State state_;
  bool fresh_ = true;  // no reasoning was returned yet
  std::string held_;
};

// How an answer to this prompt begins, judging by the model's template and the end of the prompt.
ReasoningSplit::Start reasoning_start(std::string_view chat_template, std::string_view prompt);

}  // namespace tokamak::openai
