#include "text/bpe_merge.h"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace tokamak {
namespace {
constexpr size_t kShort = 64;  // symbols; beyond it the quadratic loop is slower
constexpr uint32_t kEnd = UINT32_MAX;
constexpr int32_t kDead = INT32_MIN;
}  // namespace

void BpeMerger::merge(const MergeMap& merges, std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShort) {
    merge_short(merges, symbols);
  } else {
    merge_long(merges, symbols);
  }
}

void BpeMerger::merge_short(const MergeMap& merges, std::vector<int32_t>& symbols) {
  size_t count = symbols.size();
  int32_t results[kShort];
  uint32_t ranks[kShort];
  const auto look = [&](size_t i) {
    const MergeMap::Merge m = merges.find(symbols[i], symbols[i + 1]);
    ranks[i] = m.rank;
    results[i] = m.result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == MergeMap::kNone) break;
    symbols[best] = results[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    if (best + 1 < count) look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(count);
}

void BpeMerger::offer(const MergeMap& merges, const std::vector<int32_t>& symbols, uint32_t left) {
  const uint32_t right = next_[left];
  if (right == kEnd) return;
  const MergeMap::Merge m = merges.find(symbols[left], symbols[right]);
  if (m.rank == MergeMap::kNone) return;
  std::vector<uint32_t>& list = by_rank_[m.rank];
  if (list.empty()) open_ranks_.push(m.rank);
  list.push_back(left);
}

// The textbook algorithm: all candidates in one heap, best rank first, then leftmost.
void BpeMerger::merge_one_by_one(const MergeMap& merges, std::vector<int32_t>& symbols) {
  using Candidate = std::pair<uint32_t, uint32_t>;  // rank, left symbol
  std::vector<Candidate> heap;
  const auto rank_at = [&](uint32_t left) {
    return next_[left] == kEnd ? MergeMap::Merge{}
                               : merges.find(symbols[left], symbols[next_[left]]);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i)
    if (symbols[i] != kDead)
      if (const uint32_t rank = rank_at(i).rank; rank != MergeMap::kNone)
        heap.emplace_back(rank, i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t left) {
    const uint32_t rank = rank_at(left).rank;
    if (rank == MergeMap::kNone) return;
    heap.emplace_back(rank, left);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [rank, left] = heap.back();
    heap.pop_back();
    if (symbols[left] == kDead) continue;
    const MergeMap::Merge m = rank_at(left);
    if (m.rank != rank) continue;
    const uint32_t right = next_[left];
    symbols[left] = m.result;
    symbols[right] = kDead;
    next_[left] = next_[right];
    if (next_[left] != kEnd) before_[next_[left]] = left;
    if (before_[left] != kEnd) push(before_[left]);
    push(left);
  }
}

void BpeMerger::merge_long(const MergeMap& merges, std::vector<int32_t>& symbols) {
  const auto count = static_cast<uint32_t>(symbols.size());
  next_.resize(count);
  before_.resize(count);
  by_rank_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    next_[i] = i + 1 < count ? i + 1 : kEnd;
    before_[i] = i > 0 ? i - 1 : kEnd;
  }
  for (uint32_t i = 0; i + 1 < count; ++i) offer(merges, symbols, i);

  std::vector<uint32_t> sweep;
  while (!open_ranks_.empty()) {
    const uint32_t rank = open_ranks_.top();
    open_ranks_.pop();
    sweep.clear();
    sweep.swap(by_rank_[rank]);
    if (!std::is_sorted(sweep.begin(), sweep.end())) std::sort(sweep.begin(), sweep.end());
    for (size_t at = 0; at < sweep.size(); ++at) {
      const uint32_t left = sweep[at];
      if (symbols[left] == kDead) continue;
      const uint32_t right = next_[left];
      if (right == kEnd) continue;
      const MergeMap::Merge m = merges.find(symbols[left], symbols[right]);
      if (m.rank != rank) continue;  // a stale candidate at this position
      symbols[left] = m.result;
      symbols[right] = kDead;
      next_[left] = next_[right];
      if (next_[left] != kEnd) before_[next_[left]] = left;
      if (before_[left] != kEnd) offer(merges, symbols, before_[left]);
      offer(merges, symbols, left);
      // A merge may create a candidate of better or equal rank, which comes first. Sweeping would
      // then restart
      // repeatedly: such a word is finished one merge at a time.
      if (!open_ranks_.empty() && open_ranks_.top() <= rank && at + 1 < sweep.size()) {
        merge_one_by_one(merges, symbols);
        open_ranks_ = {};
        break;
      }
    }
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; ++i)
    if (symbols[i] != kDead) symbols[kept++] = symbols[i];
  symbols.resize(kept);
  if (count > (1u << 16)) {  // free memory that only a huge word needed
    std::vector<uint32_t>().swap(next_);
    std::vector<uint32_t>().swap(before_);
    by_rank_ = {};
  }
}

}  // namespace tokamak
