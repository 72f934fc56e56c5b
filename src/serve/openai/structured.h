#pragma once
// The fields that constrain an answer: response_format, vLLM's structured_outputs and guided_*,
// llama-server's grammar and json_schema, SGLang's regex and ebnf. calls.h has those of tools.
#include <memory>
#include <string>

#include "engine/client.h"
#include "serve/openai/fields.h"
#include "serve/served_model.h"
#include "text/output/parser.h"

namespace tokamak::openai {

struct GenerationParams;

// Throw ApiError(400). nullptr: the answer is free.
std::shared_ptr<const grammar::Grammar> read_structured(Fields& fields, const ServedModel& model);
// The same for one grammar; `param` is the field that it is from.
std::shared_ptr<const grammar::Grammar> compile_grammar(const grammar::GrammarSource& source,
                                                        const std::string& param,
                                                        const ServedModel& model);

// The ids that end a constrained answer are stop ids, and min_tokens is up to the grammar.
void prepare_structured(GenerationParams& params, const ServedModel& model,
                        const OutputSpec& output);
// The mask of one request; nullptr: every token is allowed.
std::shared_ptr<TokenMask> mask_of(const GenerationParams& params, const ServedModel& model,
                                   const OutputSpec& output);

}  // namespace tokamak::openai
