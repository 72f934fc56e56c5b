#include "compile/import/quantized.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/hf_fields.h"
#include "tensor/block_formats.h"
#include "tensor/group_join.h"

namespace tokamak {
namespace {

using Code = GroupFormat::Code;

constexpr const char* kMethods[] = {"gptq",         "awq",      "compressed-tensors",
                                    "fp8",          "mxfp4",    "fbgemm_fp8",
                                    "bitsandbytes", "modelopt", "bitnet"};

RecipeStep join_step(GroupPacking packing, int64_t flags, std::vector<int64_t> dims) {
  return {.kind = RecipeStep::Kind::kJoinGroups,
          .a = static_cast<int64_t>(packing),
          .b = flags,
          .dims = std::move(dims)};
}

template <class T>
T element(const TensorView& view, size_t i) {
  T v;
  std::memcpy(&v, view.bytes.data() + i * sizeof(T), sizeof(T));
  return v;
}

bool is_bits(int64_t bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 8; }

// Groups of neighbouring columns, as without act-order.
bool in_order(const TensorView& order, int64_t groups) {
  int64_t k = order.dims[0], each = k / groups;
  for (int64_t i = 0; i < k; ++i)
    if (element<int32_t>(order, static_cast<size_t>(i)) != i / each) return false;
  return true;
}

}  // namespace

QuantizedWeights::QuantizedWeights(std::initializer_list<const Value*> configs,
                                   const WeightSource& weights, std::string_view where)
    : weights_(weights), where_(where) {
  for (const Value* json : configs)
    for (const char* key : {"quantization_config", "compression_config"})
      if (const Value* q = json->find(key); q && !q->is_null() && !config_) {
        if (!q->is_object()) Fields(*json, where).wrong(key, "an object");
        config_ = q;
      }
  if (!config_) return;
  Fields f(*config_, where_);
  method_ = f.text({"quant_method"}, "");
  if (const Value* producer = config_->find("producer");
      method_.empty() && producer && producer->is_object())
    method_ = Fields(*producer, where_).text({"name"}, "");  // of some ModelOpt checkpoints
  if (std::find(std::begin(kMethods), std::end(kMethods), method_) == std::end(kMethods))
    fail(ErrorCode::kUnsupported,
         "{}: weights quantised with {} are not supported; supported: {}, or a GGUF file", where_,
         method_.empty() ? "an unnamed method" : method_, fmt::join(kMethods, ", "));
  symmetric_ = f.boolean("sym", false);
  if (method_ == "gptq" || method_ == "awq") {
    bits_ = f.integer({"bits", "w_bit"}, 4);
    config_group_ = config_->find("dynamic") ? 0 : f.integer({"group_size", "q_group_size"}, 0);
    std::string format = f.text({"checkpoint_format"}, "gptq");
    std::string version = f.text({"version"}, "gemm");
    std::transform(version.begin(), version.end(), version.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    minus_one_ = format == "gptq";
    if (method_ == "gptq" && format != "gptq" && format != "gptq_v2")
      fail(ErrorCode::kUnsupported,
           "{}: GPTQ weights in the layout {} are not supported; save them as gptq or gptq_v2",
           where_, format);
    if (method_ == "awq" && version != "gemm")
      fail(ErrorCode::kUnsupported,
           "{}: AWQ weights in the layout {} are not supported; save them as gemm", where_,
           version);
    if (!is_bits(bits_) || (method_ == "awq" && bits_ != 4))
      fail(ErrorCode::kUnsupported, "{}: {} with {} bits is not supported", where_, method_, bits_);
  }
  if (const Value* block = f.find({"weight_block_size"}); block && method_ == "fp8") {
    if (!block->is_array() || block->size() != 2 || !block->as_array()[0].is_int() ||
        !block->as_array()[1].is_int())
      f.wrong("weight_block_size", "a list of two numbers");
    block_rows_ = block->as_array()[0].as_int();
    block_columns_ = block->as_array()[1].as_int();
  }
  if (method_ == "compressed-tensors") read_compressed();
  if (method_ == "bitnet") read_bitnet();
  if (std::string kind = f.text({"quant_algo"}, "FP8");
      method_ == "modelopt" && kind != "FP8" && kind != "NVFP4" && kind != "MIXED_PRECISION")
    fail(ErrorCode::kUnsupported,
         "{}: modelopt with {} is not supported, only FP8, NVFP4 and both of them", where_, kind);
}

void QuantizedWeights::read_bitnet() {
  Fields f(*config_, where_);
  std::string kind = f.text({"linear_class"}, "bitlinear"),
              mode = f.text({"quantization_mode"}, "offline");
  online_ = mode == "online" && kind == "autobitlinear";
  bool known = (kind == "bitlinear" || kind == "autobitlinear") && (online_ || mode == "offline");
  if (const Value* left = f.find({"modules_to_not_convert"}); left && left->is_array())
    for (const Value& name : left->as_array())
      known = known && name.is_string() && name.as_string() == "lm_head";
  if (!known || f.boolean("use_rms_norm", false))
    fail(ErrorCode::kUnsupported,
         "{}: BitNet with another linear_class or quantization_mode, with use_rms_norm or with "
         "layers that are not quantised is not supported",
         where_);
}

void QuantizedWeights::read_compressed() {
  Fields f(*config_, where_);
  std::string format = f.text({"format"}, "dense");
  constexpr std::string_view kFormats[] = {
      "dense",           "pack-quantized",       "int-quantized",        "float-quantized",
      "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats))
    fail(ErrorCode::kUnsupported,
         "{}: compressed-tensors in the format {} is not supported; save it as pack-quantized, "
         "int-quantized or float-quantized",
         where_, format);
  if (const Value* sparse = config_->find("sparsity_config"); sparse && sparse->is_object())
    if (std::string kind = Fields(*sparse, where_).text({"format"}, "dense"); kind != "dense")
      fail(ErrorCode::kUnsupported, "{}: sparse weights ({}) are not supported; save them dense",
           where_, kind);
  const Value* groups = f.find({"config_groups"});
  if (!groups || !groups->is_object()) return;
  for (const auto& [name, group] : groups->as_object()) {
    const Value* weights = group.is_object() ? group.find("weights") : nullptr;
    if (!weights || !weights->is_object()) continue;
    Fields w(*weights, where_);
    if (const Value* block = w.find({"block_structure"});
        block && block->is_array() && block->size() == 2 && block->as_array()[0].is_int() &&
        block->as_array()[1].is_int()) {
      block_rows_ = block->as_array()[0].as_int();
      block_columns_ = block->as_array()[1].as_int();
    }
  }
}

bool QuantizedWeights::quantized(const std::string& module) const {
  if (!config_ || method_ == "mxfp4") return false;
  if (weights_.find(module + ".qweight") || weights_.find(module + ".weight_packed")) return true;
  const TensorView* w = weights_.find(module + ".weight");
  return w && (w->dtype == DType::kI8 || w->dtype == DType::kU8 || w->dtype == DType::kF8E4M3);
}

bool QuantizedWeights::is_side_tensor(std::string_view name) const {
  if (!config_) return false;
  for (const char* suffix : {".k_scale", ".v_scale", ".q_scale", ".input_scale", ".output_scale",
                             ".input_zero_point", ".input_scale_ub", ".weight_shape",
                             ".weight_format", ".quant_map", ".g_idx", ".weight_g_idx", ".qzeros",
                             ".weight_global_scale", ".input_global_scale", ".weight_scale_2"})
    if (name.ends_with(suffix)) return true;
  return name.find(".weight.quant_state.") != std::string_view::npos;
}

const TensorView& QuantizedWeights::need(const std::string& name) const {
  const TensorView* view = weights_.find(name);
  if (!view) fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where_, name);
  return *view;
}

const TensorView& QuantizedWeights::need_matrix(const std::string& name) const {
  const TensorView& view = need(name);
  if (view.dims.size() != 2 || view.dims[0] < 1 || view.dims[1] < 1)
    fail(ErrorCode::kCorrupt, "{}: tensor {} [{}] is not a matrix", where_, name,
         fmt::join(view.dims, ", "));
  return view;
}

int64_t QuantizedWeights::columns_per_scale(const std::string& module, int64_t k,
                                            int64_t groups) const {
  if (groups < 1 || k % groups != 0)
    fail(ErrorCode::kCorrupt, "{}: {} has {} groups of scales for {} columns", where_, module,
         groups, k);
  int64_t columns = k / groups;
  if (config_group_ > 0 && columns != config_group_ && !(groups == 1 && config_group_ > k))
    fail(ErrorCode::kCorrupt, "{}: {} has scales for groups of {} columns, config.json says {}",
         where_, module, columns, config_group_);
  return columns;
}

int QuantizedWeights::group_size(const std::string& module, int64_t k, int64_t columns) const {
  for (int size : {128, 64, 32})
    if (k % size == 0 && columns % size == 0) return size;
  fail(ErrorCode::kUnsupported,
       "{}: {} has rows of {} values in groups of {}; groups must be multiples of 32", where_,
       module, k, columns);
}

bool QuantizedWeights::needs_f32(const std::string& scales) const {
  const TensorView& view = need(scales);
  if (view.dtype == DType::kF16) return false;
  if (view.dtype != DType::kBF16 && view.dtype != DType::kF32) return true;  // refused later
  constexpr int64_t kPart = 4096;
  float values[kPart];
  for (int64_t i = 0, n = view.elements(); i < n; i += kPart) {
    int64_t count = std::min(kPart, n - i);
    decode_row(view.dtype, view.bytes.data() + dtype_bytes(view.dtype, i), values, count);
    for (int64_t j = 0; j < count; ++j)
      if (!(f16_to_f32(f32_to_f16(values[j])) == values[j])) return true;
  }
  return false;
}

void QuantizedWeights::add_order(Found& found, const std::string& tensor, int64_t groups) const {
  const TensorView* order = weights_.find(tensor);
  if (!order) return;
  sorted_columns(where_, {tensor, order->dtype, order->dims, order->bytes}, groups);
  if (order->dims[0] != found.step.dims[1])
    fail(ErrorCode::kCorrupt, "{}: tensor {} has {} columns, expected {}", where_, tensor,
         order->dims[0], found.step.dims[1]);
  if (in_order(*order, groups)) return;
  found.step.b |= kGroupOrder;
  found.sources.push_back(tensor);
}

QuantizedWeights::Found QuantizedWeights::gptq(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".qweight");
  const TensorView& scales = need_matrix(module + ".scales");
  const TensorView* order = weights_.find(module + ".g_idx");
  int64_t words = codes.dims[0], n = codes.dims[1], groups = scales.dims[0];
  // Layers may have widths of their own (dynamic): the columns are known from g_idx.
  int64_t k = order && order->dims.size() == 1 ? order->dims[0] : words * 32 / bits_;
  int64_t bits = k > 0 ? words * 32 / k : 0;
  if (!is_bits(bits) || bits * k != words * 32)
    fail(ErrorCode::kCorrupt, "{}: {} has {} words for {} columns, which is not 2, 3, 4 or 8 bits",
         where_, module, words, k);
  if (!order && Fields(*config_, where_).boolean("desc_act", false) && groups > 1)
    fail(ErrorCode::kCorrupt, "{}: tensor {}.g_idx is missing (desc_act)", where_, module);
  int64_t columns = columns_per_scale(module, k, groups);
  Found found;
  found.format = {Code::kInt, static_cast<int>(bits), group_size(module, k, columns),
                  needs_f32(module + ".scales")};
  found.step = join_step(GroupPacking::kGptq, kGroupZeros, {n, k, 1, columns});
  found.sources = {module + ".qweight", module + ".scales", module + ".qzeros"};
  // Some writers store the zeros of v2 and name v1; with symmetric codes the first one tells.
  const TensorView& zeros = need_matrix(module + ".qzeros");
  bool minus_one = minus_one_;
  if (symmetric_ && zeros.dtype == DType::kI32 && zeros.bytes.size() >= 4) {
    uint32_t first = element<uint32_t>(zeros, 0) & ((1u << bits) - 1), middle = 1u << (bits - 1);
    if (first == middle) minus_one = false;
    if (first == middle - 1) minus_one = true;
  }
  if (minus_one) found.step.b |= kGroupZerosLess1;
  add_order(found, module + ".g_idx", groups);
  return found;
}

QuantizedWeights::Found QuantizedWeights::awq(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".qweight");
  int64_t k = codes.dims[0], n = codes.dims[1] * 8;
  int64_t columns = columns_per_scale(module, k, need_matrix(module + ".scales").dims[0]);
  Found found;
  found.format = {Code::kInt, 4, group_size(module, k, columns), needs_f32(module + ".scales")};
  found.step = join_step(GroupPacking::kAwq, 0, {n, k, 1, columns});
  found.sources = {module + ".qweight", module + ".scales"};
  if (weights_.find(module + ".qzeros")) {
    found.step.b = kGroupZeros;
    found.sources.push_back(module + ".qzeros");
  }
  return found;
}

