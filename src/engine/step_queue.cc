#include "engine/step_queue.h"

#include <exception>

#include "base/error.h"

namespace tokamak {

void StepQueue::submit(const SubmitAction& action) {
  Entry entry;
  entry.ticket = action.ticket;
  if (not_submitted_ > 0) {
    entry.failed = true;
    entry.error = "an earlier step could not be submitted";
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
