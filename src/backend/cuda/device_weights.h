#pragma once
// The weights of a PlanSet on the device: rows as the plan has them, in one allocation. Matrices
// come first, so that those of one product follow each other where biases are between them in the
// plan.
#include <functional>
#include <vector>

#include "backend/cuda/driver.h"
#include "plan/plan.h"
#include "plan/weight_source.h"

namespace tokamak::cuda {

class DeviceWeights {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes, of each weight
  // Copies through pinned memory, so that reading the file and copying overlap.
  DeviceWeights(const PlanSet& plans, const WeightSource& source, const DeviceStream& stream,
                const std::function<void(uint64_t done, uint64_t total)>& progress);
  DeviceAddress address(uint32_t weight) const { return memory_.address() + offsets_.at(weight); }
  // Whether the rows of these weights follow each other in memory.
  bool together(const std::vector<uint32_t>& weights) const;
  static bool will_be_together(const PlanSet& plans, const std::vector<uint32_t>& weights);
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  Buffer memory_;
  std::vector<size_t> offsets_, sizes_;
};

}  // namespace tokamak::cuda
