#pragma once
// Control tokens that are known by their spelling, whatever the file says about them.
#include <string_view>

#include "plan/tokenizer_spec.h"

namespace tokamak {

bool ends_generation(std::string_view token);      // "<|im_end|>", "</s>", ...
bool fills_in_the_middle(std::string_view token);  // "<|fim_prefix|>", ...

// Sorts eog_ids and drops what does not end a turn after all.
void finish_eog_ids(TokenizerSpec& spec);

}  // namespace tokamak
