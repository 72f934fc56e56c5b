#include "compile/planner/pack.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "compile/planner/pack_greedy.h"
#include "compile/planner/pack_search.h"

namespace tokamak {
namespace {

using PackClock = std::chrono::steady_clock;

uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

// One call of pack().
class Packer {
 public:
  Packer(std::span<const PackBuffer> buffers, const PackOptions& options)
      : buffers_(buffers), options_(options), start_(PackClock::now()) {
    double seconds = std::clamp(options.time_limit, 0.0, 1e7);
    deadline_ = start_ + std::chrono::duration_cast<PackClock::duration>(
                             std::chrono::duration<double>(seconds));
    check();
    make_sections();
    bound_by_live_sum();
  }

  PackResult run() {
    result_.peak = UINT64_MAX;
    StopSign stop = [this] { return expired(); };
    keep(pack_greedily(buffers_, goal(), stop));
    if (result_.peak > goal()) {
      uint64_t share = std::min({kLocalSearchWork, 100 * items_.size() * items_.size(),
                                 (options_.work_limit - spent()) / 10});
      keep(improve_order(buffers_, goal(), share, options_.seed, stop));
    }
    if (result_.peak > goal()) search();
    result_.seconds = std::chrono::duration<double>(PackClock::now() - start_).count();
    std::string error = packing_error(buffers_, result_.offsets);
    TK_CHECK(error.empty(), "{} gave a wrong packing: {}", result_.method, error);
    return std::move(result_);
  }

 private:
  static constexpr uint64_t kMaxAlign = uint64_t{1} << 40;
  static constexpr uint64_t kLocalSearchWork = 2'000'000;

  uint64_t goal() const { return std::max(options_.capacity, result_.lower_bound); }
  uint64_t spent() const { return std::min(work_, options_.work_limit); }
  bool expired() const {
    return (options_.cancel && *options_.cancel) || PackClock::now() >= deadline_;
  }
  bool out_of_budget() const { return spent() == options_.work_limit || expired(); }

  void check() {
    uint64_t sum = 0;
    for (const PackBuffer& b : buffers_) {
      TK_CHECK(b.lower < b.upper && std::has_single_bit(b.alignment) && b.alignment <= kMaxAlign);
      uint64_t rounded = b.size < (uint64_t{1} << 62) ? round_up(b.size, b.alignment) : b.size;
      TK_CHECK(rounded < (uint64_t{1} << 62) - sum, "sizes sum to 2^62 or more");
      sum += rounded;
    }
  }

  // Time cut where a buffer begins or ends; sizes in the largest unit that keeps all offsets
  // aligned. The search sees sizes rounded up, so what it rules out may be possible with padding.
  void make_sections() {
    for (const PackBuffer& b : buffers_) times_.insert(times_.end(), {b.lower, b.upper});
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    uint64_t alignment = 1;
    for (const PackBuffer& b : buffers_) alignment = std::max(alignment, b.alignment);
    for (uint32_t i = 0; i < buffers_.size(); ++i) {
      const PackBuffer& b = buffers_[i];
      if (b.size == 0) continue;
      uint64_t rounded = round_up(b.size, alignment);
      exact_ = exact_ && rounded == b.size;
      unit_ = std::gcd(unit_, rounded);
      items_.push_back({section(b.lower), section(b.upper), static_cast<int64_t>(rounded),
                        static_cast<double>(b.upper - b.lower)});
      item_ids_.push_back(i);
    }
    for (SearchBuffer& i : items_) i.size /= static_cast<int64_t>(unit_);
  }
  uint32_t section(uint64_t time) const {
    return static_cast<uint32_t>(std::lower_bound(times_.begin(), times_.end(), time) -
                                 times_.begin());
  }

  void bound_by_live_sum() {
    std::vector<uint64_t> delta(times_.size() + 1);  // wraps around for what ends
    for (const PackBuffer& b : buffers_) {
      delta[section(b.lower)] += b.size;
      delta[section(b.upper)] -= b.size;
    }
    uint64_t live = 0;
    for (uint64_t d : delta) result_.lower_bound = std::max(result_.lower_bound, live += d);
  }

