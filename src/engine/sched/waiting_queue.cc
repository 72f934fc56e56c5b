#include "engine/sched/waiting_queue.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {

WaitingQueue::WaitingQueue(SchedPolicy policy) : policy_(policy) {
  if (policy_ != SchedPolicy::kFair) lanes_.resize(1);
}

bool WaitingQueue::before(const Sequence* a, const Sequence* b) const {
  if (policy_ == SchedPolicy::kPriority && a->request->spec.priority != b->request->spec.priority)
    return a->request->spec.priority < b->request->spec.priority;
  return a->order < b->order;
}

void WaitingQueue::join(Sequence& seq) {
  seq.lane = 0;
  if (policy_ != SchedPolicy::kFair) return;
  const RequestSpec& spec = seq.request->spec;
  const std::string& tenant = spec.tenant.empty() ? spec.cache_salt : spec.tenant;
  auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) {
    // A tenant that had no requests gets no credit for that time: it starts with the least count.
    int64_t least = INT64_MAX;
    for (const Lane& l : lanes_)
      if (l.sequences > 0) least = std::min(least, l.served);
    auto empty =
        std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.sequences == 0; });
    if (empty == lanes_.end()) empty = lanes_.insert(empty, Lane{});
    empty->tenant = tenant;
    empty->served = least == INT64_MAX ? 0 : least;
    it = by_tenant_.emplace(tenant, static_cast<int32_t>(empty - lanes_.begin())).first;
  }
  seq.lane = it->second;
  ++lanes_[static_cast<size_t>(seq.lane)].sequences;
}

void WaitingQueue::leave(const Sequence& seq) {
  if (policy_ != SchedPolicy::kFair) return;
  Lane& lane = lanes_[static_cast<size_t>(seq.lane)];
  if (--lane.sequences == 0) by_tenant_.erase(lane.tenant);
}

void WaitingQueue::push(Sequence* seq) {
  auto& q = lanes_[static_cast<size_t>(seq->lane)].waiting;
  auto order = [this](const Sequence* a, const Sequence* b) { return before(a, b); };
  q.insert(std::upper_bound(q.begin(), q.end(), seq, order), seq);
  ++size_;
}

void WaitingQueue::remove(Sequence* seq) {
  auto& q = lanes_[static_cast<size_t>(seq->lane)].waiting;
  auto order = [this](const Sequence* a, const Sequence* b) { return before(a, b); };
  auto it = std::lower_bound(q.begin(), q.end(), seq, order);
  TK_CHECK(it != q.end() && *it == seq, "sequence {} is not waiting", seq->order);
  q.erase(it);
  --size_;
}

void WaitingQueue::front(size_t count, std::vector<Sequence*>& out) {
  out.clear();
  for (Lane& l : lanes_) {
    l.next = 0;
    l.planned = l.served;
  }
  while (out.size() < count) {
    Lane* best = nullptr;
    for (Lane& l : lanes_) {
      if (l.next == l.waiting.size()) continue;
      bool better =
          best == nullptr || l.planned < best->planned ||
          (l.planned == best->planned && before(l.waiting[l.next], best->waiting[best->next]));
      if (better) best = &l;
    }
    if (best == nullptr) return;
    Sequence* seq = best->waiting[best->next++];
    best->planned += seq->length();
    out.push_back(seq);
  }
}

void WaitingQueue::charge(const Sequence& seq, int64_t inputs, int64_t outputs) {
  lanes_[static_cast<size_t>(seq.lane)].served += inputs + 2 * outputs;
}

}  // namespace tokamak
