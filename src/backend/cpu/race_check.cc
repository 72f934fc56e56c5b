// The race checker. It shares nothing with the scheduler but what the ops say they touch: every
// access is taken apart into plain byte ranges, which are sorted and swept.
#include <algorithm>

#include "backend/cpu/schedule.h"

namespace tokamak::cpu {
namespace {

struct ByteRange {
  uintptr_t begin, end;
  int thread;
  uint32_t item;
  MemoryAccess access;
};

bool may_meet(const ByteRange& a, const ByteRange& b) {
  if (a.access.state != b.access.state) return true;  // cells have addresses of their own
  if (a.thread == b.thread || !(a.access.write || b.access.write)) return true;
  // The elements of coarse accesses of one stage differ by definition.
  return a.item == b.item && a.access.coarse && b.access.coarse;
}

// Sorted by begin; two ranges that may not meet.
bool sweep(std::vector<ByteRange>& ranges, Conflict& out) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<const ByteRange*> open;
  for (const ByteRange& r : ranges) {
    std::erase_if(open, [&](const ByteRange* o) { return o->end <= r.begin; });
    for (const ByteRange* o : open)
      if (!may_meet(r, *o)) {
        const ByteRange &late = r.item >= o->item ? r : *o, &early = r.item >= o->item ? *o : r;
        out = {late.item, early.item, late.thread, early.thread, late.access, early.access};
        return true;
      }
    open.push_back(&r);
  }
  return false;
}

}  // namespace

bool find_race(std::span<const ScheduledCall> calls, const ThreadSchedule& schedule,
               StepContext context, Conflict& out) {
  std::vector<ByteRange> ranges;
  AccessList list;
  for (uint32_t i = 0; i < schedule.items.size(); ++i) {
    const ScheduleItem& item = schedule.items[i];
    if (item.barrier) {
      if (sweep(ranges, out)) return true;
      ranges.clear();
    }
    const ScheduledCall& call = calls[item.call];
    context.stage = item.stage;
    for (context.thread = 0; context.thread < context.threads; ++context.thread) {
      list.clear();
      call.op->touch(call.in, call.out, context, list);
      for (const MemoryAccess& a : list.items())
        for (int64_t row = 0; row < a.rows; ++row) {
          uintptr_t begin = a.base + static_cast<uintptr_t>(row * a.stride);
          ranges.push_back({begin, begin + static_cast<uintptr_t>(a.width), context.thread, i, a});
        }
    }
  }
  return sweep(ranges, out);
}

}  // namespace tokamak::cpu
