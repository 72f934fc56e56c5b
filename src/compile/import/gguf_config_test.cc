#include "compile/import/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compile/import/import_test_util.h"

namespace tokamak {
namespace {

using test::error_of;
using test::TinyGguf;
using testing::AllOf;
using testing::HasSubstr;

struct Loaded {
  std::vector<std::byte> bytes;
  std::shared_ptr<const GgufFile> file;
  ModelConfig config;
};
Loaded load(TinyGguf tiny) {
  Loaded out;
  out.bytes = tiny.bytes();
  out.file = GgufFile::parse(out.bytes, "tiny.gguf");
  out.config = config_from_gguf(*out.file);
  return out;
}
std::string load_error(TinyGguf tiny) {
  return error_of([&] { load(std::move(tiny)); });
}
std::string recipe(const Loaded& m, const std::string& name) {
  auto it = m.config.weights.find(name);
  return it == m.config.weights.end() ? "absent" : recipe_to_text(it->second.recipe);
}

TEST(GgufConfig, Llama) {
  TinyGguf tiny;
  tiny.writer.set_f32("llama.rope.freq_base", 500000.0f);
  tiny.tensor("rope_freqs.weight", {4});
  Loaded m;
  EXPECT_THAT(load_error(tiny), HasSubstr("rotary factor"));  // random factors are not all positive
  tiny = TinyGguf();
  tiny.writer.set_f32("llama.rope.freq_base", 500000.0f);
  tiny.writer.add_f32("rope_freqs.weight", {4}, std::vector<float>{1, 1, 2, 8});
  m = load(tiny);
  const ModelConfig& c = m.config;
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.name, "tiny llama");
  EXPECT_EQ(c.vocab, 24);
  EXPECT_EQ(c.hidden, 32);
  EXPECT_EQ(c.ffn, 48);
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.context, 64);
  EXPECT_EQ(c.norm_eps, static_cast<double>(1e-5f));
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.rope.freq_divisors, (std::vector<double>{1, 1, 2, 8}));
  EXPECT_FALSE(c.tied_embeddings || c.qkv_bias || c.qk_norm || c.post_norms);
  EXPECT_EQ(recipe(m, "blk.1.attn_q.weight"), "blk.1.attn_q.weight | permute_rows(4)");
  EXPECT_EQ(recipe(m, "blk.1.attn_k.weight"), "blk.1.attn_k.weight | permute_rows(2)");
  EXPECT_EQ(recipe(m, "blk.1.attn_v.weight"), "blk.1.attn_v.weight");
  EXPECT_EQ(c.weights.find("blk.0.ffn_down.weight")->second.dims, (std::vector<int64_t>{32, 48}));
  EXPECT_EQ(c.weights.size(), 3u + 2 * 9);
}

TEST(GgufConfig, TiedHeadHasNoOutputWeight) {
  TinyGguf tiny;
  tiny.tied = true;
  Loaded m = load(tiny);
  EXPECT_TRUE(m.config.tied_embeddings);
  EXPECT_EQ(recipe(m, "output.weight"), "absent");
}

TEST(GgufConfig, RopeScaling) {
  TinyGguf yarn;
  yarn.arch = "qwen2";
  yarn.writer.set_string("qwen2.rope.scaling.type", "yarn");
  yarn.writer.set_f32("qwen2.rope.scaling.factor", 4.0f);
  yarn.writer.set_u32("qwen2.rope.scaling.original_context_length", 16);
  ModelConfig c = load(yarn).config;
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(c.rope.factor, 4.0);
  EXPECT_EQ(c.rope.original_context, 16);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_EQ(c.weights.at("blk.0.attn_q.bias").dims, (std::vector<int64_t>{32}));
  TinyGguf linear;
  linear.writer.set_string("llama.rope.scaling.type", "linear");
  linear.writer.set_f32("llama.rope.scaling.factor", 2.0f);
  EXPECT_EQ(load(linear).config.rope.scaling, RopeConfig::Scaling::kLinear);
  TinyGguf untyped;
  untyped.writer.set_f32("llama.rope.scaling.factor", 2.0f);
  EXPECT_EQ(load(untyped).config.rope, load(linear).config.rope);
  yarn.writer.set_f32("qwen2.rope.scaling.yarn_attn_factor", 1.5f);
  yarn.writer.set_f32("qwen2.rope.scaling.yarn_beta_slow", 2.0f);
  c = load(yarn).config;
  EXPECT_EQ(c.rope.attention_factor, 1.5);
  EXPECT_EQ(c.rope.beta_slow, 2.0);
  TinyGguf odd;
  odd.writer.set_string("llama.rope.scaling.type", "spiral");
  EXPECT_THAT(load_error(odd), HasSubstr("spiral"));
}

