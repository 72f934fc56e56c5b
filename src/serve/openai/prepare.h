#pragma once
// Converts a request's JSON to token ids and parameters. Runs on a front-end worker: templates and
// tokenisers are slow.
#include <memory>
#include <string>
#include <vector>

#include "serve/openai/params.h"
#include "text/chat_guard.h"
#include "text/output/parser.h"

namespace tokamak::openai {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;        // for echo; only set on request
  bool continues = false;  // the answer goes on in the same text
};

struct Prepared {
  std::shared_ptr<const ServedModel> model;
  GenerationParams params;
  std::vector<Prompt> prompts;
  std::string prompt_param;  // the field they come from
  OutputSpec output;
  bool include_reasoning = true;
  std::vector<std::string_view> known_fields;  // of requests of this kind
};

// Throw ApiError. `body` is the whole request; seed: used if it has none. clamp: an answer length
// that does not fit the context is shortened, not refused.
Prepared prepare_chat(const Value& body, std::shared_ptr<const ServedModel> model,
                      uint64_t seed = fresh_number(), bool clamp = false);
Prepared prepare_completion(const Value& body, std::shared_ptr<const ServedModel> model,
                            uint64_t seed = fresh_number(), bool clamp = false);

// The most tokens of thoughts, by any of the names that servers have for it; -1: any number.
int32_t read_thought_budget(Fields& fields, const ServedModel& model);
// A string, or the joined text of content parts. Throws ApiError.
std::string read_content(const Value& content, const std::string& param);
// Messages as templates expect them: content parts joined, tool arguments parsed. Throws ApiError.
Value read_messages(Fields& fields);
struct RenderedChat {
  std::string text, guard;   // with the marks of guard_chat()
  std::string own_template;  // the client's; empty: the model's was used
  bool continues = false;    // the last message, which has some text
  std::string plain() const { return without_guard(text, guard); }
};
// Renders messages, tools and chat_template_kwargs with the model's template.
RenderedChat render_chat(Fields& fields, const ServedModel& model);

}  // namespace tokamak::openai
