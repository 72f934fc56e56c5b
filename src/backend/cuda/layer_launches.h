#pragma once
// The launches of a decoder as a whole: what decode_plan.h recognises, for any number of rows, with
// a few kernels between the matrix products instead of one per op. q, k and v are one product, and
// so are gate and up.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/decode_plan.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/few_rows_launch.h"
#include "backend/cuda/kernels.h"

namespace tokamak::cuda {

// Owned by an executable.
class LayerLaunches {
 public:
  // Nothing where a plan is not such a decoder; `why` then says what it found. Weights that are not
  // bf16 are rounded to it: by the products of few rows where those can read them, else one product
  // after the other, in steps of more than direct_rows().
  static std::optional<PlannedDecoder> find(const PlanSet& plans, const Plan& plan,
                                            std::string& why);
  // For the plans that name these launches; null where none does.
  static std::unique_ptr<LayerLaunches> make(const PlanSet& plans, const DeviceWeights& weights,
                                             const KvPool& kv, const Libraries& libraries);
  static uint64_t bytes_for(const PlanSet& plans);  // bytes() of what make() returns
  // Whether products of few rows read the weights of all layers as they are stored.
  static bool reads_as_stored(const PlanSet& plans, const PlannedDecoder& decoder);

  struct Step {
    int64_t tokens = 0, sequences = 0, outputs = 0;
    DeviceAddress ids = 0, pos = 0, seq = 0, slot = 0, q_start = 0, kv_len = 0;
    DeviceAddress out_rows = 0;  // 0: every token has an output
    DeviceAddress mask = 0;      // [tokens, mask_width]; 0: the plan has none
    int64_t mask_width = 0;
    DeviceAddress logits = 0;
  };
  bool takes(int64_t tokens) const { return tokens > direct_rows_; }
  // The products of a layer and of the head, for Blas::measure().
  std::vector<BlasProduct> products() const;
  // Emits a step whose rows are the last tokens of their sequences (StepView::causal).
  void emit(const Step& step, const StepView& view, Scratch scratch, LaunchList& list) const;
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  LayerLaunches(const PlanSet& plans, PlannedDecoder decoder, const DeviceWeights& weights,
                const KvPool& kv, const Libraries& libraries, int64_t rows);
  struct Layout;
  // A product with the rows of these weights, one after the other.
  struct Matrix {
    std::vector<uint32_t> parts;
    int64_t n, k;
  };
  // Whether the product reads the weights where they are.
  bool in_place(const Matrix& matrix) const;
  Tensor weights_of(LaunchList& list, const Matrix& matrix) const;
  Matrix qkv(const PlannedLayer& layer) const;
  Matrix out(const PlannedLayer& layer) const;
  Matrix gate_up(const PlannedLayer& layer) const;
  Matrix down(const PlannedLayer& layer) const;
  Matrix head() const;
  // What a layer adds to the residual stream.
  struct Delta {
    DeviceAddress values = 0;
    FewRowsSums sums{};
  };
  bool few_rows_by_parts(LaunchList& list, FewRowsProduct p, const Matrix& w) const;
  FewRowsSums product(LaunchList& list, DeviceAddress x, const Matrix& w, int64_t rows,
                      DeviceAddress y, DType out = DType::kBF16) const;
  bool few_rows(LaunchList& list, FewRowsProduct p, const Matrix& w, FewRowsSums* sums) const;
  void gate(LaunchList& list, const Matrix& w, int64_t rows) const;
  void turns(LaunchList& list, const Step& step) const;
  void add_norm(LaunchList& list, const Delta& delta, uint32_t norm, int64_t rows,
                DeviceAddress chosen = 0) const;
  void rotate(LaunchList& list, const FewRowsSums& sums, const PlannedLayer& layer,
              const Step& step, const StepView& view) const;
  void attend(LaunchList& list, const PlannedLayer& layer, const Step& step, const StepView& view,
              Scratch scratch) const;

  const PlanSet& plans_;
  PlannedDecoder decoder_;
  const DeviceWeights& weights_;
  const KvPool& kv_;
  Libraries libraries_;
  int64_t rows_, direct_rows_;
  Buffer memory_;
  // Parts of it.
  DeviceAddress residual_, normed_, wide_, queries_, attended_, gated_, delta_, turns_, few_rows_,
      expanded_;  // 0: all weights of layers are bf16
};

}  // namespace tokamak::cuda
