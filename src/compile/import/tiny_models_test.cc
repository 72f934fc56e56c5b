// The tiny models of tools/tiny_models.py, each as a folder and as GGUF: both importers must
// describe the same model and give the same weights, bit for bit. Without the folder in
// $TOKAMAK_TINY_MODELS or $TOKAMAK_TINY_FAMILIES there is nothing to compare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "compile/import/import_model.h"
#include "compile/import/import_test_util.h"
#include "tensor/block_formats.h"
#include "tensor/recipe_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Values {
  std::vector<int64_t> dims;
  std::vector<float> values;
  int64_t width() const { return static_cast<int64_t>(values.size()) / dims[0]; }
};

Values decoded(const WeightSource& file, const std::string& name) {
  const TensorView* t = file.find(name);
  Values v{t->dims, std::vector<float>(static_cast<size_t>(t->elements()))};
  if (t->dtype == DType::kU8)
    std::transform(t->bytes.begin(), t->bytes.end(), v.values.begin(),
                   [](std::byte b) { return static_cast<float>(b); });
  else
    decode_row(t->dtype, t->bytes.data(), v.values.data(), t->elements());
  return v;
}

// Rows of every period, or of the whole.
void slice(Values& v, const RecipeStep& step) {
  int64_t period = step.dims.empty() ? v.dims[0] : step.dims[0], width = v.width();
  std::vector<float> out;
  for (int64_t r = 0; r < v.dims[0]; ++r)
    if (r % period >= step.a && r % period < step.b)
      out.insert(out.end(), v.values.begin() + r * width, v.values.begin() + (r + 1) * width);
  v.dims[0] = static_cast<int64_t>(out.size()) / width;
  v.values = std::move(out);
}

void permute(Values& v, const RecipeStep& step) {
  int64_t size = v.dims[0] / step.a, turned = step.b > 0 ? step.b : size, width = v.width();
  std::vector<float> out = v.values;
  for (int64_t r = 0; r < v.dims[0]; ++r) {
    int64_t at = r % size;
    if (at >= turned) continue;
    int64_t from = r - at + 2 * (at % (turned / 2)) + at / (turned / 2);
    std::copy_n(v.values.begin() + from * width, width, out.begin() + r * width);
  }
  v.values = std::move(out);
}

void transpose_last(Values& v) {
  size_t rank = v.dims.size();
  int64_t rows = v.dims[rank - 2], columns = v.dims[rank - 1];
  std::vector<float> out = v.values;
  for (size_t i = 0; i < out.size(); ++i) {
    auto at = static_cast<int64_t>(i) % (rows * columns), first = static_cast<int64_t>(i) - at;
    out[static_cast<size_t>(first + at % columns * rows + at / columns)] = v.values[i];
  }
  std::swap(v.dims[rank - 2], v.dims[rank - 1]);
  v.values = std::move(out);
}

void join(Values& v, const Values& scales) {
  constexpr float kFp4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::vector<float> out;
  for (size_t i = 0; i < 2 * v.values.size(); ++i) {
    int code = static_cast<int>(v.values[i / 2]) >> (i % 2 * 4) & 15;
    float value = std::ldexp(kFp4[code & 7], static_cast<int>(scales.values[i / 32]) - 127);
    out.push_back(code >= 8 ? -value : value);
  }
  v.dims.pop_back();
  v.dims.back() *= 32;
  v.values = std::move(out);
}

