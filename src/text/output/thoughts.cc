#include "text/output/thoughts.h"

#include "text/output/mark.h"

namespace tokamak {
namespace {

// How much of the end of text must be held back: white space, and a possible beginning of the mark.
size_t held_back(std::string_view text, std::string_view mark) {
  size_t solid = text.substr(0, text.size() - overlap(text, mark)).find_last_not_of(kBlank);
  return text.size() - (solid == std::string_view::npos ? 0 : solid + 1);
}

}  // namespace

// If the answer does not begin with the tag, it has no thoughts.
void ThoughtSplit::begin(Result& result) {
  std::string_view rest = std::string_view(held_).substr(first_solid(held_));
  if (rest.size() < marks_.open.size() && marks_.open.starts_with(rest)) return;  // not known yet
  if (rest.starts_with(marks_.open)) {
    held_.erase(0, held_.size() - rest.size() + marks_.open.size());
    state_ = State::kInside;
    return think(result);
  }
  state_ = State::kText;
  result.text.swap(held_);
}

void ThoughtSplit::think(Result& result) {
  if (fresh_) held_.erase(0, first_solid(held_));
  size_t end = held_.find(marks_.close);
  size_t keep = end == std::string::npos ? held_back(held_, marks_.close) : 0;
  std::string thoughts = held_.substr(0, end == std::string::npos ? held_.size() - keep : end);
  if (end != std::string::npos) thoughts.resize(thoughts.find_last_not_of(kBlank) + 1);
  fresh_ = fresh_ && thoughts.empty();
  result.thoughts += thoughts;
  held_.erase(0, end == std::string::npos ? thoughts.size() : end + marks_.close.size());
  if (end == std::string::npos) return;
  state_ = State::kAfter;
}

ThoughtSplit::Result ThoughtSplit::push(std::string_view text) {
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
  if (state_ == State::kAfter) {  // white space between thoughts and answer belongs to neither
    held_.erase(0, first_solid(held_));
    if (!held_.empty()) {
      state_ = State::kText;
      result.text.swap(held_);
    }
  }
  return result;
}

ThoughtSplit::Result ThoughtSplit::finish() {
  Result result;
  if (state_ == State::kInside)
    result.thoughts.swap(held_);
  else if (state_ != State::kAfter)
    result.text.swap(held_);
  held_.clear();
  return result;
}

}  // namespace tokamak
