#include "text/output/parser.h"

#include "text/output/harmony.h"
#include "text/output/mark.h"
#include "text/output/thoughts.h"
#include "text/output/tool_calls.h"

namespace tokamak {
namespace {

// Thoughts, then text and calls.
class MarkedParser final : public OutputParser {
 public:
  MarkedParser(const OutputSpec& spec, uint64_t seed)
      : types_(spec.types != nullptr ? spec.types : std::make_shared<const ToolTypes>()),
        thoughts_(spec.split ? spec.thoughts : nullptr, spec.start),
        calls_(spec.tools, *types_, seed) {}

  Result push(std::string_view text) override { return parse(thoughts_.push(text)); }

  Result finish() override {
    Result result = parse(thoughts_.finish());
    ToolCalls::Result last = calls_.finish();
    result.text += last.text;
    append_calls(result.calls, std::move(last.calls));
    return result;
  }

  bool thinking() const override { return thoughts_.inside(); }
  bool any_calls() const override { return calls_.any(); }

 private:
  Result parse(ThoughtSplit::Result&& part) {
    ToolCalls::Result rest = calls_.push(part.text);
    return {std::move(part.thoughts), std::move(rest.text), std::move(rest.calls)};
  }

  std::shared_ptr<const ToolTypes> types_;
  ThoughtSplit thoughts_;
  ToolCalls calls_;
};

ThoughtStart thought_start(const ThoughtMarks& marks, std::string_view prompt) {
  return trimmed(prompt).ends_with(trimmed(marks.open)) ? ThoughtStart::kInside
                                                        : ThoughtStart::kMaybe;
}

}  // namespace

OutputSpec output_spec(std::string_view chat_template, std::string_view prompt,
                       const ToolFormat* format, const Value* tools) {
  OutputSpec spec;
  spec.tools = format;
  if (tools != nullptr) spec.types = std::make_shared<const ToolTypes>(*tools);
  spec.harmony = format != nullptr ? format->machine == nullptr : is_harmony(chat_template);
  spec.thoughts = spec.harmony ? nullptr : thought_marks_of(chat_template);
  if (spec.thoughts != nullptr) spec.start = thought_start(*spec.thoughts, prompt);
  return spec;
}

std::vector<std::string_view> output_marks(const OutputSpec& spec) {
  std::vector<std::string_view> marks;
  auto add = [&](const std::vector<std::string_view>& list) {
    marks.insert(marks.end(), list.begin(), list.end());
  };
  if (spec.harmony)
    add({"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>"});
  if (spec.tools != nullptr) {
    add(spec.tools->opens);
    add(spec.tools->closes);
    add(spec.tools->dropped);
    // Marks inside of calls.
    add({"[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "<escape>",
         "<|\"|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
  }
  if (spec.thoughts != nullptr) add({spec.thoughts->open, spec.thoughts->close});
  return marks;
}

std::unique_ptr<OutputParser> make_output_parser(const OutputSpec& spec, uint64_t seed) {
  if (spec.harmony) return std::make_unique<HarmonyParser>(spec.tools != nullptr, seed);
  return std::make_unique<MarkedParser>(spec, seed);
}

}  // namespace tokamak
