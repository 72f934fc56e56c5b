// Weight recipes on the interpreter's values.
#include <algorithm>

#include "base/error.h"
#include "graph/evaluate.h"
#include "tensor/block_formats.h"
#include "tensor/recipe_run.h"

namespace tokamak {
namespace {

template <class S>
S scalar(double value) {
  if constexpr (std::is_same_v<S, Field>)
    return Field::from_double(value);
  else
    return static_cast<S>(value);
}

// The tensor between the steps.
template <class S>
struct RecipeScalars {
  const std::string& name;
  const EvalInputs<S>& inputs;
  std::vector<int64_t> dims = {};
  std::vector<S> data = {};

  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "weight {}: {}", name, what);
  }
  const EvalTensor<S>& source(const std::string& tensor) const {
    auto it = inputs.sources.find(tensor);
    if (it == inputs.sources.end()) bad("a source tensor has no value");
    return it->second;
  }
  void take(const std::string& tensor) {
    dims = source(tensor).dims;
    data = source(tensor).f;
  }
  void concat(const std::vector<std::string>& tensors) {
    for (const std::string& tensor : tensors) {
      const EvalTensor<S>& t = source(tensor);
      if (&tensor == &tensors[0])
        dims = t.dims;
      else
        concat_extents(name, dims, t.dims);
      data.insert(data.end(), t.f.begin(), t.f.end());
    }
  }
  void move(const RecipeStep& step, const RecipeMove& to) {
    std::vector<S> out(static_cast<size_t>(recipe_elements(name, to.dims)));
    each_move(step, dims, [&](int64_t at, int64_t from, int64_t count) {
      std::copy_n(data.begin() + from * to.unit, count * to.unit, out.begin() + at * to.unit);
    });
    data = std::move(out);
  }
  void change(const RecipeStep& step) {
    std::vector<S> factors;
    if (step.kind == RecipeStep::Kind::kScaleColumns) {
      factors = source(step.tensor).f;
      if (dims.empty() || static_cast<int64_t>(factors.size()) != dims.back())
        bad("scale_columns needs one factor per column");
    }
    change_values<S>(step, data, factors, scalar<S>);
  }
  void unit_rows() {
    if constexpr (std::is_floating_point_v<S>)
      make_unit_rows<S>(data, dims.back());
    else
      bad("unit_rows takes roots, which this interpreter does not have");
  }
  void ternary() {
    if constexpr (std::is_floating_point_v<S>)
      make_ternary<S>(data);
    else
      bad("ternary rounds, which this interpreter cannot");
  }
  void reshape(const RecipeStep&) {}
  void cast(DType dtype) {
    if constexpr (std::is_same_v<S, float>)
      for (float& x : data) {
        if (dtype == DType::kF16) x = f16_to_f32(f32_to_f16(x));
        if (dtype == DType::kBF16) x = bf16_to_f32(f32_to_bf16(x));
      }
  }
  void join_mxfp4(const RecipeStep&) {
    bad("join_mxfp4 works on bytes, which an interpreter does not have");
  }
  void join_groups(const std::vector<std::string>&, const RecipeStep&) {
    bad("join_groups works on bytes, which an interpreter does not have");
  }
  void sort_groups(const RecipeStep&) { bad("sort_groups gives integers"); }
};

}  // namespace

template <class S>
EvalTensor<S> evaluate_weight(const WeightDecl& weight, const EvalInputs<S>& inputs) {
  RecipeScalars<S> w{weight.name, inputs};
  if (weight.type.dtype == DType::kI32) w.bad("weights of integers have no recipe");
  if (weight.recipe.sources.empty())
    run_recipe({{weight.name}, weight.recipe.steps}, w);
  else
    run_recipe(weight.recipe, w);
  EvalTensor<S> t;
  for (const Dim& d : weight.type.dims) t.dims.push_back(d.extent.eval(inputs.symbols));
  if (t.dims != w.dims) w.bad("the recipe gives another shape");
  t.f = std::move(w.data);
  return t;
}
template EvalTensor<float> evaluate_weight(const WeightDecl&, const EvalInputs<float>&);
template EvalTensor<double> evaluate_weight(const WeightDecl&, const EvalInputs<double>&);
template EvalTensor<Field> evaluate_weight(const WeightDecl&, const EvalInputs<Field>&);

}  // namespace tokamak
