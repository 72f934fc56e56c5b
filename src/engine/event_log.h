#pragma once
// A run as text: every call of EngineCore::advance with its events, one JSON object per line.
// Replaying it gives the same actions, so that a failure on a server can be turned into a test.
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/core.h"

namespace tokamak {

// Owned by the caller; written by the engine's thread. The text grows up to `most_bytes`; later
// calls are not recorded, so that the text is always a run from its start. Token masks are not
// recorded: their effect is in the results of the steps. A run with jump-forward cannot be
// replayed, because masks also append tokens there.
//   {"now": 5, "events": [{"arrival": 1, "prompt": [1, 2], "max_tokens": 16}, {"cancel": 3},
//                         {"stop_at": 1, "choice": 0, "position": 4}]}
//   {"now": 9, "events": [{"done": 0, "seconds": 0.1, "ids": [5], "path": [0], ...}]}
//   {"now": 9, "events": [{"failed": 0, "error": "out of memory"}]}
class EventLog {
 public:
  explicit EventLog(size_t most_bytes = size_t{64} << 20) : most_bytes_(most_bytes) {}
  void record(Nanos now, std::span<const Event> events);
  const std::string& text() const { return text_; }
  bool full() const { return full_; }  // the run went on and was not recorded

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
