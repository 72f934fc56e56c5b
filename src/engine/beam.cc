// Beam search: the choice of continuations (BeamSearch), and how the core's sequences follow it. A
// partial answer with several continuations is forked: whole blocks are shared, the last one is
// copied by the step that needs it.
#include "engine/beam.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "engine/core.h"

namespace tokamak {

BeamSearch::BeamSearch(const RequestSpec& spec)
    : width_(spec.beams),
      max_tokens_(spec.max_tokens),
      length_penalty_(spec.length_penalty),
      early_stopping_(spec.early_stopping) {
  int64_t each = 1 + std::max<int64_t>(1, std::ssize(spec.stop_ids));
  wanted_ = static_cast<int32_t>(std::min<int64_t>(each * width_, kMostBeamCandidates));
}

std::vector<BeamCandidate> BeamSearch::rank() {
  // Equal scores are ordered by parent and token, so that a run can be repeated.
  std::sort(candidates_.begin(), candidates_.end(),
            [](const BeamCandidate& a, const BeamCandidate& b) {
              return std::tuple(-a.score, a.parent, a.id) < std::tuple(-b.score, b.parent, b.id);
            });
  if (std::ssize(candidates_) > wanted()) candidates_.resize(static_cast<size_t>(wanted()));
  return std::exchange(candidates_, {});
}

double BeamSearch::score(double sum, int64_t length) const {
  return sum / std::pow(static_cast<double>(length), static_cast<double>(length_penalty_));
}

void BeamSearch::complete(BeamAnswer answer, double sum, int64_t length) {
  answer.score = score(sum, length);
  auto better = [](const BeamAnswer& a, const BeamAnswer& b) { return a.score > b.score; };
  answers_.insert(std::upper_bound(answers_.begin(), answers_.end(), answer, better), answer);
  if (std::ssize(answers_) > width_) answers_.pop_back();
}

bool BeamSearch::done(double best, int64_t length) const {
  if (std::ssize(answers_) < width_) return false;
  if (early_stopping_ == EarlyStopping::kTrue) return true;
  // With a positive penalty, long answers are better, down to the same sum.
  bool longest = early_stopping_ == EarlyStopping::kNever && length_penalty_ > 0;
  return answers_.back().score >= score(best, longest ? max_tokens_ : length);
}

void EngineCore::prepare_beams(Request& request) const {
  const RequestSpec& spec = request.spec;
  request.beam = std::make_unique<BeamSearch>(spec);
  request.wants_logprobs = spec.sample->top_logprobs >= 0;
  // Steps report the model's own log-probabilities; the rest of the spec has no effect.
  SampleSpec sample;
  sample.temperature = 0;
  sample.top_logprobs = request.beam->wanted();
  sample.min_tokens = spec.sample->min_tokens;
  if (float alpha = spec.sample->penalty_alpha; alpha > 0) {
    request.beam->contrast = std::make_unique<ContrastiveSearch>(alpha);
    sample.penalty_alpha = alpha;
    sample.top_logprobs = request.beam->width();
    request.spec.score_prompt = true;  // its rows return hidden states
    request.spec.score_from = 1;
    ++request.spec.max_tokens;
  }
  request.spec.sample = std::make_shared<const SampleSpec>(std::move(sample));
}

namespace {

BeamAnswer answer_of(const Sequence& parent, const BeamCandidate& c, bool stop) {
  BeamAnswer a;
  a.ids.assign(parent.ids().begin() + parent.prompt_length(), parent.ids().end());
  a.logprobs = parent.beam_logprobs;
  a.finish = stop ? Finish::kStop : Finish::kLength;
  if (stop) {
    a.stop_id = c.id;
  } else {
    a.ids.push_back(c.id);
    a.logprobs.push_back(c.logprob);
  }
  return a;
}

void follow(Sequence& seq, const BeamCandidate& c) {
  seq.extend(c.id);
  seq.beam_score = c.score;
  seq.beam_logprobs.push_back(c.logprob);
  seq.held = false;
}

}  // namespace

// A step has returned the best continuations of a sequence. The round ends with the last sequence.
void EngineCore::commit_beam(Sequence& seq, int32_t row, const StepResult& result,
                             Actions& actions) {
  Request& request = *seq.request;
  auto at = std::lower_bound(result.top.begin(), result.top.end(), row,
                             [](const auto& t, int32_t r) { return t.first < r; });
  const std::vector<int32_t>& stops = request.spec.stop_ids;
  bool may_end = seq.generated() >= seq.sample().min_tokens;
  for (; at != result.top.end() && at->first == row; ++at)
    if (may_end || std::find(stops.begin(), stops.end(), at->second.id) == stops.end())
      request.beam->add({seq.choice, at->second.id, at->second.logprob,
                         seq.beam_score + static_cast<double>(at->second.logprob)});
  hold_beam(seq);
  if (--request.beam->outstanding == 0) step_beams(request, actions);
}

// It waits for the others of its round.
void EngineCore::hold_beam(Sequence& seq) {
  if (seq.first_token == kNever) {
    seq.first_token = now_;
    stats_.prefill_seconds.add(seconds(now_ - seq.started));
  }
  seq.last_token = now_;
  seq.held = true;
}

void EngineCore::step_beams(Request& request, Actions& actions) {
  BeamSearch& beam = *request.beam;
  std::vector<BeamCandidate> next;
  int32_t rank = 0, length = 0;
  for (const BeamCandidate& c : beam.rank()) {
    const Sequence& parent = *request.choices[static_cast<size_t>(c.parent)];
    length = parent.generated() + 1;
    bool stops = parent.stops_at(c.id), ends = stops || length >= request.spec.max_tokens;
    if (ends && rank < beam.width()) beam.complete(answer_of(parent, c, stops), c.score, length);
    if (!ends && std::ssize(next) < beam.width()) next.push_back(c);
    ++rank;
  }
  if (next.empty() || beam.done(next[0].score, length))
    return end_beams(request, Finish::kNone, {}, actions);
  beam.outstanding = static_cast<int32_t>(next.size());
  fork_beams(request, next);
}

// The first continuation of a sequence keeps its place; the others take the places of sequences
// that are not continued, or new ones.
void EngineCore::fork_beams(Request& request, const std::vector<BeamCandidate>& next) {
  std::vector<const BeamCandidate*> stays(request.choices.size(), nullptr), forks;
  for (const BeamCandidate& c : next) {
    auto& place = stays[static_cast<size_t>(c.parent)];
    if (place == nullptr)
      place = &c;
    else
      forks.push_back(&c);
  }
  size_t at = 0;
  for (const BeamCandidate* c : forks) {  // before their parents change
    while (at < stays.size() && stays[at] != nullptr) ++at;
    if (at == request.choices.size()) request.choices.push_back(nullptr);
    Sequence*& seq = request.choices[at];
    bool is_new = seq == nullptr;
    if (is_new) {
      seq = new_sequence();
      seq->open(&request, static_cast<int32_t>(at), request.first_order + at, now_);
      scheduler_.join(*seq);
      ++request.unretired;
    } else {
      scheduler_.give_up(*seq);
    }
    seq->become(*request.choices[static_cast<size_t>(c->parent)]);
    follow(*seq, *c);
    scheduler_.wait(*seq);
    ++at;
  }
  for (; at < stays.size(); ++at)
    if (stays[at] == nullptr && request.choices[at] != nullptr) drop(*request.choices[at]);
  for (const BeamCandidate* c : stays) {
    if (c == nullptr) continue;
    Sequence& seq = *request.choices[static_cast<size_t>(c->parent)];
    follow(seq, *c);
    if (seq.phase == Sequence::Phase::kWaiting) scheduler_.wait(seq);  // it was preempted
  }
}

// Sends the last deltas of a request with beams: its answers with Finish::kNone, otherwise the
// reason why there are none. The request may be deleted.
void EngineCore::end_beams(Request& request, Finish how, std::string_view error, Actions& actions) {
  const std::vector<BeamAnswer>& answers = request.beam->answers();
  bool logprobs = request.wants_logprobs;
  for (int32_t n = 0; n < request.spec.n; ++n) {
    Delta& d = actions.add_delta(request.id, n, 0);
    d.finish = how == Finish::kNone ? Finish::kStop : how;
    d.error.assign(error);
    if (how == Finish::kNone && n < std::ssize(answers)) {
      const BeamAnswer& a = answers[static_cast<size_t>(n)];
      d.ids = a.ids;
      if (logprobs) d.logprobs = a.logprobs;
      d.finish = a.finish;
      d.stop_id = a.stop_id;
      d.beam_score = a.score;
    }
    if (n == 0) d.cached_tokens = request.cached_tokens;
    stats_.tokens_emitted += std::ssize(d.ids);
    stats_.answer_length.add(static_cast<double>(d.ids.size()));
    request.longest_answer = std::max(request.longest_answer, static_cast<int32_t>(d.ids.size()));
    ++stats_.finished[static_cast<size_t>(d.finish)];
  }
  stats_.e2e_seconds.add(seconds(now_ - request.arrived));
  stats_.longest_answer.add(request.longest_answer);
  request.unfinished = 0;
  actions.finished.push_back(request.id);
  std::vector<Sequence*> live = request.choices;
  for (Sequence* seq : live)
    if (seq != nullptr && seq->phase != Sequence::Phase::kFinished) drop(*seq);
}

}  // namespace tokamak
