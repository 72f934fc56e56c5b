// Regions around matrices that share their input: a program for each row (norms, quantisation), the
// matrices, then element-wise programs on their outputs. The activations are computed and packed
// once for all matrices; the matrices' outputs go through the element-wise steps a few columns at a
// time, before they leave the cache.
#include <algorithm>
#include <optional>

#include "backend/cpu/linear_kernel.h"
#include "backend/cpu/region.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// Elements of activations that every thread computes for itself instead of waiting for the others:
// with a program before the matrices, and for packing alone.
constexpr int64_t kOwnPrologue = 8192, kOwnPacking = 32768;
constexpr int64_t kStepElements = 2048;  // of a buffer, in one call of an element-wise step

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class LinearsRegion final : public CpuOp {
 public:
  explicit LinearsRegion(const OpSite& site) : region_(*site.region), inputs_(region_.inputs) {
    places_.resize(region_.values.size());
    for (size_t r = 0; r < region_.results.size(); ++r)
      places_[region_.results[r]].out = static_cast<int>(r);
    auto first = std::find_if(region_.pieces.begin(), region_.pieces.end(),
                              [](const RegionPiece& p) { return p.op == "linear"; });
    if (first == region_.pieces.end())
      fail(ErrorCode::kUnsupported, "{}: {} takes regions with a matrix", site.label,
           site.kernel->name);
    x_ = first->in.at(0);
    read_prologue(site);
    for (const RegionPiece& piece : region_.pieces)
      if (piece.is_anchor()) add_matrix(site, piece);
    k_ = matrices_[0].kernel->weight().k;
    if (prologue_ && prologue_->columns() != k_)
      fail(ErrorCode::kCorrupt, "{}: rows of {} for matrices of {}", site.label,
           prologue_->columns(), k_);
    for (size_t i = 0; i < region_.pieces.size(); ++i)
      if (!region_.pieces[i].is_anchor() && static_cast<int>(i) != prologue_piece_)
        add_epilogue(site, region_.pieces[i]);
    finish_groups();
    lay_out(site);
  }

  void bind(const Tensor* in, const Tensor*, const StepContext& c) override {
    if (prologue_) prologue_->bind(in, c);
  }
  int64_t scratch_bytes() const override { return scratch_; }
  int64_t shared_bytes() const override { return shared_; }

  int stages(const Tensor* in, const Tensor*, const StepContext&) const override {
    return own(rows_of(in)) ? 1 : 2;
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t rows = rows_of(in);
    Call call{in, out, c, rows, nullptr};
    if (!own(rows)) {
      call.tiles = c.shared_scratch;
      if (c.stage == 0) {
        auto [begin, end] = tiles_of(rows, c);
        return make_tiles(call, begin, end, c.shared_scratch, true);
      }
    }
    int parts = parts_of(rows, c);
    if (c.thread >= parts) return;
    if (own(rows)) call.tiles = own_activations(call, c.thread == 0);
    for (int64_t row = 0; row < rows; row += chunk_rows_)
      each_part(c.thread, parts, [&](const Group& g, int64_t begin, int64_t end) {
        run_units(call, g, row, begin, end);
      });
  }

  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    int64_t rows = rows_of(in);
    if (!own(rows) && c.stage == 0) {
      auto [begin, end] = tiles_of(rows, c);
      if (begin >= end) return;
      touch_prologue(in, out, begin * kTile, std::min(end * kTile, rows), true, list);
      int64_t from = matrices_[0].kernel->packed_bytes(begin * kTile),
              to = matrices_[0].kernel->packed_bytes(end * kTile);
      return list.memory(c.shared_scratch + from, to - from, true);
    }
    int parts = parts_of(rows, c);
    if (c.thread >= parts) return;
    if (own(rows))
      touch_prologue(in, out, 0, rows, c.thread == 0, list);
    else
      list.memory(c.shared_scratch, matrices_[0].kernel->packed_bytes(rows), false);
    each_part(c.thread, parts, [&](const Group& g, int64_t begin, int64_t end) {
      touch_units(in, out, rows, g, begin * g.panels * kPanel,
                  std::min(g.n, end * g.panels * kPanel), list);
    });
  }

 private:
  struct PlaceOf {
    int out = -1;         // output of the call
    int64_t buffer = -1;  // or a buffer of scratch, in columns of a unit
    int group = -1;       // computed by this one
  };
  struct Matrix {
    std::unique_ptr<LinearKernel> kernel;
    uint32_t value;
    int bias;  // input, or -1
  };
  // Matrices whose outputs meet in element-wise ops: a unit of columns is done in all of them, then
  // the ops.
  struct Group {
    std::vector<size_t> matrices, steps;
    int64_t n = 0, panels = 1;  // columns; panels per unit
    int64_t units = 0, weight = 0;
    int64_t room = 1;  // panels that the buffers hold of a whole chunk of rows
  };
  struct Call {
    const Tensor *in, *out;
    const StepContext& c;
    int64_t rows;
    const uint8_t* tiles;  // or one packed row
  };
  struct Columns {
    float* base;
    int64_t stride;
  };
  struct Stretch {
    int64_t row, rows, column, width;
    int64_t before = 0;  // rows of the buffers before these
  };

  // --- At load ---

  void read_prologue(const OpSite& site) {
    prologue_piece_ = region_.producer(x_);
    if (prologue_piece_ < 0) {
      activations_ = site.in[x_].dtype;
      return;
    }
    const RegionPiece& piece = region_.pieces[static_cast<size_t>(prologue_piece_)];
    if (piece.is_anchor())
      fail(ErrorCode::kUnsupported, "{}: {} has no form for {} before a matrix", site.label,
           site.kernel->name, piece.op);
    if (piece.out.size() > kMostOutputs)
      fail(ErrorCode::kUnsupported, "{}: {} keeps at most {} results from before a matrix, not {}",
           site.label, site.kernel->name, kMostOutputs, piece.out.size());
    prologue_.emplace(region_, piece, site);
    for (uint32_t v : piece.out)
      if (v != x_ && places_[v].out < 0)
        fail(ErrorCode::kUnsupported, "{}: {} cannot keep a value from before the matrices",
             site.label, site.kernel->name);
    activations_ = region_.values[x_].tensor.dtype;
    only_staged_ = piece.out.size() == 1 && places_[x_].out < 0;
  }

  void add_matrix(const OpSite& site, const RegionPiece& piece) {
    if (piece.op != "linear" || piece.in.size() < 2 || piece.in[0] != x_ || piece.in[1] >= inputs_)
      fail(ErrorCode::kUnsupported, "{}: {} takes matrices that share their first operand, not {}",
           site.label, site.kernel->name, piece.op);
    Matrix m{make_linear_kernel(site, site.in[piece.in[1]].weight, activations_), piece.out[0],
             piece.in.size() > 2 ? static_cast<int>(piece.in[2]) : -1};
    Group g;
    g.matrices = {matrices_.size()};
    g.n = m.kernel->weight().n;
    places_[piece.out[0]].group = static_cast<int>(groups_.size());
    matrices_.push_back(std::move(m));
    groups_.push_back(std::move(g));
  }

  // The group of what a program reads; groups that meet become one.
  void add_epilogue(const OpSite& site, const RegionPiece& piece) {
    int group = -1;
    for (uint32_t v : piece.in) {
      if (v < inputs_) continue;
      if (places_[v].group < 0)
        fail(ErrorCode::kUnsupported, "{}: {} cannot keep a value from before the matrices",
             site.label, site.kernel->name);
      if (group >= 0 && places_[v].group != group) merge_groups(group, places_[v].group);
      group = places_[v].group;
    }
    if (group < 0)
      fail(ErrorCode::kUnsupported, "{}: {} has no form for a program apart from every matrix",
           site.label, site.kernel->name);
    Group& to = groups_[static_cast<size_t>(group)];
    auto next = static_cast<uint32_t>(places_.size());
    for (EpilogueStep& e : read_epilogue(region_, piece, site, to.n, next)) {
      places_.resize(next);
      places_[e.out].group = group;
      if (e.kind == EpilogueStep::Kind::kQuantize) to.panels = kQuantBlock / kPanel;
      to.steps.push_back(epilogue_.size());
      epilogue_.push_back(e);
    }
  }
  void merge_groups(int into, int from) {
    Group &a = groups_[static_cast<size_t>(into)], &b = groups_[static_cast<size_t>(from)];
    if (a.n != b.n) fail(ErrorCode::kUnsupported, "matrices of {} and {} columns meet", a.n, b.n);
    a.matrices.insert(a.matrices.end(), b.matrices.begin(), b.matrices.end());
    a.steps.insert(a.steps.end(), b.steps.begin(), b.steps.end());
    std::sort(a.steps.begin(), a.steps.end());
    a.panels = std::max(a.panels, b.panels);
    b = {};
    for (PlaceOf& p : places_)
      if (p.group == from) p.group = into;
  }

  void finish_groups() {
    std::erase_if(groups_, [](const Group& g) { return g.matrices.empty(); });
    for (Group& g : groups_) {
      g.units = (panels_of(g.n) + g.panels - 1) / g.panels;
      int64_t wanted = matrices_[0].kernel->panels_at_once();
      g.room = (wanted + g.panels - 1) / g.panels * g.panels;
      for (size_t m : g.matrices) {
        if (matrices_[m].kernel->weight().k != matrices_[0].kernel->weight().k)
          fail(ErrorCode::kUnsupported, "matrices of one input differ in length");
        if (matrices_[m].kernel->tile_bytes() != matrices_[0].kernel->tile_bytes())
          fail(ErrorCode::kUnsupported, "matrices of one input read it in different packings");
        g.weight += matrices_[m].kernel->weight().panel_bytes * g.panels;
        total_panels_ += panels_of(g.n);
      }
      total_weight_ += g.units * g.weight;
    }
  }

  // Scratch of a thread: activations of its own | of the prologue | its results that are not kept |
  // kTile rows as they are packed from | buffers of a unit | the matrices' scratch.
  void lay_out(const OpSite& site) {
    const LinearKernel& kernel = *matrices_[0].kernel;
    chunk_rows_ = kernel.chunk_tiles() * kTile;
    int64_t most = std::max<int64_t>(prologue_ ? prologue_->most_rows() : site.in[x_].rows(), 1);
    int64_t own_rows = std::min(most, std::max(tile_rows(), own_limit() / k_ + 1));
    own_bytes_ = aligned(kernel.packed_bytes(own_rows) + kernel.single_bytes());
    row_at_ = own_bytes_;
    spare_at_ = row_at_ + (prologue_ ? aligned(prologue_->scratch_bytes()) : 0);
    staged_at_ =
        spare_at_ + spare_bytes() * static_cast<int64_t>(prologue_ ? prologue_->outputs() : 0);
    unit_at_ = staged_at_ + aligned(kTile * std::max(kernel.row_bytes(), k_ * 4));
    int64_t buffers = 0;
    for (const Group& g : groups_) {
      int64_t used = 0;
      auto give = [&](uint32_t value) {
        if (places_[value].out < 0) places_[value].buffer = used++;
      };
      for (size_t m : g.matrices) give(matrices_[m].value);
      for (size_t s : g.steps) give(epilogue_[s].out);
      buffers = std::max(buffers, used * g.room * kPanel);
    }
    kernel_at_ = unit_at_ + aligned(buffers * chunk_rows_ * 4);
    int64_t extra = 0;
    for (const Matrix& m : matrices_) extra = std::max(extra, m.kernel->scratch_bytes());
    scratch_ = kernel_at_ + aligned(extra);
    shared_ = own(most) ? 0 : kernel.packed_bytes(most);
  }

  // --- In a step ---

  int64_t own_limit() const { return prologue_ ? kOwnPrologue : kOwnPacking; }
  int64_t rows_of(const Tensor* in) const { return prologue_ ? prologue_->rows() : in[x_].rows(); }
  int64_t spare_bytes() const { return aligned(k_ * 4); }
  int64_t tile_bytes() const { return matrices_[0].kernel->tile_bytes(); }
  int64_t tile_rows() const { return kTile * matrices_[0].kernel->tile_step(); }

  // Whether every thread makes all activations itself. Tiles that lie together are one thread's
  // work: nothing is gained by making the others wait for it.
  bool own(int64_t rows) const { return rows <= tile_rows() || rows * k_ <= own_limit(); }
  Part tiles_of(int64_t rows, const StepContext& c) const {
    int64_t step = matrices_[0].kernel->tile_step(), tiles = (rows + kTile - 1) / kTile;
    Part groups =
        c.part((tiles + step - 1) / step, std::max<int64_t>(1, kLightGrain / (8 * k_ + 1)));
    return {groups.begin * step, std::min(groups.end * step, tiles)};
  }
  int parts_of(int64_t rows, const StepContext& c) const {
    if (rows == 0) return 0;
    int64_t work = total_panels_ * kPanel * k_ * std::min<int64_t>(rows, 64);
    return static_cast<int>(std::clamp<int64_t>(work / kGrainWork, 1, c.threads));
  }

  void touch_prologue(const Tensor* in, const Tensor* out, int64_t row, int64_t end, bool keep,
                      AccessList& list) const {
    if (!prologue_) return list.read_rows(in[x_], matrices_[0].kernel->row_bytes(), row, end);
    prologue_->touch(in, row, end, list);
    const std::vector<uint32_t>& values = prologue_outputs();
    for (size_t i = 0; i < values.size(); ++i)
      if (int o = places_[values[i]].out; o >= 0 && keep)
        list.write_rows(out[o], prologue_->row_bytes(i), row, end);
  }
  const std::vector<uint32_t>& prologue_outputs() const {
    return region_.pieces[static_cast<size_t>(prologue_piece_)].out;
  }
  // Columns of a group's values, in all rows.
  void touch_units(const Tensor* in, const Tensor* out, int64_t rows, const Group& g, int64_t from,
                   int64_t to, AccessList& list) const {
    auto touch_value = [&](uint32_t value, bool write) {
      int o = value < inputs_ ? -1 : places_[value].out;
      if (o < 0 && (write || value >= inputs_)) return;
      const Tensor& t = write ? out[o] : o >= 0 ? out[o] : in[value];
      auto bytes = [&](int64_t columns) {
        return static_cast<int64_t>(dtype_bytes(t.dtype, columns));
      };
      list.columns(t, bytes(g.n), 0, rows, bytes(from), bytes(to - from), write);
    };
    for (size_t m : g.matrices) {
      if (matrices_[m].bias >= 0) list.read(in[matrices_[m].bias]);
      touch_value(matrices_[m].value, true);
    }
    for (size_t i : g.steps) {
      for (const EpilogueStep::Source& source : epilogue_[i].in) {
        if (source.kind == SourceKind::kRows) touch_value(source.value, false);
        if (source.kind == SourceKind::kColumn) list.read(in[source.value]);
      }
      touch_value(epilogue_[i].out, true);
    }
  }

  // One row through the prologue, to `staged`. `keep`: what is a result of the region is also
  // written to its place.
  void prepare_row(const Call& call, RowRunner& runner, int64_t row, uint8_t* staged,
                   bool keep) const {
    if (only_staged_) return runner.run_row(row, &staged);
    const std::vector<uint32_t>& values = prologue_outputs();
    uint8_t *to[kMostOutputs], *spare = call.c.thread_scratch() + spare_at_;
    auto place = [&](size_t i) {
      return static_cast<uint8_t*>(call.out[places_[values[i]].out].data) +
             row * prologue_->row_bytes(i);
    };
    for (size_t i = 0; i < values.size(); ++i)
      to[i] = values[i] == x_ ? staged
              : keep          ? place(i)
                              : spare + static_cast<int64_t>(i) * spare_bytes();
    runner.run_row(row, to);
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] == x_ && keep && places_[x_].out >= 0)
        std::copy_n(staged, prologue_->row_bytes(i), place(i));
  }

  void make_tiles(const Call& call, int64_t begin, int64_t end, uint8_t* to, bool keep) const {
    const LinearKernel& kernel = *matrices_[0].kernel;
    uint8_t* scratch = call.c.thread_scratch();
    uint8_t* staged = scratch + staged_at_;
    std::optional<RowRunner> runner;
    if (prologue_) runner.emplace(*prologue_, call.in, call.c.kernels, scratch + row_at_);
    for (int64_t t = begin; t < end; ++t) {
      int64_t row = t * kTile, n = std::min<int64_t>(kTile, call.rows - row);
      const uint8_t* rows = staged;
      if (!prologue_)
        rows = static_cast<const uint8_t*>(call.in[x_].data) + row * kernel.row_bytes();
      for (int64_t i = 0; prologue_ && i < n; ++i)
        prepare_row(call, *runner, row + i, staged + i * kernel.row_bytes(), keep);
      kernel.pack_tile(call.c.kernels, rows, n, to, t);
    }
  }

  const uint8_t* own_activations(const Call& call, bool keep) const {
    const LinearKernel& kernel = *matrices_[0].kernel;
    uint8_t* scratch = call.c.thread_scratch();
    if (call.rows > 1) {
      make_tiles(call, 0, (call.rows + kTile - 1) / kTile, scratch, keep);
      return scratch;
    }
    const auto* x = static_cast<const uint8_t*>(prologue_ ? nullptr : call.in[x_].data);
    if (prologue_) {
      RowRunner runner(*prologue_, call.in, call.c.kernels, scratch + row_at_);
      prepare_row(call, runner, 0, scratch + staged_at_, keep);
      x = scratch + staged_at_;
    }
    if (kernel.single_bytes() == 0) return x;
    kernel.pack_single(call.c.kernels, x, scratch);
    return scratch;
  }

  // body(group, begin, end) for this thread's units. Where the units of every group are a multiple
  // of the parts, each group is split evenly, so that a thread computes the queries, keys and
  // values of the heads that it attends with next. Otherwise the groups are concatenated and the
  // parts have equal weights.
  template <class Body>
  void each_part(int thread, int parts, Body&& body) const {
    bool alike = std::all_of(groups_.begin(), groups_.end(),
                             [&](const Group& g) { return g.units % parts == 0; });
    int64_t from = total_weight_ * thread / parts, to = total_weight_ * (thread + 1) / parts,
            start = 0;
    for (const Group& g : groups_) {
      int64_t begin = alike ? g.units / parts * thread : boundary(g, start, from),
              end = alike ? begin + g.units / parts : boundary(g, start, to);
      if (begin < end) body(g, begin, end);
      start += g.units * g.weight;
    }
  }

  // The first unit at or after `goal` of the groups' weights, in order.
  static int64_t boundary(const Group& g, int64_t start, int64_t goal) {
    if (goal <= start) return 0;
    return std::min(g.units, (goal - start + g.weight - 1) / g.weight);
  }

  void run_units(const Call& call, const Group& g, int64_t row, int64_t begin, int64_t end) const {
    uint8_t* scratch = call.c.thread_scratch();
    int64_t count = std::min(call.rows - row, chunk_rows_), panels = panels_of(g.n);
    if (g.steps.empty()) {  // straight to the output, all panels in one go
      const Matrix& m = matrices_[g.matrices[0]];
      float* to = call.out[places_[m.value].out].f32() + row * g.n + begin * kPanel;
      return multiply(call, m, row, count, begin, std::min(end, panels), {to, g.n}, scratch);
    }
    // Few rows leave room in the buffers for many units: each matrix is read in long stretches,
    // which is what memory is fast at.
    int64_t batch = g.room / g.panels * chunk_rows_ / count;
    for (int64_t u = begin; u < end; u += batch) {
      int64_t first = u * g.panels, last = std::min(std::min(u + batch, end) * g.panels, panels);
      Stretch at{row, count, first * kPanel, (last - first) * kPanel};
      for (size_t i : g.matrices) {
        const Matrix& m = matrices_[i];
        multiply(call, m, row, count, first, last, columns(call, g, m.value, at, scratch), scratch);
      }
      // All steps of a few rows, while these are in the first cache.
      int64_t rows = std::max<int64_t>(1, kStepElements / at.width);
      for (; at.before < count; at.before += rows) {
        at.row = row + at.before, at.rows = std::min(rows, count - at.before);
        for (size_t i : g.steps) run_step(call, g, epilogue_[i], at, scratch);
      }
    }
  }

  void multiply(const Call& call, const Matrix& m, int64_t row, int64_t count, int64_t begin,
                int64_t end, Columns to, uint8_t* scratch) const {
    LinearSink sink{to.base, to.stride, m.bias < 0 ? nullptr : call.in[m.bias].f32()};
    const KernelTable& k = call.c.kernels;
    if (call.rows == 1 && call.tiles != call.c.shared_scratch)
      m.kernel->single(k, call.tiles, begin, end, sink, scratch + kernel_at_);
    else
      m.kernel->tiles(k, call.tiles + row / kTile * tile_bytes(), count, begin, end, sink,
                      scratch + kernel_at_);
  }

  // Where the columns of a stretch lie: in an input, an output, or a buffer.
  Columns columns(const Call& call, const Group& g, uint32_t value, const Stretch& at,
                  uint8_t* scratch) const {
    int64_t offset = at.row * g.n + at.column;
    if (value < inputs_) return {call.in[value].f32() + offset, g.n};
    const PlaceOf& p = places_[value];
    if (p.out >= 0) return {call.out[p.out].f32() + offset, g.n};
    auto* base = reinterpret_cast<float*>(scratch + unit_at_);
    return {base + p.buffer * g.room * kPanel * chunk_rows_ + at.before * at.width, at.width};
  }

  Columns source(const Call& call, const Group& g, const EpilogueStep::Source& from,
                 const Stretch& at, uint8_t* scratch) const {
    if (from.kind == SourceKind::kRows) return columns(call, g, from.value, at, scratch);
    if (from.kind == SourceKind::kColumn) return {call.in[from.value].f32() + at.column, 0};
    return {};
  }

  void run_step(const Call& call, const Group& g, const EpilogueStep& s, const Stretch& at,
                uint8_t* scratch) const {
    int64_t width = std::min(at.width, g.n - at.column), count = at.rows;
    Columns a = source(call, g, s.in[0], at, scratch), b = source(call, g, s.in[1], at, scratch);
    if (s.kind == EpilogueStep::Kind::kQuantize) {
      const Tensor& out = call.out[places_[s.out].out];
      auto row = static_cast<int64_t>(dtype_bytes(out.dtype, g.n));
      auto* to = static_cast<uint8_t*>(out.data) + at.row * row + dtype_bytes(out.dtype, at.column);
      for (int64_t r = 0; r < count; ++r)
        encode_activations(call.c.kernels, out.dtype, a.base + r * a.stride, width, to + r * row);
      return;
    }
    Columns to = columns(call, g, s.out, at, scratch);
    bool dense =
        to.stride == width && (!a.base || a.stride == width) && (!b.base || b.stride == width);
    if (dense) return s.run(a.base, b.base, to.base, count * width);
    for (int64_t r = 0; r < count; ++r)
      s.run(a.base ? a.base + r * a.stride : nullptr, b.base ? b.base + r * b.stride : nullptr,
            to.base + r * to.stride, width);
  }

  using SourceKind = EpilogueStep::Source::Kind;
  static constexpr size_t kMostOutputs = 4;  // of the prologue
  // What a step reads comes first: in decode the matrices push it out of the cache between two
  // steps, so it should be few lines.
  const Region& region_;
  uint32_t inputs_;
  uint32_t x_ = 0;  // what the matrices read
  DType activations_ = DType::kF32;
  bool only_staged_ = false;  // the prologue has no other result than x_, and x_ is not kept
  int prologue_piece_ = -1;
  int64_t k_ = 0;
  int64_t total_panels_ = 0, total_weight_ = 0, chunk_rows_ = 0;
  int64_t own_bytes_ = 0, row_at_ = 0, spare_at_ = 0, staged_at_ = 0, unit_at_ = 0, kernel_at_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<Group> groups_;
  std::vector<EpilogueStep> epilogue_;
  std::vector<PlaceOf> places_;
  std::optional<RowProgram> prologue_;
  int64_t scratch_ = 0, shared_ = 0;
};

}  // namespace

std::unique_ptr<CpuOp> make_linears_region(const OpSite& site) {
  return std::make_unique<LinearsRegion>(site);
}

}  // namespace tokamak::cpu
