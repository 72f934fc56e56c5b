#include "backend/common/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/ranges.h>

#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

// The tensor between the steps of a recipe: the bytes are borrowed until a step changes them.
struct Work {
  const std::string& weight;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims = {};
  std::span<const std::byte> bytes = {};
  std::vector<std::byte> owned = {};

  template <class... Args>
  [[noreturn]] void fail_with(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    fail(code, "weight {}: {}", weight, fmt::format(format, std::forward<Args>(args)...));
  }
  void own(std::vector<std::byte> next) {
    owned = std::move(next);
    bytes = owned;
  }
  int64_t rows() const { return dims.empty() ? 1 : dims[0]; }
};

int64_t count_elements(Work& w, std::span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(n, d, &n))
      w.fail_with(ErrorCode::kCorrupt, "an extent of {} is not valid", d);
  return n;
}

// Elements in one row: the product of all extents but the first.
int64_t row_elements(Work& w) {
  return w.dims.empty() ? 1 : count_elements(w, std::span(w.dims).subspan(1));
}

// Rows can be permuted when each is a whole number of quantisation blocks.
size_t row_bytes(Work& w) {
  int64_t n = row_elements(w);
  if (n % dtype_info(w.dtype).block_elements != 0)
    w.fail_with(ErrorCode::kUnsupported, "rows of {} values do not fill whole {} blocks", n,
                dtype_name(w.dtype));
  return dtype_bytes(w.dtype, n);
}

void check_size(Work& w, std::string_view source) {
  int64_t n = count_elements(w, w.dims), last = w.dims.empty() ? 1 : w.dims.back();
  const DTypeInfo& info = dtype_info(w.dtype);
  if (last % info.block_elements != 0 || n / info.block_elements > INT64_MAX / info.block_bytes ||
      w.bytes.size() != dtype_bytes(w.dtype, n))
    w.fail_with(ErrorCode::kCorrupt, "tensor {} has {} bytes, which is not {} values of {}", source,
                w.bytes.size(), n, info.name);
}

void take_source(Work& w, const WeightSource& source, const std::string& name) {
  const TensorView* view = source.find(name);
  if (!view) w.fail_with(ErrorCode::kCorrupt, "the model has no tensor {}", name);
  w.dtype = view->dtype;
  w.dims = view->dims;
  w.bytes = view->bytes;
  check_size(w, name);
}

void concat_sources(Work& w, const WeightSource& source, const Recipe& recipe) {
  std::vector<std::byte> all;
  Work part{w.weight};
  for (size_t i = 0; i < recipe.sources.size(); ++i) {
    take_source(part, source, recipe.sources[i]);
    if (part.dims.empty()) w.fail_with(ErrorCode::kCorrupt, "concat_rows of scalars");
    row_bytes(part);
    if (i == 0) {
      w.dtype = part.dtype;
      w.dims = part.dims;
    } else if (part.dtype != w.dtype || part.dims.size() != w.dims.size() ||
               !std::equal(part.dims.begin() + 1, part.dims.end(), w.dims.begin() + 1)) {
      w.fail_with(ErrorCode::kCorrupt, "{} and {} cannot be concatenated", recipe.sources[0],
                  recipe.sources[i]);
    } else {
      w.dims[0] += part.dims[0];
    }
    all.insert(all.end(), part.bytes.begin(), part.bytes.end());
  }
  w.own(std::move(all));
}

void slice_rows(Work& w, int64_t first, int64_t end, int64_t period) {
  if (w.dims.empty() || first < 0 || end < first || end > period || period < 1 ||
      w.dims[0] % period != 0)
    w.fail_with(ErrorCode::kCorrupt, "rows [{}, {}) of {}", first, end, w.rows());
  size_t row = row_bytes(w);
  auto from = static_cast<size_t>(first) * row, size = static_cast<size_t>(end - first) * row;
  if (period == w.dims[0]) {
    w.bytes = w.bytes.subspan(from, size);
    w.dims[0] = end - first;
    return;
  }
  std::vector<std::byte> out;
  for (size_t at = 0; at < w.bytes.size(); at += static_cast<size_t>(period) * row) {
    std::span<const std::byte> part = w.bytes.subspan(at + from, size);
    out.insert(out.end(), part.begin(), part.end());
  }
  w.dims[0] = w.dims[0] / period * (end - first);
  w.own(std::move(out));
}

