#pragma once
// A driver with virtual time: requests arrive at given times, and a cost function gives the
// duration of a step. Nothing sleeps: thousands of requests of a trace run in a second.
#include <functional>
#include <map>
#include <vector>

#include "engine/core.h"
#include "engine/step_queue.h"

namespace tokamak {

// Single-threaded. The core and the executable must outlive it.
class Simulator {
 public:
  using StepSeconds = std::function<double(const StepInputs&)>;
  // Called after every advance; the events are those that went in.
  using Observer = std::function<void(Nanos now, std::span<const Event> events, Actions& actions)>;
  // Called before every advance, with events as they go in.
  using Recorder = std::function<void(Nanos now, std::span<const Event> events)>;

  Simulator(EngineCore& core, Executable& executable, StepSeconds step_seconds);
  void at(Nanos time, Event event);  // also from inside the observer, not before now()
  // Returns one event at a time, ordered by time, so that a long trace need not be in memory.
  // False: there are no more.
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
