#include "backend/common/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/ranges.h>

#include "base/error.h"
#include "tensor/block_formats.h"
#include "tensor/group_formats.h"
#include "tensor/group_join.h"
#include "tensor/recipe_run.h"

namespace tokamak {
namespace {

// The tensor between the steps of a recipe (tensor/recipe_run.h): the bytes are borrowed until a
// step changes them.
struct RecipeBytes {
  const std::string& name;
  const WeightSource& from;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims = {};
  std::span<const std::byte> bytes = {};
  std::vector<std::byte> owned = {};

  template <class... Args>
  [[noreturn]] void fail_with(ErrorCode code, fmt::format_string<Args...> format,
                              Args&&... args) const {
    fail(code, "weight {}: {}", name, fmt::format(format, std::forward<Args>(args)...));
  }
  void own(std::vector<std::byte> next) {
    owned = std::move(next);
    bytes = owned;
  }
  int64_t elements() const { return recipe_elements(name, dims); }
  // Bytes of a unit of elements that stay together, such as a row.
  size_t unit_bytes(int64_t unit) const {
    if (unit % dtype_info(dtype).block_elements != 0)
      fail_with(ErrorCode::kUnsupported, "rows of {} values do not fill whole {} blocks", unit,
                dtype_name(dtype));
    return dtype_bytes(dtype, unit);
  }
  std::vector<float> floats() const {
    std::vector<float> values(static_cast<size_t>(elements()));
    decode_row(dtype, bytes.data(), values.data(), elements());
    return values;
  }
  void set_floats(DType to, const std::vector<float>& values) {
    std::vector<std::byte> out(dtype_bytes(to, static_cast<int64_t>(values.size())));
    encode_row(to, values.data(), out.data(), static_cast<int64_t>(values.size()));
    dtype = to;
    own(std::move(out));
  }

