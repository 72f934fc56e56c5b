#pragma once
// Prompts that ask a model to fill in the middle of a text.
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "serve/served_model.h"

namespace tokamak::openai {

bool can_fill_in(const Tokenizer& tokenizer);

using FillInFiles = std::vector<std::pair<std::string, std::string>>;  // names and contents

// Token ids of the prompt, with the model's own marks around the texts. With files it begins as
// llama.cpp's /infill does: the repository, the files that give context, and the name of the one to
// fill in. Throws ApiError if the model has no such marks.
Value fill_in_prompt(const ServedModel& model, const std::string& before, const std::string& after,
                     const FillInFiles* files = nullptr);

// Adds the marks that can follow the text to the ids at which the answer ends, as llama.cpp does.
void stop_at_next_file(const Tokenizer& tokenizer, Value& body);

}  // namespace tokamak::openai
