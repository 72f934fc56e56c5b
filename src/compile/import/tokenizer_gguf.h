#pragma once
// The vocabulary in GGUF metadata (tokenizer.ggml.*) -> TokenizerSpec. The file may contain nothing
// else.
#include "compile/import/gguf_file.h"
#include "plan/tokenizer_spec.h"

namespace tokamak {

// Throws Error(kUnsupported) for an unsupported tokenizer model or pre-tokenizer, Error(kCorrupt)
// if the arrays are inconsistent, Error(kNotFound) if there is no vocabulary.
TokenizerSpec tokenizer_from_gguf(const GgufFile& file);

}  // namespace tokamak
