#pragma once
// Running weight recipes: model-file tensors -> the tensor a plan asks for. Shared by the backends.
#include <cstddef>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/weight_source.h"

namespace tokamak {

// `view` points into the source's own bytes when no step had to change them (mmap stays the only
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
