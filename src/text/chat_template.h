#pragma once
// Chat templates: Jinja as Python's jinja2 renders it in the environment of chat templates
// (sandboxed, trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception,
// strftime_now, tojson without HTML escapes).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/value.h"

namespace tokamak {

struct TokenizerSpec;

// Selects the template for a conversation, as transformers does: the one called `name` if a name is
// given (throws Error(kNotFound) listing the available ones), otherwise "tool_use" if there are
// tools and such a template, otherwise the default one. Empty: the model has none.
const std::string& pick_chat_template(const TokenizerSpec& spec, std::string_view name, bool tools);

// Local time for strftime_now.
struct TemplateTime {
  int year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0;
  static TemplateTime now();
  static TemplateTime parse(std::string_view iso);  // 2026-11-15T12:30:45 or 2026-11-15
};

struct RenderLimits {
  int64_t max_steps = 5'000'000;  // expressions and statements evaluated, characters processed
  size_t max_output_bytes = size_t{64} << 20;   // of the result
  size_t max_memory_bytes = size_t{256} << 20;  // total of values created while rendering
  int max_depth = 100;                          // nested calls, loops, blocks, macros
  std::optional<TemplateTime> now;              // default: the current time
};

// Owner: the server, one per model; immutable, thread-safe; parsed once.
class ChatTemplate {
 public:
  // Throws Error(kInvalidArgument, "chat template line N: ...").
  static ChatTemplate parse(std::string source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // context: an object with messages, tools, add_generation_prompt, bos_token, eos_token, and
  // others. Throws Error(kInvalidArgument, "chat template line N: ...") if the template raises or
  // exceeds a limit.
  std::string render(const Value& context, const RenderLimits& limits = {}) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
