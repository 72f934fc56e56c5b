#include "text/output/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "text/output/mark.h"

namespace tokamak {

void CallList::begin(std::string name, std::string id) {
  auto bits = philox(seed_, static_cast<uint64_t>(count_), 0);
  if (ids_ == CallIds::kNineChars) {
    constexpr std::string_view kLetters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint64_t number = uint64_t{bits[0]} << 32 | bits[1];
    id.clear();
    for (int i = 0; i < 9; ++i, number /= kLetters.size()) id += kLetters[number % kLetters.size()];
  } else if (id.empty()) {
    id = fmt::format("call_{:08x}{:08x}", bits[0], bits[1]);
  }
  parts_.push_back({count_++, std::move(id), std::move(name), ""});
}

void CallList::add(std::string_view arguments) {
  if (parts_.empty()) parts_.push_back({count_ - 1, "", "", ""});
  parts_.back().arguments += arguments;
}

std::vector<ToolCall> CallList::take() { return std::exchange(parts_, {}); }

ToolCalls::ToolCalls(const ToolFormat* format, const ToolTypes& types, uint64_t seed)
    : format_(format), types_(types), list_(format == nullptr ? CallIds::kOwn : format->ids, seed) {
  if (format_ == nullptr) return;
  const bool whole = !format_->first.empty() || format_->first_is_name;
  where_ = whole ? Where::kStart : Where::kText;
  if (!whole) marks_ = format_->opens;
  marks_.insert(marks_.end(), format_->dropped.begin(), format_->dropped.end());
  // Closing marks without a call are noise, except those that other text has as well.
  for (std::string_view mark : format_->closes)
    if (mark != "```" && mark != "</tool_call>") marks_.push_back(mark);
}

ToolCalls::Result ToolCalls::push(std::string_view text) {
  Result result;
  if (format_ == nullptr) {
    result.text = text;
    return result;
  }
  held_ += text;
  while (step(result)) {
  }
  result.calls = list_.take();
  return result;
}

bool ToolCalls::step(Result& result) {
  switch (where_) {
    case Where::kStart:
      return start(result);
    case Where::kCall:
      return read_call(result);
    case Where::kClose:
      return find_close();
    case Where::kAgain:
      return read_again();
    default:
      return find_call(result);
  }
}

void ToolCalls::begin_call(size_t before, size_t size) {
  before_ = held_.substr(0, before);
  held_.erase(0, before);
  raw_.clear();
  if (format_->keeps_open) {
    // It precedes the machine's text, and is not looked for again if the call is not valid.
    raw_ = before_.substr(before - size);
    before_.resize(before - size);
  }
  machine_ = format_->machine(types_);
  first_ = list_.count();
  where_ = Where::kCall;
  if (!raw_.empty()) machine_->push(raw_, list_);
}

bool ToolCalls::start(Result&) {
  size_t at = first_solid(held_);
  std::string_view rest = std::string_view(held_).substr(at);
  for (std::string_view open : format_->opens) {
    if (rest.size() < open.size() && open.starts_with(rest)) return false;
    if (!rest.starts_with(open)) continue;
    at += open.size();
    at += first_solid(std::string_view(held_).substr(at));
    rest = std::string_view(held_).substr(at);
  }
  if (rest.empty()) return false;
  const char c = rest[0];
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  if (format_->first.find(c) != std::string_view::npos || (format_->first_is_name && letter))
    begin_call(at, 0);
  else
    where_ = Where::kText;
  return true;
}

void ToolCalls::send(Result& result, size_t size) {
  result.text += held_.substr(0, size);
  held_.erase(0, size);
}

bool ToolCalls::find_call(Result& result) {
  FoundMark found = find_mark(held_, marks_);
  if (found.at == std::string_view::npos) {
    // White space is held back as well: before a call it is dropped.
    size_t keep = overlap(held_, marks_);
    send(result,
         std::string_view(held_).substr(0, held_.size() - keep).find_last_not_of(kBlank) + 1);
    return false;
  }
  size_t solid = found.at == 0 ? 0 : held_.find_last_not_of(kBlank, found.at - 1) + 1;
  send(result, solid);
  const auto& opens = format_->opens;
  if (std::find(opens.begin(), opens.end(), found.mark) != opens.end())
    begin_call(found.at - solid + found.mark.size(), found.mark.size());
  else
    held_.erase(found.at - solid, found.mark.size());
  return true;
}

bool ToolCalls::read_call(Result& result) {
  if (list_.count() == first_) raw_ += held_;
  machine_->push(std::exchange(held_, {}), list_);
  if (machine_->state() == CallMachine::State::kReading) return false;
  const bool whole = !format_->first.empty() || format_->first_is_name;
  if (list_.count() == first_) {  // not a call
    result.text += before_;
    if (format_->keeps_open) {
      result.text += raw_.substr(0, 1);
      raw_.erase(0, 1);
    }
    held_ = std::move(raw_);
    where_ = Where::kText;
    return true;
  }
  const bool valid = machine_->state() == CallMachine::State::kDone;
  held_ = machine_->rest();
  where_ = machine_->closed() || (format_->closes.empty() && !whole) ? Where::kText
           : whole && valid                                          ? Where::kAgain
           : whole                                                   ? Where::kText
                                                                     : Where::kClose;
  return true;
}

bool ToolCalls::find_close() {
  // The next call may begin without the end of this one.
  std::vector<std::string_view> ends = format_->closes;
  ends.insert(ends.end(), format_->opens.begin(), format_->opens.end());
  FoundMark found = find_mark(held_, ends);
  if (found.at == std::string_view::npos) return false;
  const auto& opens = format_->opens;
  const bool next = std::find(opens.begin(), opens.end(), found.mark) != opens.end();
  held_.erase(0, found.at + (next ? 0 : found.mark.size()));
  where_ = Where::kText;
  return true;
}

bool ToolCalls::read_again() {
  size_t at = std::min(held_.find_first_not_of(" \t\r\n;"), held_.size());
  if (at == held_.size()) return false;
  if (format_->first.find(held_[at]) == std::string_view::npos)
    where_ = Where::kText;
  else
    begin_call(at, 0);
  return true;
}

ToolCalls::Result ToolCalls::finish() {
  Result result;
  if (where_ == Where::kCall && list_.count() == first_) result.text = before_ + raw_;
  // The closing mark is missing if the answer was truncated, or if it is a stop string.
  if (where_ == Where::kClose || where_ == Where::kCall) held_.clear();
  if (any() && held_.find_first_not_of(" \t\r\n;") == std::string::npos) held_.clear();
  result.text += held_;
  held_.clear();
  result.calls = list_.take();
  return result;
}

}  // namespace tokamak
