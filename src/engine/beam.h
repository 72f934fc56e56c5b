#pragma once
// The state of a beam search between its rounds, and the choice of the partial answers to continue.
// It knows no sequences and no blocks.
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/client.h"
#include "engine/contrastive.h"

namespace tokamak {

inline constexpr int32_t kMostBeamCandidates = 256;  // what steps report

// A partial answer with one more token.
struct BeamCandidate {
  int32_t parent = 0;  // index of the sequence
  int32_t id = 0;
  float logprob = 0;
  double score = 0;  // sum of log-probabilities with this token
};

struct BeamAnswer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  double score = 0;  // sum of log-probabilities / length ^ length_penalty
  Finish finish = Finish::kLength;
  int32_t stop_id = -1;
};

// Owned by a Request, engine thread only. In a round, every live sequence adds its best
// continuations: (1 + number of stop ids) * width, so that `width` of them do not end the text. Of
// all of them, those that end the text and are among the best `width` become answers; the best
// `width` of the others are the sequences of the next round.
class BeamSearch {
 public:
  explicit BeamSearch(const RequestSpec& spec);

  int32_t width() const { return width_; }
  int32_t wanted() const { return wanted_; }  // candidates of one sequence, and of a round
  void add(const BeamCandidate& candidate) { candidates_.push_back(candidate); }
  // The best candidates of the round, best first. Ends the round.
  std::vector<BeamCandidate> rank();
  // `length` counts the token that ended it.
  void complete(BeamAnswer answer, double sum, int64_t length);
  // No partial answer can still become one of the best; `best` is the sum of the best of them.
  bool done(double best, int64_t length) const;
  const std::vector<BeamAnswer>& answers() const { return answers_; }  // best first, at most width

  std::unique_ptr<ContrastiveSearch> contrast;  // instead of scores; null: beam search
  int32_t outstanding = 1;                      // sequences that have not added their candidates

 private:
  double score(double sum, int64_t length) const;

  int32_t width_, wanted_, max_tokens_;
  float length_penalty_;
  EarlyStopping early_stopping_;
  std::vector<BeamCandidate> candidates_;
  std::vector<BeamAnswer> answers_;
};

}  // namespace tokamak
