#pragma once
// Prompt lookup: the text after an earlier occurrence of the last tokens is proposed.
#include "engine/draft/drafter.h"

namespace tokamak {

struct NgramOptions {
  int32_t longest = 32, shortest = 2;  // tokens that must have occurred before
  bool earliest = false;               // take the first occurrence instead of the last one
};

// Has no state. O(tokens) per proposal: about a microsecond per thousand.
class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const NgramOptions& options) : options_(options) {}
  void propose(std::span<DraftRequest> requests) override;
  int32_t strengths() const override { return kMostDraftStrengths; }

 private:
  NgramOptions options_;
};

}  // namespace tokamak
