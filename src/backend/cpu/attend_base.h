#pragma once
// The attributes, planes and extents of a call of attend or attend_chunk.
#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/error.h"
#include "ops/attend.h"

namespace tokamak::cpu {

class AttendBase : public CpuOp {
 public:
  explicit AttendBase(const OpSite& site) : kv_(&site.kv.state(site.in[kState].index)) {
    for (const std::string& name : attend_key_planes(site.attrs))
      keys_.push_back(&kv_->plane(name));
    value_ = &kv_->plane(attend_value_plane(site.attrs));
    scale_ = static_cast<float>(site.attrs.at("scale").as_double());
    softcap_ = static_cast<float>(site.attrs.get_double("softcap", 0));
    window_ = site.attrs.get_int("window", 0);
    chunk_ = site.attrs.get_int("chunk", 0);
    heads_ = site.in[kQuery].dims[1];
    d_ = site.in[kQuery].dims[2];
    kv_heads_ = keys_[0]->heads;
    int64_t width = 0;
    for (const KvPlane* k : keys_) width += k->width;
    bool same_heads = value_->heads == kv_heads_;
    for (const KvPlane* k : keys_) same_heads = same_heads && k->heads == kv_heads_;
    if (!same_heads || width != d_ || kv_heads_ == 0 || heads_ % kv_heads_ != 0)
      fail(ErrorCode::kUnsupported,
           "{}: the cpu backend needs keys and values with the same kv heads", site.label);
    group_ = heads_ / kv_heads_;
    tile_rows_ = std::max<int64_t>(1, kColumns / group_);
    columns_ = (tile_rows_ * group_ + kTile - 1) / kTile * kTile;
    int operands = static_cast<int>(site.in.size());
    if (site.attrs.get_int("slopes", 0) != 0) slopes_ = --operands;
    if (site.attrs.get_int("sinks", 0) != 0) sinks_ = --operands;
    has_mask_ = operands > kMask;
  }

 protected:
  enum Input : int { kQuery, kState, kView, kPos, kSeq, kSlot, kQStart, kKvLen, kMask };
  static constexpr int64_t kSegmentSlots = 256;
  static constexpr int64_t kColumns = 32;  // per work item (more when one row alone has more heads)

  bool limited() const { return window_ > 0 || chunk_ > 0; }
  // Whether the window or chunk of a row at `pos` has the key.
  bool near(int64_t pos, int64_t key) const {
    return window_ > 0 ? pos - key < window_ : chunk_ == 0 || pos / chunk_ == key / chunk_;
  }

  // How the threads share the work; follows from the extents.
  enum class Split : uint8_t {
    kHeads,     // each has its kv heads
    kItems,     // each takes every n-th item, which evens out causal triangles
    kSegments,  // few items: their segments are shared out too
  };
  Split split_of(const Tensor* in, const StepContext& c) const {
    if (kv_heads_ % c.threads == 0) return Split::kHeads;
    int64_t rows = in[kQuery].dims[0], sequences = in[kKvLen].elements();
    int64_t least = std::max((rows + tile_rows_ - 1) / tile_rows_, sequences) * kv_heads_;
    return least < 4 * c.threads ? Split::kSegments : Split::kItems;
  }

  // One panel as f32, and a second one where values are stored as keys are.
  int64_t panel_floats() const {
    return kPanel * std::max(d_, value_->padded) * (value_->key ? 2 : 1);
  }

  // Work items of a sequence and a kv head.
  int64_t tiles(const int32_t* q_start, int64_t b) const {
    return (q_start[b + 1] - q_start[b] + tile_rows_ - 1) / tile_rows_;
  }
  // The size of the partial result of a segment of the longest item.
  int64_t part_floats(const Tensor* in) const {
    int64_t rows = 1;
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b)
      rows = std::max<int64_t>(rows, in[kQStart].i32()[b + 1] - in[kQStart].i32()[b]);
    int64_t columns = std::min(rows, tile_rows_) * group_;
    return (columns + kTile - 1) / kTile * kTile * (value_->padded + 2);
  }
  int64_t segments_of(const Tensor* in) const {
    int64_t segments = 1;
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b)
      segments = std::max(segments, (in[kKvLen].i32()[b] + kSegmentSlots - 1) / kSegmentSlots);
    return segments;
  }

  const KvState* kv_;
  std::vector<const KvPlane*> keys_;
  const KvPlane* value_ = nullptr;
  float scale_, softcap_;
  int64_t window_, chunk_, heads_, d_, kv_heads_, group_, tile_rows_, columns_;
  bool has_mask_;
  int sinks_ = 0, slopes_ = 0;  // the operands; 0: none
};

}  // namespace tokamak::cpu
