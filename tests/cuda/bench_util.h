#pragma once
// Small helpers of the device tests: kernel files, timing, results.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "backend/common/sampler.h"
#include "backend/cuda/driver.h"
#include "base/error.h"

namespace tokamak::cuda {

inline std::vector<char> read_kernels(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kNotFound, "{}: cannot be read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Stream {
 public:
  Stream() {
    check(driver().stream_create(&stream_, 1), "making a stream");
    check(driver().event_create(&from_, 0), "making an event");
    check(driver().event_create(&to_, 0), "making an event");
  }
  ~Stream() {
    driver().event_destroy(from_);
    driver().event_destroy(to_);
    driver().stream_destroy(stream_);
  }
  Handle get() const { return stream_; }
  void wait() const { check(driver().stream_wait(stream_), "waiting for the device"); }
  // Milliseconds of device time, median of `repeats` after a warm-up.
  double time(int repeats, const std::function<void()>& work) const {
    for (int i = 0; i < 3; ++i) work();
    std::vector<float> all;
    for (int i = 0; i < repeats; ++i) {
      check(driver().event_record(from_, stream_), "timing");
      work();
      check(driver().event_record(to_, stream_), "timing");
      check(driver().event_wait(to_), "timing");
      float ms = 0;
      check(driver().event_elapsed(&ms, from_, to_), "timing");
      all.push_back(ms);
    }
    std::nth_element(all.begin(), all.begin() + repeats / 2, all.end());
    return static_cast<double>(all[static_cast<size_t>(repeats / 2)]);
  }

 private:
  Handle stream_ = nullptr, from_ = nullptr, to_ = nullptr;
};

constexpr double kPeakBytes = 4.5e12;  // per second: what reads reach on an H200

struct Report {
  int failures = 0;
  void expect(bool holds, const std::string& what) {
    fmt::print("{} {}\n", holds ? "ok    " : "FAILED", what);
    std::fflush(stdout);
    if (!holds) ++failures;
  }
  void timing(const std::string& name, double ms, double bytes) {
    double share = bytes / (ms * 1e-3) / kPeakBytes;
    fmt::print("{:<46} {:9.4f} ms {:8.3f} GB {:6.2f} TB/s {:5.1f} % of 4.5 TB/s\n", name, ms,
               bytes / 1e9, bytes / ms / 1e9, share * 100);
    fmt::print("{{\"name\": \"{}\", \"ms\": {:.5f}, \"bytes\": {:.0f}, \"share\": {:.4f}}}\n", name,
               ms, bytes, share);
    std::fflush(stdout);
  }
};

// What the host sampler chooses from a row of logits.
inline int32_t host_choice(const std::vector<float>& logits, const SampleSpec& spec,
                           int32_t position, int32_t choice = 0) {
  Sampler sampler(static_cast<int64_t>(logits.size()), 1);
  StepInputs step;
  step.ids = {0};
  step.seq = step.row = step.out_rows = {0};
  step.kv_len = {1};
  step.samples.push_back({SampleRow::Mode::kSample, -1, choice, position, 0,
                          std::make_shared<const SampleSpec>(spec)});
  StepResult result;
  sampler.finish(step, logits.data(), result);
  return result.ids.at(0);
}

}  // namespace tokamak::cuda
