#pragma once
// A driver with virtual time: arrivals come at given times, steps take as long as a cost function
// says, nobody sleeps. Runs a trace of thousands of requests in a second.
#include <functional>
#include <map>
#include <vector>

#include "engine/core.h"
#include "engine/step_queue.h"

namespace tokamak {

// One thread. Core and executable are the caller's and must outlive it.
class Simulator {
 public:
  using StepSeconds = std::function<double(const StepInputs&)>;
  // Called after every advance; the events are those that went in.
  using Observer = std::function<void(Nanos now, std::span<const Event> events, Actions& actions)>;
  // Called before every advance, with events as they go in (for EventLog).
  using Recorder = std::function<void(Nanos now, std::span<const Event> events)>;

  Simulator(EngineCore& core, Executable& executable, StepSeconds step_seconds);
  void at(Nanos time, Event event);  // also from inside the observer, not before now()
  // Events in the order of their time, asked for one at a time: a long trace need not be in memory.
  // False: no more.
  using Source = std::function<bool(Nanos& time, Event& event)>;
  void read(Source source);
  void observe(Observer observer) { observer_ = std::move(observer); }
  void record(Recorder recorder) { recorder_ = std::move(recorder); }
  void run();  // until nothing is left to do
  Nanos now() const { return now_; }

 private:
  void advance(std::span<Event> events);

  EngineCore& core_;
  StepQueue steps_;
  StepSeconds step_seconds_;
  Observer observer_;
  Recorder recorder_;
  void take_arrivals();
  void pull();

  Source source_;
  std::multimap<Nanos, Event> arrivals_;
  std::vector<Nanos> ends_;  // of the steps in flight, oldest first
  std::vector<Event> batch_;
  Actions actions_;
  Nanos now_ = 0, device_free_ = 0;
};

}  // namespace tokamak
