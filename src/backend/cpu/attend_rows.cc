// attend_rows and mean_rows: what encoders do inside a sequence. A work item is one sequence and
// one kv head: its keys and values are packed into panels once and read by all rows, a block of
// columns (a row and a query head that shares the kv head) at a time.
//
// The order of a row's arithmetic depends on its place in the sequence alone: the result is the
// same whatever else is in the step and whichever thread does it.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels.h"

namespace tokamak::cpu {
namespace {

int64_t to_panels(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

class AttendRows final : public CpuOp {
 public:
  explicit AttendRows(const OpSite& site)
      : scale_(static_cast<float>(site.attrs.at("scale").as_double())),
        window_(site.attrs.get_int("window", 0)),
        heads_(site.in[kQuery].dims[1]),
        kv_heads_(site.in[kKey].dims[1]),
        group_(heads_ / kv_heads_),
        d_(site.in[kQuery].dims[2]),
        dv_(site.in[kValue].dims[2]),
        most_rows_(site.in[kQuery].dims[0]) {}

  int64_t scratch_bytes() const override {
    int64_t rows = to_panels(most_rows_), wide = to_panels(dv_);
    return 4 * (rows * (d_ + wide + 2 * kColumns) + kColumns * (d_ + wide)) + 6 * 64;
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    bool by_heads = kv_heads_ % c.threads == 0;
    const int32_t* starts = in[kQStart].i32();
    Work w = workspace(c.thread_scratch());
    int64_t item = 0;
    for (int64_t b = 0; b + 1 < in[kQStart].elements(); ++b)
      for (int64_t head = 0; head < kv_heads_; ++head, ++item) {
        int64_t owner = by_heads ? head / (kv_heads_ / c.threads) : item % c.threads;
        if (owner != c.thread || starts[b] == starts[b + 1]) continue;
        Item it{in, out, &c.kernels, head, starts[b], starts[b + 1] - starts[b]};
        pack(it, w);
        for (int64_t column = 0; column < it.rows * group_; column += kColumns)
          block(it, w, column);
      }
  }

  // Which rows an item has follows from q_start: without a split by heads, all is coarse.
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t rows = in[kQuery].dims[0];
    if (kv_heads_ % c.threads != 0) {
      for (int i = kQuery; i <= kQStart; ++i) list.read(in[i]);
      list.memory(out[0].data, out[0].elements() * 4, true, true);
      return;
    }
    int64_t count = kv_heads_ / c.threads, begin = c.thread * count;
    auto columns = [&](const Tensor& t, int64_t head_bytes, bool write) {
      list.columns(t, kv_heads_ * head_bytes, 0, rows, begin * head_bytes, count * head_bytes,
                   write);
    };
    columns(in[kQuery], group_ * d_ * 4, false);
    columns(in[kKey], d_ * 4, false);
    columns(in[kValue], dv_ * 4, false);
    columns(out[0], group_ * dv_ * 4, true);
    list.read(in[kQStart]);
  }

 private:
  enum Input : int { kQuery, kKey, kValue, kQStart };
  struct Item {
    const Tensor *in, *out;
    const KernelTable* kernels;
    int64_t head, first, rows;  // kv head, rows of the step
  };
  static constexpr int64_t kColumns = 24;  // of a block
  struct Work {
    float* keys;    // [rows / 16][d][16], scaled
    float* values;  // [dv / 16][rows][16]
    float* query;   // [columns / 4][d][4]
    float* scores;  // [rows / 16][columns][16]
    float* powers;  // [columns / 4][rows][4]
    float* sums;    // [dv / 16][columns][16]
  };
  // The columns of a block; the rows that any of them sees are [from, to) of the sequence.
  struct Block {
    int64_t column, columns, padded, from, to;
  };

  Work workspace(uint8_t* scratch) const {
    auto take = [&](int64_t floats) {
      auto* p = reinterpret_cast<float*>(scratch);
      scratch += (floats * 4 + 63) / 64 * 64;
      return p;
    };
    int64_t rows = to_panels(most_rows_), wide = to_panels(dv_);
    return {take(rows * d_),       take(rows * wide),     take(kColumns * d_),
            take(rows * kColumns), take(rows * kColumns), take(kColumns * wide)};
  }

  // Keys after the last one are zeros; their scores are hidden. Values have no such rows.
  void pack(const Item& it, const Work& w) const {
    int64_t padded = to_panels(it.rows), wide = to_panels(dv_);
    const float* k = it.in[kKey].f32() + (it.first * kv_heads_ + it.head) * d_;
    const float* v = it.in[kValue].f32() + (it.first * kv_heads_ + it.head) * dv_;
    for (int64_t j = 0; j < padded; j += kTile) {
      float* to = w.keys + j / kPanel * kPanel * d_ + j % kPanel;
      if (j + kTile <= it.rows) {  // by way of w.query, which is not in use yet
        it.kernels->pack_x4_floats(k + j * kv_heads_ * d_, kv_heads_ * d_, d_, w.query);
        for (int64_t i = 0; i < d_; ++i)
          for (int64_t r = 0; r < kTile; ++r) to[i * kPanel + r] = w.query[i * kTile + r] * scale_;
      } else {
        for (int64_t r = 0; r < kTile; ++r)
          for (int64_t i = 0; i < d_; ++i)
            to[i * kPanel + r] = j + r < it.rows ? k[(j + r) * kv_heads_ * d_ + i] * scale_ : 0.0f;
      }
    }
    for (int64_t p = 0; p < wide; p += kPanel)
      for (int64_t j = 0; j < it.rows; ++j) {
        float* to = w.values + p * it.rows + j * kPanel;
        int64_t n = std::min<int64_t>(kPanel, dv_ - p);
        std::memcpy(to, v + j * kv_heads_ * dv_ + p, static_cast<size_t>(n) * sizeof(float));
        std::fill(to + n, to + kPanel, 0.0f);
      }
  }

  void block(const Item& it, const Work& w, int64_t column) const {
    Block b{column, std::min(kColumns, it.rows * group_ - column), 0, 0, it.rows};
    b.padded = (b.columns + kTile - 1) / kTile * kTile;
    int64_t first = column / group_, last = (column + b.columns - 1) / group_;
    if (window_ > 0) {
      b.from = std::max<int64_t>(0, first - window_) / kPanel * kPanel;
      b.to = std::min(it.rows, last + window_ + 1);
    }
    load_query(it, w, b);
    score(it, w, b);
    hide(w, b);
    float sums[kColumns];
    int64_t keys = to_panels(b.to) - b.from;
    for (int64_t c = 0; c < b.padded; c += kTile)
      it.kernels->softmax_x4(w.scores + c * kPanel, b.padded, keys, w.powers + c * keys, sums + c);
    add_values(it, w, b);
    for (int64_t c = 0; c < b.columns; ++c) store(it, w, b, c, 1.0f / sums[c]);
  }

  // Columns of padding are the last one again.
  void load_query(const Item& it, const Work& w, const Block& b) const {
    int64_t whole = group_ == 1 ? b.columns / kTile * kTile : 0;  // rows that are evenly spaced
    const float* first = it.in[kQuery].f32() + ((it.first + b.column) * heads_ + it.head) * d_;
    for (int64_t c = 0; c < whole; c += kTile)
      it.kernels->pack_x4_floats(first + c * heads_ * d_, heads_ * d_, d_, w.query + c * d_);
    for (int64_t c = whole; c < b.padded; ++c) {
      int64_t at = b.column + std::min(c, b.columns - 1);
      const float* q = it.in[kQuery].f32() +
                       ((it.first + at / group_) * heads_ + it.head * group_ + at % group_) * d_;
      float* to = w.query + c / kTile * kTile * d_ + c % kTile;
      for (int64_t i = 0; i < d_; ++i) to[i * kTile] = q[i];
    }
  }

  void score(const Item& it, const Work& w, const Block& b) const {
    int64_t panels = to_panels(b.to - b.from) / kPanel;
    std::fill_n(w.scores, panels * b.padded * kPanel, 0.0f);
    it.kernels->fdot_panels(w.keys + b.from * d_, kPanel * d_, panels, w.query, kTile * d_,
                            b.padded, d_, w.scores);
  }

  // Scores of rows that a column does not see, and of padding.
  void hide(const Work& w, const Block& b) const {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    int64_t keys = to_panels(b.to) - b.from;
    auto fill = [&](int64_t c, int64_t from, int64_t to) {
      for (int64_t j = from; j < to; ++j)
        w.scores[(j / kPanel * b.padded + c) * kPanel + j % kPanel] = kHidden;
    };
    for (int64_t c = 0; c < b.padded; ++c) {
      int64_t begin = b.from, end = b.to;
      if (window_ > 0) {
        int64_t row = (b.column + std::min(c, b.columns - 1)) / group_;
        begin = std::max(begin, row - window_);
        end = std::min(end, row + window_ + 1);
      }
      fill(c, 0, begin - b.from);
      fill(c, end - b.from, keys);
    }
  }

  // The sums of columns of padding are not read.
  void add_values(const Item& it, const Work& w, const Block& b) const {
    int64_t keys = to_panels(b.to) - b.from, wide = to_panels(dv_);
    std::fill_n(w.sums, b.padded * wide, 0.0f);
    it.kernels->fdot_panels(w.values + b.from * kPanel, it.rows * kPanel, wide / kPanel, w.powers,
                            kTile * keys, b.padded, b.to - b.from, w.sums);
  }

  void store(const Item& it, const Work& w, const Block& b, int64_t c, float inverse) const {
    int64_t at = b.column + c;
    float* to = it.out[0].f32() +
                ((it.first + at / group_) * heads_ + it.head * group_ + at % group_) * dv_;
    for (int64_t p = 0; p < dv_; p += kPanel) {
      const float* from = w.sums + (p / kPanel * b.padded + c) * kPanel;
      for (int64_t i = 0, n = std::min<int64_t>(kPanel, dv_ - p); i < n; ++i)
        to[p + i] = from[i] * inverse;
    }
  }

  float scale_;
  int64_t window_, heads_, kv_heads_, group_, d_, dv_, most_rows_;
};

class MeanRows final : public CpuOp {
 public:
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = c.part(out[0].dims[0], 1);
    int64_t d = in[0].dims[1];
    for (int64_t r = begin; r < end; ++r) {
      int64_t b = in[1].i32()[in[3].i32()[r]];
      int64_t first = in[2].i32()[b], rows = in[2].i32()[b + 1] - first;
      float* sum = out[0].f32() + r * d;
      std::memcpy(sum, in[0].f32() + first * d, static_cast<size_t>(d) * sizeof(float));
      for (int64_t i = 1; i < rows; ++i)
        c.kernels.binary[static_cast<int>(Binary::kAdd)](sum, in[0].f32() + (first + i) * d, sum,
                                                         d);
      c.kernels.unary[static_cast<int>(Unary::kScale)](sum, sum, d,
                                                       1.0f / static_cast<float>(rows));
    }
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = c.part(out[0].dims[0], 1);
    if (begin >= end) return;
    for (int i = 0; i < 4; ++i) list.read(in[i]);
    list.write_rows(out[0], in[0].dims[1] * 4, begin, end);
  }
};

}  // namespace

std::unique_ptr<CpuOp> make_attend_rows(const OpSite& site) {
  return std::make_unique<AttendRows>(site);
}
std::unique_ptr<CpuOp> make_mean_rows(const OpSite&) { return std::make_unique<MeanRows>(); }

void add_attend_rows_kernels(KernelList& list) {
  list.add(
      {.name = "cpu.attend_rows",
       .pattern = "attend_rows(f32, f32, f32, i32)",
       .weight_layout = "",
       .numeric_class = "scores f32 fma over d, softmax in 16 lanes, values f32 fma in key order",
       .cost = attend_cost},
      make_attend_rows);
  list.add("mean_rows", "mean_rows(f32, i32, i32, i32)", "f32 sums in row order", make_mean_rows);
}

}  // namespace tokamak::cpu
