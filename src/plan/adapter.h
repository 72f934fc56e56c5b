#pragma once
// Low-rank adapters at run time. A PlanSet that was compiled for adapters has an input `adapter`,
// the slot of each row (-1: none), and for each matrix that adapters may change two weights with an
// entry per slot: lora.NAME.a [slots, rank, k] and lora.NAME.b [slots, n, rank]. They are zero when
// the model is loaded; Executable::set_adapter fills a slot.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/weight_source.h"

namespace tokamak {

inline constexpr std::string_view kAdapterInput = "adapter";
inline constexpr std::string_view kAdapterWeights = "lora.";

// Immutable and shared by the requests that use it, also after it was unloaded.
struct Adapter {
  uint64_t id = 0;  // of this load: the same files loaded again have another one
  std::string name;
  int64_t rank = 0;
  uint64_t bytes = 0;
  // lora.NAME.a [r, k] and lora.NAME.b [n, r] in f32, r at most the rank of the slots. Matrices
  // that the adapter does not change are absent.
  WeightTable tensors;
  // The adapter is the sum of these, each times its scale, and has no tensors of its own.
  std::vector<std::pair<std::shared_ptr<const Adapter>, float>> parts;
};

uint64_t next_adapter_id();
// The tensors of a sum: ranks add up. Takes as long as copying them.
WeightTable sum_of_parts(const Adapter& adapter);

inline bool is_adapter_weight(const WeightEntry& entry) {
  return entry.name.starts_with(kAdapterWeights) && entry.dims.size() == 3;
}
// Slots of the plans; 0: they take no adapters.
inline int64_t adapter_slots(const PlanSet& plans) {
  for (const WeightEntry& entry : plans.weights)
    if (is_adapter_weight(entry)) return entry.dims[0];
  return 0;
}

}  // namespace tokamak