QuantizedWeights::Found QuantizedWeights::packed(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".weight_packed");
  const TensorView& scales = need_matrix(module + ".weight_scale");
  const TensorView& shape = need(module + ".weight_shape");
  if ((shape.dtype != DType::kI64 && shape.dtype != DType::kI32) || shape.elements() != 2)
    fail(ErrorCode::kCorrupt, "{}: tensor {}.weight_shape is not two integers", where_, module);
  auto extent = [&](size_t i) {
    return shape.dtype == DType::kI64 ? element<int64_t>(shape, i) : element<int32_t>(shape, i);
  };
  int64_t n = extent(0), k = extent(1), words = codes.dims[1];
  if (n != codes.dims[0] || k < 1 || k > INT32_MAX)
    fail(ErrorCode::kCorrupt, "{}: {} is [{}, {}], but has {} packed rows", where_, module, n, k,
         codes.dims[0]);
  int64_t bits = words * 32 / k;
  if (!is_bits(bits) || bits * k != words * 32)
    fail(ErrorCode::kUnsupported,
         "{}: {} packs {} columns into {} words; 2, 3, 4 or 8 bits are "
         "supported",
         where_, module, k, words);
  int64_t columns = columns_per_scale(module, k, scales.dims[1]);
  Found found;
  found.format = {Code::kInt, static_cast<int>(bits), group_size(module, k, columns),
                  needs_f32(module + ".weight_scale")};
  found.step = join_step(GroupPacking::kRows, 0, {n, k, 1, columns});
  found.sources = {module + ".weight_packed", module + ".weight_scale"};
  if (weights_.find(module + ".weight_zero_point")) {
    found.step.b = kGroupZeros;
    found.sources.push_back(module + ".weight_zero_point");
  }
  add_order(found, module + ".weight_g_idx", scales.dims[1]);
  return found;
}

