#pragma once
// Merges the symbols of one word by rank: lowest rank first, leftmost of equal ranks.
#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "text/flat_maps.h"

namespace tokamak {

// Buffers are reused between words; one per thread.
class BpeMerger {
 public:
  // Merges `symbols` in place.
  void merge(const MergeMap& merges, std::vector<int32_t>& symbols);

 private:
  void merge_short(const MergeMap& merges, std::vector<int32_t>& symbols);
  void merge_long(const MergeMap& merges, std::vector<int32_t>& symbols);
  void merge_one_by_one(const MergeMap& merges, std::vector<int32_t>& symbols);
  void offer(const MergeMap& merges, const std::vector<int32_t>& symbols, uint32_t left);

  std::vector<uint32_t> ranks_;
  // Long words: candidates by rank, so that a rank's merges run as one sweep from left to right.
  std::vector<uint32_t> next_, before_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_rank_;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> open_ranks_;
};

}  // namespace tokamak
