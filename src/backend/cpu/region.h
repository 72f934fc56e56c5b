#pragma once
// What the region kernels share: loop programs that run row by row in front of an anchor, and
// element-wise ones that run on what an anchor produced. Both use the kernels that run their ops
// alone, so that fusing changes no bit.
#include <optional>

#include "backend/cpu/loop_plan.h"
#include "plan/region.h"

namespace tokamak::cpu {

class RowRunner;

// A program of a region whose inputs are inputs of the call, run one row at a time into memory of
// the caller's choice.
class RowProgram {
 public:
  // Throws Error(kUnsupported) when an input is computed inside the region or an output is not
  // stored row by row.
  RowProgram(const Region& region, const RegionPiece& piece, const OpSite& site);

  void bind(const Tensor* in, const StepContext& context);
  int64_t rows() const { return rows_; }
  int64_t most_rows() const { return most_rows_; }  // of any step
  int64_t columns() const { return columns_; }
  int64_t row_bytes(size_t output) const;
  size_t outputs() const { return plan_.program.out.size(); }
  int64_t scratch_bytes() const { return plan_.scratch_bytes(); }
  // The only input of which every row has a row of its own; -1: none, or several.
  int row_input() const;

  // What these rows read.
  void touch(const Tensor* in, int64_t row, int64_t end, AccessList& list) const;

 private:
  friend class RowRunner;
  // A program that is a norm, a quantisation, or both: its kernels are called without the
  // interpreter. In decode a step runs hundreds of programs on one row each, and what the
  // interpreter reads about each of them is no longer in the cache.
  struct Direct {
    bool holds = false;
    DType stored = DType::kF32;                    // else what the row is encoded to
    LoopStep::Kind norm = LoopStep::Kind::kStore;  // kRmsNorm, kLayerNorm; kStore: none
    int32_t x = -1, weight = -1, bias = -1;        // inputs of the call
    float eps = 0;
  };
  Direct find_direct() const;

  Direct direct_;
  int64_t columns_ = 0, rows_ = 0, most_rows_ = 0;
  std::vector<uint32_t> params_;  // inputs of the call
  LoopPlan plan_;
  loop::Bounds bounds_;
  std::vector<bool> by_row_;  // inputs that have a row for each row of the program
  std::vector<int64_t> in_elements_, out_elements_;
};

// Runs rows of a RowProgram on one thread.
class RowRunner {
 public:
  RowRunner(const RowProgram& program, const Tensor* in, const KernelTable& kernels,
            uint8_t* scratch);
  void run_row(int64_t row, uint8_t* const* to);

 private:
  const RowProgram& program_;
  const Tensor* in_;
  const KernelTable& kernels_;
  uint8_t* scratch_;
  std::optional<LoopRunner> loop_;  // unless the program is direct
};

// One element-wise step after an anchor, on values with the anchor's extents.
struct EpilogueStep {
  enum class Kind : uint8_t { kUnary, kBinary, kQuantize };
  struct Source {
    enum class Kind : uint8_t {
      kNone,
      kRows,    // a value with an element for each
      kColumn,  // an input of the call with one number per column
      kNumber,
    };
    Kind kind = Kind::kNone;
    uint32_t value = 0;  // of the region, or beyond: of a step that stays inside
    float number = 0;
  };
  Kind kind = Kind::kUnary;
  UnaryKernel unary;
  void (*binary)(const float* a, const float* b, float* out, int64_t n) = nullptr;
  void (*binary_scalar)(const float* a, float b, float* out, int64_t n) = nullptr;
  Source in[2];
  uint32_t out = 0;

  // n values that are next to each other; a or b is not read where the source is a number.
  void run(const float* a, const float* b, float* to, int64_t n) const;
};
// Steps of a program over rows of `columns`. Values inside are numbered from `next` on. Throws
// Error(kUnsupported) naming the instruction that has no such step.
std::vector<EpilogueStep> read_epilogue(const Region& region, const RegionPiece& piece,
                                        const OpSite& site, int64_t columns, uint32_t& next);

}  // namespace tokamak::cpu
