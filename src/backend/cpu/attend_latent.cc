// attend_latent: attention whose keys and values are matrices times the vectors of the cache. A
// work item is one head and up to 512 rows of a sequence: keys and values of 64 slots at a time are
// computed once for all of these rows, which pays for prompts. A row's arithmetic depends on
// absolute slots alone: online softmax over tiles of 64 slots, in order.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/attend_workspace.h"
#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kMostRows = 512;  // of an item
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

class AttendLatent final : public CpuOp {
 public:
  explicit AttendLatent(const OpSite& site)
      : kv_(&site.kv.state(site.in[kState].index)), c_(&kv_->plane("c")), kr_(&kv_->plane("kr")) {
    const size_t operands = site.in.size();
    const Weight *key = site.in[operands - 2].weight, *value = site.in[operands - 1].weight;
    TK_CHECK(key && value, "{}: the matrices must be weights", site.label);
    has_mask_ = operands > kMask + 2;
    scale_ = static_cast<float>(site.attrs.at("scale").as_double());
    heads_ = site.in[kQuery].dims[1];
    d_ = site.in[kQuery].dims[2];
    n_ = key->k;
    rank_ = key->n;
    dv_ = value->n;
    TK_CHECK(key->groups == heads_ && value->groups == heads_ && value->k == rank_ &&
             c_->width == rank_ && n_ + kr_->width == d_);
    for (int64_t h = 0; h < heads_; ++h) {
      up_keys_.push_back(key->group(h));
      up_values_.push_back(value->group(h));
    }
    padded_dv_ = round_up(dv_, kPanel);
    most_rows_ = round_up(std::clamp<int64_t>(site.in[kQuery].dims[0], 1, kMostRows), kTile);
  }

