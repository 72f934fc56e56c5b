#include "text/output/harmony.h"

#include <algorithm>

#include "text/output/mark.h"

namespace tokamak {
namespace {

constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStart = "<|start|>";
constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart};
constexpr size_t kMaxHeader = 512;

// The word after a mark: up to white space or the next mark.
std::string_view word_after(std::string_view text, std::string_view mark) {
  size_t at = text.find(mark);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + mark.size());
  text.remove_prefix(first_solid(text));
  return text.substr(0, text.find_first_of(" \t\r\n<"));
}

bool begins_message(std::string_view header, bool complete) {
  for (std::string_view begin :
       {kChannel, kStart, std::string_view("to="), std::string_view("assistant")})
    if (header.starts_with(begin) || (!complete && begin.starts_with(header))) return true;
  return false;
}

}  // namespace

HarmonyParser::Result HarmonyParser::push(std::string_view text) {
  Result result;
  held_ += text;
  while (step(result)) {
  }
  result.calls = list_.take();
  return result;
}

bool HarmonyParser::step(Result& result) {
  if (where_ == Where::kHeader) return read_header(result);
  FoundMark found = find_mark(held_, kEnds);
  const bool ends = found.at != std::string_view::npos;
  size_t size = ends ? found.at : held_.size() - overlap(held_, kEnds);
  send(result, std::string_view(held_).substr(0, size));
  held_.erase(0, size + (ends ? found.mark.size() : 0));
  if (ends) end_message();
  return ends;
}

bool HarmonyParser::read_header(Result& result) {
  if (held_.empty()) return false;
  size_t end = held_.find(kMessage);
  std::string header(trimmed(std::string_view(held_).substr(0, end)));
  const bool complete = end != std::string::npos;
  // An answer that does not begin like a message is text.
  if (!begins_message(header, complete) || std::min(end, held_.size()) > kMaxHeader) {
    where_ = Where::kText;
    return true;
  }
  if (!complete) return false;
  held_.erase(0, end + kMessage.size());
  begin(header, result);
  return true;
}

void HarmonyParser::begin(std::string_view header, Result& result) {
  std::string_view channel = word_after(header, kChannel), to = word_after(header, "to=");
  constexpr std::string_view kFunctions = "functions.";
  argued_ = false;
  if (!to.empty() && to != "assistant" && to != "user" && tools_) {
    if (to.starts_with(kFunctions)) to.remove_prefix(kFunctions.size());
    list_.begin(std::string(to));
    where_ = Where::kCall;
  } else if (channel == "analysis") {
    where_ = Where::kThoughts;
    if (thought_) result.thoughts += "\n";
  } else {
    where_ = Where::kText;
    if (said_) result.text += "\n";
  }
}

void HarmonyParser::send(Result& result, std::string_view body) {
  if (body.empty()) return;
  if (where_ == Where::kCall) {
    argued_ = true;
    list_.add(body);
  } else if (where_ == Where::kThoughts) {
    thought_ = true;
    result.thoughts += body;
  } else {
    said_ = true;
    result.text += body;
  }
}

void HarmonyParser::end_message() {
  if (where_ == Where::kCall && !argued_) list_.add("{}");
  where_ = Where::kHeader;
}

HarmonyParser::Result HarmonyParser::finish() {
  Result result;
  if (where_ == Where::kHeader) {
    // A truncated header has no content; text that only looks like one at its beginning is text.
    if (!said_ && !thought_ && list_.count() == 0 && held_.find("<|") == std::string::npos)
      result.text = held_;
  } else {
    send(result, held_);
    if (where_ == Where::kCall && !argued_) list_.add("{}");
  }
  held_.clear();
  result.calls = list_.take();
  return result;
}

}  // namespace tokamak