// The importers' recipe steps, implemented on floats.
Values run_recipe(const WeightSource& file, const Recipe& recipe) {
  Values v = decoded(file, recipe.sources.at(0));
  for (const RecipeStep& step : recipe.steps) {
    switch (step.kind) {
      case RecipeStep::Kind::kConcatRows:
        for (size_t i = 1; i < recipe.sources.size(); ++i) {
          Values next = decoded(file, recipe.sources[i]);
          v.dims[0] += next.dims[0];
          v.values.insert(v.values.end(), next.values.begin(), next.values.end());
        }
        break;
      case RecipeStep::Kind::kSliceRows:
        slice(v, step);
        break;
      case RecipeStep::Kind::kPermuteRows:
        permute(v, step);
        break;
      case RecipeStep::Kind::kTranspose:
        transpose_last(v);
        break;
      case RecipeStep::Kind::kAddScalar:
        for (float& x : v.values) x += static_cast<float>(step.value);
        break;
      case RecipeStep::Kind::kReshape:
        v.dims = step.dims;
        break;
      case RecipeStep::Kind::kJoinMxfp4:
        join(v, decoded(file, step.tensor));
        break;
      case RecipeStep::Kind::kCast:
        break;
      case RecipeStep::Kind::kTernary:
        make_ternary<float>(v.values);
        break;
      default:
        throw std::runtime_error("unexpected step");
    }
  }
  return v;
}

// The per-frequency angles may be described differently (llama3 scaling is a tensor in GGUF), but
// the rest must be equal.
void expect_same_rope(const RopeConfig& a, const RopeConfig& b) {
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_FLOAT_EQ(static_cast<float>(a.theta), static_cast<float>(b.theta));
  if (a.freq_divisors.empty() != b.freq_divisors.empty()) return;
  EXPECT_EQ(a.scaling, b.scaling);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.short_factor, b.short_factor);
  EXPECT_EQ(a.long_factor, b.long_factor);
  if (a.scaling == RopeConfig::Scaling::kYarn || a.scaling == RopeConfig::Scaling::kLongRope) {
    EXPECT_EQ(a.original_context, b.original_context);
  }
}

void expect_same_model(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.vocab, b.vocab);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.ffn, b.ffn);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_FLOAT_EQ(static_cast<float>(a.norm_eps), static_cast<float>(b.norm_eps));
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.gated_mlp, b.gated_mlp);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.wide_qk_norm, b.wide_qk_norm);
  EXPECT_EQ(a.parallel, b.parallel);
  EXPECT_EQ(a.pre_norms, b.pre_norms);
  EXPECT_EQ(a.post_norms, b.post_norms);
  EXPECT_FLOAT_EQ(static_cast<float>(a.residual_scale), static_cast<float>(b.residual_scale));
  EXPECT_EQ(a.logit_scale, b.logit_scale);
  EXPECT_EQ(a.attention_sinks, b.attention_sinks);
  EXPECT_EQ(a.layer_rotates, b.layer_rotates);
  EXPECT_EQ(a.latent, b.latent);
  EXPECT_EQ(a.experts, b.experts);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.attention_softcap, b.attention_softcap);
  EXPECT_EQ(a.final_softcap, b.final_softcap);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.layer_slides, b.layer_slides);
  expect_same_rope(a.rope, b.rope);
  expect_same_rope(a.rope_local, b.rope_local);
}

class TinyModels : public testing::TestWithParam<const char*> {};

TEST_P(TinyModels, FolderAndGgufAreTheSameModel) {
  const char* root = std::getenv(GetParam());
  if (!root || !std::filesystem::exists(root)) GTEST_SKIP() << GetParam() << " is not a folder";
  int pairs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    std::filesystem::path folder = entry.path(), gguf = folder.string() + ".gguf";
    if (!entry.is_directory() || !std::filesystem::exists(gguf)) continue;
    SCOPED_TRACE(folder.filename().string());
    ++pairs;
    ImportedModel a = import_model(folder), b = import_model(gguf);
    // GGUF has the factors of Falcon-H1 and Jais in its matrices, and the heads of Qwen3.5 in
    // another order; that they compute the same is tested with their logits.
    bool folded = a.config.recurrent.beside || a.config.architecture == "jais",
         ordered = a.config.recurrent.tiled == b.config.recurrent.tiled;
    if (folded) a.config.embedding_scale = a.config.logit_scale = 1;
    expect_same_model(a.config, b.config);
    for (const auto& [name, weight] : a.config.weights) {
      SCOPED_TRACE(name);
      auto other = b.config.weights.find(name);
      ASSERT_NE(other, b.config.weights.end());
      EXPECT_EQ(weight.dims, other->second.dims);
      EXPECT_EQ(weight.dtype, other->second.dtype);
      if (folded || !ordered) continue;
      auto values = run_recipe(*a.weights, weight.recipe).values;
      auto stored = run_recipe(*b.weights, other->second.recipe).values;
      if (a.config.recurrent.decay_log && name.ends_with(".ssm_a.weight")) {  // the graph's part
        ASSERT_EQ(values.size(), stored.size());
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(-std::exp(values[i]), stored[i], 1e-5 * std::fabs(stored[i]));
        continue;
      }
      EXPECT_EQ(values, stored);
    }
    bool untied_copy = b.config.weights.contains("output.weight") && a.config.tied_embeddings;
    EXPECT_EQ(a.config.weights.size() + (untied_copy ? 1 : 0), b.config.weights.size());
  }
  EXPECT_GT(pairs, 0);
}
INSTANTIATE_TEST_SUITE_P(Folders, TinyModels,
                         testing::Values("TOKAMAK_TINY_MODELS", "TOKAMAK_TINY_FAMILIES"));

