#pragma once
// Early exit: the model's own first layers and its head guess the next tokens.
#include "engine/draft/drafter.h"

namespace tokamak {

// The step that verifies the drafts chooses them too: it begins with a phase of kExitFunction per
// drafted token, which uses the weights and the KV slots of the model (sched/batch.cc). So there is
// nothing to compute here, and nothing to keep.
class ExitDrafter final : public Drafter {
 public:
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests)
      for (int32_t i = 0; i < r.most; ++i) r.tokens.push_back({kDraftedByStep, i - 1});
  }
  bool expensive() const override { return true; }
};

}  // namespace tokamak
