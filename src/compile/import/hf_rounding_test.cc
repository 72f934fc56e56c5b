// Weights that are changed while they are loaded: Baichuan 2's head and BitNet's matrices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compile/import/hf_config.h"
#include "compile/import/import_test_util.h"
#include "plan/weight_source.h"

namespace tokamak {
namespace {

using test::error_of;
using testing::HasSubstr;

void add(WeightTable& table, const std::string& name, std::vector<int64_t> dims,
         DType dtype = DType::kBF16) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  std::vector<std::byte> bytes(dtype_bytes(dtype, n));
  table.add(name, dtype, std::move(dims), std::move(bytes));
}

Value config(const std::string& type, int64_t vocab, const std::string& more) {
  return parse_json(fmt::format(
      R"({{"model_type":"{}","vocab_size":{},"hidden_size":32,"num_hidden_layers":1,
    "num_attention_heads":4,"num_key_value_heads":4,"intermediate_size":64{}}})",
      type, vocab, more));
}

// One layer; `parts`: of q, k and v.
WeightTable one_layer(int64_t vocab, std::initializer_list<const char*> parts, DType matrices,
                      bool packed = false) {
  WeightTable t;
  const std::string at = "model.layers.0.";
  auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    add(t, at + name + ".weight", {packed ? rows / 4 : rows, columns}, matrices);
    if (packed) add(t, at + name + ".weight_scale", {1});
  };
  add(t, "model.embed_tokens.weight", {vocab, 32});
  add(t, "lm_head.weight", {vocab, 32});
  for (const char* name :
       {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"})
    add(t, std::string(name) + ".weight", {32});
  for (const char* part : parts)
    matrix(part, std::string_view(part).ends_with("W_pack") ? 96 : 32, 32);
  matrix("self_attn.o_proj", 32, 32);
  matrix("mlp.gate_proj", 64, 32);
  matrix("mlp.up_proj", 64, 32);
  matrix("mlp.down_proj", 32, 64);
  return t;
}

TEST(HfRounding, BaichuanHeadsAndPositions) {
  for (int64_t vocab : {64000, 125696}) {
    WeightTable t = one_layer(vocab, {"self_attn.W_pack"}, DType::kBF16);
    ModelConfig small =
        config_from_hf(config("baichuan", vocab, R"(,"max_position_embeddings":4096)"), t, "m");
    ModelConfig large =
        config_from_hf(config("baichuan", vocab, R"(,"model_max_length":4096)"), t, "m");
    EXPECT_TRUE(small.alibi.empty());
    EXPECT_EQ(large.alibi, (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625}));
    EXPECT_EQ(large.layer_rotates, std::vector<bool>{false});
    EXPECT_EQ(small.context, 4096);
    const ModelConfig::Weight& head = small.weights.at("output.weight");
    EXPECT_EQ(head.dtype, DType::kBF16);
    EXPECT_EQ(recipe_to_text(head.recipe),
              vocab == 64000 ? "lm_head.weight" : "lm_head.weight | unit_rows | cast(bf16)");
  }
}

constexpr std::initializer_list<const char*> kLlama = {"self_attn.q_proj", "self_attn.k_proj",
                                                       "self_attn.v_proj"};
std::string bitnet(const std::string& fields) {
  return R"(,"quantization_config":{"quant_method":"bitnet")" + fields + "}";
}

TEST(HfRounding, BitNet) {
  const std::string online = R"(,"linear_class":"autobitlinear","quantization_mode":"online")";
  WeightTable plain = one_layer(64, kLlama, DType::kBF16);
  ModelConfig c = config_from_hf(config("llama", 64, bitnet(online)), plain, "m");
  EXPECT_TRUE(c.round_inputs);
  EXPECT_EQ(recipe_to_text(c.weights.at("blk.0.attn_q.weight").recipe),
            "model.layers.0.self_attn.q_proj.weight | ternary | cast(bf16)");
  EXPECT_EQ(recipe_to_text(c.weights.at("output.weight").recipe), "lm_head.weight");
  EXPECT_FALSE(config_from_hf(config("llama", 64, ""), plain, "m").round_inputs);

  WeightTable packed = one_layer(64, kLlama, DType::kU8, true);
  const ModelConfig::Weight w = config_from_hf(config("llama", 64, bitnet("")), packed, "m")
                                    .weights.at("blk.0.ffn_up.weight");
  EXPECT_EQ(w.dims, (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(w.dtype, DType::kInt2G32F);

  auto error = [&](const WeightTable& t, const std::string& fields) {
    return error_of([&] { config_from_hf(config("llama", 64, bitnet(fields)), t, "m"); });
  };
  for (const char* fields :
       {R"(,"use_rms_norm":true)", R"(,"linear_class":"other")", R"(,"quantization_mode":"online")",
        R"(,"modules_to_not_convert":["model.layers.0.mlp.up_proj"])"})
    EXPECT_THAT(error(packed, fields), HasSubstr("m: BitNet with another linear_class")) << fields;
  WeightTable wrong = one_layer(64, kLlama, DType::kU8, true);
  WeightTable less;
  for (const std::string& name : wrong.names())
    if (name != "model.layers.0.mlp.up_proj.weight_scale") {
      const TensorView* v = wrong.find(name);
      add(less, name, v->dims, v->dtype);
    }
  EXPECT_THAT(error(less, ""), HasSubstr("model.layers.0.mlp.up_proj.weight_scale is missing"));
}

}  // namespace
}  // namespace tokamak
