#include "compile/import/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compile/import/import_model.h"
#include "compile/import/import_test_util.h"
#include "plan/weight_source.h"

namespace tokamak {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// Tensors of a Hugging Face model: zeros, as needed by a test's architecture.
struct HfModel {
  std::string prefix = "model.";
  int64_t layers = 2;
  WeightTable table;

  void add(const std::string& name, std::vector<int64_t> dims) {
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    table.add_f32(name, std::move(dims), std::vector<float>(n));
  }
  void layer(const std::string& name, std::vector<int64_t> dims) {
    for (int64_t i = 0; i < layers; ++i) add(fmt::format("{}layers.{}.{}", prefix, i, name), dims);
  }
  void ends(bool head) {
    add(prefix + "embed_tokens.weight", {24, 32});
    add(prefix + "norm.weight", {32});
    if (head) add("lm_head.weight", {24, 32});
  }
  void llama(bool bias = false) {
    ends(true);
    layer("input_layernorm.weight", {32});
    layer("self_attn.q_proj.weight", {32, 32});
    layer("self_attn.k_proj.weight", {16, 32});
    layer("self_attn.v_proj.weight", {16, 32});
    if (bias) {
      layer("self_attn.q_proj.bias", {32});
      layer("self_attn.k_proj.bias", {16});
      layer("self_attn.v_proj.bias", {16});
    }
    layer("self_attn.o_proj.weight", {32, 32});
    layer("post_attention_layernorm.weight", {32});
    mlp();
  }
  void mlp() {
    layer("mlp.gate_proj.weight", {48, 32});
    layer("mlp.up_proj.weight", {48, 32});
    layer("mlp.down_proj.weight", {32, 48});
  }
};

Value config(const std::string& model_type, const std::string& more = "") {
  return parse_json(
      fmt::format(R"({{"model_type":"{}","vocab_size":24,"hidden_size":32,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":48,"max_position_embeddings":64,"head_dim":8{}}})",
                  model_type, more));
}
std::string recipe(const ModelConfig& c, const std::string& name) {
  auto it = c.weights.find(name);
  return it == c.weights.end() ? "absent" : recipe_to_text(it->second.recipe);
}

