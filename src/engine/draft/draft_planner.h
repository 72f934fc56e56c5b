#pragma once
// Decides how many tokens are drafted for each sequence of a step, and measures how many were
// right.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/config.h"
#include "engine/draft/drafter.h"
#include "engine/draft/step_cost.h"
#include "engine/sequence.h"

namespace tokamak {

// A step with B decodes takes t(B) and gives B tokens. k drafted tokens, each accepted with
// probability a if those before it were, add a + a^2 + ... + a^k tokens and make the step take
// t(B + k). In a tree, the branch i of a token is accepted with probability (1 - a) (1 - b)^(i - 1)
// b; the likeliest drafts are taken, wherever in the tree they are. The planner drafts as many as
// give the most tokens per second, and none if that is no clear gain: large batches, where every
// row costs, and texts that cannot be guessed. What is not drafted for this reason is tried again
// now and then. Acceptance is measured by sequence and by strength of the proposal (drafter.h); a
// new sequence starts from the average of all. Owned by the scheduler, engine thread only. The same
// calls give the same drafts.
class DraftPlanner {
 public:
  DraftPlanner(const EngineConfig& config, Drafter* drafter, EngineStats& stats)
      : config_(config), drafter_(config.draft_tokens > 0 ? drafter : nullptr), stats_(stats) {}

  // The sequence may be drafted for, so it decodes when all its tokens are known.
  bool drafts(const Sequence& seq) const;
  // Asks for drafts for a step with these sequences. `spare` is the number of rows that the step
  // has beyond one for each decode.
  void propose(std::span<Sequence* const> running, int64_t spare);
  // Moves the drafts of a sequence, if there are any, to Sequence::drafts; `most` at most.
  void assign(Sequence& seq, int64_t most);

  void observe(int64_t rows, Nanos duration);  // a step of decodes
  // The path to draft `last` of the sequence was accepted, which has `accepted` tokens; -1: none.
  // `choices`: as of Drafter::verified.
  void note_accepted(Sequence& seq, int32_t last, int32_t accepted,
                     std::span<const int32_t> choices);
  void finish(const Sequence& seq);

 private:
  struct Average {
    double accepted = 1, rejected = 1;
    double share() const { return accepted / (accepted + rejected); }
  };
  int32_t most_for(const Sequence& seq) const;
  int32_t branches_for(const Sequence& seq) const;
  // How many of the drafts with these chances, likeliest first, are worth their rows.
  int32_t worthwhile(Sequence& seq, int32_t strength, std::span<const double> chances);
  int32_t best_length(std::span<const double> chances) const;
  void estimate(const Sequence& seq, std::span<const DraftToken> drafts);
  void note_rates(Sequence& seq, int32_t last);
  Average average(int32_t strength) const;
  double rate(const Sequence& seq, int32_t strength) const;
  bool is_valid(const std::vector<DraftToken>& drafts, size_t at) const;

  const EngineConfig& config_;
  Drafter* drafter_;
  EngineStats& stats_;
  StepCost cost_;
  std::array<Average, kMostDraftStrengths> average_;
  Average branch_{1, 3};                // of a branch, where those before it were rejected
  std::vector<double> chance_;          // of each draft, that it is accepted
  std::vector<double> sorted_, ones_;   // likeliest first; all accepted
  std::vector<int32_t> order_, place_;  // drafts, likeliest first; where a draft is in the step
  std::vector<DraftRequest> requests_;  // reused: the vectors inside keep their capacity
  std::vector<Sequence*> asked_;        // parallel to requests_
  int64_t rows_ = 0;                    // of the step so far
  double tokens_ = 0;                   // that it is expected to give
};

}  // namespace tokamak
