#pragma once
// Drives an Executable step by step without the engine, for `bench latency`: fixed sequences,
// contiguous blocks.
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace tokamak {

class StepDriver {
 public:
  // `batch` sequences of at most `length` tokens each; at most `in_flight` decode steps at a time.
  StepDriver(Executable& executable, const PlanSet& plans, int64_t batch, int64_t length,
             int in_flight);
  static std::vector<int64_t> blocks_needed(const PlanSet& plans, int64_t batch, int64_t length);

  void reset() { filled_ = 0; }
  void prefill(int64_t tokens,
               int64_t max_tokens);  // of every sequence, in chunks of at most max_tokens per step
  // One token of every sequence per step. If several steps are in flight, each continues the tokens
  // that the one before chooses.
  void decode(int64_t steps);

 private:
  void add_sequence(int64_t b, int64_t tokens);
  void run();

  Executable& executable_;
  const PlanSet& plans_;
  int64_t batch_, length_, filled_ = 0;
  int in_flight_;
  StepInputs step_;
  StepResult result_;
  std::shared_ptr<const SampleSpec> greedy_;
};

}  // namespace tokamak
