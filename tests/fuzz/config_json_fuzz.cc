// config.json text -> model configuration over a small table of weights that fits a one-layer
// Llama.
#include <cstdint>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/hf_config.h"
#include "plan/weight_source.h"

using namespace tokamak;

namespace {

WeightTable make_table() {
  WeightTable table;
  auto add = [&](const char* name, std::vector<int64_t> dims) {
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    table.add_f32(name, std::move(dims), std::vector<float>(n));
  };
  add("model.embed_tokens.weight", {8, 16});
  add("model.norm.weight", {16});
  add("model.layers.0.input_layernorm.weight", {16});
  add("model.layers.0.self_attn.q_proj.weight", {16, 16});
  add("model.layers.0.self_attn.k_proj.weight", {8, 16});
  add("model.layers.0.self_attn.v_proj.weight", {8, 16});
  add("model.layers.0.self_attn.o_proj.weight", {16, 16});
  add("model.layers.0.post_attention_layernorm.weight", {16});
  add("model.layers.0.mlp.gate_proj.weight", {24, 16});
  add("model.layers.0.mlp.up_proj.weight", {24, 16});
  add("model.layers.0.mlp.down_proj.weight", {16, 24});
  return table;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const WeightTable table = make_table();
  try {
    Value json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", {.max_depth = 32});
    config_from_hf(json, table, "fuzz");
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
