#include "engine/event.h"

namespace tokamak {

Delta& Actions::add_delta(RequestId request, int32_t choice, int32_t position) {
  if (delta_count_ == deltas_.size()) deltas_.emplace_back();
  Delta& d = deltas_[delta_count_++];
  d.request = request;
  d.choice = choice;
  d.position = position;
  d.ids.clear();
  d.logprobs.clear();
  d.top.clear();
  d.prompt_logprobs.clear();
  d.prompt_top.clear();
  d.vector.clear();
  d.stop_id = -1;
  d.finish = Finish::kNone;
  d.error.clear();
  d.error_code = ErrorCode::kInternal;
  d.cached_tokens = d.drafted = d.accepted = d.forced = 0;
  d.prompt_done = d.prompt_cached = 0;
  d.beam_score = 0;
  d.shifted = false;
  return d;
}

void Actions::clear() {
  masks.clear();
  mask_drafts.clear();
  adapters.clear();
  submits.clear();
  finished.clear();
  next_wakeup = kNever;
  delta_count_ = 0;
}

}  // namespace tokamak
