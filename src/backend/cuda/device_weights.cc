#include "backend/cuda/device_weights.h"

#include <algorithm>
#include <cstring>

#include "backend/common/weights.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace tokamak::cuda {
namespace {

constexpr size_t kStageBytes = size_t{16} << 20;
constexpr int64_t kShareBytes = int64_t{1} << 20;  // that are worth a thread
constexpr int kThreads = 8;

bool is_matrix(const WeightEntry& entry) { return entry.dims.size() >= 2; }

// Two pinned buffers in turn: one is filled while the other is copied. Several threads fill it: one
// copies from mapped files more slowly than the device is reached.
class Uploader {
 public:
  Uploader(const DeviceStream& stream, size_t bytes)
      : stream_(stream), pool_(std::min(kThreads, available_cores())) {
    for (PinnedBuffer& b : stage_) b = PinnedBuffer(std::min(bytes, kStageBytes));
  }
  void copy(DeviceAddress to, const std::byte* from, size_t bytes) {
    while (bytes > 0) {
      if (used_[turn_]) done_[turn_].wait();
      size_t n = std::min(bytes, stage_[turn_].bytes());
      std::byte* stage = stage_[turn_].data();
      pool_.split(static_cast<int64_t>(n), kShareBytes, [&](int64_t begin, int64_t end, int) {
        std::memcpy(stage + begin, from + begin, static_cast<size_t>(end - begin));
      });
      stream_.copy_in(to, stage_[turn_].data(), n);
      done_[turn_].record(stream_);
      used_[turn_] = true;
      turn_ ^= 1;
      to += n;
      from += n;
      bytes -= n;
    }
  }

 private:
  const DeviceStream& stream_;
  ThreadPool pool_;
  PinnedBuffer stage_[2];
  DeviceEvent done_[2];
  bool used_[2] = {};
  int turn_ = 0;
};

}  // namespace

DeviceWeights::DeviceWeights(const PlanSet& plans, const WeightSource& source,
                             const DeviceStream& stream,
                             const std::function<void(uint64_t, uint64_t)>& progress) {
  size_t total = 0, largest = 0;
  offsets_.resize(plans.weights.size());
  sizes_.resize(plans.weights.size());
  for (bool matrices : {true, false})
    for (size_t i = 0; i < plans.weights.size(); ++i) {
      const WeightEntry& entry = plans.weights[i];
      if (is_matrix(entry) != matrices) continue;
      const auto bytes = static_cast<size_t>(weight_bytes(entry));
      offsets_[i] = total;
      sizes_[i] = bytes;
      constexpr size_t kAlign = kAlignment;
      total += (bytes + kAlign - 1) / kAlign * kAlign;
      largest = std::max(largest, bytes);
    }
  memory_ = Buffer(total);
  check(driver().stream_wait(nullptr), "clearing memory");  // Buffer() works on the default stream
  Uploader uploader(stream, largest);
  uint64_t done = 0;
  for (size_t i = 0; i < plans.weights.size(); ++i) {
    const WeightEntry& entry = plans.weights[i];
    LoadedTensor tensor = load_weight(entry, source);
    size_t bytes = tensor.view.bytes.size();
    if (tensor.view.dtype != entry.dtype || bytes != static_cast<size_t>(weight_bytes(entry)))
      fail(ErrorCode::kCorrupt, "weight {} is {} of {} bytes; the plan has {} of {}", entry.name,
           dtype_name(tensor.view.dtype), bytes, dtype_name(entry.dtype), weight_bytes(entry));
    uploader.copy(memory_.address() + offsets_[i], tensor.view.bytes.data(), bytes);
    done += bytes;
    if (progress) progress(done, total);
  }
  stream.wait();
}

bool DeviceWeights::will_be_together(const PlanSet& plans, const std::vector<uint32_t>& weights) {
  for (size_t i = 1; i < weights.size(); ++i) {
    const WeightEntry& before = plans.weights.at(weights[i - 1]);
    if (weight_bytes(before) % kAlignment != 0) return false;
    uint32_t next = weights[i - 1] + 1;
    while (next < plans.weights.size() && is_matrix(plans.weights[next]) != is_matrix(before))
      ++next;
    if (weights[i] != next) return false;
  }
  return true;
}

bool DeviceWeights::together(const std::vector<uint32_t>& weights) const {
  size_t next = offsets_.at(weights.at(0));
  for (uint32_t w : weights) {
    if (offsets_.at(w) != next) return false;
    next += sizes_[w];
  }
  return true;
}

}  // namespace tokamak::cuda
