#pragma once
// Selects the plan that runs a step: checks the step, computes the values of the symbols from the
// shapes of its inputs, pads it to the plan's bucket and resolves the plan's inputs by name. A
// wrong step ends in Error(kInternal), never in memory that it does not own.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/common/step_check.h"
#include "backend/common/step_phases.h"
#include "plan/dispatch.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// An input of the plan as it is in memory. Valid until the next bind().
struct InputView {
  DType dtype = DType::kI32;
  const void* data = nullptr;
  int64_t elements = 0;
};

// Owned by an Executable, used by its thread. bind() costs O(tokens + block table entries) and does
// not allocate.
class StepBinder {
 public:
  // Throws Error(kUnsupported) when no input of a step gives a symbol its value.
  StepBinder(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows);

  // The plan of the phase's function that admits it; a specialised function ("decode") without such
  // a plan falls back to "step". Phases are bound in order, and a phase is run before the next one
  // is bound. Throws Error(kInternal) for a malformed step and Error(kOutOfRange) when no plan
  // admits it. The binder refers to `step` until the next bind(): phase(), inputs() and input() are
  // for use while it lives, that is inside Executable::submit().
  int bind(const StepInputs& step, size_t phase = 0);
  // Binds rows of padding alone to a plan that has one row per sequence: for executables that
  // prepare such a plan before the first step.
  void bind_padding(size_t plan, int64_t sequences);

  std::span<const int64_t> symbols() const { return values_; }  // in the order of PlanSet::symbols
  std::span<const int64_t> own_symbols() const { return own_values_; }  // without padding
  // The bound phase as a step of its own, without padding, and its place in the step.
  const StepInputs& phase() const { return *phase_; }
  int32_t first_output() const { return cutter_.first_output(); }
  int32_t first_sequence() const { return cutter_.first_sequence(); }
  // What the plan reads: the phase, or the phase followed by rows of padding. They belong to
  // sequences of length 0 and have slot -1, so that they read and write no state.
  const StepInputs& inputs() const { return *inputs_; }
  // Token ids of inputs(): the executable replaces those below zero before it runs the plan.
  std::vector<int32_t>& ids() { return ids_; }
  // Input `index` of the PlanSet. Throws Error(kInternal) when the step does not have it.
  InputView input(size_t index) const;

  const StepChecker& checker() const { return checker_; }
  const DispatchStats& stats() const { return stats_; }
  DispatchStats& stats() { return stats_; }

 private:
  // Where an input of the plans is in a step.
  struct Source {
    const StepField* field = nullptr;  // nullptr: StepInputs::inputs, by name
    std::string name;
    DType dtype = DType::kI32;
    std::vector<CompiledExpr> dims;
  };
  // A symbol is (extent of an axis - offset) / scale.
  struct Solution {
    Source source;
    size_t axis = 0;
    int64_t scale = 1, offset = 0;
  };
  struct Pad {
    int64_t to = 0, multiple = 0;  // 0: not padded
    int64_t apply(int64_t value) const {
      if (to == 0) return value;
      return multiple > 1 ? (value + multiple - 1) / multiple * multiple : to;
    }
  };
  // What a specialised function knows about its inputs: T = rows * B, out_rows = iota.
  struct Facts {
    int64_t rows_per_sequence = 0;  // 0: any
    bool all_rows_out = false;
    bool bucket = false;         // pads something
    std::vector<Pad> pads;       // by symbol
    std::vector<int64_t> least;  // by symbol: of steps that are padded
    int64_t most_sequences = 0;
  };
  struct Shape {
    int64_t tokens, sequences, outputs, mask_width;
    bool operator==(const Shape&) const = default;
  };

  Solution solve(const std::string& symbol) const;
  Facts facts_of(const Plan& plan) const;
  const StepTensor* find_tensor(const StepInputs& step, std::string_view name) const;
  int64_t extent(const StepInputs& step, const Source& source, size_t axis) const;
  void set_symbols(const StepInputs& step);
  void check_tensors(const StepInputs& step) const;
  Shape shape_of(const StepInputs& step) const;
  Shape padded_shape(const Facts& facts, const StepInputs& step) const;
  bool admits(size_t plan, const StepInputs& step) const;
  int choose(const StepInputs& step) const;
  void pad(const StepInputs& step, const Facts& facts, const Shape& shape);
  void pad_tensors(const StepInputs& step);
  void apply_bucket(const StepInputs& own, const Facts& facts, const Shape& shape);
  void count(const StepInputs& step, size_t plan);

  const PlanSet& plans_;
  StepChecker checker_;
  std::vector<Source> sources_;            // of PlanSet::inputs
  std::vector<Solution> solutions_;        // of PlanSet::symbols
  int t_ = -1, b_ = -1, r_ = -1, m_ = -1;  // indices of the symbols T, B, R, M
  std::vector<int64_t> values_, own_values_;
  std::vector<Facts> facts_;  // per plan
  PhaseCutter cutter_;
  StepInputs padded_, nothing_;
  const StepInputs *phase_ = nullptr, *inputs_ = nullptr;
  std::vector<int32_t> ids_;
  DispatchStats stats_;
  const int64_t compiles_at_load_;
  const bool log_guards_;
  int logged_plan_ = -1;
};

}  // namespace tokamak
