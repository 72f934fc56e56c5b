#include "engine/contrastive.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "engine/core.h"

namespace tokamak {
namespace {

double length_of(std::span<const float> x) {
  double sum = 0;
  for (float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

}  // namespace

void ContrastiveSearch::add_context(std::span<const float> hidden) {
  double length = length_of(hidden);
  for (float v : hidden) context_.push_back(static_cast<float>(static_cast<double>(v) / length));
}

double ContrastiveSearch::score(const Computed& candidate) const {
  const std::vector<float>& x = candidate.hidden;
  double most = -std::numeric_limits<double>::infinity(), length = length_of(x);
  for (size_t at = 0; at + x.size() <= context_.size(); at += x.size()) {
    double dot = 0;
    for (size_t i = 0; i < x.size(); ++i)
      dot += static_cast<double>(context_[at + i]) * static_cast<double>(x[i]);
    most = std::max(most, dot / length);
  }
  auto alpha = static_cast<double>(alpha_);
  return (1 - alpha) * std::exp(static_cast<double>(candidate.logprob)) - alpha * most;
}

ContrastiveSearch::Computed ContrastiveSearch::choose() {
  size_t best = 0;
  std::tuple<double, float> best_score;
  for (size_t i = 0; i < round.size() && round.size() > 1; ++i) {
    std::tuple<double, float> key(score(round[i]), round[i].logprob);
    if (i == 0 || key > best_score) best = i, best_score = key;
  }
  Computed chosen = std::move(round[best]);
  round.clear();
  add_context(chosen.hidden);
  return chosen;
}

// The states of the prompt's tokens but for the last, in the order of their scores.
void EngineCore::note_states(Sequence& seq, const StepEntry& e, const StepResult& result,
                             const PendingStep& step) {
  for (int32_t row = e.first_out; row < e.first_out + e.scores; ++row)
    seq.request->beam->contrast->add_context(hidden_row(step, result, row));
}

void EngineCore::commit_candidate(Sequence& seq, int32_t row, const StepResult& result,
                                  const PendingStep& step, Actions& actions) {
  BeamSearch& beam = *seq.request->beam;
  ContrastiveSearch::Computed& computed = beam.contrast->round.emplace_back();
  computed.choice = seq.choice;
  computed.logprob = seq.beam_logprobs.empty() ? 0 : seq.beam_logprobs.back();
  std::span<const float> state = hidden_row(step, result, row);
  computed.hidden.assign(state.begin(), state.end());
  auto at = std::lower_bound(result.top.begin(), result.top.end(), row,
                             [](const auto& t, int32_t r) { return t.first < r; });
  for (; at != result.top.end() && at->first == row; ++at) computed.next.push_back(at->second);
  hold_beam(seq);
  if (--beam.outstanding == 0) step_candidates(*seq.request, actions);
}

// The sequences have one token more than answers may have, so that the last one is compared too.
void EngineCore::step_candidates(Request& request, Actions& actions) {
  BeamSearch& beam = *request.beam;
  request.spec.score_prompt = false;  // done with the first round
  ContrastiveSearch::Computed chosen = beam.contrast->choose();
  const Sequence& seq = *request.choices[static_cast<size_t>(chosen.choice)];
  bool stops = seq.generated() > 0 && std::count(request.spec.stop_ids.begin(),
                                                 request.spec.stop_ids.end(), seq.ids().back()) > 0;
  if (stops || seq.generated() + 1 >= request.spec.max_tokens) {
    BeamAnswer answer;
    answer.ids.assign(seq.ids().begin() + seq.prompt_length(), seq.ids().end());
    answer.logprobs = seq.beam_logprobs;
    answer.finish = stops ? Finish::kStop : Finish::kLength;
    if (stops) {
      answer.stop_id = answer.ids.back();
      answer.ids.pop_back();
      answer.logprobs.pop_back();
    }
    beam.complete(std::move(answer), 0, 1);
    return end_beams(request, Finish::kNone, {}, actions);
  }
  std::vector<BeamCandidate> next;
  for (const TokenLogprob& t : chosen.next)
    if (std::ssize(next) < beam.width())
      next.push_back({chosen.choice, t.id, t.logprob, static_cast<double>(t.logprob)});
  beam.outstanding = static_cast<int32_t>(next.size());
  fork_beams(request, next);
}

}  // namespace tokamak
