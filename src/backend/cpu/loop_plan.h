#pragma once
// A Loop IR program prepared for the tile interpreter: which kernel runs each instruction on which
// buffers, phase by phase. Made once at load.
#include <vector>

#include "backend/cpu/exec.h"
#include "loop/bounds.h"
#include "loop/schedule.h"

namespace tokamak::cpu {

// Columns that an instruction takes at once, at least: a handful of buffers of this size stay in
// the first level of cache. Multiples of 32, so that blocks of q8a and 16 lanes never straddle two
// tiles. Where whole rows are walked and few buffers are needed, tiles are longer, which costs less
// to interpret.
constexpr int64_t kLoopTile = 1024, kLoopCache = 8192;

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
    kRound,
    kGeneric,  // integers, comparisons, selections, conversions: plain loops
    kLoad,
    kIndex,
    kConst,
    kStore,  // `to` is the output
  };
  Kind kind = Kind::kGeneric;
  loop::Op op = loop::Op::kConst;
  uint32_t to = 0;
  uint32_t in[3] = {};
  bool tile[3] = {};     // which operands are tiles
  bool integer = false;  // operands (of a selection: what is selected)
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
  LoopPlan(loop::Program program, const KernelTable& kernels, const OpSite& site);

  loop::Program program;
  std::vector<LoopStep> once;  // constants
  std::vector<Phase> phases;
  std::vector<LoopStep> row_stores;
  std::vector<LoopPlace> places;
  std::vector<uint32_t> inputs;  // loads in place whose row follows from its number
  uint32_t buffers = 0, kept = 0, reductions = 0;
  int64_t tile = kLoopTile, row_bytes = 0;  // columns of a buffer; bytes of a kept row
  int64_t cost = 1;                         // of an element, in light operations
  bool whole_rows = false;                  // a row is the smallest part of the work
  bool gathers = false;                     // absent rows are read from a buffer of zeros
  bool scatters = false;                    // rows may meet in one place: one thread

  int64_t scratch_bytes() const;

 private:
  void place_values(const loop::Schedule& schedule, const OpSite& site);
  void fill_phase(const loop::Schedule& schedule, size_t phase, const KernelTable& kernels);
  LoopStep make_step(uint32_t id, const KernelTable& kernels);
  void join_products(Phase& phase);
  void assign_buffers(Phase& phase);
};

// Runs a prepared program over a range of its work on one thread.
class LoopRunner {
 public:
  LoopRunner(const LoopPlan& plan, const loop::Bounds& bounds, const KernelTable& kernels,
             const Tensor* in, const Tensor* out, uint8_t* scratch);
  void run(int64_t begin, int64_t end);

 private:
  struct Place {
    uint8_t* base;
    int64_t step;  // bytes per column; 0: a buffer, always at its start
  };
  void set_places();
  void set_rows_by_index(const LoopPlan::Phase& phase);
  void run_phases(int64_t from, int64_t to);
  void run_step(const LoopStep& s, int64_t column, int64_t n);
  void run_generic(const LoopStep& s, int64_t column, int64_t n);
  void run_binary_row(const LoopStep& s);
  void round(const LoopStep& s, int64_t column, int64_t n);
  void load(const LoopStep& s, int64_t column, int64_t n);
  void store(const LoopStep& s, int64_t column, int64_t n);
  int64_t row_start(const loop::BoundAccess& b, int32_t by) const;

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
  Place* places_;
  float* lanes_;
  uint8_t* zeros_;
  int64_t row_[loop::kMaxRowAxes] = {};
};

}  // namespace tokamak::cpu
