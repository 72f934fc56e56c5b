#pragma once
// From a step to the plan that runs it: checks everything a kernel will use as an index, computes
// the values of the symbols and selects the plan. A wrong step ends in Error(kInternal), never in
// memory it does not own.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/dispatch.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// Owned by an Executable, used by its thread. bind() costs O(tokens + block table entries) and does
// not allocate.
class StepBinder {
 public:
  // Throws Error(kUnsupported) when the PlanSet has a symbol other than T, B, R and M.
  StepBinder(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows);

  // The plan of the step's function that admits it; a specialised function ("decode") without such
  // a plan falls back to "step". Throws Error(kInternal) for a malformed step and
  // Error(kOutOfRange) when no plan admits it.
  int bind(const StepInputs& step);
  std::span<const int64_t> symbols() const { return values_; }  // in the order of PlanSet::symbols
  // What the plan reads: the step, or the step with rows of padding behind its own. They belong to
  // sequences of length 0 and have slot -1, so that they read and write no state.
  const StepInputs& inputs() const { return *inputs_; }
  const DispatchStats& stats() const { return stats_; }

 private:
  // What a specialised function knows about its inputs: T = rows * B, out_rows = iota.
  struct Facts {
    int64_t rows_per_sequence = 0;  // 0: any
    bool all_rows_out = false;
    // Rows that a bucket's steps are filled up to, with `multiple` only to the next one; 0: it is
    // no bucket.
    int64_t pad = 0, multiple = 0;
    int64_t rows(int64_t tokens) const {
      if (pad == 0) return tokens;
      return multiple > 0 ? (tokens + multiple - 1) / multiple * multiple : pad;
    }
  };
  void check_tokens(const StepInputs& step) const;
  void check_sequences(const StepInputs& step);
  void check_outputs(const StepInputs& step) const;
  void check_table(const StepInputs& step, size_t group) const;
  void check_side_data(const StepInputs& step) const;
  bool admits(size_t plan, const StepInputs& step) const;
  int choose(const StepInputs& step) const;
  void set_symbols(const StepInputs& step);
  void pad(const StepInputs& step, const Facts& facts);
  void count(const StepInputs& step, size_t plan);

  const PlanSet& plans_;
  std::vector<int64_t> blocks_;
  int64_t max_rows_;
  std::vector<char> symbol_kinds_;  // 'T', 'B', 'R' or 'M' for each symbol
  std::vector<int64_t> values_;
  std::vector<bool> grows_;         // per group: has states that hold one row per token
  std::vector<Facts> facts_;        // per plan
  std::vector<uint64_t> row_seen_;  // number of the step that last used the row
  uint64_t step_number_ = 0;
  StepInputs padded_;
  const StepInputs* inputs_ = nullptr;
  DispatchStats stats_;
  const int64_t compiles_at_load_;
  const bool log_guards_;
  int logged_plan_ = -1;
};

}  // namespace tokamak
