#include "text/stop_strings.h"

#include <deque>

namespace tokamak {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (std::string& s : stops)
    if (!s.empty()) stops_.push_back(std::move(s));
  build();
}

void StopStrings::build() {
  states_.assign(1, {});
  const auto child = [&](int state, unsigned char byte) {
    for (const auto& [b, target] : states_[state].next)
      if (b == byte) return target;
    return -1;
  };
  for (size_t i = 0; i < stops_.size(); ++i) {
    int state = 0;
    for (char c : stops_[i]) {
      const auto byte = static_cast<unsigned char>(c);
      int target = child(state, byte);
      if (target < 0) {
        target = static_cast<int>(states_.size());
        states_.push_back({0, states_[state].depth + 1, -1, {}});
        states_[state].next.emplace_back(byte, target);
      }
      state = target;
    }
    if (states_[state].match < 0) states_[state].match = static_cast<int>(i);
  }
  std::deque<int> todo;
  for (const auto& [b, target] : states_[0].next) todo.push_back(target);
  while (!todo.empty()) {
    const int state = todo.front();
    todo.pop_front();
    for (const auto& [b, target] : states_[state].next) {
      states_[target].fail = step(states_[state].fail, b);
      todo.push_back(target);
    }
    // The longest match that ends here: the state's own, otherwise that of its suffix.
    if (states_[state].match < 0) states_[state].match = states_[states_[state].fail].match;
  }
}

int StopStrings::step(int state, unsigned char byte) const {
  while (true) {
    for (const auto& [b, target] : states_[state].next)
      if (b == byte) return target;
    if (state == 0) return 0;
    state = states_[state].fail;
  }
}

StopStrings::Result StopStrings::push(std::string_view text) {
  if (stopped()) return {{}, true};
  if (stops_.empty()) return {std::string(text), false};
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = step(state_, static_cast<unsigned char>(text[i]));
    held_ += text[i];
    if (states_[state_].match < 0) continue;
    stopped_ = states_[state_].match;
    if (!include_stop_) held_.resize(held_.size() - stops_[stopped_].size());
    Result result{std::move(held_), true};
    held_.clear();
    return result;
  }
  // Everything before the longest suffix that begins a stop string can be sent. It never ends
  // inside a
  // character, because a stop string begins with a whole character.
  size_t safe = held_.size() - static_cast<size_t>(states_[state_].depth);
  while (safe > 0 && safe < held_.size() &&
         (static_cast<unsigned char>(held_[safe]) & 0xC0) == 0x80)
    --safe;
  Result result{held_.substr(0, safe), false};
  held_.erase(0, safe);
  return result;
}

std::string StopStrings::finish() {
  std::string out;
  out.swap(held_);
  state_ = 0;
  return out;
}

const std::string& StopStrings::matched() const {
  static const std::string none;
  return stopped_ < 0 ? none : stops_[stopped_];
}

void StopStrings::reset() {
  state_ = 0;
  stopped_ = -1;
  held_.clear();
}

}  // namespace tokamak
