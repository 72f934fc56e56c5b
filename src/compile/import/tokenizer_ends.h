#pragma once
// Control tokens recognised by their text, regardless of their type in the file.
#include <string_view>

#include "plan/tokenizer_spec.h"

namespace tokamak {

bool ends_generation(std::string_view token);      // "<|im_end|>", "</s>", ...
bool fills_in_the_middle(std::string_view token);  // "<|fim_prefix|>", ...

// Sorts eog_ids and drops those that do not end a turn.
void finish_eog_ids(TokenizerSpec& spec);

}  // namespace tokamak
