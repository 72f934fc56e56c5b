#pragma once
// The fields that constrain an answer: response_format, vLLM's structured_outputs and guided_*,
// llama-server's grammar and json_schema, SGLang's regex and ebnf, and tool_choice.
#include <memory>
#include <string>
#include <vector>

#include "engine/client.h"
#include "serve/openai/fields.h"
#include "serve/served_model.h"
#include "text/output/parser.h"

namespace tokamak::openai {

struct GenerationParams;

// Throw ApiError(400). nullptr: the answer is free.
std::shared_ptr<const grammar::Grammar> read_structured(Fields& fields, const ServedModel& model);
// For tool_choice "required" or a named function.
std::shared_ptr<const grammar::Grammar> forced_call(const Value& body, const ServedModel& model);

// The ids that end a constrained answer are stop ids, and min_tokens is up to the grammar.
void prepare_structured(GenerationParams& params, const ServedModel& model,
                        const OutputSpec& output);
// The mask of one request; nullptr if params.grammar is.
std::shared_ptr<TokenMask> mask_of(const GenerationParams& params, const ServedModel& model,
                                   const OutputSpec& output);

}  // namespace tokamak::openai
