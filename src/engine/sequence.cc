#include "engine/sequence.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {

void Sequence::open(Request* r, int32_t c, uint64_t o, Nanos now) {
  request = r;
  choice = c;
  order = o;
  ids_.assign(r->spec.prompt.begin(), r->spec.prompt.end());
  prompt_length_ = length();
  phase = Phase::kWaiting;
  row = adapter_slot = -1;
  slot_waits = 0;
  computed = scheduled = pending = in_flight = failures = 0;
  settling = limit_is_stop = first_delta_sent = held = false;
  beam_score = 0;
  beam_logprobs.clear();
  reset_row = true;
  drafts.clear();
  draft = {};
  moves.clear();
  prompt_logprobs.clear();
  vectors.clear();
  prompt_top.clear();
  lane = passed_over = cached_tokens = unsent = 0;
  cached_now = looked_at = 0;
  arrived = now;
  started = first_token = last_token = kNever;
  limit = r->spec.max_tokens;
  mirostat_mu = kMirostatStart;
  shadow = leader = nullptr;
}

void Sequence::open_shadow(Sequence& of) {
  open(of.request, of.choice, of.order, of.arrived);
  const RequestSpec& spec = request->spec;
  ids_.assign(1, spec.prompt.back());
  if (!spec.negative_prompt.empty())
    ids_.assign(spec.negative_prompt.begin(), spec.negative_prompt.end());
  prompt_length_ = length();
  leader = &of;
  of.shadow = this;
}

void Sequence::become(const Sequence& parent) {
  TK_CHECK(row < 0 && in_flight == 0, "sequence {} is in use", order);
  ids_.assign(parent.ids_.begin(), parent.ids_.end());
  beam_score = parent.beam_score;
  beam_logprobs.assign(parent.beam_logprobs.begin(), parent.beam_logprobs.end());
  started = parent.started;
  first_token = parent.first_token;
  last_token = parent.last_token;
}

void Sequence::rewind() {
  ++epoch;
  scheduled = computed;
  pending = 0;
  drafts.clear();
  moves.clear();
  settling = true;
  reset_row = true;
  if (shadow != nullptr) shadow->rewind();
}

void Sequence::drop_kv() {
  rewind();
  computed = scheduled = 0;
  settling = false;
  if (shadow != nullptr) shadow->drop_kv();
}

int32_t Sequence::schedulable() const {
  if (phase != Phase::kRunning || settling || !drafts.empty()) return 0;
  if (held || (request->beam && pending > 0)) return 0;
  if (limit > 0 && generated() + pending >= limit) return 0;
  return shadow != nullptr ? std::max(left(), shadow->left()) : left();
}

bool Sequence::stops_at(int32_t id) const {
  const auto& stops = request->spec.stop_ids;
  return generated() >= sample().min_tokens &&
         std::find(stops.begin(), stops.end(), id) != stops.end();
}

int64_t Sequence::reusable() const {
  int64_t most = length() - 1;
  if (score_rows(0, length()) > 0) most = std::min<int64_t>(most, first_score_row(0));
  return most;
}

int32_t Sequence::first_score_row(int32_t start) const {
  return std::max(start,
                  request->spec.score_from - 1 + static_cast<int32_t>(prompt_logprobs.size()));
}

int32_t Sequence::score_rows(int32_t start, int32_t end) const {
  return std::max(0, std::min(end, last_score_row()) - first_score_row(start));
}

}  // namespace tokamak