QuantizedWeights::Found QuantizedWeights::mxfp4(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".weight_packed");
  if (const TensorView* whole = weights_.find(module + ".weight_global_scale"))
    return nvfp4(module, *whole);
  const TensorView& scales = need_matrix(module + ".weight_scale");
  int64_t n = codes.dims[0], k = codes.dims[1] * 2;
  if (k % 32 != 0 || scales.dims != std::vector<int64_t>{n, k / 32} || scales.dtype != DType::kU8)
    fail(ErrorCode::kCorrupt, "{}: tensor {}.weight_scale is {}[{}], expected u8[{}, {}]", where_,
         module, dtype_name(scales.dtype), fmt::join(scales.dims, ", "), n, k / 32);
  Found found;
  found.joined = 32;
  found.step = {
      .kind = RecipeStep::Kind::kJoinMxfp4, .dims = {n, k}, .tensor = module + ".weight_scale"};
  found.sources = {module + ".weight_packed"};
  return found;
}

// Codes as in MXFP4; a scale in fp8 for every 16 columns, divided by one of the whole matrix.
QuantizedWeights::Found QuantizedWeights::nvfp4(const std::string& module,
                                                const TensorView& whole) const {
  // ModelOpt has other names, and the number by which the others divide.
  const bool modelopt = method_ == "modelopt";
  const std::string packed_name = module + (modelopt ? ".weight" : ".weight_packed"),
                    whole_name = module + (modelopt ? ".weight_scale_2" : ".weight_global_scale");
  const TensorView &codes = need_matrix(packed_name),
                   &scales = need_matrix(module + ".weight_scale");
  int64_t n = codes.dims[0], k = codes.dims[1] * 2;
  if (k % 64 != 0)
    fail(ErrorCode::kUnsupported, "{}: {} is NVFP4 with {} columns, which are not a multiple of 64",
         where_, module, k);
  if (scales.dims != std::vector<int64_t>{n, k / 16} || scales.dtype != DType::kF8E4M3)
    fail(ErrorCode::kCorrupt, "{}: tensor {}.weight_scale is {}[{}], expected f8e4m3[{}, {}]",
         where_, module, dtype_name(scales.dtype), fmt::join(scales.dims, ", "), n, k / 16);
  float all = 0;
  if (whole.dtype != DType::kF32 || whole.elements() != 1 || whole.bytes.size() != sizeof all)
    fail(ErrorCode::kCorrupt, "{}: tensor {} is not one f32", where_, whole_name);
  std::memcpy(&all, whole.bytes.data(), sizeof all);
  if (!std::isfinite(all) || !(all > 0))
    fail(ErrorCode::kCorrupt, "{}: {} is {}", where_, whole_name, all);
  Found found;
  found.joined = 64;
  found.factor = modelopt ? double{all} : 1.0 / double{all};
  found.step = {
      .kind = RecipeStep::Kind::kJoinMxfp4, .dims = {n, k}, .tensor = module + ".weight_scale"};
  found.sources = {packed_name};
  return found;
}