// Among the first `rotated` rows of each head (0: all d), interleaved pairs (2j, 2j + 1) become
// (j, j + rotated / 2).
void permute_rows(Work& w, int64_t heads, int64_t rotated) {
  bool whole = !w.dims.empty() && heads >= 1 && w.dims[0] % heads == 0;
  int64_t size = whole ? w.dims[0] / heads : 0;
  if (rotated == 0) rotated = size;
  if (!whole || rotated < 0 || rotated > size || rotated % 2 != 0)
    w.fail_with(ErrorCode::kCorrupt, "{} rows are not {} heads of pairs", w.rows(), heads);
  size_t row = row_bytes(w);
  auto d = static_cast<size_t>(size), half = static_cast<size_t>(rotated) / 2;
  std::vector<std::byte> out(w.bytes.begin(), w.bytes.end());
  for (size_t h = 0; h < static_cast<size_t>(heads); ++h)
    for (size_t j = 0; j < half; ++j)
      for (size_t part : {size_t{0}, size_t{1}})
        std::memcpy(out.data() + (h * d + j + part * half) * row,
                    w.bytes.data() + (h * d + 2 * j + part) * row, row);
  w.own(std::move(out));
}

void transpose(Work& w) {
  size_t rank = w.dims.size();
  if ((rank != 2 && rank != 3) || is_block_type(w.dtype))
    w.fail_with(ErrorCode::kUnsupported, "transpose needs two axes and a plain type");
  size_t size = dtype_bytes(w.dtype, 1);
  auto rows = static_cast<size_t>(w.dims[rank - 2]),
       columns = static_cast<size_t>(w.dims[rank - 1]);
  std::vector<std::byte> out(w.bytes.size());
  for (size_t at = 0; at < w.bytes.size(); at += rows * columns * size)
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c)
        std::memcpy(out.data() + at + (c * rows + r) * size,
                    w.bytes.data() + at + (r * columns + c) * size, size);
  std::swap(w.dims[rank - 2], w.dims[rank - 1]);
  w.own(std::move(out));
}

std::vector<float> to_floats(Work& w) {
  int64_t n = count_elements(w, w.dims);
  std::vector<float> values(static_cast<size_t>(n));
  decode_row(w.dtype, w.bytes.data(), values.data(), n);
  return values;
}

void from_floats(Work& w, DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out(dtype_bytes(dtype, static_cast<int64_t>(values.size())));
  encode_row(dtype, values.data(), out.data(), static_cast<int64_t>(values.size()));
  w.dtype = dtype;
  w.own(std::move(out));
}

void cast(Work& w, DType dtype) {
  if (dtype == w.dtype) return;
  if (is_block_type(w.dtype) && dtype != DType::kF32)
    w.fail_with(ErrorCode::kUnsupported, "{} would be requantised to {}", dtype_name(w.dtype),
                dtype_name(dtype));
  int64_t last = w.dims.empty() ? 1 : w.dims.back();
  if (last % dtype_info(dtype).block_elements != 0)
    w.fail_with(ErrorCode::kUnsupported, "rows of {} values do not fill {} blocks", last,
                dtype_name(dtype));
  from_floats(w, dtype, to_floats(w));
}

void reshape(Work& w, const std::vector<int64_t>& dims) {
  int64_t last = dims.empty() ? 1 : dims.back();
  if (count_elements(w, dims) != count_elements(w, w.dims) ||
      last % dtype_info(w.dtype).block_elements != 0)
    w.fail_with(ErrorCode::kCorrupt, "cannot reshape {} values of {} to [{}]",
                count_elements(w, w.dims), dtype_name(w.dtype), fmt::join(dims, ", "));
  w.dims = dims;
}

// One factor per column, from a tensor of its own.
void scale_columns(Work& w, const WeightSource& source, const RecipeStep& step) {
  Work by{w.weight};
  take_source(by, source, step.tensor);
  std::vector<float> factors = to_floats(by), values = to_floats(w);
  if (w.dims.empty() || static_cast<int64_t>(factors.size()) != w.dims.back())
    w.fail_with(ErrorCode::kCorrupt, "{} factors of {} for [{}]", factors.size(), step.tensor,
                fmt::join(w.dims, ", "));
  for (float& f : factors) f += static_cast<float>(step.value);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= factors[i % factors.size()];
  from_floats(w, DType::kF32, values);
}

// Moves nibbles: a block of the file format has values j and j + 16 in byte j, after its exponent.
void join_mxfp4(Work& w, const WeightSource& source, const RecipeStep& step) {
  Work scales{w.weight};
  take_source(scales, source, step.tensor);
  size_t rank = w.dims.size();
  constexpr size_t kBytes = 16;
  if (w.dtype != DType::kU8 || scales.dtype != DType::kU8 || rank < 2 ||
      w.dims.back() != int64_t{kBytes} ||
      !std::equal(scales.dims.begin(), scales.dims.end(), w.dims.begin(), w.dims.end() - 1))
    w.fail_with(ErrorCode::kCorrupt, "{}[{}] with {}[{}] of {} are not MXFP4 blocks",
                dtype_name(w.dtype), fmt::join(w.dims, ", "), dtype_name(scales.dtype),
                fmt::join(scales.dims, ", "), step.tensor);
  size_t blocks = scales.bytes.size();
  std::vector<std::byte> out(blocks * (kBytes + 1));
  for (size_t b = 0; b < blocks; ++b) {
    const std::byte* from = w.bytes.data() + b * kBytes;
    std::byte* to = out.data() + b * (kBytes + 1);
    auto value = [&](size_t i) {
      return i % 2 == 0 ? from[i / 2] & std::byte{15} : from[i / 2] >> 4;
    };
    *to++ = scales.bytes[b];
    for (size_t j = 0; j < kBytes; ++j) to[j] = value(j) | value(j + kBytes) << 4;
  }
  w.dims.pop_back();
  w.dims.back() *= 2 * int64_t{kBytes};
  w.dtype = DType::kMXFP4;
  w.own(std::move(out));
}

