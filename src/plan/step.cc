#include "plan/step.h"

#include <cstring>

namespace tokamak {

void StepInputs::clear() {
  function = "step";
  phases.clear();
  for (auto* v : {&ids, &pos, &seq, &slot, &q_start, &kv_len, &row, &mask, &out_rows}) v->clear();
  mask_width = 0;
  samples.clear();
  for (Table& t : tables) {
    t.blocks.clear();
    t.stride = 0;
  }
  inputs.clear();
  copies.clear();
  moves.clear();
  resets.clear();
  return_logits = false;
}

void StepInputs::set_input(std::string_view name, std::span<const int32_t> values) {
  StepTensor* tensor = nullptr;
  for (StepTensor& t : inputs)
    if (t.name == name) tensor = &t;
  if (tensor == nullptr) tensor = &inputs.emplace_back();
  tensor->name = name;
  tensor->dtype = DType::kI32;
  tensor->dims = {static_cast<int64_t>(values.size())};
  tensor->bytes.resize(values.size_bytes());
  if (!values.empty()) std::memcpy(tensor->bytes.data(), values.data(), values.size_bytes());
}

std::span<const StepField> step_fields() {
  static constexpr StepField kFields[] = {
      {"ids", &StepInputs::ids, {"T", ""}},
      {"pos", &StepInputs::pos, {"T", ""}},
      {"seq", &StepInputs::seq, {"T", ""}},
      {"slot", &StepInputs::slot, {"T", ""}},
      {"q_start", &StepInputs::q_start, {"B + 1", ""}},
      {"kv_len", &StepInputs::kv_len, {"B", ""}},
      {"out_rows", &StepInputs::out_rows, {"R", ""}},
      {"mask", &StepInputs::mask, {"T", "M"}},
  };
  return kFields;
}

const StepField* find_step_field(std::string_view name) {
  for (const StepField& field : step_fields())
    if (field.name == name) return &field;
  return nullptr;
}

void StepResult::clear() {
  ids.clear();
  logprobs.clear();
  path.clear();
  path_start.clear();
  failed.clear();
  top.clear();
  mirostat_mu.clear();
  guesses.clear();
  probabilities.clear();
  logits.clear();
  hidden.clear();
  outputs.clear();
  seconds = 0;
}

}  // namespace tokamak
