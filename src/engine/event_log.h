#pragma once
// A run as text: every call of EngineCore::advance with its events. Replaying it gives the same
// actions, so a bad night on a server becomes a test.
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/core.h"

namespace tokamak {

// Owned by whoever wants the log; written by the engine's thread. Memory grows with the run up to
// `most_bytes`; what comes later is not recorded, so that the text is always a run from its start.
//   advance <now> <number of events>
//   arrival <id> max=16 n=1 prompt=1,2,3 ...    cancel <id>    stop_at <id> <choice> <position>
//   done <ticket> ids=5,6 accepted=1,1 ...      failed <ticket> <error in hex>
class EventLog {
 public:
  explicit EventLog(size_t most_bytes = size_t{64} << 20) : most_bytes_(most_bytes) {}
  void record(Nanos now, std::span<const Event> events);
  const std::string& text() const { return text_; }
  bool full() const { return full_; }  // the run went on after the end of the text

 private:
  size_t most_bytes_;
  bool full_ = false;
  std::string text_;
};

// Feeds a fresh core with a recorded run; `observe` sees the actions of every call. Throws
// Error(kCorrupt, "event log, line N: ...").
void replay_events(std::string_view log, EngineCore& core,
                   const std::function<void(Nanos now, const Actions& actions)>& observe);

// Actions as text, for comparing runs.
std::string actions_text(const Actions& actions);

}  // namespace tokamak
