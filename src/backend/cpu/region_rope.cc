// Regions that rotate keys (and queries), with their norms, and write keys and values: one pass
// over the rows of the step, and no row of rotated keys in memory.
#include <algorithm>

#include "backend/cpu/region.h"
#include "backend/cpu/rope_angles.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

class RopeRegion final : public Op {
 public:
  RopeRegion(const OpSite& site, const RegionProgram& program) {
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const RegionStep& s = program.steps[i];
      if (s.op == "append") read_append(site, program, s);
    }
    if (!state_) fail(ErrorCode::kUnsupported, "{}: a region without append", site.label);
    for (size_t r = 1; r < program.results.size(); ++r)
      turns_.push_back(read_turn(site, program, program.results[r], static_cast<int>(r)));
    for (const KvPlane& p : state_->planes) widest_ = std::max(widest_, p.heads * p.width);
    for (const Turn& t : turns_) widest_ = std::max(widest_, t.heads * t.width);
    // Heads are cut together where every tensor has a multiple of the state's.
    heads_ = state_->heads();
    for (const Turn& t : turns_)
      if (t.heads % heads_ != 0) heads_ = 1;
  }
  RopeUse* rope_use() override { return &use_; }
  uint64_t own_bytes() const override {
    return use_.angles->bytes() / static_cast<uint64_t>(use_.angles.use_count());
  }
  int64_t scratch_bytes() const override { return 3 * widest_ * 4; }

  int stages(const Tensor*, const Tensor*, const StepContext&) const override {
    return use_.made_before ? 1 : 2;
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (!use_.made_before && c.stage == 0)
      return use_.angles->make(in[use_.positions], in[use_.frequencies].f32(), c);
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    for (int64_t i = mine.rows.begin; i < mine.rows.end; ++i) one_row(in, out, c, i, mine.heads);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (!use_.made_before && c.stage == 0) return use_.angles->touch(in[use_.positions], c, list);
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    list.read(in[seq_]);
    list.read(in[slot_]);
    use_.angles->touch_rows(mine.rows.begin, mine.rows.end, false, list);
    auto touch_heads = [&](const Tensor& t, int64_t heads, int64_t width, bool write) {
      Part h = share(mine.heads, heads);
      list.columns(t, heads * width * 4, mine.rows.begin, mine.rows.end, h.begin * width * 4,
                   (h.end - h.begin) * width * 4, write);
    };
    for (const Turn& t : turns_) {
      touch_heads(in[t.source], t.heads, t.width, false);
      for (int v : t.norm_in)
        if (v >= 0) list.read(in[v]);
      if (t.out >= 0) touch_heads(out[t.out], t.heads, t.width, true);
    }
    for (size_t p = 0; p < planes_.size(); ++p)
      if (planes_[p].turn < 0)
        touch_heads(in[planes_[p].source], state_->planes[p].heads, state_->planes[p].width, false);
    Part h = share(mine.heads, state_->heads());
    list.cells(*state_, mine.rows.begin, mine.rows.end, h.begin, h.end, true);
  }

 private:
  // One tensor of heads that is rotated, after an optional norm of each head.
  struct Turn {
    uint32_t source = 0;  // input
    int64_t heads = 1, width = 0;
    bool norm = false;
    RowStep norm_step;
    int norm_in[2] = {-1, -1};
    int out = -1;  // output; -1: a plane of the state
  };
  struct Plane {
    int turn = -1;        // index into turns_, or
    uint32_t source = 0;  // an input as it is
  };

  void read_append(const OpSite& site, const RegionProgram& program, const RegionStep& s) {
    state_ = &site.kv.state(site.in[0].index);
    size_t planes = state_->planes.size();
    if (s.in.size() < 4 + planes || s.in[0] != 0)
      fail(ErrorCode::kCorrupt, "{}: append needs a tensor for each plane", site.label);
    seq_ = s.in[2];
    slot_ = s.in[3];
    for (size_t p = 0; p < planes; ++p) {
      uint32_t value = s.in[4 + p];
      Plane plane;
      if (value < program.inputs) {
        plane.source = value;
      } else {
        plane.turn = static_cast<int>(turns_.size());
        turns_.push_back(read_turn(site, program, value, -1));
      }
      planes_.push_back(plane);
    }
  }

  Turn read_turn(const OpSite& site, const RegionProgram& program, uint32_t value, int out) {
    auto refuse = [&] {
      fail(ErrorCode::kUnsupported, "{}: a region that is not norm, rope and append", site.label);
    };
    int maker = program.maker(value);
    if (maker < 0 || program.steps[static_cast<size_t>(maker)].op != "rope") refuse();
    const RegionStep& rope = program.steps[static_cast<size_t>(maker)];
    Turn t;
    t.out = out;
    t.source = rope.in.at(0);
    if (int norm = program.maker(t.source); norm >= 0) {
      const RegionStep& n = program.steps[static_cast<size_t>(norm)];
      t.norm = true;
      t.norm_step = make_row_step(site.kernels, n, site.label);
      for (size_t i = 1; i < 3; ++i)
        if (i < n.in.size()) t.norm_in[i - 1] = static_cast<int>(n.in[i]);
      t.source = n.in[0];
    }
    if (t.source >= program.inputs || site.in[t.source].rank != 3 || rope.in.size() < 3) refuse();
    t.heads = site.in[t.source].dims[1];
    t.width = site.in[t.source].dims[2];
    uint32_t positions = rope.in[1], frequencies = rope.in[2];
    if (positions >= program.inputs || frequencies >= program.inputs) refuse();
    auto angles = std::make_shared<RopeAngles>(
        site.in[frequencies].last(), static_cast<float>(rope.attrs.get_double("scale", 1.0)),
        site.in[positions].elements());
    if (use_.angles && (use_.positions != positions || use_.frequencies != frequencies ||
                        !use_.angles->same(*angles)))
      refuse();
    if (!use_.angles) use_ = {std::move(angles), positions, frequencies};
    return t;
  }

  Cells cells(const Tensor* in, const StepContext& c) const {
    int64_t row_work = 4 * widest_;
    for (const Turn& t : turns_) row_work += 2 * t.heads * t.width;
    return cells_of(c, in[slot_].elements(), heads_, std::max<int64_t>(1, kLightGrain / row_work));
  }
  // Of a tensor's heads those that belong to some of the state's.
  Part share(Part heads, int64_t count) const {
    return {heads.begin * count / heads_, heads.end * count / heads_};
  }

  // Heads of a row; `to` is the row.
  void turn_row(const Turn& t, const Tensor* in, const KernelTable& k, int64_t row, Part heads,
                float* buffer, float* to) const {
    Part mine = share(heads, t.heads);
    const float* x = in[t.source].f32() + (row * t.heads + mine.begin) * t.width;
    to += mine.begin * t.width;
    for (int64_t h = mine.begin; h < mine.end; ++h, x += t.width, to += t.width) {
      const float* from = x;
      if (t.norm) {
        auto operand = [&](int v) { return v < 0 ? nullptr : in[v].f32(); };
        t.norm_step.run(k, x, operand(t.norm_in[0]), false, operand(t.norm_in[1]), buffer, t.width);
        from = buffer;
      }
      k.rope(from, use_.angles->cosines(row), use_.angles->sines(row), to, use_.angles->half(),
             t.width);
    }
  }

  void one_row(const Tensor* in, const Tensor* out, const StepContext& c, int64_t row,
               Part heads) const {
    auto* turned = reinterpret_cast<float*>(c.thread_scratch());
    float* buffer = turned + widest_;
    auto* narrow = reinterpret_cast<uint8_t*>(buffer + widest_);
    for (const Turn& t : turns_)
      if (t.out >= 0)
        turn_row(t, in, c.kernels, row, heads, buffer, out[t.out].f32() + row * t.heads * t.width);
    int64_t size = state_->block_size, slot = in[slot_].i32()[row];
    if (slot < 0) return;  // padding
    const StepInputs::Table& table = c.step->tables[state_->group];
    int64_t block =
        table.blocks[static_cast<size_t>(in[seq_].i32()[row] * table.stride + slot / size)];
    TK_CHECK(block >= 0, "append: row {} has no block", row);
    for (size_t p = 0; p < planes_.size(); ++p) {
      const KvPlane& plane = state_->planes[p];
      const float* x = turned;
      if (planes_[p].turn >= 0)
        turn_row(turns_[static_cast<size_t>(planes_[p].turn)], in, c.kernels, row, heads, buffer,
                 turned);
      else
        x = in[planes_[p].source].f32() + row * plane.heads * plane.width;
      store_plane_row(c.kernels, plane, block, slot % size, x, share(heads, plane.heads), narrow);
    }
  }

  const KvState* state_ = nullptr;
  uint32_t seq_ = 0, slot_ = 0;
  RopeUse use_;
  std::vector<Turn> turns_;
  std::vector<Plane> planes_;
  int64_t widest_ = 1, heads_ = 1;
};

}  // namespace

std::unique_ptr<Op> make_rope_region(const OpSite& site, const RegionProgram& program) {
  return std::make_unique<RopeRegion>(site, program);
}

}  // namespace tokamak::cpu
