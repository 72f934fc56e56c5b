#include "backend/cpu/schedule.h"

#include <algorithm>
#include <tuple>

#include "base/channels.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

bool overlap(const MemoryAccess& a, const MemoryAccess& b) {
  if (a.state != b.state) return false;
  auto distance = static_cast<int64_t>(b.base - a.base);
  int64_t end_a = (a.rows - 1) * a.stride + a.width, end_b = (b.rows - 1) * b.stride + b.width;
  if (distance >= end_a || -distance >= end_b) return false;
  if (a.rows > 1 && b.rows > 1 && a.stride != b.stride) return true;
  int64_t stride = a.rows > 1 ? a.stride : b.stride;
  if (a.rows == 1 && b.rows == 1) return true;
  // Rows i of a and j of b meet when -b.width < distance + (j - i) * stride < a.width.
  int64_t least = floor_div(-b.width - distance, stride) + 1;
  int64_t most = floor_div(a.width - 1 - distance, stride);
  return std::max(least, 1 - a.rows) <= std::min(most, b.rows - 1);
}

ScheduleMaker::ScheduleMaker(std::vector<ScheduledCall> calls, int threads, std::string name,
                             bool placed)
    : calls_(std::move(calls)),
      threads_(threads),
      name_(std::move(name)),
      placed_(placed),
      log_(log::channel_enabled("schedule")),
      kept_(kKept) {
  list_.reserve(256);
  touched_.reserve(512 * static_cast<size_t>(threads));
  groups_.reserve(512);
  for (ThreadSchedule& s : kept_) {
    s.items.reserve(2 * calls_.size());
    s.shape.reserve(8);
  }
}

const ThreadSchedule& ScheduleMaker::get(std::span<const int64_t> shape,
                                         const StepContext& context) {
  auto is = [&](const ThreadSchedule& s) {
    return s.made && std::equal(shape.begin(), shape.end(), s.shape.begin(), s.shape.end());
  };
  if (is(kept_[last_])) return kept_[last_];
  for (last_ = 0; last_ < kKept; ++last_)
    if (is(kept_[last_])) return kept_[last_];
  last_ = next_;
  next_ = (next_ + 1) % kKept;
  ThreadSchedule& s = kept_[last_];
  s.made = false;
  s.shape.assign(shape.begin(), shape.end());
  make(context, s);
  s.made = true;
  return s;
}

void ScheduleMaker::make(const StepContext& context, ThreadSchedule& out) {
  out.items.clear();
  out.barriers = 0;
  out.parts = 1;
  touched_.clear();
  groups_.clear();
  for (uint32_t i = 0; i < calls_.size(); ++i) {
    const ScheduledCall& call = calls_[i];
    int stages = call.op->stages(call.in, call.out, context);
    for (int stage = 0; stage < stages; ++stage) {
      ScheduleItem item{i, static_cast<uint16_t>(stage)};
      auto index = static_cast<uint32_t>(out.items.size());
      int parts = collect(context, index, item);
      item.parts = static_cast<uint16_t>(parts);
      out.parts = std::max(out.parts, parts);
      Conflict conflict;
      item.barrier = !placed_ || find_conflict(conflict);
      out.items.push_back(item);
      if (item.barrier) {
        ++out.barriers;
        if (log_ && placed_) report(out, conflict);
        forget_before();
      }
    }
  }
  if (log_)
    log::channel("schedule", fmt::format("{}, shape {}: {} calls, {} stages, {} barriers for {} "
                                         "threads",
                                         name_, fmt::join(out.shape, " "), calls_.size(),
                                         out.items.size(), out.barriers, threads_));
#ifndef NDEBUG
  Conflict race;
  if (placed_ && find_race(calls_, out, context, race))
    TK_CHECK(false, "schedule: {}", describe(out, race));
#endif
}