// int8 or fp8 with a scale per tensor, row, group or block.
QuantizedWeights::Found QuantizedWeights::plain(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".weight");
  int64_t n = codes.dims[0], k = codes.dims[1];
  bool f8 = codes.dtype == DType::kF8E4M3;
  std::string scale = module + ".weight_scale";
  if (weights_.find(module + ".weight_scale_inv")) scale = module + ".weight_scale_inv";
  if (weights_.find(module + ".SCB")) scale = module + ".SCB";
  const TensorView& scales = need(scale);
  int64_t count = scales.elements(), rows = 1, columns = k;
  if (block_rows_ > 0 && block_columns_ > 0) {
    rows = block_rows_;
    columns = std::min(block_columns_, k);
    std::vector<int64_t> expected = {(n + rows - 1) / rows, (k + columns - 1) / columns};
    if (scales.dims.size() == 2 && scales.dims != expected)
      fail(ErrorCode::kCorrupt, "{}: tensor {} is [{}], expected [{}] for blocks of {} x {}",
           where_, scale, fmt::join(scales.dims, ", "), fmt::join(expected, ", "), rows, columns);
  } else if (count == 1) {
    rows = n;
  } else if (count != n) {  // groups of a row
    if (scales.dims.size() != 2 || scales.dims[0] != n)
      fail(ErrorCode::kCorrupt, "{}: tensor {} [{}] does not fit {}.weight [{}, {}]", where_, scale,
           fmt::join(scales.dims, ", "), module, n, k);
    columns = columns_per_scale(module, k, scales.dims[1]);
  }
  Found found;
  found.format = {f8 ? Code::kF8 : Code::kInt, 8, group_size(module, k, columns < k ? columns : k),
                  f8 || needs_f32(scale)};
  found.step = join_step(GroupPacking::kPlain, 0, {n, k, rows, columns});
  found.sources = {module + ".weight", scale};
  if (scale.ends_with(".SCB")) {
    found.step.value = 1.0 / 127;
    found.format.wide = true;
  }
  if (!f8 && weights_.find(module + ".weight_zero_point")) {
    found.step.b = kGroupZeros;
    found.sources.push_back(module + ".weight_zero_point");
  }
  return found;
}