// A tiny model as a folder of its own, with a part of its config.json replaced.
class CopiedModel {
 public:
  CopiedModel(const char* root, const char* name, std::string_view from, std::string_view to) {
    fs::copy(fs::path(root) / name, path_.path(), fs::copy_options::recursive);
    std::string text = read_text_file(path_.path() / "config.json", 1 << 20);
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << name << " has no " << from;
    write("config.json", text.replace(at, from.size(), to));
  }
  void write(const char* file, std::string_view text) const {
    std::ofstream(path_.path() / file) << text;
  }
  ImportedModel import() const { return import_model(path_.path()); }

 private:
  test::TempFolder path_;
};

// What the config.json of published models has, and tiny ones do not.
TEST(PublishedFolders, AreReadAsTheyAre) {
  const char *models = std::getenv("TOKAMAK_TINY_MODELS"),
             *families = std::getenv("TOKAMAK_TINY_FAMILIES");
  if (!models || !families || !fs::exists(models) || !fs::exists(families))
    GTEST_SKIP() << "no tiny models";
  CopiedModel mimo(models, "qwen2", R"("model_type": "qwen2")", R"("model_type": "mimo")");
  EXPECT_EQ(mimo.import().config.architecture, "qwen2");
  CopiedModel infinite(families, "nemotron_h", "{",
                       R"({"time_step_limit": [0.0, Infinity], "a": "Infinity \" NaN", "b": NaN,)");
  EXPECT_EQ(infinite.import().config.recurrent.step_high, 0.0);

  CopiedModel scaled(families, "modelopt", "quantization_config", "unused");
  EXPECT_THAT(test::error_of([&] { scaled.import(); }), HasSubstr("model.layers.0.self_attn"));
  for (const char* method : {"NVFP4", "MIXED_PRECISION"}) {
    scaled.write("hf_quant_config.json", fmt::format(R"({{"producer": {{"name": "modelopt"}},
                               "quantization": {{"quant_algo": "{}"}}}})",
                                                     method));
    ImportedModel got = scaled.import(), want = import_model(fs::path(families) / "modelopt");
    ASSERT_EQ(got.config.weights.size(), want.config.weights.size());
    for (const auto& [name, weight] : want.config.weights)
      EXPECT_EQ(got.config.weights.at(name).recipe, weight.recipe) << name;
  }
  scaled.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "W4A8_AWQ"}})");
  EXPECT_THAT(test::error_of([&] { scaled.import(); }), HasSubstr("modelopt with W4A8_AWQ"));
  scaled.write("hf_quant_config.json", "[]");
  EXPECT_THAT(test::error_of([&] { scaled.import(); }), HasSubstr("no object \"quantization\""));
  CopiedModel unnamed(families, "modelopt", R"("quant_method": "modelopt")",
                      R"("producer": {"name": "modelopt"})");
  EXPECT_NO_THROW(unnamed.import());
}

}  // namespace
}  // namespace tokamak
