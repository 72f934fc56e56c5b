#include "serve/openai/reasoning.h"

#include <algorithm>

#include "serve/openai/mark.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpace = " \t\r\n";

size_t first_solid(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

// How much of the end of text must be held back: white space, and a possible beginning of the tag.
size_t waiting(std::string_view text, std::string_view mark) {
  size_t solid = text.substr(0, text.size() - overlap(text, mark)).find_last_not_of(kSpace);
  return text.size() - (solid == std::string_view::npos ? 0 : solid + 1);
}

}  // namespace

ReasoningSplit::Start reasoning_start(std::string_view chat_template, std::string_view prompt) {
  if (chat_template.find(kOpen) == std::string_view::npos &&
      chat_template.find(kClose) == std::string_view::npos)
    return ReasoningSplit::Start::kOff;
  size_t last = prompt.find_last_not_of(kSpace);
  bool opened = last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(kOpen);
  return opened ? ReasoningSplit::Start::kInside : ReasoningSplit::Start::kMaybe;
}

// If the answer does not begin with the tag, it has no reasoning.
void ReasoningSplit::begin(Result& result) {
  std::string_view rest = std::string_view(held_).substr(first_solid(held_));
  if (rest.size() < kOpen.size() && kOpen.starts_with(rest)) return;  // not known yet
  if (rest.starts_with(kOpen)) {
    held_.erase(0, held_.size() - rest.size() + kOpen.size());
    state_ = State::kInside;
    return think(result);
  }
  state_ = State::kText;
  result.text.swap(held_);
}

void ReasoningSplit::think(Result& result) {
  if (fresh_) held_.erase(0, first_solid(held_));
  size_t end = held_.find(kClose);
  size_t keep = end == std::string::npos ? waiting(held_, kClose) : 0;
  std::string thoughts = held_.substr(0, end == std::string::npos ? held_.size() - keep : end);
  if (end != std::string::npos) thoughts.resize(thoughts.find_last_not_of(kSpace) + 1);
  fresh_ = fresh_ && thoughts.empty();
  result.reasoning += thoughts;
  held_.erase(0, end == std::string::npos ? thoughts.size() : end + kClose.size());
  if (end == std::string::npos) return;
  state_ = State::kAfter;
}

ReasoningSplit::Result ReasoningSplit::push(std::string_view text) {
  Result result;
  if (state_ == State::kText) {
    result.text = text;
    return result;
  }
  held_ += text;
  if (state_ == State::kMaybe)
    begin(result);
  else if (state_ == State::kInside)
    think(result);
  if (state_ == State::kAfter) {  // white space between reasoning and answer belongs to neither
    held_.erase(0, first_solid(held_));
    if (!held_.empty()) {
      state_ = State::kText;
      result.text.swap(held_);
    }
  }
  return result;
}

ReasoningSplit::Result ReasoningSplit::finish() {
  Result result;
  if (state_ == State::kInside)
    result.reasoning.swap(held_);
  else if (state_ != State::kAfter)
    result.text.swap(held_);
  held_.clear();
  return result;
}

}  // namespace tokamak::openai
