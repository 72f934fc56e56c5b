// Regions that norm or rotate keys (and queries, rotated after a norm of each head) and write keys
// and values: one pass over the rows of the step, and no row of rotated keys in memory.
#include <algorithm>
#include <optional>

#include "backend/cpu/region.h"
#include "backend/cpu/rope_angles.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

class RopeRegion final : public CpuOp {
 public:
  explicit RopeRegion(const OpSite& site) : region_(*site.region) {
    used_.resize(region_.pieces.size(), false);
    for (size_t i = 0; i < region_.pieces.size(); ++i)
      if (region_.pieces[i].op == "append") read_append(site, i);
    if (!state_) refuse(site, "a region without append");
    for (size_t r = 0; r < region_.results.size(); ++r) {
      int piece = region_.producer(region_.results[r]);
      if (piece < 0 || region_.pieces[static_cast<size_t>(piece)].op != "append")
        turns_.push_back(read_turn(site, region_.results[r], static_cast<int>(r)));
    }
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        refuse(site, region_.pieces[i].is_anchor() ? region_.pieces[i].op : "an unused program");
    for (const KvPlane& p : state_->planes) widest_ = std::max(widest_, p.heads * p.width);
    for (const Turn& t : turns_) widest_ = std::max(widest_, t.heads * t.width);
    for (const Turn& t : turns_)
      if (t.norm) norm_bytes_ = std::max(norm_bytes_, t.norm->scratch_bytes());
    // Heads are divided among threads where every tensor has a multiple of the state's heads.
    heads_ = state_->heads();
    for (const Turn& t : turns_)
      if (t.heads % heads_ != 0) heads_ = 1;
  }
  void bind(const Tensor* in, const Tensor*, const StepContext& c) override {
    for (Turn& t : turns_)
      if (t.norm) t.norm->bind(in, c);
  }
  RopeUse* rope_use() override { return use_.angles ? &use_ : nullptr; }
  uint64_t own_bytes() const override {
    if (!use_.angles) return 0;
    return use_.angles->bytes() / static_cast<uint64_t>(use_.angles.use_count());
  }
  int64_t scratch_bytes() const override { return 3 * widest_ * 4 + norm_bytes_; }

  int stages(const Tensor*, const Tensor*, const StepContext&) const override {
    return makes_angles() ? 2 : 1;
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (makes_angles() && c.stage == 0)
      return use_.angles->make(in[use_.positions], in[use_.frequencies].f32(), c);
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    for (int64_t i = mine.rows.begin; i < mine.rows.end; ++i) one_row(in, out, c, i, mine.heads);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (makes_angles() && c.stage == 0) return use_.angles->touch(in[use_.positions], c, list);
    Cells mine = cells(in, c);
    if (mine.empty()) return;
    list.read(in[seq_]);
    list.read(in[slot_]);
    if (use_.angles) use_.angles->touch_rows(mine.rows.begin, mine.rows.end, false, list);
    auto touch_heads = [&](const Tensor& t, int64_t heads, int64_t width, bool write) {
      Part h = share(mine.heads, heads);
      list.columns(t, heads * width * 4, mine.rows.begin, mine.rows.end, h.begin * width * 4,
                   (h.end - h.begin) * width * 4, write);
    };
    for (const Turn& t : turns_) {
      touch_heads(in[t.source], t.heads, t.width, false);
      for (uint32_t v : t.norm_in)
        if (v != t.source) list.read(in[v]);
      if (t.out >= 0) touch_heads(out[t.out], t.heads, t.width, true);
    }
    for (size_t p = 0; p < planes_.size(); ++p)
      if (planes_[p].turn < 0)
        touch_heads(in[planes_[p].source], state_->planes[p].heads, state_->planes[p].width, false);
    Part h = share(mine.heads, state_->heads());
    list.cells(*state_, mine.rows.begin, mine.rows.end, h.begin, h.end, true);
  }

 private:
  bool makes_angles() const { return use_.angles && !use_.made_before; }

  // One tensor of heads that is normed, rotated, or both: an optional program on each head, then an
  // optional rotation.
  struct Turn {
    bool rotated = false;
    uint32_t source = 0;  // input
    int64_t heads = 1, width = 0;
    std::unique_ptr<RowProgram> norm;
    std::vector<uint32_t> norm_in;
    int out = -1;  // output; -1: a plane of the state
  };
  struct Plane {
    int turn = -1;        // index into turns_, or
    uint32_t source = 0;  // an input as it is
  };

  [[noreturn]] static void refuse(const OpSite& site, std::string_view what) {
    fail(ErrorCode::kUnsupported, "{}: {} has no form for {}", site.label, site.kernel->name, what);
  }

