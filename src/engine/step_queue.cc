#include "engine/step_queue.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace tokamak {

void StepQueue::set_adapter(const AdapterAction& action) {
  try {
    const Adapter& adapter = *action.adapter;
    if (adapter.parts.empty())
      executable_.set_adapter(action.slot, adapter.tensors);
    else
      executable_.set_adapter(action.slot, sum_of_parts(adapter));
    broken_slots_.erase(action.slot);
  } catch (const std::exception& e) {
    broken_slots_[action.slot] = fmt::format("adapter {}: {}", action.adapter->name, e.what());
    log::error("{}", broken_slots_[action.slot]);
  }
}

// The error of a slot that the step uses; nullptr: all of them are filled.
const std::string* StepQueue::broken_slot(const StepInputs& inputs) const {
  if (broken_slots_.empty()) return nullptr;
  for (const StepTensor& t : inputs.inputs) {
    if (t.name != kAdapterInput) continue;
    for (size_t at = 0; at + sizeof(int32_t) <= t.bytes.size(); at += sizeof(int32_t)) {
      int32_t slot;
      std::memcpy(&slot, t.bytes.data() + at, sizeof slot);
      if (auto it = broken_slots_.find(slot); it != broken_slots_.end()) return &it->second;
    }
  }
  return nullptr;
}

void StepQueue::submit(const SubmitAction& action) {
  Entry entry;
  entry.ticket = action.ticket;
  if (not_submitted_ > 0) {
    entry.failed = true;
    entry.error = "an earlier step could not be submitted";
  } else if (const std::string* error = broken_slot(*action.inputs)) {
    entry.failed = true;
    entry.error = *error;
  } else {
    try {
      entry.running = executable_.submit(*action.inputs);
    } catch (const std::exception& e) {
      entry.failed = true;
      entry.error = e.what();
    }
  }
  if (entry.failed) ++not_submitted_;
  if (head_ > 16 && head_ * 2 > queue_.size()) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  queue_.push_back(std::move(entry));
}

// A mask that could not be set counts as empty: its sequence fails.
void StepQueue::set_masks(const Actions& actions) {
  for (const MaskAction& m : actions.masks) {
    auto entry = std::find_if(queue_.begin() + static_cast<std::ptrdiff_t>(head_), queue_.end(),
                              [&](const Entry& e) { return e.ticket == m.ticket; });
    if (entry == queue_.end() || entry->failed) continue;
    try {
      std::fill(mask_.begin(), mask_.end(), 0);
      auto drafts = std::span(actions.mask_drafts).subspan(m.first_draft, m.drafts);
      drafts_.assign(drafts.begin(), drafts.end());
      for (int32_t& id : drafts_)
        if (is_output_id(id)) id = executable_.drafted(entry->running, output_of_id(id));
      m.mask->allow(m.choice, m.answer, drafts_, mask_);
      executable_.set_mask(entry->running, m.output, mask_);
    } catch (const std::exception& e) {
      log::error("the token mask of output {} of step {}: {}", m.output, m.ticket, e.what());
    }
  }
}

size_t StepQueue::next(std::vector<Event>& events) {
  TK_CHECK(!empty(), "no step is in flight");
  size_t count = 0;
  while (!empty() && queue_[head_].failed) {
    Entry& entry = queue_[head_++];
    events.push_back(Event::step_failed(entry.ticket, std::move(entry.error)));
    --not_submitted_;
    ++count;
  }
  if (count == 0) {
    const Entry& entry = queue_[head_++];
    ++count;
    try {
      executable_.collect(entry.running, result_);
      events.push_back(Event::step_done(entry.ticket, &result_));
    } catch (const std::exception& e) {
      events.push_back(Event::step_failed(entry.ticket, e.what()));
    }
  }
  if (empty()) {
    queue_.clear();
    head_ = 0;
  }
  return count;
}

}  // namespace tokamak
