#pragma once
// Attention of prompts with products of bf16 numbers in tiles, where the graph allows them
// (attribute products of attend): sequences with many rows in a step, over keys and values of 16
// bits that order alone hides. Queries and the weights of values are rounded to bf16; keys and
// values are exact. Owned by the op that computes the other sequences.
#include "backend/cpu/attend_base.h"

namespace tokamak::cpu {

class AttendTiles final : public AttendBase {
 public:
  using AttendBase::AttendBase;
  // Whether this level and the op's planes and attributes have such a form.
  static bool fits(const OpSite& site);
  // Whether sequence b of the step is computed here.
  bool takes(const Tensor* in, int64_t b) const;
  int64_t scratch_bytes() const override;
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override;
  void touch(const Tensor*, const Tensor*, const StepContext&, AccessList&) const override {}

 private:
  struct Work;
  bool fits() const;
  int64_t lay_out(Work& w, uint8_t* scratch) const;  // returns its bytes
  void run_item(const WorkItem& item) const;
  void load_queries(const WorkItem& item, const Work& w) const;
  void load_segment(const WorkItem& item, const Work& w, int64_t start, int64_t slots) const;
  void run_group(const WorkItem& item, const Work& w, int64_t column, int64_t start,
                 int64_t slots) const;
  void finish(const WorkItem& item, const Work& w) const;

  int64_t steps() const { return (d_ + kTileStep - 1) / kTileStep; }  // of a query
  int64_t key_terms() const { return keys_[0]->type == FType::kF16 ? 2 : 1; }
  int64_t value_terms() const { return value_->type == FType::kF16 ? 2 : 1; }
  int64_t item_rows() const;
};

}  // namespace tokamak::cpu