TEST(HfConfig, LlamaWithBothSpellingsOfRope) {
  HfModel m;
  m.llama();
  ModelConfig old = config_from_hf(
      config(
          "llama",
          R"(,"rms_norm_eps":1e-5,"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,
        "low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":16})"),
      m.table);
  ModelConfig fresh = config_from_hf(
      config(
          "llama",
          R"(,"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,
        "low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":16})"),
      m.table);
  EXPECT_EQ(old.rope, fresh.rope);
  EXPECT_EQ(old.rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(old.rope.theta, 500000.0);
  EXPECT_EQ(old.rope.original_context, 16);
  EXPECT_EQ(old.norm_eps, static_cast<double>(1e-5f));
  EXPECT_EQ(recipe(old, "blk.1.attn_q.weight"), "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(recipe(old, "output.weight"), "lm_head.weight");
  EXPECT_FALSE(old.tied_embeddings);
}

TEST(HfConfig, QwenBiasAndWindow) {
  HfModel m;
  m.llama(true);
  ModelConfig c = config_from_hf(
      config("qwen2", R"(,"sliding_window":16,"use_sliding_window":false)"), m.table);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_EQ(recipe(c, "blk.0.attn_k.bias"), "model.layers.0.self_attn.k_proj.bias");
  c = config_from_hf(
      config("qwen2", R"(,"sliding_window":16,"use_sliding_window":true,"max_window_layers":1)"),
      m.table);
  EXPECT_EQ(c.layer_slides, (std::vector<bool>{false, true}));
}

TEST(HfConfig, MistralSlidesEverywhere) {
  HfModel m;
  m.llama();
  ModelConfig c = config_from_hf(config("mistral", R"(,"sliding_window":16)"), m.table);
  EXPECT_EQ(c.layer_slides, (std::vector<bool>{true, true}));
  EXPECT_EQ(c.sliding_window, 16);
  EXPECT_TRUE(
      config_from_hf(config("mistral", R"(,"sliding_window":null)"), m.table).layer_slides.empty());
}

HfModel gemma(const std::string& prefix, bool head_norms) {
  HfModel m;
  m.prefix = prefix;
  m.ends(false);
  m.layer("input_layernorm.weight", {32});
  m.layer("self_attn.q_proj.weight", {32, 32});
  m.layer("self_attn.k_proj.weight", {16, 32});
  m.layer("self_attn.v_proj.weight", {16, 32});
  m.layer("self_attn.o_proj.weight", {32, 32});
  for (const char* n :
       {"post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
    m.layer(std::string(n) + ".weight", {32});
  if (head_norms) {
    m.layer("self_attn.q_norm.weight", {8});
    m.layer("self_attn.k_norm.weight", {8});
  }
  m.mlp();
  return m;
}

TEST(HfConfig, Gemma3OldNewAndNested) {
  HfModel m = gemma("model.", true);
  ModelConfig old = config_from_hf(
      config("gemma3_text",
             R"(,"rope_theta":1000000.0,"rope_local_base_freq":10000.0,"sliding_window":16,
        "sliding_window_pattern":2,"query_pre_attn_scalar":16,"hidden_activation":"gelu_pytorch_tanh",
        "rope_scaling":{"rope_type":"linear","factor":8.0},"attn_logit_softcapping":null)"),
      m.table);
  EXPECT_EQ(old.layer_slides, (std::vector<bool>{true, false}));
  EXPECT_EQ(old.attention_scale, 0.25);
  EXPECT_EQ(old.rope_local.theta, 10000.0);
  EXPECT_EQ(old.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(recipe(old, "blk.0.ffn_norm.weight"),
            "model.layers.0.pre_feedforward_layernorm.weight | add(1)");
  EXPECT_EQ(recipe(old, "blk.0.post_attention_norm.weight"),
            "model.layers.0.post_attention_layernorm.weight | add(1)");
  EXPECT_EQ(recipe(old, "blk.0.attn_q_norm.weight"),
            "model.layers.0.self_attn.q_norm.weight | add(1)");
  EXPECT_EQ(recipe(old, "output_norm.weight"), "model.norm.weight | add(1)");
  EXPECT_EQ(recipe(old, "output.weight"), "absent");

  std::string fresh_fields =
      R"(,"sliding_window":16,"layer_types":["sliding_attention","full_attention"],
    "query_pre_attn_scalar":16,"rope_parameters":{"full_attention":{"rope_type":"linear","rope_theta":1000000.0,
    "factor":8.0},"sliding_attention":{"rope_type":"default","rope_theta":10000.0}})";
  ModelConfig fresh = config_from_hf(config("gemma3_text", fresh_fields), m.table);
  EXPECT_EQ(fresh.rope, old.rope);
  EXPECT_EQ(fresh.rope_local, old.rope_local);
  EXPECT_EQ(fresh.layer_slides, old.layer_slides);

  HfModel nested = gemma("language_model.model.", true);
  nested.add("vision_tower.anything", {3});
  Value outer = Value::object();
  outer.set("model_type", "gemma3");
  outer.set("text_config", config("gemma3_text", fresh_fields));
  EXPECT_EQ(recipe(config_from_hf(outer, nested.table), "token_embd.weight"),
            "language_model.model.embed_tokens.weight");
}

TEST(HfConfig, Gemma2Caps) {
  HfModel m = gemma("model.", false);
  ModelConfig c = config_from_hf(
      config("gemma2", R"(,"sliding_window":16,"query_pre_attn_scalar":8)"), m.table);
  EXPECT_EQ(c.attention_softcap, 50.0);
  EXPECT_EQ(c.final_softcap, 30.0);
  EXPECT_EQ(c.attention_scale, 0.0);
  EXPECT_EQ(c.layer_slides, (std::vector<bool>{true, false}));
  EXPECT_EQ(config_from_hf(config("gemma2", R"(,"attn_logit_softcapping":null)"), m.table)
                .attention_softcap,
            0.0);
}

TEST(HfConfig, Phi3SlicesAndLongRope) {
  HfModel m;
  m.ends(true);
  m.layer("input_layernorm.weight", {32});
  m.layer("self_attn.qkv_proj.weight", {64, 32});
  m.layer("self_attn.o_proj.weight", {32, 32});
  m.layer("post_attention_layernorm.weight", {32});
  m.layer("mlp.gate_up_proj.weight", {96, 32});
  m.layer("mlp.down_proj.weight", {32, 48});
  std::string rope =
      R"(,"original_max_position_embeddings":16,"rope_theta":10000.0,"rope_scaling":{"type":"longrope",
    "short_factor":[1,1,1,1],"long_factor":[1,2,3,4]})";
  ModelConfig c = config_from_hf(config("phi3", rope), m.table);
  EXPECT_EQ(recipe(c, "blk.1.attn_v.weight"),
            "model.layers.1.self_attn.qkv_proj.weight | slice_rows(48, 64)");
  EXPECT_EQ(recipe(c, "blk.1.ffn_up.weight"),
            "model.layers.1.mlp.gate_up_proj.weight | slice_rows(48, 96)");
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kLongRope);
  EXPECT_EQ(c.rope.factor, 4.0);
  std::string yarn = rope;
  yarn.replace(yarn.find("longrope"), 8, "yarn");  // the name in its first configurations
  EXPECT_EQ(config_from_hf(config("phi3", yarn), m.table).rope, c.rope);
  EXPECT_THAT(error_of([&] {
                config_from_hf(config("phi3", R"(,"rope_scaling":{"type":"longrope"})"), m.table);
              }),
              HasSubstr("longrope needs"));
  HfModel wide;
  wide.ends(true);
  wide.layer("input_layernorm.weight", {32});
  wide.layer("self_attn.qkv_proj.weight", {80, 32});
  EXPECT_THAT(error_of([&] { config_from_hf(config("phi3"), wide.table); }),
              HasSubstr("has 80 rows, expected 64"));
}

