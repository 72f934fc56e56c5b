#pragma once
// Waiting sequences, in the order in which the policy starts them.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/sequence.h"

namespace tokamak {

// Owned by Scheduler, engine thread only. One lane per tenant with SchedPolicy::kFair, otherwise
// one lane. push and remove cost O(log lane) comparisons.
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
  // Counts computed tokens; an output token counts twice because it costs more.
  void charge(const Sequence& seq, int64_t inputs, int64_t outputs);

  // The order in which sequences start, and the reverse of the order in which they are preempted.
  bool before(const Sequence* a, const Sequence* b) const;

 private:
  struct Lane {
    std::string tenant;
    std::deque<Sequence*> waiting;  // by before()
    int64_t sequences = 0;          // waiting and running
    int64_t served = 0;
    int64_t planned = 0;  // in front(): served, plus the tokens of sequences listed so far
    size_t next = 0;
  };
  SchedPolicy policy_;
  std::vector<Lane> lanes_;  // lanes without sequences are reused
  std::map<std::string, int32_t, std::less<>> by_tenant_;
  size_t size_ = 0;
};

}  // namespace tokamak
