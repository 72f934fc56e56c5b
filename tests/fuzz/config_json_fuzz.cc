// config.json text -> model configuration over a small table of weights that fits a one-layer
// Llama and a one-layer BERT.
#include <cstdint>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/encoder_config.h"
#include "compile/import/hf_config.h"
#include "plan/weight_source.h"
#include "tests/fuzz/fuzzer.h"

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
  add("embeddings.word_embeddings.weight", {8, 16});
  add("embeddings.position_embeddings.weight", {12, 16});
  add("embeddings.token_type_embeddings.weight", {2, 16});
  for (const char* name :
       {"embeddings.LayerNorm", "encoder.layer.0.attention.self.query",
        "encoder.layer.0.attention.self.key", "encoder.layer.0.attention.self.value",
        "encoder.layer.0.attention.output.dense", "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm"}) {
    std::string stem = name;
    bool norm = stem.ends_with("Norm");
    add((stem + ".weight").c_str(), norm ? std::vector<int64_t>{16} : std::vector<int64_t>{16, 16});
    add((stem + ".bias").c_str(), {16});
  }
  add("encoder.layer.0.intermediate.dense.weight", {24, 16});
  add("encoder.layer.0.intermediate.dense.bias", {24});
  add("encoder.layer.0.output.dense.weight", {16, 24});
  add("encoder.layer.0.output.dense.bias", {16});
  return table;
}

}  // namespace

TK_FUZZER(config_json) {
  static const WeightTable table = make_table();
  try {
    Value json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", {.max_depth = 32});
    is_encoder_hf(json) ? encoder_from_hf(json, table, "fuzz")
                        : config_from_hf(json, table, "fuzz");
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