// bitsandbytes: quant_state is JSON in a tensor of bytes.
QuantizedWeights::Found QuantizedWeights::nf4(const std::string& module) const {
  const std::string weight = module + ".weight";
  if (weights_.find(weight + ".quant_state.bitsandbytes__fp4"))
    fail(ErrorCode::kUnsupported, "{}: {} is bitsandbytes FP4; NF4 is supported", where_, module);
  const TensorView& state = need(weight + ".quant_state.bitsandbytes__nf4");
  Value json = parse_json({reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size()},
                          weight + ".quant_state", {.max_depth = 8});
  Fields f(json, where_);
  const Value* shape = f.find({"shape"});
  int64_t block = f.integer({"blocksize"}, 0);
  if (!shape || !shape->is_array() || shape->size() != 2 || !shape->as_array()[0].is_int() ||
      !shape->as_array()[1].is_int() || block < 1)
    fail(ErrorCode::kCorrupt, "{}: {}.quant_state has no shape or blocksize", where_, weight);
  int64_t n = shape->as_array()[0].as_int(), k = shape->as_array()[1].as_int();
  if (n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX)
    fail(ErrorCode::kCorrupt, "{}: {}.quant_state has shape [{}, {}]", where_, weight, n, k);
  Found found;
  found.format = {Code::kNF4, 4, group_size(module, k, block), true};
  found.step = join_step(GroupPacking::kNf4, 0, {n, k, 1, block});
  found.sources = {weight, weight + ".absmax"};
  if (weights_.find(weight + ".nested_absmax")) {
    found.step.b = kGroupNested;
    found.step.dims.push_back(f.integer({"nested_blocksize"}, 256));
    found.step.value = f.number({"nested_offset"}, 0);
    found.sources.push_back(weight + ".nested_absmax");
    found.sources.push_back(weight + ".nested_quant_map");
  }
  return found;
}