TEST(HfConfig, Gpt2TransposesBeforeItSlices) {
  HfModel m;
  for (const char* prefix : {"", "transformer."}) {
    m = {};
    std::string p = prefix;
    m.add(p + "wte.weight", {24, 32});
    m.add(p + "wpe.weight", {64, 32});
    for (const char* n : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
      m.add(p + n + ".weight", {32});
      m.add(p + n + ".bias", {32});
    }
    m.add(p + "h.0.attn.bias", {1, 1, 64, 64});  // the causal mask
    m.add(p + "h.0.attn.c_attn.weight", {32, 96});
    m.add(p + "h.0.attn.c_attn.bias", {96});
    m.add(p + "h.0.attn.c_proj.weight", {32, 32});
    m.add(p + "h.0.attn.c_proj.bias", {32});
    m.add(p + "h.0.mlp.c_fc.weight", {32, 128});
    m.add(p + "h.0.mlp.c_fc.bias", {128});
    m.add(p + "h.0.mlp.c_proj.weight", {128, 32});
    m.add(p + "h.0.mlp.c_proj.bias", {32});
    Value json = parse_json(
        R"({"model_type":"gpt2","vocab_size":24,"n_embd":32,"n_layer":1,"n_head":4,"n_positions":64,
      "activation_function":"gelu_new","layer_norm_epsilon":1e-5,"n_inner":null})");
    ModelConfig c = config_from_hf(json, m.table);
    EXPECT_EQ(recipe(c, "blk.0.attn_k.weight"),
              p + "h.0.attn.c_attn.weight | transpose | slice_rows(32, 64)");
    EXPECT_EQ(recipe(c, "blk.0.attn_k.bias"), p + "h.0.attn.c_attn.bias | slice_rows(32, 64)");
    EXPECT_EQ(recipe(c, "blk.0.ffn_down.weight"), p + "h.0.mlp.c_proj.weight | transpose");
    EXPECT_EQ(recipe(c, "token_embd.weight"), p + "wte.weight");
    EXPECT_EQ(c.ffn, 128);
    EXPECT_TRUE(c.tied_embeddings);
    EXPECT_EQ(c.activation, Activation::kGeluTanh);
  }
}

// Missing fields in config.json have the defaults of transformers.
TEST(HfConfig, Defaults) {
  HfModel m;
  m.llama();
  auto loaded = [&](const char* type, const std::string& more) {
    return config_from_hf(config(type, more), m.table);
  };
  EXPECT_EQ(loaded("llama", R"(,"sliding_window":8)").sliding_window, 0);  // Llama has none
  EXPECT_EQ(loaded("mistral", "").sliding_window, 4096);
  EXPECT_EQ(loaded("mistral", R"(,"sliding_window":null)").sliding_window, 0);
  const char* types = R"(,"sliding_window":8,"layer_types":["full_attention","full_attention"])";
  EXPECT_EQ(loaded("mistral", types).sliding_window, 0);  // transformers takes it as a Ministral
  EXPECT_EQ(loaded("ministral", types).sliding_window, 0);
  ModelConfig yarn = loaded("llama", R"(,"rope_scaling":{"type":"yarn","beta_fast":0,
      "original_max_position_embeddings":16})");
  EXPECT_EQ(yarn.rope.factor, 4.0);  // the model's context over the original one
  EXPECT_EQ(yarn.rope.beta_fast, 32.0);
  EXPECT_EQ(
      loaded("llama", R"(,"rope_scaling":{"type":"llama3","factor":8})").rope.original_context, 64);
  EXPECT_THAT(error_of([&] { loaded("llama", R"(,"partial_rotary_factor":0.5)"); }),
              HasSubstr("partial_rotary_factor"));
}