  void take(const std::string& tensor);
  void concat(const std::vector<std::string>& tensors);
  void move(const RecipeStep& step, const RecipeMove& to);
  void transpose_groups(const GroupFormat& format);
  void change(const RecipeStep& step);
  void unit_rows();
  void ternary();
  void reshape(const RecipeStep& step) const;
  void cast(DType to);
  void join_mxfp4(const RecipeStep& step);
  void join_nvfp4(const RecipeBytes& scales, const std::string& tensor);
  void join_groups(const std::vector<std::string>& tensors, const RecipeStep& step);
  void sort_groups(const RecipeStep& step);
};

void RecipeBytes::take(const std::string& tensor) {
  const TensorView* view = from.find(tensor);
  if (!view) fail_with(ErrorCode::kCorrupt, "the model has no tensor {}", tensor);
  dtype = view->dtype;
  dims = view->dims;
  bytes = view->bytes;
  int64_t n = elements(), last = dims.empty() ? 1 : dims.back();
  const DTypeInfo& info = dtype_info(dtype);
  if (last % info.block_elements != 0 || n / info.block_elements > INT64_MAX / info.block_bytes ||
      bytes.size() != dtype_bytes(dtype, n))
    fail_with(ErrorCode::kCorrupt, "tensor {} has {} bytes, which is not {} values of {}", tensor,
              bytes.size(), n, info.name);
}

void RecipeBytes::concat(const std::vector<std::string>& tensors) {
  std::vector<std::byte> all;
  RecipeBytes part{name, from};
  for (const std::string& tensor : tensors) {
    part.take(tensor);
    if (part.dims.empty()) fail_with(ErrorCode::kCorrupt, "concat_rows of scalars");
    part.unit_bytes(recipe_elements(name, std::span(part.dims).subspan(1)));
    if (&tensor == &tensors[0]) {
      dtype = part.dtype;
      dims = part.dims;
    } else if (part.dtype != dtype) {
      fail_with(ErrorCode::kCorrupt, "{} of {} and {} of {} cannot be concatenated", tensors[0],
                dtype_name(dtype), tensor, dtype_name(part.dtype));
    } else {
      concat_extents(name, dims, part.dims);
    }
    all.insert(all.end(), part.bytes.begin(), part.bytes.end());
  }
  own(std::move(all));
}

void RecipeBytes::move(const RecipeStep& step, const RecipeMove& to) {
  if (auto format = group_format(dtype);
      format && format->code == GroupFormat::Code::kF8 && step.kind == RecipeStep::Kind::kTranspose)
    return transpose_groups(*format);
  if (step.kind == RecipeStep::Kind::kTranspose && is_block_type(dtype))
    fail_with(ErrorCode::kUnsupported, "transpose needs a plain type, not {}", dtype_name(dtype));
  const size_t unit = unit_bytes(to.unit);
  if (step.kind == RecipeStep::Kind::kSliceRows && (step.dims.empty() || step.dims[0] == dims[0])) {
    bytes = bytes.subspan(static_cast<size_t>(step.a) * unit,  // as it is
                          static_cast<size_t>(step.b - step.a) * unit);
    return;
  }
  std::vector<std::byte> out(
      static_cast<size_t>(recipe_elements(name, to.dims) / std::max<int64_t>(1, to.unit)) * unit);
  each_move(step, dims, [&](int64_t at, int64_t first, int64_t count) {
    std::memcpy(out.data() + static_cast<size_t>(at) * unit,
                bytes.data() + static_cast<size_t>(first) * unit,
                static_cast<size_t>(count) * unit);
  });
  own(std::move(out));
}

// A matrix whose scales belong to square blocks stays one when it is transposed.
void RecipeBytes::transpose_groups(const GroupFormat& format) {
  const int64_t rows = dims[dims.size() - 2], columns = dims.back(), group = format.group,
                size = format.bytes(), head = format.head_bytes(), all = elements();
  if (rows % group != 0)
    fail_with(ErrorCode::kUnsupported, "{} rows of {} cannot be transposed", rows,
              dtype_name(dtype));
  std::vector<std::byte> out(bytes.size());
  std::byte* to = out.data();
  for (int64_t first = 0; first < all; first += rows * columns)
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; r += group, to += size)
        for (int64_t i = 0; i < group; ++i) {
          const std::byte* from =
              bytes.data() + (first + (r + i) * columns) / group * size + c / group * size;
          if (i == 0) std::memcpy(to, from, static_cast<size_t>(head));
          if (std::memcmp(to, from, static_cast<size_t>(head)) != 0)
            fail_with(ErrorCode::kUnsupported,
                      "fp8 scales that differ within {} rows cannot be transposed", group);
          to[head + i] = from[head + c % group];
        }
  own(std::move(out));
}

void RecipeBytes::change(const RecipeStep& step) {
  std::vector<float> values = floats(), factors;
  if (step.kind == RecipeStep::Kind::kScaleColumns) {
    RecipeBytes by{name, from};
    by.take(step.tensor);
    factors = by.floats();
    if (dims.empty() || static_cast<int64_t>(factors.size()) != dims.back())
      fail_with(ErrorCode::kCorrupt, "{} factors of {} for [{}]", factors.size(), step.tensor,
                fmt::join(dims, ", "));
  }
  change_values<float>(step, values, factors, [](double x) { return static_cast<float>(x); });
  set_floats(DType::kF32, values);
}

void RecipeBytes::unit_rows() {
  std::vector<float> values = floats();
  make_unit_rows<float>(values, dims.back());
  set_floats(DType::kF32, values);
}

void RecipeBytes::ternary() {
  std::vector<float> values = floats();
  make_ternary<float>(values);
  set_floats(DType::kF32, values);
}

void RecipeBytes::reshape(const RecipeStep& step) const {
  int64_t last = step.dims.empty() ? 1 : step.dims.back();
  if (last % dtype_info(dtype).block_elements != 0)
    fail_with(ErrorCode::kCorrupt, "cannot reshape {} values of {} to [{}]", elements(),
              dtype_name(dtype), fmt::join(step.dims, ", "));
}

void RecipeBytes::cast(DType to) {
  if (to == dtype) return;
  if (is_block_type(dtype) && to != DType::kF32)
    fail_with(ErrorCode::kUnsupported, "{} would be requantised to {}", dtype_name(dtype),
              dtype_name(to));
  int64_t last = dims.empty() ? 1 : dims.back();
  if (last % dtype_info(to).block_elements != 0)
    fail_with(ErrorCode::kUnsupported, "rows of {} values do not fill {} blocks", last,
              dtype_name(to));
  set_floats(to, floats());
}

// The same for NVFP4: a block has four scales, then four parts with values j and j + 8 in byte j.
void RecipeBytes::join_nvfp4(const RecipeBytes& scales, const std::string& tensor) {
  constexpr size_t kPart = 8, kParts = 4;
  size_t parts = bytes.size() / kPart;
  if (dtype != DType::kU8 || scales.dtype != DType::kF8E4M3 || scales.bytes.size() != parts)
    fail_with(ErrorCode::kCorrupt, "{}[{}] with {}[{}] of {} are not NVFP4 blocks",
              dtype_name(dtype), fmt::join(dims, ", "), dtype_name(scales.dtype),
              fmt::join(scales.dims, ", "), tensor);
  std::vector<std::byte> out(parts * (kPart + 1));
  for (size_t p = 0; p < parts; ++p) {
    const std::byte* in = bytes.data() + p * kPart;
    std::byte* block = out.data() + p / kParts * kParts * (kPart + 1);
    if (scales.bytes[p] >= std::byte{0x7f})
      fail_with(ErrorCode::kCorrupt, "{} has a scale that is negative or not a number", tensor);
    block[p % kParts] = scales.bytes[p];
    std::byte* to = block + kParts + p % kParts * kPart;
    auto value = [&](size_t i) { return i % 2 == 0 ? in[i / 2] & std::byte{15} : in[i / 2] >> 4; };
    for (size_t j = 0; j < kPart; ++j) to[j] = value(j) | value(j + kPart) << 4;
  }
  dims.pop_back();
  dims.back() *= dtype_info(DType::kNVFP4).block_elements;
  dtype = DType::kNVFP4;
  own(std::move(out));
}

// Moves nibbles: a block of the file format has values j and j + 16 in byte j, after its exponent.
void RecipeBytes::join_mxfp4(const RecipeStep& step) {
  RecipeBytes scales{name, from};
  scales.take(step.tensor);
  size_t rank = dims.size();
  if (rank > 1 && dims.back() == 32) return join_nvfp4(scales, step.tensor);
  constexpr size_t kBytes = 16;
  if (dtype != DType::kU8 || scales.dtype != DType::kU8 || rank < 2 ||
      dims.back() != int64_t{kBytes} ||
      !std::equal(scales.dims.begin(), scales.dims.end(), dims.begin(), dims.end() - 1))
    fail_with(ErrorCode::kCorrupt, "{}[{}] with {}[{}] of {} are not MXFP4 blocks",
              dtype_name(dtype), fmt::join(dims, ", "), dtype_name(scales.dtype),
              fmt::join(scales.dims, ", "), step.tensor);
  size_t blocks = scales.bytes.size();
  std::vector<std::byte> out(blocks * (kBytes + 1));
  for (size_t b = 0; b < blocks; ++b) {
    const std::byte* in = bytes.data() + b * kBytes;
    std::byte* to = out.data() + b * (kBytes + 1);
    auto value = [&](size_t i) { return i % 2 == 0 ? in[i / 2] & std::byte{15} : in[i / 2] >> 4; };
    *to++ = scales.bytes[b];
    for (size_t j = 0; j < kBytes; ++j) to[j] = value(j) | value(j + kBytes) << 4;
  }
  dims.pop_back();
  dims.back() *= 2 * int64_t{kBytes};
  dtype = DType::kMXFP4;
  own(std::move(out));
}

// The tensors of each matrix in turn; matrices one after the other.
void RecipeBytes::join_groups(const std::vector<std::string>& tensors, const RecipeStep& step) {
  const std::string where = "weight " + name;
  auto each = static_cast<size_t>(group_parts(step));
  if (tensors.empty() || tensors.size() % each != 0)
    fail_with(ErrorCode::kCorrupt, "{} tensors for matrices of {}", tensors.size(), each);
  std::vector<std::byte> all;
  for (size_t first = 0; first < tensors.size(); first += each) {
    std::vector<GroupPart> parts;
    for (size_t i = 0; i < each; ++i) {
      const TensorView* view = from.find(tensors[first + i]);
      if (!view) fail_with(ErrorCode::kCorrupt, "the model has no tensor {}", tensors[first + i]);
      parts.push_back({tensors[first + i], view->dtype, view->dims, view->bytes});
    }
    check_group_parts(where, step, parts);
    std::vector<std::byte> matrix = tokamak::join_groups(where, step, parts);
    if (tensors.size() == each)
      all = std::move(matrix);
    else
      all.insert(all.end(), matrix.begin(), matrix.end());
  }
  dtype = step.dtype;
  dims = {static_cast<int64_t>(tensors.size() / each) * step.dims[0], step.dims[1]};
  own(std::move(all));
}

void RecipeBytes::sort_groups(const RecipeStep& step) {
  std::vector<int32_t> columns =
      sorted_columns("weight " + name, {name, dtype, dims, bytes}, step.a);
  std::vector<std::byte> out(columns.size() * sizeof(int32_t));
  std::memcpy(out.data(), columns.data(), out.size());
  own(std::move(out));
}

void make_constant(RecipeBytes& w, const WeightEntry& entry) {
  w.dims = entry.dims;
  if (w.elements() != static_cast<int64_t>(entry.constant.size()))
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
  w.set_floats(entry.dtype, std::vector<float>(entry.constant.begin(), entry.constant.end()));
}

}  // namespace

LoadedTensor load_weight(const WeightEntry& entry, const WeightSource& source) {
  if (const PackedWeight* packed = source.packed(entry.name, entry.layout)) {
    if (packed->rows.size() != static_cast<size_t>(weight_bytes(entry)))
      fail(ErrorCode::kUnsupported,
           "weight {}: the bundle does not hold it in rows; compile it for this backend",
           entry.name);
    LoadedTensor out;
    out.view = {entry.dtype, entry.dims, packed->rows};
    return out;
  }
  RecipeBytes w{entry.name, source};
  if (entry.recipe.sources.empty())
    make_constant(w, entry);
  else
    run_recipe(entry.recipe, w);
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
