// attend, attend_chunk: attention over the paged cache. A work item is one sequence, one kv head
// and a few of its rows, with all query heads that share the kv head, so that keys and values are
// read once for all of them.
//
// The order of a row's arithmetic depends on absolute slots alone: online softmax over tiles of 64
// slots, started afresh every 256 slots and merged in order. So the result is the same whether a
// row comes alone, in a chunk or in a batch, and whichever thread does which part. A row of a tree
// takes the keys of its branch at the slots they would have without the other branches.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/attend_base.h"
#include "backend/cpu/attend_tiles.h"
#include "backend/cpu/attend_workspace.h"
#include "backend/cpu/kernels.h"

namespace tokamak::cpu {
namespace {

class Attend final : public AttendBase {
 public:
  explicit Attend(const OpSite& site) : AttendBase(site) {
    if (AttendTiles::fits(site)) tiles_ = std::make_unique<AttendTiles>(site);
  }

  int64_t scratch_bytes() const override {
    return std::max(Workspace::bytes(columns_, d_, value_->padded, panel_floats()),
                    tiles_ ? tiles_->scratch_bytes() : 0);
  }

  int64_t shared_bytes() const override { return kSegmentSumBytes; }

  int stages(const Tensor* in, const Tensor*, const StepContext& c) const override {
    return split_of(in, c) == Split::kSegments ? 2 : 1;
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    Split split = split_of(in, c);
    if (tiles_ && c.stage == 0) tiles_->run(in, out, c);
    bool segments = split == Split::kSegments && segments_fit(in);
    if (segments) return c.stage == 0 ? run_segments(in, out, c) : merge_segments(in, out, c);
    if (c.stage > 0) return;
    each_item(in, out, c, [&](Item& item, int64_t index) {
      int64_t owner =
          split == Split::kHeads ? item.head / (kv_heads_ / c.threads) : index % c.threads;
      if (owner == c.thread) run_item(item);
    });
  }

  // The rows of an item depend on q_start, so only the heads are split exactly.
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Split split = split_of(in, c);
    int64_t rows = in[kQuery].dims[0];
    if (split == Split::kHeads) {
      int64_t count = kv_heads_ / c.threads, begin = c.thread * count, end = begin + count;
      auto touch_heads = [&](const Tensor& t, int64_t width, bool write) {
        int64_t head = group_ * width * 4;
        list.columns(t, kv_heads_ * head, 0, rows, begin * head, (end - begin) * head, write);
      };
      touch_heads(in[kQuery], d_, false);
      touch_heads(out[0], value_->width, true);
      bool cut = kv_->heads() == kv_heads_;
      list.cells(*kv_, 0, rows, cut ? begin : 0, cut ? end : kv_->heads(), false);
    } else {
      if (c.stage == 0) {
        list.read(in[kQuery]);
        list.cells(*kv_, 0, rows, 0, kv_->heads(), false);
      }
      if (split == Split::kSegments)
        list.memory(c.shared_scratch, kSegmentSumBytes, c.stage == 0, true);
      list.memory(out[0].data, out[0].elements() * 4, true, true);
    }
    for (int i = kPos; i <= (has_mask_ ? kMask : kKvLen); ++i) list.read(in[i]);
    if (sinks_ > 0) list.read(in[sinks_]);
    if (slopes_ > 0) list.read(in[slopes_]);
  }

 private:
  struct Item : WorkItem {
    Workspace work;
  };

  // Whether there are several segments and room for what they give.
  bool segments_fit(const Tensor* in) const {
    int64_t items = 0, segments = segments_of(in);
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b)
      items += tiles(in[kQStart].i32(), b) * kv_heads_;
    return segments > 1 && items * segments * part_floats(in) * 4 <= kSegmentSumBytes;
  }