// Codes of four rows in a byte, and one scale: BitLinear divides by it.
QuantizedWeights::Found QuantizedWeights::ternary(const std::string& module) const {
  const TensorView& codes = need_matrix(module + ".weight");
  int64_t n = codes.dims[0] * 4, k = codes.dims[1];
  Found found{.step = join_step(GroupPacking::kTernary, 0, {n, k, n, k}),
              .format = {Code::kInt, 2, group_size(module, k, k), true},
              .sources = {module + ".weight", module + ".weight_scale"}};
  found.step.value =
      Fields(*config_, where_).text({"linear_class"}, "bitlinear") == "autobitlinear" ? 0 : 1;
  return found;
}

QuantizedWeights::Found QuantizedWeights::find(const std::string& module) const {
  if (weights_.find(module + ".qweight")) return method_ == "awq" ? awq(module) : gptq(module);
  if (const TensorView* packed_codes = weights_.find(module + ".weight_packed"))
    return packed_codes->dtype == DType::kU8 ? mxfp4(module) : packed(module);
  if (need(module + ".weight").dtype != DType::kU8) return plain(module);
  if (method_ == "bitnet") return ternary(module);
  return method_ == "modelopt" ? nvfp4(module, need(module + ".weight_scale_2")) : nf4(module);
}

void QuantizedWeights::check_parts(const Found& found) const {
  std::vector<GroupPart> parts;
  for (const std::string& name : found.sources) {
    const TensorView& view = need(name);
    parts.push_back({name, view.dtype, view.dims, view.bytes});
  }
  check_group_parts(where_, found.step, parts);
}

QuantizedWeights::Matrix QuantizedWeights::matrix(const std::vector<std::string>& modules) const {
  std::vector<Found> all;
  bool wide = false;
  for (const std::string& module : modules) {
    all.push_back(find(module));
    wide = wide || all.back().format.wide;
  }
  Matrix out;
  const RecipeStep& first = all[0].step;
  out.columns = first.dims[1];
  if (all[0].joined > 0) {
    if (all.size() > 1)
      fail(ErrorCode::kUnsupported, "{}: experts in {}, a tensor each, are not supported yet",
           where_, all[0].joined == 32 ? "MXFP4" : "NVFP4");
    out.sources = all[0].sources;
    out.rows = first.dims[0];
    int64_t block = all[0].joined;
    out.factor = all[0].factor;
    out.steps = {reshape({out.rows, out.columns / block, block / 2}), first};
    out.steps[1].dims.clear();
    return out;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    Found& found = all[i];
    found.format.wide = wide;
    found.step.dtype = group_dtype(found.format);
    check_parts(found);
    if (i > 0 && found.step != first)
      fail(ErrorCode::kUnsupported, "{}: {} and {} are quantised differently", where_, modules[0],
           modules[i]);
    out.rows += found.step.dims[0];
    out.sources.insert(out.sources.end(), found.sources.begin(), found.sources.end());
  }
  out.steps = {first};
  if (first.b & kGroupOrder) {
    out.order = all[0].sources.back();
    out.groups = out.columns / first.dims[3];
  }
  return out;
}

}  // namespace tokamak
