#pragma once
// Finds the function calls in a model's output. One parser for streams and whole answers: the
// result does not depend on how the text is split.
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/call_scanner.h"

namespace tokamak::openai {

enum class ToolStyle {
  kNone,
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number (Hermes, Qwen)
  kLlama3,  // the whole answer is {"name": ..., "parameters": {...}}, with or without
            // <|python_tag|>
};

// The call format that the model's chat template asks for.
ToolStyle tool_style_of(std::string_view chat_template);

// A call, or more of the arguments of the call with this index.
struct ToolCall {
  int index = 0;
  std::string id, name;   // empty: this continues a call
  std::string arguments;  // JSON text as the model wrote it, as far as known
};

// Joins the parts of calls.
void append_calls(std::vector<ToolCall>& calls, std::vector<ToolCall>&& more);

// Owner: one choice; one thread at a time. Arguments are returned as they arrive; text that does
// not begin like a call stays text.
class ToolCalls {
 public:
  explicit ToolCalls(ToolStyle style = ToolStyle::kNone) : style_(style) {}

  struct Result {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Result push(std::string_view text);
  Result finish();
  bool any() const { return count_ > 0; }

 private:
  enum class Where { kText, kCall, kPlain };  // kPlain: the rest is text

  void push_hermes(Result& result);
  void push_llama(Result& result);
  void begin_call();
  bool read_call(Result& result);  // false: more text is needed

  ToolStyle style_;
  Where where_ = Where::kText;
  std::string held_;
  std::string before_;  // what belongs to the text again if the call is not valid
  CallScanner scanner_;
  bool open_ = false;  // the call was returned, at least in part
  int count_ = 0;
};

}  // namespace tokamak::openai
