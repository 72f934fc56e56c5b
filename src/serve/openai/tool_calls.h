#pragma once
// Finds the function calls in a model's output. One parser for streams and whole answers: the
// result does not depend on how the text is split.
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::openai {

enum class ToolStyle {
  kNone,
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number (Hermes, Qwen)
  kLlama3,  // the whole answer is {"name": ..., "parameters": {...}}, with or without
            // <|python_tag|>
};

// The call format that the model's chat template asks for.
ToolStyle tool_style_of(std::string_view chat_template);

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON text
};

// Owner: one choice; one thread at a time. A call that is not valid JSON stays text.
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
  void push_hermes(Result& result);
  bool add_call(std::string_view json, Result& result);

  ToolStyle style_;
  std::string held_, space_;
  bool inside_ = false;  // Hermes: between the tags. Llama 3: this answer is text
  int count_ = 0;
};

}  // namespace tokamak::openai