  int64_t scratch_bytes() const override { return Room(*this, nullptr).bytes; }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    const int32_t* q_start = in[kQStart].i32();
    const Room room(*this, c.thread_scratch());
    int64_t index = 0;
    for (int64_t b = 0; b < in[kKvLen].elements(); ++b)
      for (int64_t first = q_start[b]; first < q_start[b + 1]; first += most_rows_)
        for (int64_t h = 0; h < heads_; ++h, ++index) {
          if (index % c.threads != c.thread) continue;
          int64_t rows = std::min<int64_t>(most_rows_, q_start[b + 1] - first);
          run_item({in, out, &c, &room, b, h, first, rows, round_up(rows, kTile)});
        }
  }

  // Which rows are whose depends on q_start.
  void touch(const Tensor* in, const Tensor* out, const StepContext&,
             AccessList& list) const override {
    list.read(in[kQuery]);
    list.cells(*kv_, 0, in[kQuery].dims[0], 0, kv_->heads(), false);
    for (int i = kPos; i <= (has_mask_ ? kMask : kKvLen); ++i) list.read(in[i]);
    list.memory(out[0].data, out[0].elements() * 4, true, true);
  }

 private:
  enum Input : int { kQuery, kState, kView, kPos, kSeq, kSlot, kQStart, kKvLen, kMask };

  struct Room {        // the scratch of a thread
    float* up_key;     // [n / 4][rank][4]
    float* up_value;   // [dv / 16][rank][16]
    float* row;        // of a matrix
    float* latent;     // [rank][16]: the vectors of 16 slots
    float* turned;     // [4][rank][4]: the same in groups of four
    float* keys;       // [4][d][16]: of a tile
    float* values;     // [4][dv / 16][16][16]
    float* query;      // [rows / 4][d][4], scaled
    float* scores;     // [rows][64]
    float* powers;     // [16][4]
    float* sums;       // [dv / 16][rows][16]
    float *max, *sum;  // [rows]
    int64_t bytes = 0;

    Room(const AttendLatent& a, uint8_t* scratch) {
      auto take = [&](int64_t floats) {
        auto* at = reinterpret_cast<float*>(scratch + bytes);
        bytes += round_up(floats * 4, 64);
        return at;
      };
      constexpr int64_t kPanels = kTileSlots / kPanel;
      up_key = take(round_up(a.n_, kTile) * a.rank_);
      up_value = take(a.padded_dv_ * a.rank_);
      row = take(std::max(a.n_, a.rank_));
      latent = take(std::max(a.rank_, a.kr_->width) * kPanel);
      turned = take(a.rank_ * kPanel);
      keys = take(kPanels * a.d_ * kPanel);
      values = take(kPanels * a.padded_dv_ * kPanel);
      query = take(a.most_rows_ * a.d_);
      scores = take(a.most_rows_ * kTileSlots);
      powers = take(kPanel * kTile);
      sums = take(a.most_rows_ * a.padded_dv_);
      max = take(a.most_rows_);
      sum = take(a.most_rows_);
    }
  };
  struct Item {
    const Tensor* in;
    const Tensor* out;
    const StepContext* c;
    const Room* room;
    int64_t b, head, first, rows, padded;
  };

  void run_item(const Item& it) const {
    const Room& r = *it.room;
    load_matrices(it);
    load_queries(it);
    std::fill_n(r.max, it.padded, kUnseen);
    std::fill_n(r.sum, it.padded, 0.0f);
    std::fill_n(r.sums, it.padded * padded_dv_, 0.0f);
    const int32_t *slot = it.in[kSlot].i32(), *q_start = it.in[kQStart].i32() + it.b;
    int64_t end = it.in[kKvLen].i32()[it.b], own = end - (q_start[1] - q_start[0]), newest = 0;
    for (int64_t i = it.first; i < it.first + it.rows; ++i)
      newest = std::max<int64_t>(newest, slot[i]);
    while (!has_mask_ && end > own && slot[q_start[0] + end - 1 - own] > newest) --end;
    for (int64_t start = 0; start < end; start += kTileSlots) {
      int64_t slots = std::min(kTileSlots, end - start);
      for (int64_t p = 0; p * kPanel < slots; ++p) expand_panel(it, start + p * kPanel, p);
      for (int64_t col = 0; col < it.padded; col += kTile)
        if (sees_tile(it, col, start, own)) run_tile(it, col, start, slots, own);
    }
    store(it);
  }

  // The matrices of the item's head as f32, in the order in which expand_panel() reads them.
  void load_matrices(const Item& it) const {
    const Room& r = *it.room;
    const Weight &key = up_keys_[static_cast<size_t>(it.head)],
                 &value = up_values_[static_cast<size_t>(it.head)];
    std::fill_n(r.up_key, round_up(n_, kTile) * rank_, 0.0f);
    for (int64_t c = 0; c < rank_; ++c) {
      key.decode_row(it.c->kernels, c, r.row);
      for (int64_t i = 0; i < n_; ++i)
        r.up_key[(i / kTile * rank_ + c) * kTile + i % kTile] = r.row[i];
    }
    std::fill_n(r.up_value, padded_dv_ * rank_, 0.0f);
    for (int64_t i = 0; i < dv_; ++i) {
      value.decode_row(it.c->kernels, i, r.row);
      for (int64_t c = 0; c < rank_; ++c)
        r.up_value[(i / kPanel * rank_ + c) * kPanel + i % kPanel] = r.row[c];
    }
  }

  void load_queries(const Item& it) const {
    for (int64_t col = 0; col < it.padded; ++col) {
      float* to = it.room->query + col / kTile * kTile * d_ + col % kTile;
      const float* q = it.in[kQuery].f32() + ((it.first + col) * heads_ + it.head) * d_;
      for (int64_t i = 0; i < d_; ++i) to[i * kTile] = col < it.rows ? q[i] * scale_ : 0.0f;
    }
  }

  // 16 slots of a plane as f32.
  static void widen_panel(const KernelTable& k, const KvPlane& plane, int64_t block, int64_t panel,
                          float* out) {
    uint8_t* stored = plane.panel(block, 0, panel);
    k.widen[static_cast<int>(plane.type)](stored, out, plane.width * kPanel);
    if (plane.scale_at == 0) return;
    const float* scales = plane.scales(stored);
    for (int64_t i = 0; i < plane.width * kPanel; ++i) out[i] *= scales[i % kPanel];
  }

  // Keys and values of 16 slots.
  void expand_panel(const Item& it, int64_t slot, int64_t p) const {
    const KernelTable& k = it.c->kernels;
    const Room& r = *it.room;
    const StepInputs::Table& table = it.c->step->tables[kv_->group];
    int64_t panel = slot % kv_->block_size / kPanel,
            block = table.blocks[static_cast<size_t>(it.b * table.stride + slot / kv_->block_size)];
    TK_CHECK(block >= 0, "attend_latent: slot {} has no block", slot);
    widen_panel(k, *c_, block, panel, r.latent);
    float* keys = r.keys + p * d_ * kPanel;
    float acc[kTile * kPanel];
    for (int64_t i = 0; i < n_; i += kTile) {
      std::memset(acc, 0, sizeof acc);
      k.fdot4[0](r.latent, r.up_key + i * rank_, rank_, acc);
      std::memcpy(keys + i * kPanel, acc,
                  static_cast<size_t>(std::min<int64_t>(kTile, n_ - i) * kPanel) * sizeof(float));
    }
    for (int64_t c = 0; c < rank_; ++c)
      for (int64_t j = 0; j < kPanel; ++j)
        r.turned[(j / kTile * rank_ + c) * kTile + j % kTile] = r.latent[c * kPanel + j];
    float* values = r.values + p * padded_dv_ * kPanel;
    std::fill_n(values, padded_dv_ * kPanel, 0.0f);
    for (int64_t v = 0; v < padded_dv_ / kPanel; ++v)
      for (int64_t j = 0; j < kPanel; j += kTile)
        k.fdot4[0](r.up_value + v * rank_ * kPanel, r.turned + j * rank_, rank_,
                   values + (v * kPanel + j) * kPanel);
    widen_panel(k, *kr_, block, panel, r.latent);
    std::memcpy(keys + n_ * kPanel, r.latent,
                static_cast<size_t>(kr_->width * kPanel) * sizeof(float));
  }

  // Whether one of four rows may see a slot of the tile.
  bool sees_tile(const Item& it, int64_t col, int64_t start, int64_t own) const {
    if (has_mask_ || start < own) return true;
    for (int64_t i = col; i < std::min(col + kTile, it.rows); ++i)
      if (it.in[kSlot].i32()[it.first + i] >= start) return true;
    return false;
  }

  void run_tile(const Item& it, int64_t col, int64_t start, int64_t slots, int64_t own) const {
    const KernelTable& k = it.c->kernels;
    const Room& r = *it.room;
    int64_t panels = (slots + kPanel - 1) / kPanel;
    float* scores = r.scores + col * kTileSlots;
    for (int64_t p = 0; p < panels; ++p) {
      float acc[kTile * kPanel] = {};
      k.fdot4[0](r.keys + p * d_ * kPanel, r.query + col * d_, d_, acc);
      for (int64_t i = 0; i < kTile; ++i)
        std::memcpy(scores + i * kTileSlots + p * kPanel, acc + i * kPanel, kPanel * sizeof(float));
    }
    for (int64_t i = 0; i < kTile; ++i) {
      hide(it, std::min(col + i, it.rows - 1), start, slots, own, scores + i * kTileSlots);
      float factor =
          k.softmax_tile(scores + i * kTileSlots, kTileSlots, r.max + col + i, r.sum + col + i);
      if (factor == 1.0f) continue;
      for (int64_t v = 0; v < padded_dv_ / kPanel; ++v) {
        float* s = r.sums + (v * it.padded + col + i) * kPanel;
        for (int64_t j = 0; j < kPanel; ++j) s[j] *= factor;
      }
    }
    for (int64_t p = 0; p < panels; ++p) {
      int64_t count = std::min<int64_t>(kPanel, slots - p * kPanel);
      for (int64_t j = 0; j < count; ++j)
        for (int64_t i = 0; i < kTile; ++i)
          r.powers[j * kTile + i] = scores[i * kTileSlots + p * kPanel + j];
      for (int64_t v = 0; v < padded_dv_ / kPanel; ++v)
        k.fdot4[0](r.values + (p * padded_dv_ + v * kPanel) * kPanel, r.powers, count,
                   r.sums + (v * it.padded + col) * kPanel);
    }
  }

  // Scores of slots that the row does not see become minus infinity.
  void hide(const Item& it, int64_t i, int64_t start, int64_t slots, int64_t own,
            float* scores) const {
    const int32_t* slot = it.in[kSlot].i32();
    int64_t row = it.first + i, first = it.in[kQStart].i32()[it.b];
    int64_t width = has_mask_ ? it.in[kMask].dims[1] : 0;
    for (int64_t j = std::clamp<int64_t>(own - start, 0, slots); j < kTileSlots; ++j) {
      int64_t m = start + j - own;  // which of the step's own rows
      bool seen = j < slots;
      if (seen && has_mask_)
        seen = m < width && it.in[kMask].i32()[row * width + m] != 0;
      else if (seen)
        seen = slot[first + m] <= slot[row];
      if (!seen) scores[j] = kUnseen;
    }
  }

  void store(const Item& it) const {
    const Room& r = *it.room;
    for (int64_t i = 0; i < it.rows; ++i) {
      float inverse = r.sum[i] == 0.0f ? 0.0f : 1.0f / r.sum[i];
      float* to = it.out[0].f32() + ((it.first + i) * heads_ + it.head) * dv_;
      for (int64_t j = 0; j < dv_; ++j)
        to[j] = r.sums[(j / kPanel * it.padded + i) * kPanel + j % kPanel] * inverse;
    }
  }

  const KvState* kv_;
  const KvPlane *c_, *kr_;
  std::vector<Weight> up_keys_, up_values_;  // by head
  float scale_ = 0;
  int64_t heads_, d_, n_, rank_, dv_, padded_dv_, most_rows_;
  bool has_mask_ = false;
};

}  // namespace

std::unique_ptr<CpuOp> make_attend_latent(const OpSite& site) {
  return std::make_unique<AttendLatent>(site);
}

void add_attend_latent_kernels(KernelList& list) {
  for (const MatrixForm& form : kMatrixForms) {
    if (form.numeric_class == kBfloatClass) continue;  // products of f32 with all float types
    for (bool mask : {false, true}) {
      std::string weight = "weight " + weight_types(form.layout);
      list.add(
          {.name = fmt::format("cpu.attend_latent{}{}", form.suffix, mask ? ".mask" : ""),
           .pattern = fmt::format("attend_latent(f32, *, *, i32, i32, i32, i32, i32, {}{}, {})",
                                  mask ? "i32, " : "", weight, weight),
           .weight_layout = form.layout,
           .numeric_class = "keys, values and scores f32 fma, online softmax over tiles of 64 "
                            "slots",
           .cost = attend_cost},
          make_attend_latent);
    }
  }
}

}  // namespace tokamak::cpu
