#pragma once
// The operands of the function "sample" for the outputs of one phase: what requests ask for
// (SampleSpec) as rows of numbers.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/common/step_binding.h"
#include "backend/common/token_chooser.h"
#include "base/error.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// Reused for every phase; vectors keep their capacity. Lists have at least one entry and grow in
// powers of two, so that a plan sees few shapes.
class SampleTable {
 public:
  explicit SampleTable(int64_t vocab) : vocab_(vocab) { history_.reserve(16384); }
  void clear();
  // One output. `history`: prompt and answer so far; empty unless the spec needs it. `mask`: the
  // tokens that it may choose; empty: all.
  void add(const SampleRow& sample, std::span<const int32_t> history, int32_t prompt_tokens,
           std::span<const uint32_t> mask);
  void finish(const float* logits);  // after the last row

  const SampleArgs& args() const { return args_; }
  // Best tokens that any row asks for, at least 1, and their ranks: 0, 1, 2 ...
  int64_t most_tops() const { return most_tops_; }
  std::span<const int32_t> ranks() const { return ranks_; }
  // Inputs and symbols of the function by name.
  InputView input(std::string_view name) const;
  int64_t symbol(std::string_view name) const;  // 0: not one of the function's
  uint64_t bytes() const;

 private:
  int64_t vocab_, rows_ = 0, most_tops_ = 1;
  std::vector<float> params_, ordered_params_, bias_values_;
  std::vector<int32_t> keys_, order_, history_, history_start_, breakers_, breaker_start_,
      bias_ids_, bias_start_, masks_, ranks_;
  SampleArgs args_;
};

// The plan of kSampleFunction that admits the table, and the values of PlanSet::symbols. Throws
// Error(kOutOfRange) when there is none.
inline int select_sample_plan(const PlanSet& plans, const SampleTable& table,
                              std::vector<int64_t>& symbols) {
  symbols.clear();
  for (const SymbolDecl& s : plans.symbols) symbols.push_back(table.symbol(s.name));
  int plan = select_plan(plans, kSampleFunction, symbols);
  if (plan < 0)
    fail(ErrorCode::kOutOfRange, "no plan chooses the tokens of {} outputs", table.args().rows);
  return plan;
}

// What the function gives.
struct SampleTokens {
  std::vector<int32_t> ids;     // [rows]
  std::vector<float> logprobs;  // [rows]
  std::vector<int32_t> tops;    // [rows, most_tops]
  std::vector<float> values;
  // An output by its name in the plan.
  void set(std::string_view name, const void* data, int64_t elements);
};

}  // namespace tokamak
