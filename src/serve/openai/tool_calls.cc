#include "serve/openai/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/openai/mark.h"
#include "serve/openai/params.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>",
                           kPythonTag = "<|python_tag|>";
constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
}

}  // namespace

ToolStyle tool_style_of(std::string_view chat_template) {
  if (chat_template.find("tool") == std::string_view::npos) return ToolStyle::kNone;
  if (chat_template.find(kCallOpen) != std::string_view::npos) return ToolStyle::kHermes;
  if (chat_template.find(kPythonTag) != std::string_view::npos) return ToolStyle::kLlama3;
  return ToolStyle::kNone;
}

void append_calls(std::vector<ToolCall>& calls, std::vector<ToolCall>&& more) {
  for (ToolCall& call : more) {
    if (!calls.empty() && calls.back().index == call.index)
      calls.back().arguments += call.arguments;
    else
      calls.push_back(std::move(call));
  }
}

void ToolCalls::begin_call() {
  where_ = Where::kCall;
  scanner_ = {};
  open_ = false;
}

bool ToolCalls::read_call(Result& result) {
  size_t used = scanner_.push(held_);
  if (!open_) before_ += held_.substr(0, used);
  held_.erase(0, used);
  if (scanner_.begun()) {
    if (!std::exchange(open_, true))
      result.calls.push_back(
          {count_++, fmt::format("call_{:016x}", fresh_number()), scanner_.name(), ""});
    if (std::string more = scanner_.take_arguments(); !more.empty()) {
      if (result.calls.empty() || result.calls.back().index != count_ - 1)
        result.calls.push_back({count_ - 1, "", "", ""});
      result.calls.back().arguments += more;
    }
  }
  return scanner_.state() != CallScanner::State::kReading;
}

void ToolCalls::push_hermes(Result& result) {
  while (true) {
    if (where_ == Where::kText) {
      size_t at = held_.find(kCallOpen);
      if (at == std::string::npos) break;
      // White space before a call is dropped, unless it turns out not to be a call.
      size_t end = at == 0 ? 0 : held_.find_last_not_of(kBlank, at - 1) + 1;
      result.text += held_.substr(0, end);
      before_ = held_.substr(end, at + kCallOpen.size() - end);
      held_.erase(0, at + kCallOpen.size());
      begin_call();
    }
    if (!read_call(result)) return;
    // The next call may begin without the end of this one.
    size_t close = held_.find(kCallClose), next = open_ ? held_.find(kCallOpen) : std::string::npos;
    if (close == std::string::npos && next == std::string::npos) return;
    size_t end = next < close ? next : close + kCallClose.size();
    if (!open_) result.text += before_ + held_.substr(0, end);
    held_.erase(0, end);
    where_ = Where::kText;
  }
  // White space is held back as well: between two calls it is dropped.
  size_t keep = overlap(held_, kCallOpen);
  std::string_view rest = std::string_view(held_).substr(0, held_.size() - keep);
  size_t last = rest.find_last_not_of(kBlank);
  size_t send = last == std::string_view::npos ? 0 : last + 1;
  result.text += held_.substr(0, send);
  held_.erase(0, send);
}

// The whole answer is one call, or text.
void ToolCalls::push_llama(Result& result) {
  if (where_ == Where::kText) {
    std::string_view begin = trimmed(held_);
    if (kPythonTag.starts_with(begin)) return;  // not known yet
    bool tag = begin.starts_with(kPythonTag);
    if (tag) begin = trimmed(begin.substr(kPythonTag.size()));
    if (begin.empty()) return;
    if (begin[0] == '{') {
      size_t at = held_.find('{');
      before_ = held_.substr(0, at);
      held_.erase(0, at);
      begin_call();
    } else {
      where_ = Where::kPlain;
    }
  }
  if (where_ == Where::kCall && read_call(result)) {
    where_ = Where::kPlain;
    if (!open_) result.text += before_;
  }
  if (where_ == Where::kPlain && (count_ == 0 || !trimmed(held_).empty())) {
    result.text += held_;
    held_.clear();
  }
}

ToolCalls::Result ToolCalls::push(std::string_view text) {
  Result result;
  held_ += text;
  if (style_ == ToolStyle::kHermes)
    push_hermes(result);
  else if (style_ == ToolStyle::kLlama3)
    push_llama(result);
  else
    result.text.swap(held_);
  return result;
}

ToolCalls::Result ToolCalls::finish() {
  Result result;
  // The closing tag is missing if the answer was truncated, or if it is a stop string.
  if (where_ == Where::kCall && open_) held_.clear();
  if (where_ == Where::kCall && !open_) result.text = before_;
  if (any() && trimmed(held_).empty()) held_.clear();
  result.text += held_;
  held_.clear();
  return result;
}

}  // namespace tokamak::openai
