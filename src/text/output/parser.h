#pragma once
// Takes a model's answer apart while it arrives: thoughts, text and function calls. One parser for
// streams and whole answers: the result does not depend on how the text is cut.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/formats.h"

namespace tokamak {

enum class ThoughtStart {
  kOff,     // the answer has no thoughts
  kMaybe,   // it has, if it begins with the opening mark
  kInside,  // the prompt ends with the opening mark
};

// What is known about an answer before it arrives.
struct OutputSpec {
  const ToolFormat* tools = nullptr;  // nullptr: no tools are offered
  std::shared_ptr<const ToolTypes> types;
  const ThoughtMarks* thoughts = nullptr;
  ThoughtStart start = ThoughtStart::kOff;
  bool harmony = false;
  bool split = true;  // false: thoughts and their marks are part of the text
};

// For an answer to this prompt. format: that of the model; nullptr: no calls are expected.
OutputSpec output_spec(std::string_view chat_template, std::string_view prompt,
                       const ToolFormat* format, const Value* tools);

// Marks that may be control tokens, which must not be removed from the text before it is parsed.
std::vector<std::string_view> output_marks(const OutputSpec& spec);

// Owner: one choice; one thread at a time.
class OutputParser {
 public:
  struct Result {
    std::string thoughts, text;
    std::vector<ToolCall> calls;
  };
  virtual ~OutputParser() = default;
  virtual Result push(std::string_view text) = 0;
  virtual Result finish() = 0;
  virtual bool thinking() const = 0;
  virtual bool any_calls() const = 0;
};

// seed: of the ids of calls.
std::unique_ptr<OutputParser> make_output_parser(const OutputSpec& spec, uint64_t seed);

}  // namespace tokamak
