// Every step of weight recipes, by a backend's loader and by the interpreter: the same values.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/common/weights.h"
#include "graph/evaluate.h"

namespace tokamak {
namespace {

using Kind = RecipeStep::Kind;

struct RecipeCase {
  std::vector<std::string> sources;
  std::vector<RecipeStep> steps;
  std::vector<int64_t> dims;  // of the result
};

RecipeStep step(Kind kind, int64_t a = 0, int64_t b = 0, std::vector<int64_t> dims = {}) {
  RecipeStep s{};
  s.kind = kind;
  s.a = a;
  s.b = b;
  s.dims = std::move(dims);
  return s;
}
RecipeStep with(Kind kind, double value, const std::string& tensor = "") {
  RecipeStep s = step(kind);
  s.value = value;
  s.tensor = tensor;
  return s;
}

std::vector<RecipeCase> recipe_cases() {
  RecipeStep half = step(Kind::kCast), full = step(Kind::kCast);
  half.dtype = DType::kF16;
  full.dtype = DType::kF32;
  return {{{"m"}, {}, {12, 3}},
          {{"m"}, {step(Kind::kSliceRows, 2, 7)}, {5, 3}},
          {{"m"}, {step(Kind::kSliceRows, 1, 3, {4})}, {6, 3}},
          {{"m"}, {step(Kind::kPermuteRows, 3)}, {12, 3}},
          {{"m"}, {step(Kind::kPermuteRows, 2, 4)}, {12, 3}},
          {{"m"}, {step(Kind::kTranspose)}, {3, 12}},
          {{"m"}, {step(Kind::kReshape, 0, 0, {2, 6, 3}), step(Kind::kTranspose)}, {2, 3, 6}},
          {{"m", "n"}, {step(Kind::kConcatRows), step(Kind::kSliceRows, 10, 14)}, {4, 3}},
          {{"m"}, {with(Kind::kAddScalar, 1), with(Kind::kScale, 0.3)}, {12, 3}},
          {{"m"}, {with(Kind::kScaleColumns, 1, "c")}, {12, 3}},
          {{"m"}, {with(Kind::kScale, 0.3), half, full}, {12, 3}}};
}

TEST(Recipes, LoaderAndInterpreterAgree) {
  WeightTable table;
  EvalInputs<float> inputs;
  auto source = [&](const std::string& name, std::vector<int64_t> dims) {
    EvalTensor<float> t{dims, {}, {}, false};
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    for (int64_t i = 0; i < n; ++i)
      t.f.push_back(static_cast<float>(i * 7 % 31) * 0.37f - 2.0f + static_cast<float>(name[0]));
    table.add_f32(name, dims, t.f);
    inputs.sources[name] = std::move(t);
  };
  source("m", {12, 3});
  source("n", {4, 3});
  source("c", {3});
  for (const RecipeCase& c : recipe_cases()) {
    Recipe recipe{c.sources, c.steps};
    SCOPED_TRACE(recipe_to_text(recipe));
    WeightEntry entry{"w", DType::kF32, c.dims, recipe, {}, ""};
    LoadedTensor loaded = load_weight(entry, table);
    WeightDecl decl{"w", {DType::kF32, {}}, recipe};
    for (int64_t d : c.dims) decl.type.dims.push_back({"x", d, false});
    EvalTensor<float> evaluated = evaluate_weight(decl, inputs);
    EXPECT_EQ(evaluated.dims, c.dims);
    ASSERT_EQ(loaded.view.bytes.size(), evaluated.f.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(loaded.view.bytes.data(), evaluated.f.data(), loaded.view.bytes.size()),
              0);
  }
}

}  // namespace
}  // namespace tokamak
