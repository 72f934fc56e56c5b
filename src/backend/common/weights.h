#pragma once
// Runs weight recipes: from tensors of a model file to the tensor of a plan. Shared by the
// backends.
#include <cstddef>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/weight_source.h"

namespace tokamak {

// `view` points into the source's bytes if no step changed them (then the mapped file is the only
// copy), otherwise into `owned`.
struct LoadedTensor {
  TensorView view;
  std::vector<std::byte> owned;
};

// Throws Error(kCorrupt / kUnsupported) naming the weight when a source is missing or a shape does
// not fit.
LoadedTensor load_weight(const WeightEntry& entry, const WeightSource& source);

// Backend::pack_weights for a backend that keeps weights in rows.
void pack_rows(const PlanSet& plans, const WeightSource& source,
               const std::function<void(const WeightEntry&, const PackedWeight&)>& sink);

}  // namespace tokamak
