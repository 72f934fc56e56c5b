#pragma once
// Converts a request's JSON to token ids and parameters. Runs on a front-end worker: templates and
// tokenisers are slow.
#include <memory>
#include <string>
#include <vector>

#include "serve/openai/params.h"
#include "serve/openai/reasoning.h"

namespace tokamak::openai {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // for echo; only set on request
};

struct Prepared {
  std::shared_ptr<const ServedModel> model;
  GenerationParams params;
  std::vector<Prompt> prompts;
  ToolStyle tool_style = ToolStyle::kNone;  // the format of tool calls, if tools are offered
  ReasoningSplit::Start reasoning = ReasoningSplit::Start::kOff;
  bool include_reasoning = true;
};

// Throw ApiError. `body` is the whole request.
Prepared prepare_chat(const Value& body, std::shared_ptr<const ServedModel> model);
Prepared prepare_completion(const Value& body, std::shared_ptr<const ServedModel> model);

// Messages as templates expect them: content parts joined, tool arguments parsed. Throws ApiError.
Value read_messages(Fields& fields);
// Renders messages, tools and chat_template_kwargs with the model's template.
std::string render_chat(Fields& fields, const ServedModel& model);

}  // namespace tokamak::openai