void apply(Work& w, const RecipeStep& step, const WeightSource& source) {
  using Kind = RecipeStep::Kind;
  switch (step.kind) {
    case Kind::kSliceRows:
      return slice_rows(w, step.a, step.b,
                        step.dims.empty() ? std::max<int64_t>(1, w.rows()) : step.dims[0]);
    case Kind::kPermuteRows:
      return permute_rows(w, step.a, step.b);
    case Kind::kTranspose:
      return transpose(w);
    case Kind::kAddScalar:
    case Kind::kScale: {
      std::vector<float> values = to_floats(w);
      auto value = static_cast<float>(step.value);
      for (float& x : values) x = step.kind == Kind::kScale ? x * value : x + value;
      return from_floats(w, DType::kF32, values);
    }
    case Kind::kCast:
      return cast(w, step.dtype);
    case Kind::kReshape:
      return reshape(w, step.dims);
    case Kind::kScaleColumns:
      return scale_columns(w, source, step);
    case Kind::kJoinMxfp4:
      return join_mxfp4(w, source, step);
    case Kind::kConcatRows:
      w.fail_with(ErrorCode::kCorrupt, "concat_rows must be the first step");
  }
}

void make_constant(Work& w, const WeightEntry& entry) {
  w.dims = entry.dims;
  if (count_elements(w, w.dims) != static_cast<int64_t>(entry.constant.size()))
    w.fail_with(ErrorCode::kCorrupt, "{} values for [{}]", entry.constant.size(),
                fmt::join(entry.dims, ", "));
  if (entry.dtype == DType::kI32) {
    std::vector<std::byte> out(entry.constant.size() * sizeof(int32_t));
    for (size_t i = 0; i < entry.constant.size(); ++i) {
      double value = entry.constant[i];
      if (!(value >= INT32_MIN && value <= INT32_MAX))
        w.fail_with(ErrorCode::kCorrupt, "{} is not an i32", value);
      auto whole = static_cast<int32_t>(value);
      std::memcpy(out.data() + i * sizeof whole, &whole, sizeof whole);
    }
    w.dtype = DType::kI32;
    return w.own(std::move(out));
  }
  from_floats(w, entry.dtype, std::vector<float>(entry.constant.begin(), entry.constant.end()));
}

}  // namespace

LoadedTensor load_weight(const WeightEntry& entry, const WeightSource& source) {
  using Kind = RecipeStep::Kind;
  if (const PackedWeight* packed = source.packed(entry.name, entry.layout)) {
    if (packed->rows.size() != static_cast<size_t>(weight_bytes(entry)))
      fail(ErrorCode::kUnsupported,
           "weight {}: the bundle does not hold it in rows; compile it for this backend",
           entry.name);
    LoadedTensor out;
    out.view = {entry.dtype, entry.dims, packed->rows};
    return out;
  }
  const Recipe& recipe = entry.recipe;
  Work w{entry.name};
  std::span<const RecipeStep> steps = recipe.steps;
  if (recipe.sources.empty()) {
    make_constant(w, entry);
  } else if (!steps.empty() && steps[0].kind == Kind::kConcatRows) {
    concat_sources(w, source, recipe);
    steps = steps.subspan(1);
  } else if (recipe.sources.size() == 1) {
    take_source(w, source, recipe.sources[0]);
  } else {
    w.fail_with(ErrorCode::kCorrupt, "{} sources need concat_rows first", recipe.sources.size());
  }
  for (const RecipeStep& step : steps) apply(w, step, source);
  if (w.dtype != entry.dtype || w.dims != entry.dims)
    w.fail_with(ErrorCode::kCorrupt, "the recipe gives {}[{}], the plan asks for {}[{}]",
                dtype_name(w.dtype), fmt::join(w.dims, ", "), dtype_name(entry.dtype),
                fmt::join(entry.dims, ", "));
  LoadedTensor out;
  out.owned = std::move(w.owned);  // moving a vector keeps its bytes where they are
  out.view = {w.dtype, std::move(w.dims), w.bytes};
  return out;
}

void pack_rows(const PlanSet& plans, const WeightSource& source,
               const std::function<void(const WeightEntry&, const PackedWeight&)>& sink) {
  for (const WeightEntry& entry : plans.weights) {
    if (!entry.constant.empty()) continue;
    LoadedTensor tensor = load_weight(entry, source);
    sink(entry, {{}, {}, tensor.view.bytes});
  }
}

}  // namespace tokamak
