// Weight recipes on plain values: the same steps as backend/common/weights.cc, without bytes.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "graph/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

template <class S>
struct Work {
  const std::string& name;
  std::vector<int64_t> dims;
  std::vector<S> data;

  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "weight {}: {}", name, what);
  }
  int64_t width() const { return dims.empty() || dims[0] == 0 ? 1 : size() / dims[0]; }
  int64_t size() const { return static_cast<int64_t>(data.size()); }
  int64_t rows() const { return dims.empty() ? 0 : dims[0]; }
  void need_rows() const {
    if (dims.empty()) bad("the recipe needs rows");
  }

  void slice_rows(int64_t from, int64_t to, int64_t period) {
    need_rows();
    if (from < 0 || from > to || to > period || period < 1 || dims[0] % period != 0)
      bad("slice_rows is out of range");
    int64_t w = width();
    std::vector<S> out;
    for (int64_t row = 0; row < dims[0]; row += period)
      out.insert(out.end(), data.begin() + (row + from) * w, data.begin() + (row + to) * w);
    dims[0] = dims[0] / period * (to - from);
    data = std::move(out);
  }
  void permute_rows(int64_t heads, int64_t rotated) {
    need_rows();
    if (heads < 1 || dims[0] % heads != 0) bad("rows are not heads");
    int64_t w = width(), d = dims[0] / heads, r = rotated == 0 ? d : rotated, half = r / 2;
    if (r < 0 || r > d || r % 2 != 0) bad("rows are not pairs");
    std::vector<S> out = data;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < r; ++j)
        std::copy_n(data.begin() + (h * d + 2 * (j % half) + j / half) * w, w,
                    out.begin() + (h * d + j) * w);
    data = std::move(out);
  }
  void transpose() {
    if (dims.size() != 2 && dims.size() != 3) bad("transpose needs two axes, or a stack of such");
    std::vector<S> out(data.size());
    int64_t rows = dims[dims.size() - 2], columns = dims.back();
    for (int64_t at = 0; at < size(); at += rows * columns)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          out[static_cast<size_t>(at + c * rows + r)] =
              data[static_cast<size_t>(at + r * columns + c)];
    std::swap(dims[dims.size() - 2], dims.back());
    data = std::move(out);
  }
  void reshape(const std::vector<int64_t>& to) {
    int64_t n = 1;
    for (int64_t d : to) n *= d;
    if (n != size()) bad("reshape changes the number of elements");
    dims = to;
  }
};

template <class S>
S scalar(double value) {
  if constexpr (std::is_same_v<S, Field>)
    return Field::from_double(value);
  else
    return static_cast<S>(value);
}

template <class S>
void scale_columns(Work<S>& w, const RecipeStep& step, const EvalInputs<S>& inputs) {
  auto it = inputs.sources.find(step.tensor);
  if (it == inputs.sources.end()) w.bad("the factors of scale_columns have no value");
  const std::vector<S>& factors = it->second.f;
  if (w.dims.empty() || static_cast<int64_t>(factors.size()) != w.dims.back())
    w.bad("scale_columns needs one factor per column");
  for (size_t i = 0; i < w.data.size(); ++i)
    w.data[i] = w.data[i] * (factors[i % factors.size()] + scalar<S>(step.value));
}

template <class S>
void apply(Work<S>& w, const RecipeStep& step, const EvalInputs<S>& inputs) {
  using Kind = RecipeStep::Kind;
  switch (step.kind) {
    case Kind::kSliceRows:
      return w.slice_rows(step.a, step.b,
                          step.dims.empty() ? std::max<int64_t>(1, w.rows()) : step.dims[0]);
    case Kind::kPermuteRows:
      return w.permute_rows(step.a, step.b);
    case Kind::kTranspose:
      return w.transpose();
    case Kind::kAddScalar:
      for (S& x : w.data) x = x + scalar<S>(step.value);
      return;
    case Kind::kScale:
      for (S& x : w.data) x = x * scalar<S>(step.value);
      return;
    case Kind::kCast:
      if constexpr (std::is_same_v<S, float>)
        for (float& x : w.data) {
          if (step.dtype == DType::kF16) x = f16_to_f32(f32_to_f16(x));
          if (step.dtype == DType::kBF16) x = bf16_to_f32(f32_to_bf16(x));
        }
      return;
    case Kind::kReshape:
      return w.reshape(step.dims);
    case Kind::kScaleColumns:
      return scale_columns(w, step, inputs);
    case Kind::kJoinMxfp4:
      w.bad("join_mxfp4 works on bytes, which an interpreter does not have");
    case Kind::kConcatRows:
      w.bad("concat_rows must be the first step");
  }
}

}  // namespace

template <class S>
EvalTensor<S> evaluate_weight(const WeightDecl& weight, const EvalInputs<S>& inputs) {
  Work<S> w{weight.name, {}, {}};
  if (weight.type.dtype == DType::kI32) w.bad("weights of integers have no recipe");
  size_t first = 0;
  std::vector<std::string> sources = weight.recipe.sources;
  if (sources.empty()) sources = {weight.name};
  for (size_t i = 0; i < sources.size(); ++i) {
    auto it = inputs.sources.find(sources[i]);
    if (it == inputs.sources.end()) w.bad("a source has no value");
    if (i == 0) {
      w.dims = it->second.dims;
    } else {
      w.need_rows();
      w.dims[0] += it->second.dims.at(0);
    }
    w.data.insert(w.data.end(), it->second.f.begin(), it->second.f.end());
  }
  const auto& steps = weight.recipe.steps;
  if (!steps.empty() && steps[0].kind == RecipeStep::Kind::kConcatRows) first = 1;
  for (size_t i = first; i < steps.size(); ++i) apply(w, steps[i], inputs);
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
