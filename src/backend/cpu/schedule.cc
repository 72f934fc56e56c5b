#include "backend/cpu/schedule.h"

#include "base/channels.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

bool overlap(const Access& a, const Access& b) {
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

Scheduler::Scheduler(std::vector<ScheduledCall> calls, int threads, std::string name, bool placed)
    : calls_(std::move(calls)),
      threads_(threads),
      name_(std::move(name)),
      placed_(placed),
      log_(log::channel_enabled("schedule")),
      kept_(kKept) {
  list_.reserve(256);
  since_.reserve(1024);
  fresh_.reserve(1024);
  for (Schedule& s : kept_) {
    s.items.reserve(2 * calls_.size());
    s.shape.reserve(8);
  }
}

const Schedule& Scheduler::get(std::span<const int64_t> shape, const StepContext& context) {
  auto is = [&](const Schedule& s) {
    return !s.items.empty() &&
           std::equal(shape.begin(), shape.end(), s.shape.begin(), s.shape.end());
  };
  if (is(kept_[last_])) return kept_[last_];
  for (last_ = 0; last_ < kKept; ++last_)
    if (is(kept_[last_])) return kept_[last_];
  last_ = next_;
  next_ = (next_ + 1) % kKept;
  Schedule& s = kept_[last_];
  s.shape.assign(shape.begin(), shape.end());
  make(context, s);
  return s;
}

void Scheduler::make(const StepContext& context, Schedule& out) {
  out.items.clear();
  out.barriers = 0;
  out.parts = 1;
  since_.clear();
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
        since_.clear();
        if (log_ && placed_) report(out, conflict);
      }
      since_.insert(since_.end(), fresh_.begin(), fresh_.end());
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
int Scheduler::collect(const StepContext& context, uint32_t item, const ScheduleItem& stage) {
  const ScheduledCall& call = calls_[stage.call];
  StepContext c = context;
  c.stage = stage.stage;
  fresh_.clear();
  int parts = 0;
  for (c.thread = 0; c.thread < threads_; ++c.thread) {
    list_.clear();
    call.op->touch(call.in, call.out, c, list_);
    if (!list_.items().empty()) parts = c.thread + 1;
    for (const Access& a : list_.items()) fresh_.push_back({a, c.thread, item});
  }
  return parts;
}

bool Scheduler::find_conflict(Conflict& out) const {
  for (const Touched& a : fresh_)
    for (const Touched& b : since_) {
      if (a.thread == b.thread || !(a.access.write || b.access.write)) continue;
      if (!overlap(a.access, b.access)) continue;
      out = {a.item, b.item, a.thread, b.thread, a.access, b.access};
      return true;
    }
  return false;
}

void Scheduler::report(const Schedule& s, const Conflict& c) const {
  log::channel("schedule", "barrier: " + describe(s, c));
}

std::string Scheduler::describe(const Schedule& s, const Conflict& c) const {
  auto stage = [&](uint32_t item) {
    const ScheduleItem& i = s.items[item];
    return fmt::format("call {} ({}) stage {}", i.call, calls_[i.call].label, i.stage);
  };
  return fmt::format("thread {} of {} {} what thread {} of {} {} ({} bytes, {} rows)", c.thread,
                     stage(c.item), c.access.write ? "writes" : "reads", c.other, stage(c.before),
                     c.met.write ? "wrote" : "read", c.met.width, c.met.rows);
}

void run_call(const Op& op, const Tensor* in, const Tensor* out, const StepContext& context,
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
