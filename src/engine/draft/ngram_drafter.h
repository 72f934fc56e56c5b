#pragma once
// Prompt lookup: the text after an earlier occurrence of the last tokens is proposed.
#include <utility>
#include <vector>

#include "engine/draft/drafter.h"

namespace tokamak {

struct NgramOptions {
  int32_t longest = 32, shortest = 2;  // tokens that must have occurred before
  bool earliest = false;               // take the first occurrence instead of the last one
};

// Keeps nothing between proposals. O(tokens) per proposal: about a microsecond per thousand.
class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const NgramOptions& options) : options_(options) {}
  void propose(std::span<DraftRequest> requests) override;
  int32_t strengths() const override { return kMostDraftStrengths; }

 private:
  void add_other_matches(DraftRequest& request, std::span<const int32_t> text);

  NgramOptions options_;
  std::vector<std::pair<int32_t, size_t>> matches_;  // length and end; reused
};

}  // namespace tokamak
