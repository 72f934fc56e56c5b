#include "backend/cpu/attend_tiles.h"

#include <cmath>
#include <cstring>

namespace tokamak::cpu {
namespace {

constexpr int64_t kMostColumns = 512;  // of an item: keys and values become tiles once for all
constexpr int64_t kGroup = 2 * kTileRows;
constexpr int64_t kLeastRows = 16;                         // of a sequence
constexpr int64_t kSlots = 256;                            // at once
constexpr int64_t kScorePanel = kGroup * kPanel + kPanel;  // apart in the cache
constexpr float kLog2e = 1.44269504F;                      // scores are powers of two

}  // namespace

// Scratch of a thread.
struct AttendTiles::Work {
  uint16_t* query;    // [columns / 16][step][16][32]
  uint16_t* keys;     // tiles of a segment
  uint16_t* values;   // the same
  uint16_t* staged;   // [dv / 16][slots][16]: values as they are stored, in the order of weights
  float* scores;      // [slots / 16][kScorePanel]
  uint16_t* weights;  // [2][slots / 32][16][32]
  float* sums;        // [columns / 32][dv / 16][32][16]
  float *max, *sum;   // [columns]
  float* row;         // a row of queries
};

int64_t AttendTiles::item_rows() const { return std::max<int64_t>(1, kMostColumns / group_); }

bool AttendTiles::fits() const {
  auto narrow = [](const KvPlane& p) {
    return p.scale_at == 0 && (p.type == FType::kF16 || p.type == FType::kBF16);
  };
  return keys_.size() == 1 && narrow(*keys_[0]) && narrow(*value_) && !value_->key && !limited() &&
         softcap_ == 0 && slopes_ == 0 && group_ <= kMostColumns;
}
bool AttendTiles::fits(const OpSite& site) {
  if (!site.kernels.tile_unit.multiply || site.attrs.get_string(kAttendProducts, "") != "bf16")
    return false;
  return AttendTiles(site).fits();
}

bool AttendTiles::takes(const Tensor* in, int64_t b) const {
  const int32_t *q_start = in[kQStart].i32() + b, *slot = in[kSlot].i32();
  int64_t rows = q_start[1] - q_start[0], length = in[kKvLen].i32()[b];
  if (has_mask_ || rows < kLeastRows || length < rows) return false;
  for (int64_t r = 0; r < rows; ++r)
    if (slot[q_start[0] + r] != length - rows + r) return false;
  return true;
}

int64_t AttendTiles::lay_out(Work& w, uint8_t* scratch) const {
  int64_t bytes = 0;
  auto take = [&]<class T>(T*& to, int64_t count) {
    to = scratch ? reinterpret_cast<T*>(scratch + bytes) : nullptr;
    bytes += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  };
  int64_t columns = (item_rows() * group_ + kGroup - 1) / kGroup * kGroup;
  take(w.query, columns * steps() * kTileStep);
  take(w.keys, kSlots * steps() * kTileStep * key_terms());
  take(w.values, kSlots * value_->padded * value_terms());
  take(w.staged, kSlots * value_->padded);
  take(w.scores, kSlots / kPanel * kScorePanel);
  take(w.weights, kGroup * kSlots);
  take(w.sums, columns * value_->padded);
  take(w.max, columns);
  take(w.sum, columns);
  take(w.row, 2 * steps() * kTileStep);
  return bytes;
}
int64_t AttendTiles::scratch_bytes() const {
  Work w;
  return lay_out(w, nullptr);
}

void AttendTiles::run(const Tensor* in, const Tensor* out, const StepContext& c) const {
  const int32_t* q_start = in[kQStart].i32();
  int64_t index = 0;
  bool by_heads = kv_heads_ % c.threads == 0;
  for (int64_t b = 0; b < in[kKvLen].elements(); ++b) {
    if (!takes(in, b)) continue;
    for (int64_t row = q_start[b]; row < q_start[b + 1]; row += item_rows())
      for (int64_t head = 0; head < kv_heads_; ++head, ++index) {
        int64_t owner = by_heads ? head / (kv_heads_ / c.threads) : index % c.threads;
        if (owner != c.thread) continue;
        WorkItem item{in, out, &c, b, head, row, 0, 0, 0};
        item.rows = std::min(item_rows(), q_start[b + 1] - row);
        item.columns = item.rows * group_;
        run_item(item);
      }
  }
}

void AttendTiles::run_item(const WorkItem& item) const {
  Work w;
  lay_out(w, item.c->thread_scratch());
  load_queries(item, w);
  std::fill_n(w.max, item.columns, Workspace::kNothing);
  std::fill_n(w.sum, item.columns, 0.0F);
  int64_t end = item.in[kSlot].i32()[item.first + item.rows - 1] + 1;
  for (int64_t start = 0; start < end; start += kSlots) {
    int64_t slots = std::min(kSlots, end - start);
    load_segment(item, w, start, slots);
    for (int64_t column = 0; column < item.columns; column += kGroup)
      run_group(item, w, column, start, slots);
  }
  finish(item, w);
}

void AttendTiles::load_queries(const WorkItem& item, const Work& w) const {
  const KernelTable& k = item.c->kernels;
  auto* narrow = reinterpret_cast<uint16_t*>(w.row + steps() * kTileStep);
  std::fill_n(w.row, steps() * kTileStep, 0.0F);
  for (int64_t c = 0; c < item.columns; ++c) {
    const float* q =
        item.in[kQuery].f32() + (row_of(item, c) * heads_ + item.head * group_ + c % group_) * d_;
    k.unary[static_cast<int>(Unary::kScale)](q, w.row, d_, scale_ * kLog2e);
    k.narrow[static_cast<int>(FType::kBF16)](w.row, narrow, steps() * kTileStep);
    uint16_t* to = w.query + c / kTileRows * steps() * kTileStep * kTileRows;
    for (int64_t s = 0; s < steps(); ++s)
      std::memcpy(to + (s * kTileRows + c % kTileRows) * kTileStep, narrow + s * kTileStep,
                  kTileStep * sizeof(uint16_t));
  }
}

// Keys and values of the segment become tiles. Slots i of two neighbouring panels of values are
// side by side, as their weights are.
void AttendTiles::load_segment(const WorkItem& item, const Work& w, int64_t start,
                               int64_t slots) const {
  const KernelTable::TileUnit& unit = item.c->kernels.tile_unit;
  int64_t padded = value_->padded, steps_of_values = (slots + kTileStep - 1) / kTileStep,
          row = kPanel * static_cast<int64_t>(sizeof(uint16_t));
  for (int64_t at = 0; at < steps_of_values * kTileStep; at += kPanel) {
    int64_t panel = 0, count = std::clamp<int64_t>(slots - at, 0, kPanel);
    int64_t block = count > 0 ? block_of(item, start + at, panel) : -1;
    TK_CHECK(block >= 0 || count == 0, "attend: a visible block was dropped");
    if (count > 0)
      unit.spread_float[static_cast<int>(keys_[0]->type)](
          keys_[0]->panel(block, item.head, panel), d_,
          w.keys + at * steps() * kTileStep * key_terms());
    const uint8_t* from = count > 0 ? value_->panel(block, item.head, panel) : nullptr;
    for (int64_t v = 0; v < padded / kPanel; ++v) {
      uint16_t* to =
          w.staged + (v * kSlots + at / kTileStep * kTileStep + at / kPanel % 2) * kPanel;
      for (int64_t i = 0; i < kPanel; ++i, to += 2 * kPanel) {
        if (i < count)
          std::memcpy(to, from + (v * kPanel + i) * row, static_cast<size_t>(row));
        else
          std::memset(to, 0, static_cast<size_t>(row));
      }
    }
  }
  for (int64_t v = 0; v < padded / kPanel; ++v)
    unit.spread_float[static_cast<int>(value_->type)](
        reinterpret_cast<const uint8_t*>(w.staged + v * kSlots * kPanel),
        steps_of_values * kTileStep, w.values + v * kSlots * kPanel * value_terms());
}

void AttendTiles::run_group(const WorkItem& item, const Work& w, int64_t column, int64_t start,
                            int64_t slots) const {
  const KernelTable& k = item.c->kernels;
  const int32_t* slot = item.in[kSlot].i32();
  int64_t columns = std::min(kGroup, item.columns - column), padded = value_->padded;
  auto visible = [&](int64_t c) { return slot[row_of(item, c)] + 1 - start; };
  int64_t most = std::min(slots, visible(column + columns - 1));
  if (most <= 0) return;
  int64_t value_steps = (most + kTileStep - 1) / kTileStep,
          x_tile = steps() * kTileStep * kTileRows;
  k.tile_unit.multiply({.weights = w.keys,
                        .panels = (most + kPanel - 1) / kPanel,
                        .panel_numbers = steps() * kTileNumbers * key_terms(),
                        .terms = static_cast<int>(key_terms()),
                        .x = w.query + column / kTileRows * x_tile,
                        .x_tile = x_tile,
                        .rows = columns,
                        .steps = steps(),
                        .sums = w.scores,
                        .panel_sums = kScorePanel,
                        .is_new = true});
  constexpr int64_t tile = kSlots * kTileRows;
  float* sums = w.sums + column * padded;
  for (int64_t c = 0; c < columns; ++c) {
    float factor = k.weigh_bf16(w.scores + c * kPanel, kScorePanel,
                                std::clamp<int64_t>(visible(column + c), 0, most), value_steps,
                                w.weights + c / kTileRows * tile + c % kTileRows * kTileStep,
                                kTileRows * kTileStep, w.max + column + c, w.sum + column + c);
    for (int64_t v = 0; v < padded / kPanel && start > 0 && factor != 1.0F; ++v) {
      float* to = sums + (v * kGroup + c) * kPanel;
      for (int64_t i = 0; i < kPanel; ++i) to[i] *= factor;
    }
  }
  k.tile_unit.multiply({.weights = w.values,
                        .panels = padded / kPanel,
                        .panel_numbers = kSlots * kPanel * value_terms(),
                        .terms = static_cast<int>(value_terms()),
                        .x = w.weights,
                        .x_tile = tile,
                        .rows = columns,
                        .steps = value_steps,
                        .sums = sums,
                        .panel_sums = kGroup * kPanel,
                        .is_new = start == 0});
}

void AttendTiles::finish(const WorkItem& item, const Work& w) const {
  int64_t dv = value_->width, padded = value_->padded;
  for (int64_t c = 0; c < item.columns; ++c) {
    int64_t head = item.head * group_ + c % group_;
    float sum = w.sum[c];
    if (sinks_ > 0) sum += std::exp(item.in[sinks_].f32()[head] - w.max[c] / kLog2e);
    float inverse = 1.0F / sum, *to = item.out[0].f32() + (row_of(item, c) * heads_ + head) * dv;
    for (int64_t v = 0; v < dv; v += kPanel) {
      const float* from =
          w.sums + c / kGroup * kGroup * padded + (v * kGroup / kPanel + c % kGroup) * kPanel;
      for (int64_t i = 0, n = std::min<int64_t>(kPanel, dv - v); i < n; ++i)
        to[v + i] = from[i] * inverse;
    }
  }
}

}  // namespace tokamak::cpu