  void read_append(const OpSite& site, size_t index) {
    const RegionPiece& piece = region_.pieces[index];
    used_[index] = true;
    if (state_ || piece.in.size() < 4 || piece.in[0] >= region_.inputs)
      refuse(site, "several appends, or one of a computed state");
    state_ = &site.kv.state(site.in[piece.in[0]].index);
    size_t planes = state_->planes.size();
    if (piece.in.size() < 4 + planes)
      fail(ErrorCode::kCorrupt, "{}: append needs a tensor for each plane", site.label);
    seq_ = piece.in[2];
    slot_ = piece.in[3];
    if (seq_ >= region_.inputs || slot_ >= region_.inputs) refuse(site, "computed slots");
    for (size_t p = 0; p < planes; ++p) {
      uint32_t value = piece.in[4 + p];
      Plane plane;
      if (value < region_.inputs) {
        plane.source = value;
      } else {
        plane.turn = static_cast<int>(turns_.size());
        turns_.push_back(read_turn(site, value, -1));
      }
      planes_.push_back(plane);
    }
  }

  Turn read_turn(const OpSite& site, uint32_t value, int out) {
    int at = region_.producer(value);
    if (at < 0) refuse(site, "heads that are neither normed nor rotated");
    const RegionPiece& last = region_.pieces[static_cast<size_t>(at)];
    Turn t;
    t.out = out;
    t.rotated = last.op == "rope";
    t.source = value;
    if (t.rotated) {
      used_[static_cast<size_t>(at)] = true;
      t.source = last.in.at(0);
    }
    if (int norm = region_.producer(t.source); norm >= 0) {
      const RegionPiece& piece = region_.pieces[static_cast<size_t>(norm)];
      used_[static_cast<size_t>(norm)] = true;
      if (piece.is_anchor()) refuse(site, fmt::format("{} before rope or append", piece.op));
      if (piece.out.size() != 1 || region_.is_result(piece.out[0]))
        refuse(site, "a norm whose result leaves the region");
      t.norm = std::make_unique<RowProgram>(region_, piece, site);
      t.norm_in = piece.in;
      if (t.norm->row_input() < 0) refuse(site, "a norm of several tensors");
      t.source = static_cast<uint32_t>(t.norm->row_input());
    }
    if (t.source >= region_.inputs) refuse(site, "computed heads");
    const Tensor& x = site.in[t.source];
    if (t.norm && t.norm->columns() != x.last())
      refuse(site, "a norm over something else than a head");
    t.heads = x.rank == 3 ? x.dims[1] : 1;
    t.width = x.last();
    if (!t.rotated && x.rank != 2 && x.rank != 3) refuse(site, "a norm of what is not heads");
    if (t.rotated) read_angles(site, last, x);
    return t;
  }

  void read_angles(const OpSite& site, const RegionPiece& rope, const Tensor& x) {
    if (x.rank != 3 || rope.in.size() < 3) refuse(site, "a rotation of what is not heads");
    uint32_t positions = rope.in[1], frequencies = rope.in[2];
    if (positions >= region_.inputs || frequencies >= region_.inputs)
      refuse(site, "computed positions");
    auto angles = std::make_shared<RopeAngles>(
        site.in[frequencies].last(), static_cast<float>(rope.attrs.get_double("scale", 1.0)),
        site.in[positions].elements());
    if (use_.angles && (use_.positions != positions || use_.frequencies != frequencies ||
                        !use_.angles->same(*angles)))
      refuse(site, "rotations by different angles");
    if (!use_.angles) use_ = {std::move(angles), positions, frequencies};
  }

  Cells cells(const Tensor* in, const StepContext& c) const {
    int64_t row_work = 4 * widest_;
    for (const Turn& t : turns_) row_work += 2 * t.heads * t.width;
    return cells_of(c, in[slot_].elements(), heads_, std::max<int64_t>(1, kLightGrain / row_work));
  }
  // The heads of a tensor that correspond to some heads of the state.
  Part share(Part heads, int64_t count) const {
    return {heads.begin * count / heads_, heads.end * count / heads_};
  }

  // Heads of a row; `to` is the row.
  void turn_row(const Turn& t, const Tensor* in, const KernelTable& k, int64_t row, Part heads,
                float* buffer, float* to) const {
    Part mine = share(heads, t.heads);
    const float* x = in[t.source].f32() + (row * t.heads + mine.begin) * t.width;
    to += mine.begin * t.width;
    std::optional<RowRunner> norm;
    if (t.norm) norm.emplace(*t.norm, in, k, reinterpret_cast<uint8_t*>(buffer + 2 * widest_));
    auto* normed = reinterpret_cast<uint8_t*>(buffer);
    for (int64_t h = mine.begin; h < mine.end; ++h, x += t.width, to += t.width) {
      if (norm) norm->run_row(row * t.heads + h, &normed);
      const float* from = norm ? buffer : x;
      if (!t.rotated) {
        std::copy_n(from, t.width, to);
        continue;
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

  const Region& region_;
  std::vector<bool> used_;  // pieces that are read
  const KvState* state_ = nullptr;
  uint32_t seq_ = 0, slot_ = 0;
  RopeUse use_;
  std::vector<Turn> turns_;
  std::vector<Plane> planes_;
  int64_t widest_ = 1, heads_ = 1, norm_bytes_ = 0;
};

}  // namespace

std::unique_ptr<CpuOp> make_rope_region(const OpSite& site) {
  return std::make_unique<RopeRegion>(site);
}

}  // namespace tokamak::cpu
