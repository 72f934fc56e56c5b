#pragma once
// Prompts that ask a model to fill in the middle of a text.
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "serve/served_model.h"

namespace tokamak::openai {

bool can_fill_in(const Tokenizer& tokenizer);

// Token ids of the prompt, with the model's own marks around the texts. files: names and contents
// that give context. Throws ApiError if the model has no such marks.
Value fill_in_prompt(const ServedModel& model, const std::string& before, const std::string& after,
                     const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace tokamak::openai
