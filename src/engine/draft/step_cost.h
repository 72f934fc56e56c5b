#pragma once
// How long steps of decodes take, by their number of rows.
#include <algorithm>
#include <array>
#include <cstdint>

namespace tokamak {

// Measured times, smoothed; between them and beyond the largest they are interpolated. A number of
// rows that has not been seen for a while counts as not measured, so that one slow step does not
// decide for ever. Pure arithmetic.
class StepCost {
 public:
  static constexpr int64_t kMostRows = 128;

  void observe(int64_t rows, double seconds) {
    if (rows < 1 || rows > kMostRows || !(seconds > 0)) return;
    ++steps_;
    Entry& e = entries_[static_cast<size_t>(rows)];
    bool old = !known(e);
    // An outlier counts as twice what was expected.
    e.seconds = old ? seconds : e.seconds + kNew * (std::min(seconds, 2 * e.seconds) - e.seconds);
    e.at = steps_;
  }

  // Any unit if nothing was measured.
  double seconds(int64_t rows) const {
    rows = std::clamp<int64_t>(rows, 1, kMostRows);
    int64_t below = rows, above = rows;
    while (below > 0 && !known(entries_[static_cast<size_t>(below)])) --below;
    while (above <= kMostRows && !known(entries_[static_cast<size_t>(above)])) ++above;
    if (below == 0 && above > kMostRows) return 1 + kFirstSlope * static_cast<double>(rows - 1);
    if (below == 0) return time(above) / (1 + kFirstSlope * static_cast<double>(above - rows));
    if (above <= kMostRows) {
      if (above == below) return time(below);
      double part = static_cast<double>(rows - below) / static_cast<double>(above - below);
      return time(below) + part * std::max(0.0, time(above) - time(below));
    }
    return time(below) + slope_before(below) * static_cast<double>(rows - below);
  }

 private:
  struct Entry {
    double seconds = 0;
    int64_t at = 0;  // step of the last measurement; 0: none
  };
  static constexpr double kNew = 0.25;         // weight of a new measurement
  static constexpr double kFirstSlope = 0.06;  // assumed cost of a row, as a share of a step
  static constexpr int64_t kFresh = 1024;      // steps

  bool known(const Entry& e) const { return e.at > 0 && steps_ - e.at < kFresh; }
  double time(int64_t rows) const { return entries_[static_cast<size_t>(rows)].seconds; }
  double slope_before(int64_t rows) const {
    int64_t first = rows - 1;
    while (first > 0 && !known(entries_[static_cast<size_t>(first)])) --first;
    if (first == 0) return kFirstSlope * time(rows);
    return std::max(0.0, time(rows) - time(first)) / static_cast<double>(rows - first);
  }

  std::array<Entry, kMostRows + 1> entries_{};
  int64_t steps_ = 0;
};

}  // namespace tokamak
