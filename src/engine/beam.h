#pragma once
// What beam search keeps between its rounds, and which partial answers go on: no sequences, no
// blocks.
#include <cstdint>
#include <vector>

#include "engine/client.h"

namespace tokamak {

// One more token of one of the partial answers.
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

// Owned by a Request, engine thread only. A round: every live sequence adds the best 2 * width
// continuations it has; of all of them, those that end the text and are among the best `width`
// become answers, and the best `width` of the others are the sequences of the next round.
class BeamSearch {
 public:
  BeamSearch(int32_t width, float length_penalty, bool early_stopping)
      : width_(width), length_penalty_(length_penalty), early_stopping_(early_stopping) {}

  int32_t width() const { return width_; }
  int32_t wanted() const { return 2 * width_; }  // candidates of one sequence
  void add(const BeamCandidate& candidate) { candidates_.push_back(candidate); }
  // The best 2 * width candidates of the round, best first; then the round is over.
  std::vector<BeamCandidate> rank();
  // `length` counts the token that ended it.
  void complete(BeamAnswer answer, double sum, int64_t length);
  // No partial answer can get into the best any more: `best` is the sum of the best one.
  bool done(double best, int64_t length) const;
  const std::vector<BeamAnswer>& answers() const { return answers_; }  // best first, at most width

  int32_t outstanding = 1;  // sequences that have not added their candidates

 private:
  double score(double sum, int64_t length) const;

  int32_t width_;
  float length_penalty_;
  bool early_stopping_;
  std::vector<BeamCandidate> candidates_;
  std::vector<BeamAnswer> answers_;
};

}  // namespace tokamak
