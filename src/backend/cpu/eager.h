#pragma once
// Eager execution: every value of a step gets memory of its own when it is made and gives it back
// when it was read for the last time. No planned arena, nothing written in place.
#include <memory>
#include <vector>

#include "backend/cpu/exec.h"
#include "plan/plan.h"

namespace tokamak::cpu {

// The values of one plan. Owned by the executable, used by its thread; allocates in every step by
// intention. The plan must outlive it.
class EagerValues {
 public:
  explicit EagerValues(const Plan& plan);
  // Before call i runs: makes room for its outputs and points its arguments at their values.
  void before(size_t call, std::vector<Tensor>& in, std::vector<Tensor>& out);
  void after(size_t call);                     // frees values that have no reader left
  void outputs(std::vector<Tensor>& tensors);  // of the plan
  void clear();

 private:
  struct Free {
    void operator()(void* p) const;
  };
  void* at(uint32_t value) const;

  const Plan& plan_;
  std::vector<std::unique_ptr<void, Free>> values_;  // by the value's number
  std::vector<std::vector<uint32_t>> last_read_;     // values, by call
};

}  // namespace tokamak::cpu
