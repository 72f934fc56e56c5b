#include "plan/step.h"

namespace tokamak {

void StepInputs::clear() {
  function = "step";
  for (auto* v : {&ids, &pos, &seq, &slot, &q_start, &kv_len, &row, &adapter, &mask, &out_rows})
    v->clear();
  mask_width = 0;
  samples.clear();
  for (Table& t : tables) {
    t.blocks.clear();
    t.stride = 0;
  }
  copies.clear();
  resets.clear();
  return_logits = false;
}

void StepResult::clear() {
  ids.clear();
  logprobs.clear();
  accepted.clear();
  failed.clear();
  top.clear();
  logits.clear();
  hidden.clear();
  seconds = 0;
}

}  // namespace tokamak
