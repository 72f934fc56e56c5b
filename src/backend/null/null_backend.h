#pragma once
// A backend without arithmetic: tokens are a hash of the sequence, and the time of a step is
// computed from a machine file. It lets the engine, the server and the cluster run without
// hardware, and it checks every step: a test that runs on it finds wrong tables, stale blocks and
// lost tokens.
#include <memory>

#include "backend/backend.h"
#include "backend/null/null_model.h"
#include "backend/null/roofline.h"

namespace tokamak {

struct NullOptions {
  uint64_t seed = 0;
  int64_t vocab = 0;  // 0: the PlanSet's
  // Every slot remembers what was written to it. The whole context of a step is checked against it,
  // and tokens depend on all earlier ones through it. Costs 16 bytes per slot and O(context) per
  // sequence and step. Off: a token depends on the one before it and its position.
  bool shadow = false;
  bool check = true;  // every step is checked; O(tokens + table entries)
  int max_in_flight = 2;
  int64_t fail_every = 0;         // every nth step fails when it is collected
  int64_t fail_submit_every = 0;  // every nth submit throws
  int32_t nan_token = -1;         // a sequence with this input id gets logits that are not finite
  int32_t fatal_token = -1;       // a step with this input id always fails
  Machine machine;
};

std::unique_ptr<Backend> make_null_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_null_backend(const NullOptions& options);

// Without a Backend, for drivers that need only the executable.
std::unique_ptr<Executable> make_null_executable(const PlanSet& plans, const LoadOptions& load,
                                                 const NullOptions& options);

// What an executable made with these options chooses: lets a test predict a whole answer.
NullModel null_model(const PlanSet& plans, const NullOptions& options);

}  // namespace tokamak