TEST(GgufConfig, Qwen3HasHeadNormsAndPlainRows) {
  TinyGguf tiny;
  tiny.arch = "qwen3";
  tiny.head_dim = 16;
  Loaded m = load(tiny);
  EXPECT_TRUE(m.config.qk_norm);
  EXPECT_EQ(recipe(m, "blk.0.attn_q.weight"), "blk.0.attn_q.weight");
  EXPECT_EQ(m.config.weights.at("blk.0.attn_q.weight").dims, (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(m.config.weights.at("blk.0.attn_k_norm.weight").dims, (std::vector<int64_t>{16}));
}

TEST(GgufConfig, Gemma2And3) {
  TinyGguf two;
  two.arch = "gemma2";
  two.tied = true;
  two.layers = 4;
  two.writer.set_u32("gemma2.attention.sliding_window", 16);
  ModelConfig c = load(two).config;
  EXPECT_EQ(c.attention_softcap, 50.0);
  EXPECT_EQ(c.final_softcap, 30.0);
  EXPECT_EQ(c.layer_slides, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(c.sliding_window, 16);
  EXPECT_DOUBLE_EQ(c.embedding_scale, std::sqrt(32.0));
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_TRUE(c.post_norms);
  EXPECT_EQ(c.rope_local.dims, 0);

  TinyGguf three;
  three.arch = "gemma3";
  three.tied = true;
  three.layers = 7;
  three.writer.set_u32("gemma3.attention.sliding_window", 16);
  three.writer.set_f32("gemma3.rope.freq_base", 1000000.0f);
  three.writer.set_string("gemma3.rope.scaling.type", "linear");
  three.writer.set_f32("gemma3.rope.scaling.factor", 8.0f);
  c = load(three).config;
  EXPECT_EQ(c.layer_slides, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_EQ(c.rope.theta, 1000000.0);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.rope_local.theta, 10000.0);
  EXPECT_EQ(c.rope_local.scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(c.rope_local.dims, 8);
  EXPECT_EQ(c.attention_softcap, 0.0);
  EXPECT_TRUE(c.qk_norm);
}

TEST(GgufConfig, Phi3SlicesFusedTensors) {
  TinyGguf tiny;
  tiny.arch = "phi3";
  tiny.context = 128;
  tiny.writer.set_u32("phi3.rope.scaling.original_context_length", 32);
  tiny.writer.set_f32("phi3.rope.scaling.attn_factor", 1.25f);
  tiny.writer.add_f32("rope_factors_short.weight", {4}, std::vector<float>{1, 1, 1, 1});
  tiny.writer.add_f32("rope_factors_long.weight", {4}, std::vector<float>{1, 2, 3, 4});
  Loaded m = load(tiny);
  EXPECT_EQ(recipe(m, "blk.0.attn_q.weight"), "blk.0.attn_qkv.weight | slice_rows(0, 32)");
  EXPECT_EQ(recipe(m, "blk.0.attn_k.weight"), "blk.0.attn_qkv.weight | slice_rows(32, 48)");
  EXPECT_EQ(recipe(m, "blk.0.attn_v.weight"), "blk.0.attn_qkv.weight | slice_rows(48, 64)");
  EXPECT_EQ(recipe(m, "blk.0.ffn_gate.weight"), "blk.0.ffn_up.weight | slice_rows(0, 48)");
  EXPECT_EQ(recipe(m, "blk.0.ffn_up.weight"), "blk.0.ffn_up.weight | slice_rows(48, 96)");
  EXPECT_EQ(m.config.rope.scaling, RopeConfig::Scaling::kLongRope);
  EXPECT_EQ(m.config.rope.factor, 4.0);
  EXPECT_EQ(m.config.rope.attention_factor, 1.25);
  EXPECT_EQ(m.config.rope.long_factor, (std::vector<double>{1, 2, 3, 4}));
}

TEST(GgufConfig, Gpt2) {
  TinyGguf tiny;
  tiny.arch = "gpt2";
  tiny.kv_heads = 4;
  Loaded m = load(tiny);
  EXPECT_TRUE(m.config.learned_positions && m.config.norm_bias && m.config.qkv_bias &&
              m.config.o_bias && m.config.mlp_bias);
  EXPECT_FALSE(m.config.gated_mlp);
  EXPECT_EQ(m.config.rope.dims, 0);
  EXPECT_EQ(m.config.norm, NormKind::kLayer);
  EXPECT_EQ(recipe(m, "blk.1.attn_k.bias"), "blk.1.attn_qkv.bias | slice_rows(32, 64)");
  EXPECT_EQ(m.config.weights.at("position_embd.weight").dims, (std::vector<int64_t>{64, 32}));
}

TEST(GgufConfig, OneDimensionalWeightsBecomeF32) {
  TinyGguf tiny;
  tiny.leave_out = "output_norm.weight";
  tiny.writer.add_tensor("output_norm.weight", DType::kBF16, {32}, std::vector<std::byte>(64));
  Loaded m = load(tiny);
  EXPECT_EQ(recipe(m, "output_norm.weight"), "output_norm.weight | cast(f32)");
  EXPECT_EQ(m.config.weights.at("output_norm.weight").dtype, DType::kF32);
}

TEST(GgufConfig, SaysWhatIsWrong) {
  TinyGguf missing;
  missing.leave_out = "blk.1.ffn_up.weight";
  EXPECT_EQ(load_error(missing), "corrupt: tiny.gguf: tensor blk.1.ffn_up.weight is missing");
  TinyGguf shape;
  shape.leave_out = "blk.1.ffn_up.weight";
  shape.tensor("blk.1.ffn_up.weight ", {1});
  shape.writer.add_f32("blk.1.ffn_up.weight", {48, 16}, std::vector<float>(48 * 16));
  EXPECT_THAT(load_error(shape), AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("[48, 16]"),
                                       HasSubstr("[48, 32]")));
  TinyGguf unknown;
  unknown.arch = "rwkv9";
  EXPECT_THAT(load_error(unknown),
              AllOf(HasSubstr("unsupported"), HasSubstr("rwkv9"), HasSubstr("llama, mistral")));
  TinyGguf experts;
  experts.arch = "qwen2";
  experts.writer.set_u32("qwen2.expert_count", 8);
  EXPECT_THAT(load_error(experts), HasSubstr("qwen2 with 8 experts is not supported"));
  TinyGguf latent;
  latent.arch = "deepseek2";
  EXPECT_THAT(load_error(latent), HasSubstr("deepseek2.attention.kv_lora_rank is missing"));
  TinyGguf heads;
  heads.heads = 3;
  EXPECT_THAT(load_error(heads), HasSubstr("3 heads cannot share 2"));
  TinyGguf none;
  none.layers = 0;
  EXPECT_THAT(load_error(none), HasSubstr("0 layers"));
  TinyGguf extra;
  extra.tensor("blk.0.attn_sinks.weight", {4});
  EXPECT_THAT(load_error(extra), AllOf(HasSubstr("blk.0.attn_sinks.weight"),
                                       HasSubstr("not a known part of a llama model")));
  TinyGguf bare;
  bare.skip_metadata = true;
  bare.writer.set_string("general.architecture", "llama");
  EXPECT_THAT(load_error(bare), HasSubstr("llama.embedding_length is missing"));
  GgufWriter vocabulary;
  vocabulary.set_string("general.architecture", "llama");
  std::vector<std::byte> bytes = vocabulary.to_bytes();
  auto file = GgufFile::parse(bytes, "v.gguf");
  EXPECT_THAT(error_of([&] { config_from_gguf(*file); }), HasSubstr("vocabulary but no weights"));
}

TEST(GgufConfig, NonsenseNumbersAreRefused) {
  struct Case {
    const char* key;
    uint32_t value;
  };
  // The reader rejects duplicate keys, so the normal metadata is omitted and all keys are given
  // here.
  const Case normal[] = {{"block_count", 2},          {"context_length", 64},
                         {"embedding_length", 32},    {"feed_forward_length", 48},
                         {"attention.head_count", 4}, {"attention.head_count_kv", 2},
                         {"attention.key_length", 8}, {"rope.dimension_count", 8}};
  const Case bad[] = {{"block_count", 4000000000u},
                      {"context_length", 0},
                      {"embedding_length", 0},
                      {"embedding_length", 4000000000u},
                      {"feed_forward_length", 0},
                      {"attention.head_count", 0},
                      {"attention.head_count_kv", 0},
                      {"attention.head_count_kv", 4000000000u},
                      {"attention.key_length", 0},
                      {"rope.dimension_count", 4000000000u},
                      {"attention.key_length", 4000000000u}};
  for (const Case& b : bad) {
    TinyGguf tiny;
    tiny.skip_metadata = true;
    tiny.writer.set_string("general.architecture", "llama");
    for (const Case& n : normal)
      tiny.writer.set_u32(fmt::format("llama.{}", n.key),
                          std::string_view(n.key) == b.key ? b.value : n.value);
    EXPECT_NE(load_error(tiny), "") << b.key << " = " << b.value;
  }
}

}  // namespace
}  // namespace tokamak
