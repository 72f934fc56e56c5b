#include "engine/simulator.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {

Simulator::Simulator(EngineCore& core, Executable& executable, StepSeconds step_seconds)
    : core_(core),
      steps_(executable, core.config().vocab),
      step_seconds_(std::move(step_seconds)) {}

void Simulator::at(Nanos time, Event event) {
  TK_CHECK(time >= now_, "an event at {} ns, now is {} ns", time, now_);
  arrivals_.emplace(time, std::move(event));
}

void Simulator::read(Source source) {
  source_ = std::move(source);
  pull();
}

void Simulator::pull() {
  Nanos time = 0;
  Event event;
  if (source_ && source_(time, event))
    at(std::max(time, now_), std::move(event));
  else
    source_ = nullptr;
}

void Simulator::take_arrivals() {
  while (!arrivals_.empty() && arrivals_.begin()->first <= now_) {
    bool from_source = arrivals_.begin()->second.kind == Event::Kind::kArrival;
    batch_.push_back(std::move(arrivals_.begin()->second));
    arrivals_.erase(arrivals_.begin());
    if (from_source) pull();
  }
}

void Simulator::run() {
  while (true) {
    Nanos step_end = ends_.empty() ? kNever : ends_.front();
    Nanos arrival = arrivals_.empty() ? kNever : arrivals_.begin()->first;
    Nanos next = std::min({step_end, arrival, actions_.next_wakeup});
    if (next == kNever) return;
    now_ = std::max(now_, next);
    batch_.clear();
    if (step_end <= now_) {
      auto count = static_cast<std::ptrdiff_t>(steps_.next(batch_));
      ends_.erase(ends_.begin(), ends_.begin() + count);
    }
    take_arrivals();
    advance(batch_);
  }
}

void Simulator::advance(std::span<Event> events) {
  if (recorder_) recorder_(now_, events);
  core_.advance(now_, events, actions_);
  for (const AdapterAction& a : actions_.adapters) steps_.set_adapter(a);
  for (const SubmitAction& s : actions_.submits) {
    auto duration = static_cast<Nanos>(step_seconds_(*s.inputs) * 1e9);
    device_free_ = std::max(now_, device_free_) + std::max<Nanos>(1, duration);
    ends_.push_back(device_free_);
    steps_.submit(s);
  }
  steps_.set_masks(actions_);
  if (observer_) observer_(now_, events, actions_);
}

}  // namespace tokamak
