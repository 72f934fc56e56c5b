#pragma once
// When the threads of a step must wait for each other. Every thread walks the same list of calls
// and does its own part of each; a barrier stands in front of a stage only where some thread would
// read or overwrite what another wrote, or overwrite what another read, since the barrier before.
// docs/cpu_schedule.md tells the whole story.
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/exec.h"

namespace tokamak::cpu {

// A call with the extents of the step.
struct ScheduledCall {
  const CpuOp* op = nullptr;
  const Tensor *in = nullptr, *out = nullptr;
  std::string_view label;
};

// One stage of a call.
struct ScheduleItem {
  uint32_t call = 0;
  uint16_t stage = 0;
  uint16_t parts = 0;  // threads 0 ... parts - 1 at most have something to do
  bool barrier = false;
};

struct ThreadSchedule {
  std::vector<int64_t> shape;  // symbol values it is made for
  std::vector<ScheduleItem> items;
  int barriers = 0, parts = 1;
  bool made = false;  // all of it
};

// Two threads that meet.
struct Conflict {
  uint32_t item = 0, before = 0;  // of the schedule; `before` may be the item itself
  int thread = 0, other = 0;
  MemoryAccess access, met;
};

bool overlap(const MemoryAccess& a,
             const MemoryAccess& b);  // exact, except for two different strides

// Makes schedules and keeps those of the last few shapes. Owned by an executable, used by its
// thread. No allocation once the buffers have grown to the plan.
class ScheduleMaker {
 public:
  // Schedules of `calls` in this order for steps with `threads` threads. `name`: of the plan, for
  // the log. `placed`: the arguments' places are known; else there is a barrier before every stage.
  ScheduleMaker(std::vector<ScheduledCall> calls, int threads, std::string name,
                bool placed = true);
  // `context`: of the step; thread and stage do not matter. `shape`: what the extents follow from.
  const ThreadSchedule& get(std::span<const int64_t> shape, const StepContext& context);
  const ThreadSchedule& last() const { return kept_[last_]; }
  const std::vector<ScheduledCall>& calls() const { return calls_; }

 private:
  struct Touched {
    MemoryAccess access;
    int thread;
    uint32_t item;
    uint32_t nth;  // access of its thread in that stage
  };
  // The n-th access of all threads in one stage: mostly one tensor, shared out. Two of these that
  // lie apart need no look at their threads.
  struct Group {
    uintptr_t begin, end;  // of the bytes
    const KvState* state;
    bool write;
    size_t first, last;  // of the touched
  };
  void make(const StepContext& context, ThreadSchedule& out);
  int collect(const StepContext& context, uint32_t item, const ScheduleItem& stage);
  void add_groups();
  void forget_before();
  bool find_conflict(Conflict& out) const;
  bool meet(const Group& a, const Group& b, Conflict& out) const;
  void report(const ThreadSchedule& s, const Conflict& c) const;
  std::string describe(const ThreadSchedule& s, const Conflict& c) const;

  static constexpr size_t kKept = 16;
  std::vector<ScheduledCall> calls_;
  int threads_;
  std::string name_;
  bool placed_, log_;
  std::vector<ThreadSchedule> kept_;
  size_t next_ = 0, last_ = 0;
  AccessList list_;
  // Since the last barrier; from fresh_ and fresh_group_ on: of the stage in question.
  std::vector<Touched> touched_;
  std::vector<Group> groups_;
  size_t fresh_ = 0, fresh_group_ = 0;
};

// The race checker: looks at every pair of threads between two barriers, byte range by byte range
// and without anything the scheduler uses. True when two of them meet. Every schedule of a debug
// build goes through it.
bool find_race(std::span<const ScheduledCall> calls, const ThreadSchedule& schedule,
               StepContext context, Conflict& out);

// Runs one call on all threads of the pool, which wait for each other after each stage.
void run_call(const CpuOp& op, const Tensor* in, const Tensor* out, const StepContext& context,
              ThreadPool& pool);

}  // namespace tokamak::cpu
