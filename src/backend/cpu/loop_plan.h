#pragma once
// A Loop IR program prepared for the tile interpreter: which kernel runs each instruction on which
// buffers, phase by phase. Made once at load.
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/exec.h"
#include "loop/bounds.h"
#include "loop/phases.h"

namespace tokamak::cpu {

// Columns that an instruction takes at once, at least: a handful of buffers of this size stay in
// the first level of cache. Multiples of 32, so that blocks of q8a and 16 lanes never straddle two
// tiles. Where whole rows are walked and few buffers are needed, tiles are longer, which costs less
// to interpret; rows of up to kLoopCache columns are not cut at all.
constexpr int64_t kLoopTile = 1024, kLoopCache = 8192;

constexpr int64_t kLoopAlign = 64;
inline int64_t loop_aligned(int64_t bytes) {
  return (bytes + kLoopAlign - 1) / kLoopAlign * kLoopAlign;
}

// Where the elements of a value are (4 bytes each).
struct LoopPlace {
  enum class Kind : uint8_t {
    kRow,     // one number per row
    kBuffer,  // of a tile; free again after the last use
    kKept,    // a whole row, for a later phase
    kInput,   // in the tensor itself
    kOutput,
  };
  Kind kind = Kind::kRow;
  uint32_t slot = 0;  // number of the buffer, of the kept row or of the output
};

struct LoopStep {
  enum class Kind : uint8_t {
    kUnary,
    kBinary,       // tile, tile
    kBinaryRight,  // tile, row
    kBinaryLeft,   // row, tile
    kBinaryRow,    // row, row
    kScaleMul,     // (tile * row) * tile: what ends a norm
    kReduce,
    kReduceRow,  // a whole row at once
    kRmsNorm,    // likewise, with the kernel of the op: x, weight
    kLayerNorm,  // x, weight, bias
    kSoftmax,
    kRound,
    kGeneric,  // integers, comparisons, selections, conversions: plain loops
    kLoad,
    kIndex,
    kConst,
    kFindRow,  // the row of a load by index
    kStore,    // `to` is the output
  };
  Kind kind = Kind::kGeneric;
  loop::Op op = loop::Op::kConst;
  uint32_t to = 0;
  uint32_t in[3] = {};
  bool tile[3] = {};     // which operands are tiles
  bool integer = false;  // operands (of a selection: what is selected)
  bool one = false;      // one number per row
  UnaryKernel unary;
  void (*binary)(const float*, const float*, float*, int64_t) = nullptr;
  void (*binary_scalar)(const float*, float, float*, int64_t) = nullptr;
  uint32_t reduce = 0;  // number of the accumulator
  Reduce reduction = Reduce::kSum;
  FType rounding = FType::kF32;
  float number = 0;
};

struct LoopPlan {
  struct Phase {
    std::vector<LoopStep> row, tile;
    std::vector<uint32_t> rows_by_index;  // loads whose row is known when the row steps have run
  };
  // Where a value's place is in a thread's scratch, and how far it moves with a column.
  struct Start {
    uint32_t value;
    int64_t offset, step;
  };
  // `by_rows`: a row is the smallest part of the work, whatever the program is. `params`: the
  // call's arguments that the program reads, in their order; empty: all.
  LoopPlan(loop::Program program, const KernelTable& kernels, const OpSite& site,
           bool by_rows = false, std::span<const uint32_t> params = {});

  loop::Program program;
  std::vector<LoopStep> once;  // constants
  std::vector<Phase> phases;
  std::vector<LoopStep> row_stores;
  std::vector<LoopPlace> places;
  std::vector<uint32_t> inputs;       // loads in place whose row follows from its number
  std::vector<Start> starts;          // of the values that steps use, except inputs and outputs
  std::vector<size_t> direct_stores;  // whose value is computed in the output
  uint32_t buffers = 0, kept = 0, reductions = 0;
  int64_t tile = kLoopTile, row_bytes = 0;  // columns of a buffer; bytes of a kept row
  int64_t cost = 1;                         // of an element, in light operations
  bool whole_rows = false;                  // a row is the smallest part of the work
  bool uncut_rows = false;                  // each step takes a whole row: one phase, no tiles
  bool gathers = false;                     // absent rows are read from a buffer of zeros
  bool scatters = false;                    // rows may meet in one place: one thread

