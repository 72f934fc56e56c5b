#pragma once
// The tokens that a grammar forces.
#include <cstdint>
#include <vector>

#include "text/grammar/matcher.h"
#include "text/tokenizer.h"

namespace tokamak {

// Appends the tokens of the text that must follow, as the tokenizer makes them from the text so far
// and that text. Stops before the first token that could be a longer one in the end, because a
// token that may follow would begin in it and end after the forced text. The tokens of the matcher
// are not changed: where the tokenizer would have split them in another way, the forced text is
// tokenized alone. May throw what the matcher's functions throw.
void append_forced_tokens(grammar::Matcher& matcher, const Tokenizer& tokenizer,
                          std::vector<int32_t>& forced);

}  // namespace tokamak
