#include "backend/common/step_phases.h"

#include "plan/adapter.h"

namespace tokamak {
namespace {

void cut_values(const std::vector<int32_t>& from, int64_t first, int64_t count,
                std::vector<int32_t>& to, int32_t minus = 0) {
  for (int64_t i = first; i < first + count; ++i)
    to.push_back(from[static_cast<size_t>(i)] - minus);
}

// Cuts an i32 input with an element per token. The binder rejects one of another size.
void cut_tokens(StepTensor& t, int64_t first, int64_t count) {
  constexpr int64_t kSize = sizeof(int32_t);
  if (t.dims.size() != 1 || std::ssize(t.bytes) < (first + count) * kSize) return;
  t.bytes.erase(t.bytes.begin() + (first + count) * kSize, t.bytes.end());
  t.bytes.erase(t.bytes.begin(), t.bytes.begin() + first * kSize);
  t.dims[0] = count;
}

}  // namespace

const StepInputs& PhaseCutter::cut(const StepInputs& step, size_t phase) {
  if (phase == 0) first_token_ = first_sequence_ = first_output_ = 0;
  if (step.phases.empty()) return step;
  if (phase > 0) {
    const StepPhase& last = step.phases[phase - 1];
    first_token_ += last.tokens;
    first_sequence_ += last.sequences;
    first_output_ += last.outputs;
  }
  const StepPhase& p = step.phases[phase];
  slice_.clear();
  slice_.function = p.function;
  cut_values(step.ids, first_token_, p.tokens, slice_.ids);
  cut_values(step.pos, first_token_, p.tokens, slice_.pos);
  cut_values(step.slot, first_token_, p.tokens, slice_.slot);
  cut_values(step.seq, first_token_, p.tokens, slice_.seq, first_sequence_);
  cut_values(step.q_start, first_sequence_, p.sequences + 1, slice_.q_start, first_token_);
  cut_values(step.kv_len, first_sequence_, p.sequences, slice_.kv_len);
  cut_values(step.row, first_sequence_, p.sequences, slice_.row);
  cut_values(step.out_rows, first_output_, p.outputs, slice_.out_rows, first_token_);
  slice_.mask_width = step.mask_width;
  cut_values(step.mask, int64_t{first_token_} * step.mask_width,
             int64_t{p.tokens} * step.mask_width, slice_.mask);
  for (int32_t r = 0; r < p.outputs; ++r) {
    SampleRow& row =
        slice_.samples.emplace_back(step.samples[static_cast<size_t>(first_output_ + r)]);
    if (row.parent >= 0) row.parent -= first_output_;
    if (row.guide >= 0) row.guide -= first_output_;
  }
  slice_.tables.resize(step.tables.size());
  for (size_t g = 0; g < step.tables.size(); ++g) {
    int64_t stride = step.tables[g].stride;
    slice_.tables[g].stride = step.tables[g].stride;
    cut_values(step.tables[g].blocks, first_sequence_ * stride, p.sequences * stride,
               slice_.tables[g].blocks);
  }
  slice_.inputs = step.inputs;
  for (StepTensor& t : slice_.inputs)
    if (t.name == kAdapterInput) cut_tokens(t, first_token_, p.tokens);
  slice_.return_logits = step.return_logits;
  return slice_;
}

}  // namespace tokamak
