#pragma once
// The function "sample" on the device after a step: penalties, DRY, bias, mask, temperature, min-p,
// top-k, top-p and log-probabilities, from logits that stay where the step left them. Tokens are
// those of the host (backend/common/token_chooser.h).
#include <span>
#include <vector>

#include "backend/common/sample_table.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/sample.h"

namespace tokamak::cuda {

// Owned by an executable. No allocation after warm-up.
class TableSampler {
 public:
  TableSampler(const KernelLibrary& kernels, int64_t vocab, int64_t max_rows);
  // Whether it knows all that the outputs ask for: not typical, XTC, top-n-sigma,
  // dynamic temperature, or an order of stages.
  static bool takes(std::span<const SampleRow> samples);
  // Runs on the stream and waits. host: finds repeats of the history. logits: f32 [rows, vocab] on
  // the device. `left`: rows that the host has to choose or report, because too many logits are
  // equal.
  void run(const DeviceStream& stream, DeviceAddress logits, const SampleTable& table,
           TokenChooser& host, SampleTokens& out, std::vector<int64_t>& left);
  uint64_t bytes() const;
  static int64_t max_rows(const PlanSet& plans);    // outputs of a step; 0: it has none
  static uint64_t bytes_for(const PlanSet& plans);  // about bytes()

 private:
  struct Operands {
    size_t rows, counts, biases, masks, bytes;  // offsets, and the end
  };
  Operands stage(const SampleArgs& args, TokenChooser& host);
  void add_row(const SampleArgs& args, int64_t row, TokenChooser& host);
  void count_history(const SampleArgs& args, int64_t row, SampleTableRow& to);

  LaunchList launch_;
  int64_t vocab_;
  size_t max_rows_;
  std::vector<SampleTableRow> rows_;
  std::vector<SampleCount> counts_;
  std::vector<SampleBias> biases_;
  std::vector<int32_t> place_;  // per token: its entry of counts_ + 1, while a row is counted
  Buffer edited_, device_;
  PinnedBuffer staged_, fetched_;
};

}  // namespace tokamak::cuda
