#pragma once
// The attributes, planes and extents of a call of attend or attend_chunk.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/attend_workspace.h"
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
  static constexpr int64_t kColumns = 64;  // per work item (more when one row alone has more heads)

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

  // The keys or values of a tile as f32; at least two panels: values may be stored as keys are.
  int64_t panel_floats() const { return kTileSlots * std::max(d_, value_->padded); }

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

  // Some rows of a sequence with the query heads that share a kv head; a column is one of both.
  struct WorkItem {
    const Tensor* in;
    const Tensor* out;
    const StepContext* c;
    int64_t b, head;      // sequence, kv head
    int64_t first, rows;  // rows of the step
    int64_t columns, padded;
  };
  int64_t row_of(const WorkItem& item, int64_t column) const {
    return item.first + column / group_;
  }

  // Slots that any of an item's rows may see, and the first of the step's own. With branches: the
  // slots in which the keys of a row's branch would be alone.
  struct Range {
    int64_t begin, end, own;
    bool branches = false;
    bool has_segment(int64_t s) const {
      return begin / kSegmentSlots <= s && s * kSegmentSlots < end;
    }
  };
  Range range_of(const WorkItem& item) const {
    const int32_t *pos = item.in[kPos].i32(), *slot = item.in[kSlot].i32();
    const int32_t* q_start = item.in[kQStart].i32() + item.b;
    int64_t end = item.in[kKvLen].i32()[item.b], own = end - (q_start[1] - q_start[0]);
    int64_t newest = 0, oldest = std::numeric_limits<int64_t>::max();
    for (int64_t r = item.first; r < item.first + item.rows; ++r) {
      newest = std::max<int64_t>(newest, slot[r]);
      oldest = std::min<int64_t>(oldest, pos[r]);
    }
    while (!has_mask_ && end > own && slot[q_start[0] + end - 1 - own] > newest) --end;
    bool branches = false;
    if (has_mask_) end = own;
    for (int64_t r = item.first; has_mask_ && r < item.first + item.rows; ++r)
      each_own(item, r, [&](int64_t m, int64_t nth) {
        branches = branches || m != nth;
        end = std::max(end, own + nth + 1);
      });
    int64_t begin = window_ > 0 ? oldest - window_ + 1 : chunk_ > 0 ? oldest / chunk_ * chunk_ : 0;
    // Rows of padding have no keys at all: own < 0 = end.
    return {std::clamp<int64_t>(begin, 0, std::max<int64_t>(0, own)), end, own, branches};
  }

  // body(m, n) for those of the sequence's rows in this step that the mask shows to a row: row m is
  // the n-th of them.
  template <class Body>
  void each_own(const WorkItem& item, int64_t row, Body&& body) const {
    const int32_t* q_start = item.in[kQStart].i32() + item.b;
    int64_t width = item.in[kMask].dims[1],
            count = std::min<int64_t>(width, q_start[1] - q_start[0]);
    const int32_t* mask = item.in[kMask].i32() + row * width;
    for (int64_t m = 0, n = 0; m < count; ++m)
      if (mask[m] != 0) body(m, n++);
  }

  // The block that holds the panel at `slot`, and which panel of the block it is; -1 when dropped.
  int64_t block_of(const WorkItem& item, int64_t slot, int64_t& panel) const {
    const StepInputs::Table& table = item.c->step->tables[kv_->group];
    panel = slot % kv_->block_size / kPanel;
    return table.blocks[static_cast<size_t>(item.b * table.stride + slot / kv_->block_size)];
  }

  // The newest of a tile's keys that come with this step, where order alone decides what a row sees
  // and the tile is whole.
  int64_t newest_of(const WorkItem& item, int64_t start, int64_t slots, int64_t own) const {
    if (has_mask_ || limited() || slots != kTileSlots) return std::numeric_limits<int64_t>::max();
    int64_t newest = -1;
    for (int64_t key = std::max(start, own); key < start + slots; ++key)
      newest = std::max<int64_t>(newest,
                                 item.in[kSlot].i32()[item.in[kQStart].i32()[item.b] + key - own]);
    return newest;
  }
  bool sees_all(const WorkItem& item, int64_t row, int64_t newest) const {
    return newest <= item.in[kSlot].i32()[row];
  }
  bool visible(const WorkItem& item, int64_t row, int64_t start, int64_t slots, int64_t own,
               bool* seen) const {
    const int32_t *pos = item.in[kPos].i32(), *slot = item.in[kSlot].i32();
    int64_t first = item.in[kQStart].i32()[item.b];
    if (slots == kTileSlots && start + slots <= own && near(pos[row], start) &&
        near(pos[row], start + slots - 1))
      return true;
    for (int64_t j = 0; j < kTileSlots; ++j) {
      int64_t key = start + j, m = key - own;  // m: which of the step's own rows
      seen[j] = j < slots && (m < 0 || (!has_mask_ && slot[first + m] <= slot[row])) &&
                near(pos[row], m >= 0 ? pos[first + m] : key);
    }
    if (has_mask_ && start + slots > own)
      each_own(item, row, [&](int64_t m, int64_t n) {
        int64_t j = own + n - start;
        if (j >= 0 && j < slots) seen[j] = near(pos[row], pos[first + m]);
      });
    return false;
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