TEST(HfConfig, SectionsOfRotationsAreFewAndSmall) {
  HfModel m;
  m.llama();
  auto error = [&](const Value& json) {
    return error_of([&] { config_from_hf(json, m.table, "folder"); });
  };
  for (const char* sections : {"1e300", "-1", "1.5", "1,1,1,1,1"})
    EXPECT_THAT(error(config(
                    "llama",
                    fmt::format(R"(,"rope_scaling":{{"rope_type":"default","mrope_section":[{}]}})",
                                sections))),
                HasSubstr("at most four integers"))
        << sections;
}

TEST(HfConfig, SizesFromNumbersArePossible) {
  const HfModel m;
  for (std::string key : {"block_ffn_dim_multiplier", "block_multiple_of", "block_ff_dim"})
    for (const char* value : {"1e300", "-1", "9223372036854775807"}) {
      Value json = config("lfm2", fmt::format(R"(,"{}":{})", key, value));
      EXPECT_THAT(error_of([&] { config_from_hf(json, m.table); }), HasSubstr(key)) << value;
    }
}

TEST(HfConfig, SaysWhatIsWrong) {
  HfModel m;
  m.llama();
  auto error = [&](const Value& json) {
    return error_of([&] { config_from_hf(json, m.table, "folder"); });
  };
  EXPECT_EQ(error(config("llama")), "");
  EXPECT_THAT(error(config("rwkv")),
              AllOf(HasSubstr("unsupported"), HasSubstr("rwkv"), HasSubstr("llama, mistral")));
  EXPECT_THAT(error(config("Qwen3-MoE")), HasSubstr("is not supported (did you mean qwen3_moe"));
  EXPECT_THAT(error(config("xyz")), testing::Not(HasSubstr("did you mean")));
  for (const char* method : {"hqq", "aqlm"})
    EXPECT_THAT(
        error(config("llama",
                     fmt::format(R"(,"quantization_config":{{"quant_method":"{}"}})", method))),
        AllOf(HasSubstr("unsupported"), HasSubstr(method), HasSubstr("supported: gptq, awq")));
  EXPECT_THAT(error(config("rwkv")), HasSubstr("needs recurrent layers of another kind"));
  EXPECT_THAT(error(config("llama", R"(,"num_local_experts":8)")),
              HasSubstr("llama with 8 experts is not supported"));
  EXPECT_THAT(error(config("deepseek_v3")), HasSubstr("no kv_lora_rank"));
  EXPECT_THAT(error(config("llama", R"(,"rope_scaling":{"type":"spiral"})")), HasSubstr("spiral"));
  EXPECT_THAT(error(config("llama", R"(,"rope_parameters":{"llama_4_scaling_beta":0.1})")),
              HasSubstr("llama_4_scaling_beta"));
  EXPECT_THAT(error(config("ministral3", R"(,"rope_parameters":{"llama_4_scaling_beta":0.1})")),
              HasSubstr("no original_max_position_embeddings"));
  EXPECT_THAT(error(config("llama", R"(,"is_causal":false)")),
              HasSubstr("bidirectional attention"));
  EXPECT_THAT(error(config("mpt", R"(,"d_model":8,"logit_scale":1)")), HasSubstr("logit_scale"));
  EXPECT_THAT(error(config("gpt_oss", R"(,"num_local_experts":4,"num_experts_per_tok":2)")),
              HasSubstr("no rope_scaling, which a model of type gpt_oss needs"));
  EXPECT_THAT(error(config("ministral3")), HasSubstr("no rope_scaling"));
  EXPECT_THAT(error(config("apertus")), HasSubstr("no rope_scaling"));
  EXPECT_THAT(error(config("hunyuan_v1_moe", R"(,"num_experts":4,"moe_topk":[2,3])")),
              HasSubstr("num_experts_per_tok differs from layer to layer"));
  EXPECT_THAT(error(config("granitemoehybrid", R"(,"layer_types":["mamba","moe"])")),
              HasSubstr("layer type \"moe\" is not supported"));
  EXPECT_THAT(error(config("granitemoehybrid", R"(,"layer_types":["mamba"])")),
              HasSubstr("a list with one entry per layer"));
  EXPECT_THAT(error(config("nemotron_h")), HasSubstr("config.json has no layer_types"));
  EXPECT_THAT(error(config("nemotron_h", R"(,"hybrid_override_pattern":"M?")")),
              HasSubstr("layer type \"?\" is not supported"));
  EXPECT_THAT(error(config("lfm2", R"(,"layer_types":["conv","mamba"])")),
              HasSubstr("layer type \"mamba\" is not supported"));
  EXPECT_THAT(error(config("lfm2", R"(,"layer_types":["conv","conv"],"conv_bias":true)")),
              HasSubstr("conv_bias is not supported"));
  for (const char* kind : {"linear", "dynamic", "llama3", "yarn"})
    EXPECT_THAT(
        error(config("llama", fmt::format(R"(,"rope_scaling":{{"rope_type":"{}"}})", kind))),
        HasSubstr(fmt::format("has no factor, which {} needs", kind)));
  EXPECT_THAT(error(config("llama", R"(,"architectures":["LlamaForSequenceClassification"])")),
              HasSubstr("LlamaForSequenceClassification is not supported"));
  EXPECT_THAT(error(config("llama", R"(,"hidden_act":"mish")")), HasSubstr("mish"));
  EXPECT_THAT(error(config("llama", R"(,"rms_norm_eps":"x")")), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(error(config("llama", R"(,"attention_bias":true)")),
              HasSubstr("q_proj.bias is missing"));
  EXPECT_THAT(error(parse_json(R"({"model_type":"llama"})")), HasSubstr("no vocab_size"));
  EXPECT_THAT(error(parse_json("[]")), HasSubstr("not an object"));
  m.layer("self_attn.sinks", {4});
  EXPECT_THAT(error(config("llama")), HasSubstr("self_attn.sinks"));
}

TEST(HfConfig, SaysWhatIsWrongInSomeFamilies) {
  HfModel m;
  m.llama();
  auto error = [&](const Value& json) {
    return error_of([&] { config_from_hf(json, m.table, "folder"); });
  };
  EXPECT_THAT(error(config("hunyuan_v1_dense", R"(,"use_cla":true)")), HasSubstr("use_cla"));
  EXPECT_THAT(error(config("smollm3", R"(,"use_sliding_window":true)")),
              HasSubstr("use_sliding_window in config.json has a value that is not supported"));
  EXPECT_THAT(error(config("gemma4_text", R"(,"use_bidirectional_attention":"all")")),
              HasSubstr("bidirectional attention"));
  EXPECT_THAT(error(config("gemma4_text",
                           R"(,"per_layer_config":{"0":{"head_dim":8},"1":{"head_dim":16}})")),
              HasSubstr("layers of more than two kinds"));
  EXPECT_THAT(error(config("gemma4_text", R"(,"rope_parameters":{"rope_type":"default"})")),
              HasSubstr("an object with full_attention"));
  EXPECT_THAT(error(config("gemma3_text", R"(,"rope_parameters":{"rope_theta":1000.0})")),
              HasSubstr("an object with full_attention and sliding_attention"));
  EXPECT_THAT(
      error(config("falcon_h1", R"(,"mamba_n_heads":4,"mamba_d_ssm":64,"hidden_act":"relu")")),
      HasSubstr("another activation than silu"));
  EXPECT_THAT(error(config("falcon_h1", R"(,"mamba_n_heads":3,"mamba_d_ssm":64)")),
              HasSubstr("mamba_d_head"));
  EXPECT_THAT(error(config("falcon_h1", R"(,"mamba_n_heads":4,"mamba_d_ssm":64,
                                           "ssm_multipliers":[1.0])")),
              HasSubstr("a list of 5 numbers"));
  EXPECT_THAT(error(config("gpt_neo")), HasSubstr("config.json has no attention_types"));
  EXPECT_THAT(
      error(config("gpt_neo", R"(,"attention_types":[[["global"],9000],[["local"],9000]])")),
      HasSubstr("a list of at most 10000 layers"));
  for (const char* factor : {"1e300", "-1", "65"})
    EXPECT_THAT(error(config("mamba", fmt::format(R"(,"expand":{})", factor))),
                HasSubstr("expand in config.json is not a positive number"));
  const char* two = R"(,"num_local_experts":4,"num_experts_per_tok":2,"router_jitter_noise":0)";
  EXPECT_THAT(error(config("phimoe", two)), HasSubstr("router_jitter_noise"));
  EXPECT_THAT(error(config("phimoe", R"(,"num_local_experts":4,"num_experts_per_tok":1)")),
              HasSubstr("with 1 experts per token is not supported, only 2"));
  EXPECT_THAT(error(config("afmoe", R"(,"score_func":"softmax")")),
              HasSubstr("score_func in config.json has a value that is not supported"));
}

// Models with other parts have the text part under one of several names, or two levels down.
TEST(HfConfig, TheTextPartMayBeNested) {
  HfModel m;
  m.llama();
  for (const char* name : {"text_config", "llm_config", "language_config", "thinker_config"}) {
    Value json = Value::object();
    json.set(name, config("llama"));
    EXPECT_EQ(config_from_hf(json, m.table, "folder").architecture, "llama") << name;
    Value outer = Value::object();
    outer.set("thinker_config", json);
    EXPECT_EQ(config_from_hf(outer, m.table, "folder").layers, 2) << name;
  }
}

// The head belongs to the model with images, not to its text part.
TEST(HfConfig, TheWholeModelSaysWhetherItsHeadIsTied) {
  auto tied = [&](bool head, const char* whole, const char* text) {
    HfModel m;
    m.llama();
    Value json = Value::object();
    json.set("text_config", config("llama", text));
    if (*whole) json.set("tie_word_embeddings", *whole == 't');
    WeightTable table;
    for (const std::string& name : m.table.names())
      if (head || name != "lm_head.weight") {
        const TensorView* t = m.table.find(name);
        table.add_f32(name, t->dims, std::vector<float>(static_cast<size_t>(t->elements())));
      }
    return config_from_hf(json, table, "folder").tied_embeddings;
  };
  const char* no = R"(,"tie_word_embeddings":false)";
  const char* yes = R"(,"tie_word_embeddings":true)";
  EXPECT_TRUE(tied(true, "t", no));
  EXPECT_FALSE(tied(true, "f", yes));
  EXPECT_TRUE(tied(false, "t", no));
  EXPECT_TRUE(tied(false, "f", yes));
  EXPECT_FALSE(tied(true, "", no));
  EXPECT_TRUE(tied(true, "", yes));
  HfModel other;  // a head with other values is used nevertheless
  other.llama();
  WeightTable table;
  for (const std::string& name : other.table.names()) {
    const TensorView* t = other.table.find(name);
    std::vector<float> values(static_cast<size_t>(t->elements()),
                              name == "lm_head.weight" ? 1.0F : 0.0F);
    table.add_f32(name, t->dims, values);
  }
  EXPECT_FALSE(config_from_hf(config("llama", yes), table, "folder").tied_embeddings);
}

TEST(ImportModel, FoldersFilesAndWrongPaths) {
  test::TempFolder folder;
  test::SafetensorsBuilder builder;
  HfModel m;
  m.llama();
  for (const std::string& name : m.table.names()) builder.add_f32(name, m.table.find(name)->dims);
  EXPECT_THAT(error_of([&] { import_model(folder.path()); }), HasSubstr("no config.json"));
  write_text_file(folder.path() / "config.json", dump_json(config("llama")));
  EXPECT_THAT(error_of([&] { import_model(folder.path()); }),
              HasSubstr("expected model.safetensors"));
  write_text_file(folder.path() / "model.safetensors", builder.file());
  ImportedModel model = import_model(folder.path());
  EXPECT_EQ(model.format, "safetensors");
  EXPECT_EQ(model.config.layers, 2);
  EXPECT_EQ(model.metadata.at("model_type").as_string(), "llama");
  EXPECT_TRUE(model.weights->find("lm_head.weight"));
  EXPECT_THAT(error_of([&] { import_model(folder.path() / "model.safetensors"); }),
              HasSubstr("name its folder"));
  EXPECT_THAT(error_of([&] { import_model(folder.path() / "nothing.gguf"); }),
              HasSubstr("no such file or folder"));

  test::TempFolder other;
  test::TinyGguf tiny;
  tiny.metadata();
  tiny.tensors();
  tiny.writer.write(other.path() / "tiny.gguf");
  ImportedModel gguf = import_model(other.path() / "tiny.gguf");
  EXPECT_EQ(gguf.format, "gguf");
  EXPECT_EQ(gguf.config.name, "tiny llama");
  EXPECT_TRUE(gguf.gguf);
  EXPECT_THAT(error_of([&] { import_model(other.path()); }),
              AllOf(HasSubstr("name the file"), HasSubstr("tiny.gguf")));
}

}  // namespace
}  // namespace tokamak
