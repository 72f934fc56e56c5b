#pragma once
// Adapters and the weights of a model: merged into them when the model is opened, or beside them in
// slots that are filled while the model runs (plan/adapter.h).
#include <memory>
#include <string>
#include <vector>

#include "compile/import/adapter.h"
#include "compile/open_model.h"
#include "plan/adapter.h"

namespace tokamak {

// Adds the adapters of the options to the opened model: those to merge, and zeros for the slots.
// Throws Error(kUnsupported) for a quantised weight that an adapter would change.
void add_adapters(OpenedModel& opened, const CompileOptions& options);

// Frees the merged weights, once a backend has loaded them; a later use computes them again.
void release_merged(const WeightSource& weights);

// An adapter as slots of this rank take it. Throws Error(kUnsupported / kOutOfRange) naming the
// path.
std::shared_ptr<const Adapter> make_adapter(const std::string& name, const std::string& path,
                                            const ImportedAdapter& imported, int64_t most_rank);

// Whether rows may choose a change of this matrix: "blk.0.attn_q".
bool has_adapter_slots(const ModelConfig& config, const std::string& prefix);

}  // namespace tokamak
