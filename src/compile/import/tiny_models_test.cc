// The tiny models of tools/tiny_models.py, each as a folder and as GGUF: both importers must
// describe the same model and give the same weights, bit for bit. Without the folder in
// $TOKAMAK_TINY_MODELS there is nothing to compare.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "compile/import/import_model.h"
#include "compile/import/import_test_util.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

struct Matrix {
  int64_t rows, columns;
  std::vector<float> values;
};

// The importers' recipe steps, implemented on floats.
Matrix run_recipe(const WeightSource& file, const Recipe& recipe) {
  const TensorView* t = file.find(recipe.sources.at(0));
  Matrix m{t->dims[0], t->elements() / t->dims[0],
           std::vector<float>(static_cast<size_t>(t->elements()))};
  decode_row(t->dtype, t->bytes.data(), m.values.data(), t->elements());
  for (const RecipeStep& step : recipe.steps) {
    Matrix out = m;
    switch (step.kind) {
      case RecipeStep::Kind::kSliceRows:
        out.rows = step.b - step.a;
        out.values.assign(m.values.begin() + step.a * m.columns,
                          m.values.begin() + step.b * m.columns);
        break;
      case RecipeStep::Kind::kPermuteRows: {
        int64_t size = m.rows / step.a;
        for (int64_t r = 0; r < m.rows; ++r) {
          int64_t head = r / size, half = r % size / (size / 2), pair = r % (size / 2);
          int64_t from = head * size + 2 * pair + half;
          std::copy_n(m.values.begin() + from * m.columns, m.columns,
                      out.values.begin() + r * m.columns);
        }
        break;
      }
      case RecipeStep::Kind::kTranspose:
        std::swap(out.rows, out.columns);
        for (int64_t r = 0; r < m.rows; ++r)
          for (int64_t c = 0; c < m.columns; ++c)
            out.values[c * m.rows + r] = m.values[r * m.columns + c];
        break;
      case RecipeStep::Kind::kAddScalar:
        for (float& v : out.values) v += static_cast<float>(step.value);
        break;
      case RecipeStep::Kind::kCast:
        break;
      default:
        throw std::runtime_error("unexpected step");
    }
    m = std::move(out);
  }
  return m;
}

// The per-frequency angles may be described differently (llama3 scaling is a tensor in GGUF), but
// the rest must be equal.
void expect_same_rope(const RopeConfig& a, const RopeConfig& b) {
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_EQ(a.theta, b.theta);
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
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.gated_mlp, b.gated_mlp);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.post_norms, b.post_norms);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.attention_softcap, b.attention_softcap);
  EXPECT_EQ(a.final_softcap, b.final_softcap);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.layer_slides, b.layer_slides);
  expect_same_rope(a.rope, b.rope);
  expect_same_rope(a.rope_local, b.rope_local);
}

TEST(TinyModels, FolderAndGgufAreTheSameModel) {
  const char* root = std::getenv("TOKAMAK_TINY_MODELS");
  if (!root || !std::filesystem::exists(root))
    GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  int pairs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    std::filesystem::path folder = entry.path(), gguf = folder.string() + ".gguf";
    if (!entry.is_directory() || !std::filesystem::exists(gguf)) continue;
    SCOPED_TRACE(folder.filename().string());
    ++pairs;
    ImportedModel a = import_model(folder), b = import_model(gguf);
    expect_same_model(a.config, b.config);
    for (const auto& [name, weight] : a.config.weights) {
      SCOPED_TRACE(name);
      auto other = b.config.weights.find(name);
      ASSERT_NE(other, b.config.weights.end());
      EXPECT_EQ(weight.dims, other->second.dims);
      EXPECT_EQ(weight.dtype, other->second.dtype);
      EXPECT_EQ(run_recipe(*a.weights, weight.recipe).values,
                run_recipe(*b.weights, other->second.recipe).values);
    }
    bool untied_copy = b.config.weights.contains("output.weight") && a.config.tied_embeddings;
    EXPECT_EQ(a.config.weights.size() + (untied_copy ? 1 : 0), b.config.weights.size());
  }
  EXPECT_GT(pairs, 0);
}

}  // namespace
}  // namespace tokamak
