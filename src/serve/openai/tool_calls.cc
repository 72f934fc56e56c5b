#include "serve/openai/tool_calls.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "serve/openai/mark.h"
#include "serve/openai/params.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>",
                           kPythonTag = "<|python_tag|>";
constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

}  // namespace

ToolStyle tool_style_of(std::string_view chat_template) {
  if (chat_template.find("tool") == std::string_view::npos) return ToolStyle::kNone;
  if (chat_template.find(kOpen) != std::string_view::npos) return ToolStyle::kHermes;
  if (chat_template.find(kPythonTag) != std::string_view::npos) return ToolStyle::kLlama3;
  return ToolStyle::kNone;
}

bool ToolCalls::add_call(std::string_view json, Result& result) {
  try {
    Value call = parse_json(json, "tool call", {.max_depth = 64});
    const Value* name = call.find("name");
    const Value* arguments = call.find("arguments");
    if (arguments == nullptr) arguments = call.find("parameters");
    if (name == nullptr || !name->is_string()) return false;
    std::string text = arguments == nullptr     ? "{}"
                       : arguments->is_string() ? arguments->as_string()
                                                : dump_json(*arguments);
    result.calls.push_back(
        {fmt::format("call_{:016x}", fresh_number()), name->as_string(), std::move(text)});
    ++count_;
    return true;
  } catch (const Error&) {
    return false;
  }
}

void ToolCalls::push_hermes(Result& result) {
  while (true) {
    std::string_view mark = inside_ ? kClose : kOpen;
    size_t at = held_.find(mark);
    if (at == std::string::npos) break;
    std::string before = held_.substr(0, at);
    held_.erase(0, at + mark.size());
    if (!inside_) {
      // White space before a call is dropped, unless it turns out not to be a call.
      size_t end = before.find_last_not_of(kSpace) + 1;
      result.text += before.substr(0, end);
      space_ = before.substr(end);
    } else if (!add_call(trimmed(before), result)) {
      result.text += space_ + std::string(kOpen) + before + std::string(kClose);
    }
    inside_ = !inside_;
  }
  if (inside_) return;
  // White space is held back as well: between two calls it is dropped.
  size_t keep = overlap(held_, kOpen);
  std::string_view rest = std::string_view(held_).substr(0, held_.size() - keep);
  size_t last = rest.find_last_not_of(kSpace);
  size_t send = last == std::string_view::npos ? 0 : last + 1;
  result.text += held_.substr(0, send);
  held_.erase(0, send);
}

ToolCalls::Result ToolCalls::push(std::string_view text) {
  Result result;
  if (style_ == ToolStyle::kNone) {
    result.text = text;
    return result;
  }
  held_ += text;
  if (style_ == ToolStyle::kHermes) {
    push_hermes(result);
    return result;
  }
  // An answer that does not begin like a call is plain text.
  std::string_view begin = trimmed(held_);
  bool may_be_call = begin.empty() || begin[0] == '{' || begin.starts_with(kPythonTag) ||
                     kPythonTag.starts_with(begin);
  if (inside_ || !may_be_call) {
    inside_ = true;
    result.text.swap(held_);
  }
  return result;
}

ToolCalls::Result ToolCalls::finish() {
  Result result;
  if (style_ == ToolStyle::kLlama3 && !inside_) {
    std::string_view body = trimmed(held_);
    if (body.starts_with(kPythonTag)) body.remove_prefix(kPythonTag.size());
    if (!body.empty() && add_call(body, result)) held_.clear();
  }
  if (style_ == ToolStyle::kHermes && inside_) {
    // The closing tag is missing if the answer was truncated, or if it is a stop string.
    if (!add_call(trimmed(held_), result)) result.text = space_ + std::string(kOpen) + held_;
    held_.clear();
  }
  if (any() && trimmed(held_).empty()) held_.clear();
  result.text += held_;
  held_.clear();
  return result;
}

}  // namespace tokamak::openai