  void keep(GreedyResult&& found) {
    work_ += found.work;
    if (found.peak >= result_.peak) return;
    result_.peak = found.peak;
    result_.offsets = std::move(found.offsets);
    result_.method = std::move(found.method);
  }

  // With a capacity, all effort goes there. Without one: the lower bound first, and after each
  // attempt that leads nowhere a target halfway up to the best known.
  void search() {
    if (items_.size() > kMaxSearchBuffers) return;
    if (options_.capacity >= result_.lower_bound) {
      attempt(options_.capacity, 1);
      return;
    }
    uint64_t target = result_.lower_bound;
    while (target < result_.peak && !out_of_budget()) {
      switch (attempt(target, 3)) {
        case SearchResult::Status::kFits:
          target = result_.lower_bound;
          break;
        case SearchResult::Status::kImpossible:
          target = std::max(target + unit_, result_.lower_bound);
          break;
        case SearchResult::Status::kUnknown:
          target += std::max(unit_, (result_.peak - target) / 2 / unit_ * unit_);
      }
    }
  }

  // Spends 1/share of what is left of the budget on fitting into `target`.
  SearchResult::Status attempt(uint64_t target, uint64_t share) {
    SearchLimits limits;
    limits.work = (options_.work_limit - spent()) / share;
    auto now = PackClock::now();
    limits.deadline = now + (deadline_ - now) / static_cast<int64_t>(share);
    limits.cancel = options_.cancel;
    SearchResult found = search_packing(items_, static_cast<uint32_t>(times_.size() - 1),
                                        static_cast<int64_t>(target / unit_), limits,
                                        options_.threads, options_.seed);
    work_ += std::max<uint64_t>(found.work, 1);
    result_.nodes += found.nodes;
    if (found.status == SearchResult::Status::kFits) take(found.offsets);
    if (found.status == SearchResult::Status::kImpossible && exact_)
      result_.lower_bound = std::max(result_.lower_bound, (target / unit_ + 1) * unit_);
    return found.status;
  }

  void take(const std::vector<int64_t>& offsets) {
    uint64_t peak = 0;
    std::vector<uint64_t> scaled(buffers_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      uint32_t id = item_ids_[i];
      scaled[id] = static_cast<uint64_t>(offsets[i]) * unit_;
      peak = std::max(peak, scaled[id] + buffers_[id].size);
    }
    if (peak >= result_.peak) return;
    result_.peak = peak;
    result_.offsets = std::move(scaled);
    result_.method = "branch and bound";
  }

  std::span<const PackBuffer> buffers_;
  const PackOptions& options_;
  PackClock::time_point start_, deadline_;
  std::vector<uint64_t> times_;
  std::vector<SearchBuffer> items_;  // buffers with bytes
  std::vector<uint32_t> item_ids_;
  uint64_t unit_ = 0, work_ = 0;
  bool exact_ = true;
  PackResult result_;
};

}  // namespace

PackResult pack(std::span<const PackBuffer> buffers, const PackOptions& options) {
  if (buffers.empty()) return {{}, 0, 0, "nothing to pack", 0, 0};
  return Packer(buffers, options).run();
}

std::string packing_error(std::span<const PackBuffer> buffers, std::span<const uint64_t> offsets) {
  if (offsets.size() != buffers.size()) return "not one offset per buffer";
  std::vector<uint32_t> by_offset(buffers.size());
  std::iota(by_offset.begin(), by_offset.end(), 0u);
  std::sort(by_offset.begin(), by_offset.end(),
            [&](uint32_t a, uint32_t b) { return offsets[a] < offsets[b]; });
  for (size_t x = 0; x < by_offset.size(); ++x) {
    const PackBuffer& a = buffers[by_offset[x]];
    uint64_t at = offsets[by_offset[x]];
    if (at % a.alignment != 0) return fmt::format("buffer {} is not aligned", by_offset[x]);
    for (size_t y = x + 1; y < by_offset.size() && offsets[by_offset[y]] < at + a.size; ++y) {
      const PackBuffer& b = buffers[by_offset[y]];
      if (b.size > 0 && a.lower < b.upper && b.lower < a.upper)
        return fmt::format("buffers {} and {} are alive together and overlap", by_offset[x],
                           by_offset[y]);
    }
  }
  return "";
}

}  // namespace tokamak
