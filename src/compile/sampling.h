#pragma once
// The function "sample": from logits to tokens, as ops of the plan.
#include "backend/backend.h"
#include "graph/graph.h"

namespace tokamak {

// Adds the function to a module whose "step" gives logits f32[R, vocab], for a backend that has
// kernels for it; otherwise the host chooses tokens. Its inputs are what
// backend/common/sample_table.h fills.
void add_sampling(Module& module, int64_t vocab, const Backend& backend);

}  // namespace tokamak
