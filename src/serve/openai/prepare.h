#pragma once
// From a request's JSON to token ids and parameters. Runs on a front-end worker: templates and
// tokenisers are slow.
#include <memory>
#include <string>
#include <vector>

#include "serve/openai/params.h"
#include "serve/openai/reasoning.h"

namespace tokamak::openai {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // as echo gives it back; only filled when asked for
};

struct Prepared {
  std::shared_ptr<const ServedModel> model;
  GenerationParams params;
  std::vector<Prompt> prompts;
  ToolStyle tool_style = ToolStyle::kNone;  // how calls are written, when tools are offered
  ReasoningSplit::Start reasoning = ReasoningSplit::Start::kOff;
  bool include_reasoning = true;
};

// Throw ApiError. `body` is the whole request.
Prepared prepare_chat(const Value& body, std::shared_ptr<const ServedModel> model);
Prepared prepare_completion(const Value& body, std::shared_ptr<const ServedModel> model);

// Messages as templates want them: content parts joined, tool arguments parsed. Throws ApiError.
Value read_messages(Fields& fields);
// messages, tools and chat_template_kwargs through the model's template.
std::string render_chat(Fields& fields, const ServedModel& model);

}  // namespace tokamak::openai
