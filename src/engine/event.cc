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
  d.stop_id = -1;
  d.finish = Finish::kNone;
  d.error.clear();
  d.error_code = ErrorCode::kInternal;
  d.cached_tokens = 0;
  return d;
}

MaskAction& Actions::add_mask(Ticket ticket, int32_t output, TokenMask* mask, int32_t choice) {
  return masks_.emplace_back(
      MaskAction{ticket, output, mask, choice, static_cast<uint32_t>(mask_ids_.size()), 0});
}

void Actions::add_mask_ids(MaskAction& action, std::span<const int32_t> ids) {
  mask_ids_.insert(mask_ids_.end(), ids.begin(), ids.end());
  action.ids += static_cast<uint32_t>(ids.size());
}

void Actions::clear() {
  masks_.clear();
  mask_ids_.clear();
  submits.clear();
  finished.clear();
  next_wakeup = kNever;
  delta_count_ = 0;
}

}  // namespace tokamak
