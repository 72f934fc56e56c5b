#pragma once
// The vocabulary in GGUF metadata (tokenizer.ggml.*) -> TokenizerSpec. The file may hold nothing
// else.
#include "compile/import/gguf_file.h"
#include "plan/tokenizer_spec.h"

namespace tokamak {

// Throws Error(kUnsupported) for a tokenizer model or pre-tokenizer this build does not know,
// Error(kCorrupt) when the arrays contradict each other, Error(kNotFound) when there is no
// vocabulary.
TokenizerSpec tokenizer_from_gguf(const GgufFile& file);

}  // namespace tokamak
