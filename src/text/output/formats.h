#pragma once
// The formats in which models write their answers: where thoughts begin and end, and how functions
// are called.
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/output/call.h"

namespace tokamak {

enum class CallIds {
  kOwn,       // the model's, or call_0123456789abcdef
  kNineChars  // the only form that the template accepts
};

// A row of the table of call formats; all of them are constants.
struct ToolFormat {
  std::string_view name;
  std::vector<std::string_view> signs;    // a template with one of them uses this format
  std::vector<std::string_view> opens;    // marks before calls
  std::vector<std::string_view> closes;   // marks after them; dropped as well where no call is open
  std::vector<std::string_view> dropped;  // marks around calls and answers
  // Characters that begin calls without a mark, if the whole answer consists of them.
  std::string_view first = {};
  bool first_is_name = false;                // or a letter
  bool keeps_open = false;                   // the opening mark is part of the call
  std::vector<std::string_view> stops = {};  // tokens that end an answer with calls
  CallIds ids = CallIds::kOwn;
  std::unique_ptr<CallMachine> (*machine)(const ToolTypes& types) = nullptr;  // nullptr: Harmony
};

// nullptr: no format of that name.
const ToolFormat* find_tool_format(std::string_view name);
// The call format that the model's chat template asks for; nullptr: none.
const ToolFormat* tool_format_of(std::string_view chat_template);
std::span<const ToolFormat> tool_formats();

struct ThoughtMarks {
  std::string_view open, close;
};
// nullptr: answers with this template have no thoughts.
const ThoughtMarks* thought_marks_of(std::string_view chat_template);

// The template is one of OpenAI's Harmony format, in which every answer consists of messages.
bool is_harmony(std::string_view chat_template);

}  // namespace tokamak