  template <class Body>
  void each_item(const Tensor* in, const Tensor* out, const StepContext& c, Body&& body) const {
    const int32_t* q_start = in[kQStart].i32();
    int64_t index = 0;
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b)
      for (int64_t tile = 0; tile < (in_tiles(in, b) ? 0 : tiles(q_start, b)); ++tile)
        for (int64_t head = 0; head < kv_heads_; ++head, ++index) {
          Item item{{in, out, &c, b, head, q_start[b] + tile * tile_rows_, 0, 0, 0}, {}};
          item.rows = std::min<int64_t>(tile_rows_, q_start[b + 1] - item.first);
          item.columns = item.rows * group_;
          item.padded = (item.columns + kTile - 1) / kTile * kTile;
          body(item, index);
        }
  }

  bool in_tiles(const Tensor* in, int64_t b) const { return tiles_ && tiles_->takes(in, b); }

  // Where a segment of an item leaves its sums.
  static void use_part(Item& item, int64_t unit, int64_t floats) {
    Workspace& w = item.work;
    w.max = reinterpret_cast<float*>(item.c->shared_scratch) + unit * floats;
    w.sum = w.max + item.padded;
    w.sums = w.sum + item.padded;
  }

  // First stage of kSegments: in order, each thread has the segments whose middle lies in its part
  // of all slots.
  void run_segments(const Tensor* in, const Tensor* out, const StepContext& c) const {
    int64_t segments = segments_of(in), floats = part_floats(in), all = 0, before = 0;
    each_item(in, out, c, [&](Item& item, int64_t) {
      Range range = range_of(item);
      all += std::max<int64_t>(0, range.end - range.begin) * item.padded;
    });
    each_item(in, out, c, [&](Item& item, int64_t index) {
      bool loaded = false;
      item.work = workspace(c.thread_scratch());
      Range range = range_of(item);
      for (int64_t s = 0; s < segments; ++s) {
        if (!range.has_segment(s)) continue;
        int64_t first = std::max(range.begin, s * kSegmentSlots),
                slots = std::min(range.end, (s + 1) * kSegmentSlots) - first,
                middle = 2 * before + slots * item.padded;
        before += slots * item.padded;
        if (std::min<int64_t>(middle * c.threads / (2 * all), c.threads - 1) != c.thread) continue;
        if (!loaded) load_queries(item);
        loaded = true;
        use_part(item, index * segments + s, floats);
        run_segment(item, range, s * kSegmentSlots);
      }
    });
  }
  // Second stage: merged in the order of run_item.
  void merge_segments(const Tensor* in, const Tensor* out, const StepContext& c) const {
    int64_t segments = segments_of(in), floats = part_floats(in);
    each_item(in, out, c, [&](Item& item, int64_t index) {
      if (index % c.threads != c.thread) return;
      item.work = workspace(c.thread_scratch());
      Range range = range_of(item);
      item.work.clear_totals(item.padded, value_->padded);
      for (int64_t s = 0; s < segments; ++s) {
        if (!range.has_segment(s)) continue;
        use_part(item, index * segments + s, floats);
        item.work.merge(item.c->kernels, item.columns, item.padded, value_->padded);
      }
      finish(item);
    });
  }

  Workspace workspace(uint8_t* scratch) const {
    return Workspace(scratch, columns_, d_, value_->padded, panel_floats());
  }

  void load_queries(const Item& item) const {
    const KernelTable& k = item.c->kernels;
    float* four = item.work.panel;  // not in use yet
    for (int64_t col = 0; col < item.padded; ++col) {
      float* to = four + col % kTile * d_;
      const float* q = item.in[kQuery].f32() +
                       (row_of(item, col) * heads_ + item.head * group_ + col % group_) * d_;
      if (col < item.columns)
        k.unary[static_cast<int>(Unary::kScale)](q, to, d_, scale_);
      else
        std::fill_n(to, d_, 0.0f);
      if (col % kTile == kTile - 1)
        k.pack_x4_floats(four, d_, d_, item.work.query + col / kTile * kTile * d_);
    }
  }

  void run_segment(const Item& item, const Range& range, int64_t start) const {
    const Workspace& w = item.work;
    w.clear_segment(item.padded, value_->padded);
    int64_t stop = std::min(range.end, start + kSegmentSlots);
    for (int64_t t = std::max(start, range.begin / kTileSlots * kTileSlots); t < stop;
         t += kTileSlots)
      run_tile(item, t, std::min(kTileSlots, stop - t), range);
  }

  void run_item(Item& item) const {
    item.work = workspace(item.c->thread_scratch());
    load_queries(item);
    Range range = range_of(item);
    item.work.clear_totals(item.padded, value_->padded);
    for (int64_t s = range.begin / kSegmentSlots; s * kSegmentSlots < range.end; ++s) {
      run_segment(item, range, s * kSegmentSlots);
      item.work.merge(item.c->kernels, item.columns, item.padded, value_->padded);
    }
    finish(item);
  }

  // Where the panels of a tile lie, for items of many columns over keys and values that are floats.
  struct WidePanels {
    const uint8_t *key[kTileSlots / kPanel], *value[kTileSlots / kPanel];
  };
  bool find_wide(const Item& item, int64_t start, int64_t slots, WidePanels& out) const {
    if (item.padded <= 2 * kTile || keys_.size() > 1 || slopes_ > 0) return false;
    if (keys_[0]->scale_at > 0 || value_->scale_at > 0 || value_->key) return false;
    for (int64_t i = 0; i * kPanel < slots; ++i) {
      int64_t panel, block = block_of(item, start + i * kPanel, panel);
      if (block < 0) return false;
      out.key[i] = keys_[0]->panel(block, item.head, panel);
      out.value[i] = value_->panel(block, item.head, panel);
    }
    return true;
  }

  // run_tile with whole tiles in the kernels: the same steps for every score, weight and sum.
  void run_wide(const Item& item, int64_t start, int64_t slots, const Range& range,
                const WidePanels& at) const {
    const KernelTable& k = item.c->kernels;
    const Workspace& w = item.work;
    int64_t panels = (slots + kPanel - 1) / kPanel, step = kPanel * kPanel;
    auto widen_key = k.widen[static_cast<int>(keys_[0]->type)],
         widen_value = k.widen[static_cast<int>(value_->type)];
    for (int64_t i = 0; i < panels; ++i)
      widen_key(at.key[i], w.panel + i * kPanel * d_, kPanel * d_);
    std::fill_n(w.dots, panels * item.padded * kPanel, 0.0f);
    k.fdot_panels(w.panel, kPanel * d_, panels, w.query, kTile * d_, item.padded, d_, w.dots);
    if (softcap_ > 0)
      k.unary[static_cast<int>(Unary::kSoftcap)](w.dots, w.dots, panels * item.padded * kPanel,
                                                 softcap_);
    hide_wide(item, start, slots, range.own);
    for (int64_t col = 0; col < item.padded; col += kTile) {
      float factors[kTile];
      k.softmax_tile_x4(w.dots + col * kPanel, item.padded, panels * kPanel,
                        w.powers + col * kTileSlots, w.max + col, w.sum + col, factors);
      for (int64_t i = 0; i < kTile; ++i)
        if (factors[i] != 1.0f) w.scale_sums(col + i, item.padded, value_->padded, factors[i]);
    }
    for (int64_t i = 0; i < panels; ++i)
      for (int64_t v = 0; v < value_->padded / kPanel; ++v)
        widen_value(at.value[i] + v * step * value_->element,
                    w.panel + (v * kTileSlots + i * kPanel) * kPanel, step);
    k.fdot_panels(w.panel, kTileSlots * kPanel, value_->padded / kPanel, w.powers,
                  kTile * kTileSlots, item.padded, slots, w.sums);
  }
  void hide_wide(const Item& item, int64_t start, int64_t slots, int64_t own) const {
    int64_t width = (slots + kPanel - 1) / kPanel * kPanel,
            newest = newest_of(item, start, slots, own);
    for (int64_t r = 0; r < item.rows; ++r) {
      bool seen[kTileSlots];
      if (sees_all(item, item.first + r, newest)) continue;
      if (visible(item, item.first + r, start, slots, own, seen)) continue;
      for (int64_t j = 0; j < width; ++j) {
        float* scores =
            item.work.dots + (j / kPanel * item.padded + r * group_) * kPanel + j % kPanel;
        for (int64_t h = 0; h < group_ && !seen[j]; ++h) scores[h * kPanel] = Workspace::kNothing;
      }
    }
  }

  void run_tile(const Item& item, int64_t start, int64_t slots, const Range& range) const {
    WidePanels panels;
    if (!range.branches && find_wide(item, start, slots, panels))
      return run_wide(item, start, slots, range, panels);
    bool branches = range.branches && start + slots > range.own;
    int64_t plain = branches ? std::max<int64_t>(0, range.own - start) : slots;
    const Workspace& w = item.work;
    for (int64_t at = 0, width = kPanel; at < plain; at += width) {
      width = at + kPanel < plain && score_two(item, start + at) ? 2 * kPanel : kPanel;
      if (width == kPanel) score_panel(item, start + at);
      for (int64_t part = 0; part < width; part += kPanel)
        for (int64_t col = 0; col < item.padded; ++col)
          std::memcpy(w.scores + col * kTileSlots + at + part,
                      w.dots + (part / kPanel * item.padded + col) * kPanel,
                      kPanel * sizeof(float));
    }
    auto score = [&](int64_t at, int64_t key) { w.scores[at] = w.dots[key]; };
    auto weigh = [&](int64_t at, int64_t key) { w.dots[key] = w.scores[at]; };
    if (branches)
      each_own_panel(item, range, [&](int64_t slot, int64_t) {
        score_panel(item, slot);
        each_branch_key(item, start, slots, slot, range.own, score);
      });
    hide(item, start, slots, range.own);
    for (int64_t col = 0; col < item.columns; ++col) {
      float factor = item.c->kernels.softmax_tile(w.scores + col * kTileSlots, kTileSlots,
                                                  w.max + col, w.sum + col);
      if (factor != 1.0f) w.scale_sums(col, item.padded, value_->padded, factor);
    }
    for (int64_t at = 0; at < plain; at += kPanel)
      add_values(item, start + at, w.scores + at, kTileSlots,
                 std::min(int64_t{kPanel}, plain - at));
    if (!branches) return;
    // Keys of other branches and of other tiles weigh nothing, which adds exact zeros.
    each_own_panel(item, range, [&](int64_t slot, int64_t count) {
      std::fill_n(w.dots, item.padded * kPanel, 0.0f);
      each_branch_key(item, start, slots, slot, range.own, weigh);
      add_values(item, slot, w.dots, kPanel, count);
    });
  }

  // body(slot, keys) for the panels that hold the step's own keys.
  template <class Body>
  void each_own_panel(const Item& item, const Range& range, Body&& body) const {
    int64_t end = item.in[kKvLen].i32()[item.b];
    for (int64_t slot = range.own / kPanel * kPanel; slot < end; slot += kPanel)
      body(slot, std::min<int64_t>(kPanel, end - slot));
  }

  // body(place in scores, place in dots) of the keys in the panel at `slot` whose place without
  // other branches is in the tile.
  template <class Body>
  void each_branch_key(const Item& item, int64_t start, int64_t slots, int64_t slot, int64_t own,
                       Body&& body) const {
    for (int64_t r = 0; r < item.rows; ++r)
      each_own(item, item.first + r, [&](int64_t m, int64_t n) {
        int64_t from = own + m - slot, to = own + n - start;
        if (from < 0 || from >= kPanel || to < 0 || to >= slots) return;
        for (int64_t col = r * group_; col < (r + 1) * group_; ++col)
          body(col * kTileSlots + to, col * kPanel + from);
      });
  }

  // Scores of all columns against 16 keys.
  void score_panel(const Item& item, int64_t slot) const {
    const KernelTable& k = item.c->kernels;
    const Workspace& w = item.work;
    int64_t panel, block = block_of(item, slot, panel), at = 0, count = item.padded * kPanel;
    std::fill_n(w.dots, count, 0.0f);
    for (const KvPlane* key : keys_) {
      if (block < 0) break;
      uint8_t* stored = key->panel(block, item.head, panel);
      const void* data = stored;
      int type = static_cast<int>(key->type);
      if (item.padded > 2 * kTile && type != 0) {
        k.widen[type](data, w.panel, key->width * kPanel);
        data = w.panel;
        type = 0;
      }
      const float* q = w.query + at * kTile;
      float* to = w.dots + (key->scale_at > 0 ? count : 0);
      if (key->scale_at > 0) std::fill_n(to, count, 0.0f);
      k.fdot_rows[type](data, q, d_ * kTile, item.padded, key->width, to);
      if (key->scale_at > 0) {  // of the 16 tokens
        const float* scales = key->scales(stored);
        for (int64_t j = 0; j < count; ++j) w.dots[j] += to[j] * scales[j % kPanel];
      }
      at += key->width;
    }
  }

  // The same for two panels of keys side by side, where one tile of columns alone would wait for
  // its own sums.
  bool score_two(const Item& item, int64_t slot) const {
    const KvPlane& key = *keys_[0];
    auto dot = item.c->kernels.fdot4x2[static_cast<int>(key.type)];
    if (!dot || item.padded != kTile || keys_.size() > 1) return false;
    constexpr int64_t size = kTile * kPanel;
    int64_t panel[2], block[2];
    for (int64_t i = 0; i < 2; ++i) block[i] = block_of(item, slot + i * kPanel, panel[i]);
    if (block[0] < 0 || block[1] < 0) return false;
    uint8_t* stored[2] = {key.panel(block[0], item.head, panel[0]),
                          key.panel(block[1], item.head, panel[1])};
    float* dots = item.work.dots;
    std::fill_n(dots, 2 * size, 0.0f);
    dot(stored[0], stored[1], item.work.query, key.width, dots, dots + size);
    for (int64_t j = 0; key.scale_at > 0 && j < 2 * size; ++j)
      dots[j] = 0.0f + dots[j] * key.scales(stored[j / size])[j % kPanel];
    return true;
  }

  // Lowers the scores of a row by the distances of the keys.
  void slope(const Item& item, int64_t row, int64_t start, int64_t own, float* scores) const {
    const int32_t *pos = item.in[kPos].i32(), first = item.in[kQStart].i32()[item.b];
    int64_t end = item.in[kKvLen].i32()[item.b];
    float distance[kTileSlots] = {};
    auto set = [&](int64_t key, int64_t position) {
      int64_t j = key - start;
      if (j >= 0 && j < kTileSlots) distance[j] = static_cast<float>(pos[row] - position);
    };
    for (int64_t key = start; key < std::min(end, start + kTileSlots); ++key)
      set(key, key < own ? key : pos[first + key - own]);
    if (has_mask_) each_own(item, row, [&](int64_t m, int64_t n) { set(own + n, pos[first + m]); });
    for (int64_t i = 0; i < group_ * kTileSlots; ++i)
      scores[i] -=
          item.in[slopes_].f32()[item.head * group_ + i / kTileSlots] * distance[i % kTileSlots];
  }

  // Caps the scores and sets those of keys that a row does not see to minus infinity.
  void hide(const Item& item, int64_t start, int64_t slots, int64_t own) const {
    const KernelTable& k = item.c->kernels;
    int64_t newest = newest_of(item, start, slots, own);
    for (int64_t r = 0; r < item.rows; ++r) {
      bool seen[kTileSlots];
      float* scores = item.work.scores + r * group_ * kTileSlots;
      if (softcap_ > 0)
        k.unary[static_cast<int>(Unary::kSoftcap)](scores, scores, group_ * kTileSlots, softcap_);
      if (slopes_ > 0) slope(item, item.first + r, start, own, scores);
      bool all = sees_all(item, item.first + r, newest) ||
                 visible(item, item.first + r, start, slots, own, seen);
      for (int64_t h = 0; h < group_ && !all; ++h)
        for (int64_t j = 0; j < kTileSlots; ++j)
          if (!seen[j]) scores[h * kTileSlots + j] = Workspace::kNothing;
    }
  }

  // `weights`: [columns][stride], of `count` keys of the panel.
  void add_values(const Item& item, int64_t slot, const float* weights, int64_t stride,
                  int64_t count) const {
    const KernelTable& k = item.c->kernels;
    const Workspace& w = item.work;
    int64_t panel, block = block_of(item, slot, panel);
    if (block < 0) return;
    uint8_t* stored = value_->panel(block, item.head, panel);
    const uint8_t* data = stored;
    const float* scales = value_->scale_at > 0 ? value_->scales(stored) : nullptr;
    int type = static_cast<int>(value_->type);
    int64_t step = kPanel * kPanel * value_->element;
    if (value_->key) {
      float* turned = w.panel + panel_floats() / 2;
      value_->turn_panel(k, data, w.panel, turned);
      data = reinterpret_cast<const uint8_t*>(turned);
      step = kPanel * kPanel * 4;
      type = 0;
    } else if (item.padded > 2 * kTile && type != 0) {
      k.widen[type](data, w.panel, value_->padded * kPanel);
      data = reinterpret_cast<const uint8_t*>(w.panel);
      step = kPanel * kPanel * 4;
      type = 0;
    }
    for (int64_t col = 0; col < item.padded; col += kTile) {
      // Columns of padding may hold anything: their sums are not read.
      const float* s = weights + col * stride;
      float* to = w.powers + col * kPanel;
      static_assert(kTile == 4);
      for (int64_t j = 0; j < count; ++j, to += kTile) {
        float scale = scales ? scales[j] : 1.0f;
        to[0] = s[j] * scale;
        to[1] = s[j + stride] * scale;
        to[2] = s[j + 2 * stride] * scale;
        to[3] = s[j + 3 * stride] * scale;
      }
    }
    int64_t size = item.padded * kPanel, panels = value_->padded / kPanel, v = 0;
    if (item.padded == kTile && k.fdot4x2[type])
      for (; v + 2 <= panels; v += 2)
        k.fdot4x2[type](data + v * step, data + (v + 1) * step, w.powers, count, w.sums + v * size,
                        w.sums + (v + 1) * size);
    for (; v < panels; ++v)
      k.fdot_rows[type](data + v * step, w.powers, kTile * kPanel, item.padded, count,
                        w.sums + v * size);
  }

  void finish(const Item& item) const {
    const Workspace& w = item.work;
    int64_t dv = value_->width;
    for (int64_t col = 0; col < item.columns; ++col) {
      float sum = w.total_sum[col];
      if (sinks_ > 0 && sum > 0)
        sum +=
            std::exp(item.in[sinks_].f32()[item.head * group_ + col % group_] - w.total_max[col]);
      float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      float* to =
          item.out[0].f32() + (row_of(item, col) * heads_ + item.head * group_ + col % group_) * dv;
      for (int64_t v = 0; v < dv; v += kPanel) {
        const float* from = w.total + (v / kPanel * item.padded + col) * kPanel;
        for (int64_t i = 0, n = std::min<int64_t>(kPanel, dv - v); i < n; ++i)
          to[v + i] = from[i] * inverse;
      }
    }
  }

  std::unique_ptr<AttendTiles> tiles_;  // where the graph allows them
};

}  // namespace

std::unique_ptr<CpuOp> make_attend(const OpSite& site) { return std::make_unique<Attend>(site); }

void add_attend_kernels(KernelList& list) {
  for (const char* op : {"attend", "attend_chunk"})
    list.add({.name = fmt::format("cpu.{}", op),
              .pattern = fmt::format("{}(f32, *, *, i32, i32, i32, i32, i32, *, *, *)", op),
              .weight_layout = "",
              .numeric_class = "scores f32 fma over d, online softmax over tiles of 64 slots, "
                               "segments of 256 merged in order",
              .cost = attend_cost,
              .scratch = attend_scratch},
             make_attend);
}

}  // namespace tokamak::cpu
