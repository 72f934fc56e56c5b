#pragma once
// Proposes tokens that a step verifies.
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "plan/step.h"

namespace tokamak {

// The id of a draft that the step itself chooses, with kExitFunction. A proposal has only such
// tokens, as a chain, or none.
constexpr int32_t kDraftedByStep = -1;

// `parent` is the index of the draft that this one continues; -1: it continues the known tokens. In
// a chain every token continues the one before it.
struct DraftToken {
  int32_t id = 0;
  int32_t parent = -1;
  // What it was drawn from; null: not known. Only needed with SampleSpec::rejection.
  std::shared_ptr<const std::vector<float>> probabilities = nullptr;
};

// A sequence whose next tokens are to be guessed.
struct DraftRequest {
  uint64_t sequence = 0;                // differs for all sequences of an engine
  std::span<const int32_t> ids;         // all committed tokens
  int32_t prompt_length = 0;            // of ids
  std::span<const int32_t> prediction;  // RequestSpec::prediction
  int32_t choice = 0;
  const std::shared_ptr<const SampleSpec>* sample = nullptr;
  std::string_view salt;  // tokens may only be used for sequences with the same one
  int32_t most = 0;       // tokens to propose; those of branches are not counted
  int32_t branches = 1;   // most drafts that continue the same token; 1: a chain

  // Filled by the drafter, empty before. The likeliest path comes first: its tokens need not be
  // moved when they are accepted. Of several that continue the same token, the likelier ones come
  // first. What is left after the first token that is not valid (an
  // id outside the vocabulary, a parent that does not come before it, a branch where the plans have
  // no tree mask) is ignored.
  std::vector<DraftToken> tokens;
  // How well founded the proposal is, below Drafter::strengths(): acceptance is measured for each
  // value separately, and grows with it.
  int32_t strength = 0;
  // The first tokens, which the strength is about; those after them are guesses that only help the
  // drafter, and are left out where drafts must pay. 0: all.
  int32_t founded = 0;
};

// Drafts of a tree that may be proposed: the engine verifies `most` of them.
constexpr size_t most_nodes(const DraftRequest& r) {
  return static_cast<size_t>(r.most) * (r.branches > 1 ? 3 : 1);
}

// Adds tokens that may follow each other, beginning after draft `parent` (-1: the known tokens).
// What the proposal has already is shared; it ends where a token has enough branches.
void add_path(DraftRequest& request, int32_t parent, std::span<const int32_t> ids);

// Proposes the rest of the prediction if the answer follows it so far. False: it does not.
bool follow_prediction(DraftRequest& request);

constexpr int32_t kMostDraftStrengths = 8;
// The strength of a proposal that continues an earlier occurrence of the last `length` tokens.
constexpr int32_t match_strength(int32_t length) {
  constexpr int32_t kLongest[] = {1, 2, 3, 5, 8, 16, 32};
  int32_t s = 0;
  while (s < kMostDraftStrengths - 1 && length > kLongest[s]) ++s;
  return s;
}

// One thread: the engine's, while a step is reserved. Must be quick and must not throw.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // For the sequences that decode in the next step.
  virtual void propose(std::span<DraftRequest> requests) = 0;
  // The sequence has ended and its id will not be used again.
  virtual void finish(uint64_t /*sequence*/, std::string_view /*salt*/,
                      std::span<const int32_t> /*ids*/, int32_t /*prompt_length*/) {}
  // The drafts of a sequence were verified; the first `accepted` of them hold. choices[0] is what
  // the model chose after the committed tokens, choices[i + 1] after draft i, also where that draft
  // does not hold (-1: not known).
  virtual void verified(uint64_t /*sequence*/, std::span<const DraftToken> /*drafts*/,
                        std::span<const int32_t> /*choices*/, int32_t /*accepted*/) {}
  virtual int32_t strengths() const { return 1; }  // 1 to kMostDraftStrengths
  // A proposal costs as much as a step of a small model: it is only asked for what will be used.
  virtual bool expensive() const { return false; }
  virtual uint64_t memory_bytes() const { return 0; }  // of a model; any thread
};

}  // namespace tokamak
