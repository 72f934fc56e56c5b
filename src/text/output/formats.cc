#include "text/output/formats.h"

#include <utility>

#include "text/output/machines.h"

namespace tokamak {
namespace {

using Types = ToolTypes;
using MachinePtr = std::unique_ptr<CallMachine>;

MachinePtr json_machine(const Types&) { return make_json_calls(); }

MachinePtr named_by_args_mark(const Types& types) {
  return make_named_call({.separator = "[ARGS]"}, types);
}
// Lists of JSON objects in older versions, NAME[ARGS]{...} in newer ones.
class MistralCalls final : public CallMachine {
 public:
  explicit MistralCalls(const Types& types) : types_(types) {}

 protected:
  bool step(CallSink& sink) override {
    if (inner_ == nullptr) {
      if (!skip_space()) return false;
      inner_ = held_[0] == '[' || held_[0] == '{' ? make_json_calls() : named_by_args_mark(types_);
    }
    inner_->push(std::exchange(held_, {}), sink);
    if (inner_->state() == State::kReading) return false;
    held_ = inner_->rest();
    return inner_->state() == State::kDone ? done() : bad();
  }

 private:
  const Types& types_;
  MachinePtr inner_;
};
MachinePtr mistral(const Types& types) { return std::make_unique<MistralCalls>(types); }

MachinePtr deepseek(const Types& types) {
  return make_named_call({.separator = "<｜tool▁sep｜>"}, types);
}
MachinePtr kimi(const Types& types) {
  return make_named_call({.separator = "<|tool_call_argument_begin|>"}, types);
}
MachinePtr glm4(const Types& types) {
  return make_named_call({.separator = "\n", .known = true}, types);
}
MachinePtr glm45(const Types& types) {
  return make_tagged_call({.begin = "",
                           .name_end = "\n<",
                           .key = "<arg_key>",
                           .key_end = "</arg_key>",
                           .value = "<arg_value>",
                           .value_end = "</arg_value>",
                           .end = "</tool_call>",
                           .closes = true},
                          types);
}
MachinePtr qwen_coder(const Types& types) {
  return make_tagged_call({.begin = "<function=",
                           .name_end = ">",
                           .key = "<parameter=",
                           .key_end = ">",
                           .value = "",
                           .value_end = "</parameter>",
                           .end = "</function>",
                           .lines = true},
                          types);
}
MachinePtr python_machine(const Types& types) { return make_python_calls(types); }
MachinePtr function_gemma(const Types&) { return make_gemma_call("<escape>"); }
MachinePtr gemma4(const Types&) { return make_gemma_call("<|\"|>"); }

// The first row whose sign occurs in a template wins: special marks come before common ones.
const ToolFormat kFormats[] = {
    {.name = "harmony",
     .signs = {"<|channel|>"},
     .opens = {},
     .closes = {},
     .dropped = {},
     .stops = {"<|call|>"}},
    {.name = "kimi_k2",
     .signs = {"<|tool_call_begin|>"},
     .opens = {"<|tool_call_begin|>"},
     .closes = {"<|tool_call_end|>"},
     .dropped = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
     .machine = kimi},
    {.name = "deepseek",
     .signs = {"<｜tool▁call▁begin｜>"},
     .opens = {"<｜tool▁call▁begin｜>"},
     .closes = {"<｜tool▁call▁end｜>"},
     .dropped = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
     .machine = deepseek},
    {.name = "qwen3_coder",
     .signs = {"<function="},
     .opens = {"<function="},
     .closes = {"</tool_call>"},
     .dropped = {"<tool_call>"},
     .keeps_open = true,
     .machine = qwen_coder},
    {.name = "glm45",
     .signs = {"<arg_key>"},
     .opens = {"<tool_call>"},
     .closes = {"</tool_call>"},
     .dropped = {},
     .stops = {"<|observation|>"},
     .machine = glm45},
    {.name = "mistral_args",
     .signs = {"[ARGS]"},
     .opens = {"[TOOL_CALLS]"},
     .closes = {},
     .dropped = {},
     .ids = CallIds::kNineChars,
     .machine = mistral},
    {.name = "mistral",
     .signs = {"[TOOL_CALLS]"},
     .opens = {"[TOOL_CALLS]"},
     .closes = {},
     .dropped = {},
     .ids = CallIds::kNineChars,
     .machine = mistral},
    {.name = "command_r",
     .signs = {"<|START_ACTION|>", "Action:```json", "Action: ```json"},
     .opens = {"<|START_ACTION|>", "Action:```json", "Action: ```json"},
     .closes = {"<|END_ACTION|>", "```"},
     .dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     .machine = json_machine},
    {.name = "gemma4",
     .signs = {"<|tool_call>"},
     .opens = {"<|tool_call>"},
     .closes = {"<tool_call|>"},
     .dropped = {},
     .stops = {"<|tool_response>"},
     .machine = gemma4},
    {.name = "gemma",
     .signs = {"<start_function_call>"},
     .opens = {"<start_function_call>"},
     .closes = {"<end_function_call>"},
     .dropped = {},
     .stops = {"<start_function_response>"},
     .machine = function_gemma},
    {.name = "phi4",
     .signs = {"<|tool|>", "functools["},
     .opens = {"<|tool_call|>", "functools"},
     .closes = {"<|/tool_call|>"},
     .dropped = {},
     .machine = json_machine},
    {.name = "granite",
     .signs = {"<|tool_call|>"},
     .opens = {"<|tool_call|>", "<tool_call>"},
     .closes = {"</tool_call>"},
     .dropped = {"<response>", "</response>"},
     .machine = json_machine},
    {.name = "hermes",
     .signs = {"<tool_call>"},
     .opens = {"<tool_call>"},
     .closes = {"</tool_call>"},
     .dropped = {},
     .machine = json_machine},
    {.name = "llama4",
     .signs = {"[func_name1(param"},
     .opens = {"<|python_start|>"},
     .closes = {"<|python_end|>"},
     .dropped = {},
     .first = "[",
     .machine = python_machine},
    {.name = "llama4_json",
     .signs = {"<|python_start|>", "<|header_start|>"},
     .opens = {"<|python_start|>", "<|python_end|>"},
     .closes = {"<|python_end|>"},
     .dropped = {},
     .first = "{",
     .machine = json_machine},
    {.name = "llama3",
     .signs = {"<|python_tag|>"},
     .opens = {"<|python_tag|>"},
     .closes = {},
     .dropped = {},
     .first = "{",
     .machine = json_machine},
    {.name = "glm4",
     .signs = {"<|observation|>"},
     .opens = {},
     .closes = {},
     .dropped = {},
     .first_is_name = true,
     .stops = {"<|observation|>"},
     .machine = glm4},
};

constexpr ThoughtMarks kThoughts[] = {{"<think>", "</think>"},
                                      {"[THINK]", "[/THINK]"},
                                      {"<|START_THINKING|>", "<|END_THINKING|>"},
                                      {"<seed:think>", "</seed:think>"},
                                      {"<|channel>thought\n", "<channel|>"}};

bool template_has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::span<const ToolFormat> tool_formats() { return kFormats; }

const ToolFormat* find_tool_format(std::string_view name) {
  for (const ToolFormat& format : kFormats)
    if (format.name == name) return &format;
  return nullptr;
}

const ToolFormat* tool_format_of(std::string_view chat_template) {
  if (!template_has(chat_template, "tool") && !template_has(chat_template, "<|channel|>"))
    return nullptr;
  for (const ToolFormat& format : kFormats)
    for (std::string_view sign : format.signs)
      if (template_has(chat_template, sign)) return &format;
  return nullptr;
}

const ThoughtMarks* thought_marks_of(std::string_view chat_template) {
  for (const ThoughtMarks& marks : kThoughts)
    if (template_has(chat_template, marks.open) || template_has(chat_template, marks.close))
      return &marks;
  return nullptr;
}

bool is_harmony(std::string_view chat_template) {
  return template_has(chat_template, "<|channel|>") && template_has(chat_template, "<|message|>");
}

}  // namespace tokamak
