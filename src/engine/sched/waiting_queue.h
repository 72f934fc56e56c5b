#pragma once
// Who waits, and in which order the policy wants them to start.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/sequence.h"

namespace tokamak {

// Owned by Scheduler, engine thread only. A lane per tenant with SchedPolicy::kFair, otherwise one.
// O(log lane) to push and remove, but for moving pointers.
class WaitingQueue {
 public:
  explicit WaitingQueue(SchedPolicy policy);

  // A sequence belongs to its tenant from its arrival until it is retired.
  void join(Sequence& seq);
  void leave(const Sequence& seq);

  void push(Sequence* seq);
  void remove(Sequence* seq);
  size_t size() const { return size_; }

  // The first `count` (or fewer) that should start next, best first. With kCache the caller sorts.
  void front(size_t count, std::vector<Sequence*>& out);
  // Tokens were computed for it: an output token counts twice, as it costs more.
  void charge(const Sequence& seq, int64_t inputs, int64_t outputs);

  // The order of starting, and the reverse order of being preempted.
  bool before(const Sequence* a, const Sequence* b) const;

 private:
  struct Lane {
    std::string tenant;
    std::deque<Sequence*> waiting;  // by before()
    int64_t sequences = 0;          // waiting and running
    int64_t served = 0;
    int64_t planned = 0;  // while front() runs: served and what it would be given first
    size_t next = 0;
  };
  SchedPolicy policy_;
  std::vector<Lane> lanes_;  // those without sequences are reused
  std::map<std::string, int32_t, std::less<>> by_tenant_;
  size_t size_ = 0;
};

}  // namespace tokamak
