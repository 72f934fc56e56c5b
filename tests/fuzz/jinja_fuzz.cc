// Template text -> parse -> render under small limits. Anything but Error is a finding.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "tests/fuzz/fuzzer.h"
#include "text/chat_template.h"

using namespace tokamak;

TK_FUZZER(jinja) {
  static const Value context = parse_json(
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null,
          "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
          "tools": [], "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "s": "a,b  c\u00e9"})");
  RenderLimits limits;
  limits.max_steps = 50'000;
  limits.max_memory_bytes = size_t{8} << 20;
  limits.max_output_bytes = size_t{1} << 20;
  limits.now = TemplateTime{2026, 11, 15, 12, 30, 45};
  try {
    ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size))
        .render(context, limits);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInvalidArgument) throw;
  }
  return 0;
}
