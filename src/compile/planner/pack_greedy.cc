#include "compile/planner/pack_greedy.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"

namespace tokamak {
namespace {

enum class Fit : uint8_t { kFirst, kBest };

// Places buffers in a given order. Kept between runs: the scratch and the count of work.
class Placer {
 public:
  Placer(std::span<const PackBuffer> buffers, const StopSign& stop)
      : buffers_(buffers), stop_(stop) {}

  // Offsets of all buffers, and the peak; UINT64_MAX when it gave up.
  uint64_t place(std::span<const uint32_t> order, Fit fit, bool may_stop,
                 std::vector<uint64_t>& offsets) {
    offsets.assign(buffers_.size(), 0);
    by_offset_.clear();
    uint64_t peak = 0;
    for (uint32_t b : order) {
      const PackBuffer& buffer = buffers_[b];
      if (buffer.size == 0) continue;
      uint64_t before = work_;
      work_ += by_offset_.size() + 1;
      if (may_stop && before >> 16 != work_ >> 16 && stop_()) return UINT64_MAX;
      uint64_t offset = find_place(buffer, fit, offsets);
      offsets[b] = offset;
      peak = std::max(peak, offset + buffer.size);
      auto at = std::upper_bound(by_offset_.begin(), by_offset_.end(), offset,
                                 [&](uint64_t o, uint32_t x) { return o < offsets[x]; });
      by_offset_.insert(at, b);
    }
    return peak;
  }
  uint64_t work() const { return work_; }

 private:
  static uint64_t align(uint64_t offset, uint64_t alignment) {
    return (offset + alignment - 1) / alignment * alignment;
  }

  // Gaps lie between the placed buffers that are alive together with this one, lowest first.
  uint64_t find_place(const PackBuffer& b, Fit fit, const std::vector<uint64_t>& offsets) const {
    uint64_t end = 0, best = UINT64_MAX, best_room = UINT64_MAX;
    for (uint32_t other : by_offset_) {
      const PackBuffer& o = buffers_[other];
      if (o.upper <= b.lower || b.upper <= o.lower) continue;
      uint64_t start = align(end, b.alignment);
      if (offsets[other] >= start && offsets[other] - start >= b.size) {
        uint64_t room = offsets[other] - end;
        if (fit == Fit::kFirst) return start;
        if (room < best_room) best = start, best_room = room;
      }
      end = std::max(end, offsets[other] + o.size);
    }
    return best != UINT64_MAX ? best : align(end, b.alignment);
  }

  std::span<const PackBuffer> buffers_;
  const StopSign& stop_;
  std::vector<uint32_t> by_offset_;
  uint64_t work_ = 0;
};

struct Order {
  const char* name;
  double (*key)(const PackBuffer&);  // largest first
};

double lifetime(const PackBuffer& b) { return static_cast<double>(b.upper - b.lower); }
double size_of(const PackBuffer& b) { return static_cast<double>(b.size); }

constexpr Order kOrders[] = {
    {"size", size_of},
    {"area", [](const PackBuffer& b) { return lifetime(b) * size_of(b); }},
    {"lifetime", lifetime},
    {"start", [](const PackBuffer& b) { return -static_cast<double>(b.lower); }},
    {"end", [](const PackBuffer& b) { return static_cast<double>(b.upper); }},
};

std::vector<uint32_t> sorted(std::span<const PackBuffer> buffers, const Order& order) {
  std::vector<double> keys;
  for (const PackBuffer& b : buffers) keys.push_back(order.key(b));
  std::vector<uint32_t> out(buffers.size());
  std::iota(out.begin(), out.end(), 0u);
  std::stable_sort(out.begin(), out.end(), [&](uint32_t x, uint32_t y) {
    return keys[x] != keys[y] ? keys[x] > keys[y] : buffers[x].size > buffers[y].size;
  });
  return out;
}

}  // namespace

GreedyResult pack_greedily(std::span<const PackBuffer> buffers, uint64_t goal,
                           const StopSign& stop) {
  GreedyResult best;
  Placer placer(buffers, stop);
  std::vector<uint64_t> offsets;
  for (const Order& order : kOrders) {
    std::vector<uint32_t> sequence = sorted(buffers, order);
    for (Fit fit : {Fit::kFirst, Fit::kBest}) {
      uint64_t peak = placer.place(sequence, fit, best.peak != UINT64_MAX, offsets);
      if (peak < best.peak) {
        best.peak = peak;
        best.offsets = offsets;
        best.method = std::string(fit == Fit::kFirst ? "first" : "best") + "-fit by " + order.name;
      }
      if (best.peak <= goal) break;
    }
    if (best.peak <= goal) break;
  }
  best.work = placer.work();
  return best;
}

// Moves the buffer that ends highest, and sometimes a random one, to an earlier place in the order.
GreedyResult improve_order(std::span<const PackBuffer> buffers, uint64_t goal, uint64_t work,
                           uint64_t seed, const StopSign& stop) {
  Rng rng(seed);
  Placer placer(buffers, stop);
  GreedyResult best;
  best.method = "local search";
  std::vector<uint32_t> order = sorted(buffers, kOrders[0]), trial;
  std::vector<uint64_t> offsets;
  uint64_t peak = best.peak = placer.place(order, Fit::kFirst, false, best.offsets);
  offsets = best.offsets;
  while (best.peak > goal && placer.work() < work && !stop()) {
    std::vector<size_t> high;
    for (size_t i = 1; i < order.size(); ++i)
      if (offsets[order[i]] + buffers[order[i]].size == peak) high.push_back(i);
    size_t from =
        !high.empty() && rng.below(4) != 0 ? high[rng.below(high.size())] : rng.below(order.size());
    size_t to = rng.below(from + 1);
    trial = order;
    std::rotate(trial.begin() + static_cast<ptrdiff_t>(to),
                trial.begin() + static_cast<ptrdiff_t>(from),
                trial.begin() + static_cast<ptrdiff_t>(from) + 1);
    std::vector<uint64_t> moved;
    uint64_t got = placer.place(trial, Fit::kFirst, true, moved);
    if (got > peak) continue;
    order.swap(trial);
    offsets.swap(moved);
    peak = got;
    if (peak < best.peak) best.peak = peak, best.offsets = offsets;
  }
  best.work = placer.work();
  return best;
}

}  // namespace tokamak
