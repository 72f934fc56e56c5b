// Regions around matrices that share their input: [norm] [quantize], the matrices, then
// element-wise ops on their outputs. The activations are made and packed once for all matrices;
// what the matrices give goes through the element-wise ops a few columns at a time, before it
// leaves the cache.
#include <algorithm>

#include "backend/cpu/linear_kernel.h"
#include "backend/cpu/region.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// Elements of activations that every thread makes for itself instead of waiting for the others:
// with ops in front of the matrices, and for packing alone.
constexpr int64_t kOwnPrologue = 8192;
constexpr int64_t kOwnPacking = 32768;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class LinearsRegion final : public Op {
 public:
  LinearsRegion(const OpSite& site, const RegionProgram& program)
      : program_(program), places_(program.values()) {
    for (size_t r = 0; r < program.results.size(); ++r)
      places_[program.results[r]].out = static_cast<int>(r);
    std::vector<bool> is_linear;
    for (const RegionStep& s : program.steps) is_linear.push_back(s.op == "linear");
    auto first = std::find(is_linear.begin(), is_linear.end(), true);
    if (first == is_linear.end()) fail(ErrorCode::kCorrupt, "{}: no matrix", site.label);
    x_ = program.steps[static_cast<size_t>(first - is_linear.begin())].in.at(0);
    read_prologue(site);
    for (size_t i = 0; i < program.steps.size(); ++i)
      if (is_linear[i]) add_matrix(site, program.steps[i]);
    for (size_t i = 0; i < program.steps.size(); ++i)
      if (!is_linear[i] && !in_prologue(program.steps[i].out)) add_epilogue(site, program.steps[i]);
    k_ = matrices_[0].kernel->weight().k;
    finish_groups();
    lay_out(site);
  }

  int64_t scratch_bytes() const override { return scratch_; }
  int64_t shared_bytes() const override { return shared_; }

  int stages(const Tensor* in, const Tensor*, const StepContext&) const override {
    return own(in[source_].rows()) ? 1 : 2;
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    int64_t rows = in[source_].rows();
    Call call{in, out, c, rows, nullptr};
    if (!own(rows)) {
      call.tiles = c.shared_scratch;
      if (c.stage == 0) {
        auto [begin, end] = tiles_of(rows, c);
        return make_tiles(call, begin, end, c.shared_scratch + begin * tile_bytes(), true);
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
    int64_t rows = in[source_].rows();
    if (!own(rows) && c.stage == 0) {
      auto [begin, end] = tiles_of(rows, c);
      if (begin >= end) return;
      touch_prologue(in, out, begin * kTile, std::min(end * kTile, rows), true, list);
      return list.memory(c.shared_scratch + begin * tile_bytes(), (end - begin) * tile_bytes(),
                         true);
    }
    int parts = parts_of(rows, c);
    if (c.thread >= parts) return;
    if (own(rows))
      touch_prologue(in, out, 0, rows, c.thread == 0, list);
    else
      list.memory(c.shared_scratch, (rows + kTile - 1) / kTile * tile_bytes(), false);
    each_part(c.thread, parts, [&](const Group& g, int64_t begin, int64_t end) {
      touch_units(in, out, rows, g, begin * g.panels * kPanel,
                  std::min(g.n, end * g.panels * kPanel), list);
    });
  }

 private:
  struct PlaceOf {
    int out = -1;         // output of the call
    int64_t buffer = -1;  // or a buffer of scratch, in columns of a unit
    int matrix = -1;      // made by this matrix
  };
  struct Matrix {
    std::unique_ptr<LinearKernel> kernel;
    uint32_t value;
    int bias;  // input, or -1
    int group;
  };
  struct EpilogueStep {
    RowStep op;
    int in[2];
    uint32_t out;
  };
  // Matrices whose outputs meet in element-wise ops: a unit of columns is done in all of them, then
  // the ops.
  struct Group {
    std::vector<size_t> matrices, steps;
    int64_t n = 0, panels = 1;  // columns; panels per unit
    int64_t units = 0, weight = 0;
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
  };

  // --- At load ---

  void read_prologue(const OpSite& site) {
    std::vector<size_t> chain;
    for (uint32_t v = x_; program_.maker(v) >= 0;) {
      chain.insert(chain.begin(), static_cast<size_t>(program_.maker(v)));
      v = program_.steps[chain.front()].in.at(0);
    }
    source_ = chain.empty() ? x_ : program_.steps[chain.front()].in[0];
    for (size_t i : chain) {
      const RegionStep& s = program_.steps[i];
      RowStep op = make_row_step(site.kernels, s, site.label);
      EpilogueStep e{op,
                     {s.in.size() > 1 ? static_cast<int>(s.in[1]) : -1,
                      s.in.size() > 2 ? static_cast<int>(s.in[2]) : -1},
                     s.out};
      quantized_ = op.kind == RowStep::Kind::kQuantize;
      if (prologue_.size() >= 2 || (quantized_ && i != chain.back()))
        fail(ErrorCode::kUnsupported, "{}: too much in front of a matrix", site.label);
      prologue_.push_back(e);
    }
    if (prologue_.empty()) quantized_ = site.in[x_].dtype == DType::kQ8A;
  }
  bool in_prologue(uint32_t value) const {
    return std::any_of(prologue_.begin(), prologue_.end(),
                       [&](const EpilogueStep& s) { return s.out == value; });
  }

  void add_matrix(const OpSite& site, const RegionStep& s) {
    if (s.in.size() < 2 || s.in[0] != x_ || s.in[1] >= program_.inputs)
      fail(ErrorCode::kUnsupported, "{}: matrices of different inputs", site.label);
    DType type = quantized_ ? DType::kQ8A : DType::kF32;
    Matrix m{make_linear_kernel(site.kernels, site.in[s.in[1]].weight, type, site.label), s.out,
             s.in.size() > 2 ? static_cast<int>(s.in[2]) : -1, static_cast<int>(groups_.size())};
    Group g;
    g.matrices = {matrices_.size()};
    g.n = m.kernel->weight().n;
    places_[s.out].matrix = static_cast<int>(matrices_.size());
    matrices_.push_back(std::move(m));
    groups_.push_back(std::move(g));
  }

  // The group of what a step reads; groups that meet become one.
  void add_epilogue(const OpSite& site, const RegionStep& s) {
    EpilogueStep e{make_row_step(site.kernels, s, site.label),
                   {static_cast<int>(s.in[0]), s.in.size() > 1 ? static_cast<int>(s.in[1]) : -1},
                   s.out};
    if (!e.op.row_local() && e.op.kind != RowStep::Kind::kQuantize)
      fail(ErrorCode::kUnsupported, "{}: {} behind a matrix", site.label, s.op);
    int group = -1;
    for (int v : e.in) {
      if (v < static_cast<int>(program_.inputs)) continue;
      int g = group_of(static_cast<uint32_t>(v));
      if (group >= 0 && g != group) merge_groups(group, g);
      if (group < 0) group = g;
    }
    TK_CHECK(group >= 0, "{}: a step apart from every matrix", site.label);
    group_of_step_.push_back(group);
    Group& to = groups_[static_cast<size_t>(group)];
    to.steps.push_back(epilogue_.size());
    if (e.op.kind == RowStep::Kind::kQuantize) {
      if (to.n % kQuantBlock != 0 || places_[s.out].out < 0)
        fail(ErrorCode::kUnsupported, "{}: quantize of {} columns", site.label, to.n);
      to.panels = kQuantBlock / kPanel;
    }
    epilogue_.push_back(e);
  }
  int group_of(uint32_t value) const {
    if (int m = places_[value].matrix; m >= 0) return matrices_[static_cast<size_t>(m)].group;
    for (size_t i = 0; i < epilogue_.size(); ++i)
      if (epilogue_[i].out == value) return group_of_step_[i];
    return -1;
  }
  void merge_groups(int into, int from) {
    Group &a = groups_[static_cast<size_t>(into)], &b = groups_[static_cast<size_t>(from)];
    if (a.n != b.n) fail(ErrorCode::kUnsupported, "matrices of {} and {} columns meet", a.n, b.n);
    a.matrices.insert(a.matrices.end(), b.matrices.begin(), b.matrices.end());
    a.steps.insert(a.steps.end(), b.steps.begin(), b.steps.end());
    std::sort(a.steps.begin(), a.steps.end());
    a.panels = std::max(a.panels, b.panels);
    b = {};
    for (Matrix& m : matrices_)
      if (m.group == from) m.group = into;
    for (int& g : group_of_step_)
      if (g == from) g = into;
  }

  void finish_groups() {
    std::erase_if(groups_, [](const Group& g) { return g.matrices.empty(); });
    for (Group& g : groups_) {
      g.units = (panels_of(g.n) + g.panels - 1) / g.panels;
      for (size_t m : g.matrices) {
        if (matrices_[m].kernel->weight().k != matrices_[0].kernel->weight().k)
          fail(ErrorCode::kUnsupported, "matrices of one input differ in length");
        g.weight += matrices_[m].kernel->weight().panel_bytes * g.panels;
        total_panels_ += panels_of(g.n);
      }
      total_weight_ += g.units * g.weight;
    }
  }

  // Scratch of a thread: activations of its own | a row of f32 | kTile rows as they are packed from
  // | buffers of a unit | the matrices' scratch.
  void lay_out(const OpSite& site) {
    const LinearKernel& kernel = *matrices_[0].kernel;
    chunk_rows_ = kernel.chunk_tiles() * kTile;
    int64_t most = std::max<int64_t>(site.in[source_].rows(), 1);
    int64_t own_rows = std::min(most, std::max<int64_t>(kTile, own_limit() / k_ + 1));
    own_bytes_ =
        aligned((own_rows + kTile - 1) / kTile * kernel.tile_bytes() + kernel.single_bytes());
    row_at_ = own_bytes_;
    staged_at_ = row_at_ + aligned(k_ * 4);
    unit_at_ = staged_at_ + aligned(kTile * std::max(kernel.row_bytes(), k_ * 4));
    int64_t buffers = 0;
    for (const Group& g : groups_) {
      int64_t used = 0;
      auto give = [&](uint32_t value) {
        if (places_[value].out < 0) places_[value].buffer = used++;
      };
      for (size_t m : g.matrices) give(matrices_[m].value);
      for (size_t s : g.steps) give(epilogue_[s].out);
      buffers = std::max(buffers, used * g.panels * kPanel);
    }
    kernel_at_ = unit_at_ + aligned(buffers * chunk_rows_ * 4);
    int64_t extra = 0;
    for (const Matrix& m : matrices_) extra = std::max(extra, m.kernel->scratch_bytes());
    scratch_ = kernel_at_ + aligned(extra);
    shared_ = (most + kTile - 1) / kTile * kernel.tile_bytes();
  }

  // --- In a step ---

  int64_t own_limit() const { return prologue_.empty() ? kOwnPacking : kOwnPrologue; }
  int64_t tile_bytes() const { return matrices_[0].kernel->tile_bytes(); }

  // Whether every thread makes all activations itself. One tile is one thread's work: nothing is
  // gained by making the others wait for it.
  bool own(int64_t rows) const { return rows <= kTile || rows * k_ <= own_limit(); }
  Part tiles_of(int64_t rows, const StepContext& c) const {
    return c.part((rows + kTile - 1) / kTile, std::max<int64_t>(1, kLightGrain / (8 * k_ + 1)));
  }
  int parts_of(int64_t rows, const StepContext& c) const {
    if (rows == 0) return 0;
    int64_t work = total_panels_ * kPanel * k_ * std::min<int64_t>(rows, 64);
    return static_cast<int>(std::clamp<int64_t>(work / kGrainWork, 1, c.threads));
  }

  void touch_prologue(const Tensor* in, const Tensor* out, int64_t row, int64_t end, bool keep,
                      AccessList& list) const {
    const Tensor& source = in[source_];
    list.read_rows(source, prologue_.empty() ? matrices_[0].kernel->row_bytes() : k_ * 4, row, end);
    for (const EpilogueStep& s : prologue_) {
      for (int v : s.in)
        if (v >= 0) list.read(in[v]);
      if (int o = places_[s.out].out; o >= 0 && keep) list.write_rows(out[o], k_ * 4, row, end);
    }
  }
  // Columns of a group's values, in all rows.
  void touch_units(const Tensor* in, const Tensor* out, int64_t rows, const Group& g, int64_t from,
                   int64_t to, AccessList& list) const {
    auto touch_value = [&](uint32_t value, bool write) {
      int o = value < program_.inputs ? -1 : places_[value].out;
      if (o < 0 && (write || value >= program_.inputs)) return;
      const Tensor& t = write ? out[o] : o >= 0 ? out[o] : in[value];
      if (t.dtype == DType::kQ8A)
        list.columns(t, g.n / kQuantBlock * kActivationBlock, 0, rows,
                     from / kQuantBlock * kActivationBlock,
                     (to - from) / kQuantBlock * kActivationBlock, write);
      else
        list.columns(t, g.n * 4, 0, rows, from * 4, (to - from) * 4, write);
    };
    for (size_t m : g.matrices) {
      if (matrices_[m].bias >= 0) list.read(in[matrices_[m].bias]);
      touch_value(matrices_[m].value, true);
    }
    for (size_t i : g.steps) {
      for (int v : epilogue_[i].in)
        if (v >= 0) touch_value(static_cast<uint32_t>(v), false);
      touch_value(epilogue_[i].out, true);
    }
  }

  // One row through the prologue; returns the row as the matrices' packing reads it. `keep`: what
  // is a result of the region is written to its place.
  const void* prepare_row(const Call& call, int64_t row, uint8_t* staged, float* buffer,
                          bool keep) const {
    const Tensor& source = call.in[source_];
    const auto* x = static_cast<const uint8_t*>(source.data);
    if (prologue_.empty()) return x + row * matrices_[0].kernel->row_bytes();
    const void* at = x + row * k_ * 4;
    for (size_t i = 0; i < prologue_.size(); ++i) {
      const EpilogueStep& s = prologue_[i];
      bool last = i + 1 == prologue_.size();
      void* to = last ? static_cast<void*>(staged) : buffer;
      int out = places_[s.out].out;
      if (out >= 0 && keep && call.out[out].dtype == DType::kF32)
        to = call.out[out].f32() + row * k_;
      auto operand = [&](int v) { return v < 0 ? nullptr : call.in[v].f32(); };
      s.op.run(call.c.kernels, static_cast<const float*>(at), operand(s.in[0]), false,
               operand(s.in[1]), to, k_);
      if (out >= 0 && keep && call.out[out].dtype == DType::kF32 && last)
        std::copy_n(static_cast<const float*>(to), k_, reinterpret_cast<float*>(staged));
      at = last ? static_cast<const void*>(staged) : to;
    }
    return at;
  }

  void make_tiles(const Call& call, int64_t begin, int64_t end, uint8_t* to, bool keep) const {
    const LinearKernel& kernel = *matrices_[0].kernel;
    uint8_t* scratch = call.c.thread_scratch();
    auto* buffer = reinterpret_cast<float*>(scratch + row_at_);
    uint8_t* staged = scratch + staged_at_;
    for (int64_t t = begin; t < end; ++t, to += tile_bytes()) {
      int64_t row = t * kTile, n = std::min<int64_t>(kTile, call.rows - row);
      const void* rows = nullptr;
      for (int64_t i = 0; i < n; ++i) {
        const void* at = prepare_row(call, row + i, staged + i * kernel.row_bytes(), buffer, keep);
        if (i == 0) rows = at;
      }
      kernel.pack_tile(call.c.kernels, rows, n, to);
    }
  }

  const uint8_t* own_activations(const Call& call, bool keep) const {
    const LinearKernel& kernel = *matrices_[0].kernel;
    uint8_t* scratch = call.c.thread_scratch();
    if (call.rows > 1) {
      make_tiles(call, 0, (call.rows + kTile - 1) / kTile, scratch, keep);
      return scratch;
    }
    const void* x = prepare_row(call, 0, scratch + staged_at_,
                                reinterpret_cast<float*>(scratch + row_at_), keep);
    if (kernel.single_bytes() == 0) return static_cast<const uint8_t*>(x);
    kernel.pack_single(call.c.kernels, x, scratch);
    return scratch;
  }

  // body(group, begin, end) for this thread's units. Where the units of every group divide among
  // the parts each group is cut alike: queries, keys and values then fall to who goes on with the
  // same heads. Else parts hold equal weights of all groups in order.
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

  // The first unit at or behind `goal` of the groups' weights, in order.
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
    int64_t batch = std::max<int64_t>(1, chunk_rows_ / count);
    for (int64_t u = begin; u < end; u += batch) {
      int64_t first = u * g.panels, last = std::min(std::min(u + batch, end) * g.panels, panels);
      Stretch at{row, count, first * kPanel, (last - first) * kPanel};
      for (size_t i : g.matrices) {
        const Matrix& m = matrices_[i];
        multiply(call, m, row, count, first, last, columns(call, g, m.value, at, scratch), scratch);
      }
      for (size_t i : g.steps) run_step(call, g, epilogue_[i], at, scratch);
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
    if (value < program_.inputs) return {call.in[value].f32() + offset, g.n};
    const PlaceOf& p = places_[value];
    if (p.out >= 0) return {call.out[p.out].f32() + offset, g.n};
    auto* base = reinterpret_cast<float*>(scratch + unit_at_);
    return {base + p.buffer * g.panels * kPanel * chunk_rows_, at.width};
  }

  void run_step(const Call& call, const Group& g, const EpilogueStep& s, const Stretch& at,
                uint8_t* scratch) const {
    int64_t width = std::min(at.width, g.n - at.column), count = at.rows;
    Columns a = columns(call, g, static_cast<uint32_t>(s.in[0]), at, scratch), b{};
    if (s.in[1] >= 0) b = columns(call, g, static_cast<uint32_t>(s.in[1]), at, scratch);
    const KernelTable& k = call.c.kernels;
    if (s.op.kind == RowStep::Kind::kQuantize) {
      int64_t blocks = g.n / kQuantBlock;
      auto* to = static_cast<uint8_t*>(call.out[places_[s.out].out].data) +
                 (at.row * blocks + at.column / kQuantBlock) * kActivationBlock;
      for (int64_t r = 0; r < count; ++r)
        k.quantize_row(a.base + r * a.stride, width, to + r * blocks * kActivationBlock);
      return;
    }
    Columns to = columns(call, g, s.out, at, scratch);
    bool dense = a.stride == width && to.stride == width && (s.in[1] < 0 || b.stride == width);
    if (dense) return s.op.run(k, a.base, b.base, false, nullptr, to.base, count * width);
    for (int64_t r = 0; r < count; ++r)
      s.op.run(k, a.base + r * a.stride, b.base ? b.base + r * b.stride : nullptr, false, nullptr,
               to.base + r * to.stride, width);
  }

  RegionProgram program_;
  std::vector<PlaceOf> places_;
  uint32_t x_ = 0, source_ = 0;  // what the matrices read; what the region reads
  bool quantized_ = false;
  int64_t k_ = 0;
  std::vector<EpilogueStep> prologue_, epilogue_;
  std::vector<int> group_of_step_;
  std::vector<Matrix> matrices_;
  std::vector<Group> groups_;
  int64_t total_panels_ = 0, total_weight_ = 0, chunk_rows_ = 0;
  int64_t own_bytes_ = 0, row_at_ = 0, staged_at_ = 0, unit_at_ = 0, kernel_at_ = 0, scratch_ = 0,
          shared_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_linears_region(const OpSite& site, const RegionProgram& program) {
  return std::make_unique<LinearsRegion>(site, program);
}

}  // namespace tokamak::cpu
