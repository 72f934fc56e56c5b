#pragma once
// The fields that constrain an answer: response_format, vLLM's structured_outputs and guided_*,
// llama-server's grammar and json_schema, SGLang's regex and ebnf, and tool_choice.
#include <memory>
#include <string>
#include <vector>

#include "engine/client.h"
#include "serve/call_mask.h"
#include "serve/message_mask.h"
#include "serve/openai/fields.h"
#include "serve/served_model.h"
#include "text/output/parser.h"

namespace tokamak::openai {

struct GenerationParams;

// Throw ApiError(400). nullptr: the answer is free.
std::shared_ptr<const grammar::Grammar> read_structured(Fields& fields, const ServedModel& model);
// The calls that tools allow.
struct CallGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;  // nullptr: the answer is free
  // The answer is a call. Otherwise the grammar applies from where a call begins (strict tools with
  // tool_choice "auto").
  bool forced = false;
  const ToolFormat* format = nullptr;  // that the call is written in; nullptr: the model's own
  std::vector<MessageForm> messages;   // in Harmony's format, instead of the grammar
  std::vector<NamedCall> named = {};   // where a name comes before the arguments, instead of it
  std::string warning = {};            // for the client
  bool constrains() const { return grammar != nullptr || !messages.empty() || !named.empty(); }
};
CallGrammar call_grammar(const Value& body, const ServedModel& model);

// The ids that end a constrained answer are stop ids, and min_tokens is up to the grammar.
void prepare_structured(GenerationParams& params, const ServedModel& model,
                        const OutputSpec& output);
// The mask of one request; nullptr: every token is allowed.
std::shared_ptr<TokenMask> mask_of(const GenerationParams& params, const ServedModel& model,
                                   const OutputSpec& output);

}  // namespace tokamak::openai