  int64_t lanes_at = 0, zeros_at = 0;  // in a thread's scratch

  int64_t scratch_bytes() const { return scratch_; }

 private:
  // The kernel of an op that ends in an instruction, and what it reads.
  struct RowKernel {
    LoopStep::Kind kind;
    std::vector<uint32_t> in;
    double eps = 0;
  };
  bool reads_in_place(const loop::Instr& load, const OpSite& site,
                      std::span<const uint32_t> params) const;
  void place_values(const loop::Phases& order, const OpSite& site,
                    std::span<const uint32_t> params);
  void place_stores();
  void fill_phase(const loop::Phases& order, size_t phase, const KernelTable& kernels);
  void fill_uncut(const KernelTable& kernels);
  std::optional<RowKernel> find_row_kernel(uint32_t id) const;
  std::optional<RowKernel> find_norm(uint32_t scaled) const;
  LoopStep make_step(uint32_t id, const KernelTable& kernels);
  LoopStep make_store(uint32_t store) const;
  bool is_row_store(uint32_t store) const;
  void join_products(Phase& phase);
  void assign_buffers(Phase& phase);
  void lay_out_scratch();

  std::vector<bool> unused_;  // values that a row kernel replaces
  int64_t scratch_ = 0;
};

// Runs a prepared program over a range of its work on one thread.
class LoopRunner {
 public:
  // `params`: as in the plan. `out` may be null when only run_row is called.
  LoopRunner(const LoopPlan& plan, const loop::Bounds& bounds, const KernelTable& kernels,
             const Tensor* in, const Tensor* out, uint8_t* scratch,
             std::span<const uint32_t> params = {});
  void run(int64_t begin, int64_t end);
  // One row, with the rows of the outputs at `to` instead of their tensors.
  void run_row(int64_t row, uint8_t* const* to);

 private:
  struct Place {
    uint8_t* base;
    int64_t step;  // bytes per column; 0: a buffer, always at its start
  };
  void set_places();
  void next_row();
  void find_row(uint32_t load);
  void run_phases(int64_t from, int64_t to);
  void run_step(const LoopStep& s, int64_t column, int64_t n);
  void run_generic(const LoopStep& s, int64_t column, int64_t n);
  void run_binary_row(const LoopStep& s);
  void reduce_row(const LoopStep& s, int64_t n);
  void round(const LoopStep& s, int64_t column, int64_t n);
  void load(const LoopStep& s, int64_t column, int64_t n);
  void store(const LoopStep& s, int64_t column, int64_t n);
  int64_t row_start(const loop::BoundAccess& b, int32_t by) const;
  const Tensor& input(uint32_t param) const {
    return in_[params_.empty() ? param : params_[param]];
  }
  // Element `index` of the current row of an output, counted from the start of its tensor.
  uint8_t* output(size_t store, int64_t index) const;

  uint8_t* at(uint32_t value, int64_t column) const {
    return places_[value].base + places_[value].step * column;
  }
  float* f32(uint32_t value, int64_t column) const {
    return reinterpret_cast<float*>(at(value, column));
  }
  int32_t* i32(uint32_t value, int64_t column) const {
    return reinterpret_cast<int32_t*>(at(value, column));
  }

  const LoopPlan& plan_;
  const loop::Bounds& bounds_;
  const KernelTable& kernels_;
  const Tensor *in_, *out_;
  std::span<const uint32_t> params_;
  uint8_t* const* to_ = nullptr;  // of run_row
  Place* places_;
  float* lanes_;
  uint8_t* zeros_;
  int64_t row_[loop::kMaxRowAxes] = {};
};

}  // namespace tokamak::cpu