// What all threads touch in the stage; returns how many of them have something to do.
int ScheduleMaker::collect(const StepContext& context, uint32_t item, const ScheduleItem& stage) {
  const ScheduledCall& call = calls_[stage.call];
  StepContext c = context;
  c.stage = stage.stage;
  fresh_ = touched_.size();
  fresh_group_ = groups_.size();
  int parts = 0;
  for (c.thread = 0; c.thread < threads_; ++c.thread) {
    list_.clear();
    call.op->touch(call.in, call.out, c, list_);
    if (!list_.items().empty()) parts = c.thread + 1;
    for (uint32_t n = 0; n < list_.items().size(); ++n)
      touched_.push_back({list_.items()[n], c.thread, item, n});
  }
  add_groups();
  return parts;
}

void ScheduleMaker::add_groups() {
  std::sort(touched_.begin() + static_cast<int64_t>(fresh_), touched_.end(),
            [](const Touched& a, const Touched& b) {
              return std::tie(a.nth, a.access.state, a.access.write, a.thread) <
                     std::tie(b.nth, b.access.state, b.access.write, b.thread);
            });
  for (size_t i = fresh_; i < touched_.size(); ++i) {
    const MemoryAccess& a = touched_[i].access;
    uintptr_t end = a.base + static_cast<uintptr_t>((a.rows - 1) * a.stride + a.width);
    bool same = i > fresh_ && touched_[i - 1].nth == touched_[i].nth &&
                groups_.back().state == a.state && groups_.back().write == a.write;
    if (!same) groups_.push_back({a.base, end, a.state, a.write, i, i});
    Group& g = groups_.back();
    g.begin = std::min(g.begin, a.base);
    g.end = std::max(g.end, end);
    g.last = i + 1;
  }
}

// Behind a barrier only the stage in question counts.
void ScheduleMaker::forget_before() {
  touched_.erase(touched_.begin(), touched_.begin() + static_cast<int64_t>(fresh_));
  groups_.erase(groups_.begin(), groups_.begin() + static_cast<int64_t>(fresh_group_));
  for (Group& g : groups_) {
    g.first -= fresh_;
    g.last -= fresh_;
  }
}

bool ScheduleMaker::find_conflict(Conflict& out) const {
  for (size_t a = fresh_group_; a < groups_.size(); ++a)
    for (size_t b = 0; b < fresh_group_; ++b)
      if (meet(groups_[a], groups_[b], out)) return true;
  return false;
}

bool ScheduleMaker::meet(const Group& ga, const Group& gb, Conflict& out) const {
  if (!(ga.write || gb.write) || ga.state != gb.state) return false;
  if (ga.begin >= gb.end || gb.begin >= ga.end) return false;
  for (size_t i = ga.first; i < ga.last; ++i)
    for (size_t j = gb.first; j < gb.last; ++j) {
      const Touched &a = touched_[i], &b = touched_[j];
      if (a.thread == b.thread || !overlap(a.access, b.access)) continue;
      out = {a.item, b.item, a.thread, b.thread, a.access, b.access};
      return true;
    }
  return false;
}

void ScheduleMaker::report(const ThreadSchedule& s, const Conflict& c) const {
  log::channel("schedule", "barrier: " + describe(s, c));
}

std::string ScheduleMaker::describe(const ThreadSchedule& s, const Conflict& c) const {
  auto stage = [&](uint32_t item) {
    const ScheduleItem& i = s.items[item];
    return fmt::format("call {} ({}) stage {}", i.call, calls_[i.call].label, i.stage);
  };
  return fmt::format("thread {} of {} {} what thread {} of {} {} ({} bytes, {} rows)", c.thread,
                     stage(c.item), c.access.write ? "writes" : "reads", c.other, stage(c.before),
                     c.met.write ? "wrote" : "read", c.met.width, c.met.rows);
}

void run_call(const CpuOp& op, const Tensor* in, const Tensor* out, const StepContext& context,
              ThreadPool& pool) {
  for (int stage = 0, stages = op.stages(in, out, context); stage < stages; ++stage)
    pool.run([&](int thread) {
      StepContext c = context;
      c.thread = thread;
      c.stage = stage;
      op.run(in, out, c);
    });
}

}  // namespace tokamak::cpu
