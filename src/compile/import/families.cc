#include "compile/import/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tokamak {
namespace {

const Family kFamilies[] = {
    {.architecture = "llama", .hf_names = "llama", .gguf_interleaved = true},
    {.architecture = "mistral", .hf_names = "mistral ministral", .gguf_interleaved = true},
    {.architecture = "qwen2", .hf_names = "qwen2"},
    {.architecture = "qwen3", .hf_names = "qwen3", .qk_norm = true},
    {.architecture = "gemma",
     .hf_names = "gemma",
     .activation = Activation::kGeluTanh,
     .gemma = true,
     .tied = true},
    {.architecture = "gemma2",
     .hf_names = "gemma2",
     .activation = Activation::kGeluTanh,
     .gemma = true,
     .post_norms = true,
     .tied = true},
    {.architecture = "gemma3",
     .hf_names = "gemma3 gemma3_text",
     .activation = Activation::kGeluTanh,
     .qk_norm = true,
     .gemma = true,
     .post_norms = true,
     .tied = true},
    {.architecture = "phi3", .hf_names = "phi3", .fused = true},
    {.architecture = "gpt2",
     .hf_names = "gpt2",
     .norm = NormKind::kLayer,
     .activation = Activation::kGeluTanh,
     .gated = false,
     .rotary = false,
     .fused = true,
     .tied = true},
};

void check_range(std::string_view where, std::string_view what, int64_t value, int64_t low,
                 int64_t high) {
  if (value < low || value > high)
    fail(ErrorCode::kCorrupt, "{}: {} is {}, expected {} to {}", where, what, value, low, high);
}

// Rows as counted by recipe steps: the outermost dimension.
void apply_shape(const RecipeStep& step, std::string_view where, const std::string& source,
                 DType& dtype, std::vector<int64_t>& dims) {
  using Kind = RecipeStep::Kind;
  auto refuse = [&](std::string_view why) {
    fail(ErrorCode::kCorrupt, "{}: tensor {} [{}] {}", where, source, fmt::join(dims, ", "), why);
  };
  switch (step.kind) {
    case Kind::kSliceRows:
      if (dims.empty() || step.b > dims[0]) refuse(fmt::format("has no row {}", step.b - 1));
      dims[0] = step.b - step.a;
      break;
    case Kind::kPermuteRows:
      if (dims.empty() || dims[0] % (2 * step.a) != 0)
        refuse(fmt::format("does not divide into {} heads", step.a));
      break;
    case Kind::kTranspose:
      if (dims.size() != 2) refuse("is not a matrix");
      if (is_block_type(dtype))
        fail(ErrorCode::kUnsupported, "{}: tensor {} is {}, which cannot be transposed", where,
             source, dtype_name(dtype));
      std::swap(dims[0], dims[1]);
      break;
    case Kind::kAddScalar:
    case Kind::kScale:
    case Kind::kScaleColumns:
      dtype = DType::kF32;
      break;
    case Kind::kCast:
      dtype = step.dtype;
      break;
    case Kind::kReshape:
      dims = step.dims;
      break;
    case Kind::kConcatRows:
      TK_CHECK(false, "importers use one source per weight");
  }
}

bool can_be_weight(DType dtype) {
  if (dtype == DType::kQ8_1 || dtype == DType::kQ8_K || dtype == DType::kQ8A)
    return false;  // activations
  return dtype_info(dtype).is_float || is_block_type(dtype);
}

}  // namespace

const Family* find_family(std::string_view architecture) {
  for (const Family& f : kFamilies)
    if (f.architecture == architecture) return &f;
  return nullptr;
}

const Family* find_family_hf(std::string_view model_type) {
  if (model_type.empty() || model_type.find(' ') != std::string_view::npos) return nullptr;
  for (const Family& f : kFamilies)
    if (fmt::format(" {} ", f.hf_names).find(fmt::format(" {} ", model_type)) != std::string::npos)
      return &f;
  return nullptr;
}

std::string supported_architectures() {
  std::string text;
  for (const Family& f : kFamilies)
    text += (text.empty() ? "" : ", ") + std::string(f.architecture);
  return text;
}

void apply_family(const Family& family, ModelConfig& config) {
  config.architecture = family.architecture;
  config.norm = family.norm;
  config.norm_bias = family.norm == NormKind::kLayer;
  config.activation = family.activation;
  config.gated_mlp = family.gated;
  config.learned_positions = !family.rotary;
  config.qk_norm = family.qk_norm;
  config.post_norms = family.post_norms;
  if (family.gemma) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

void check_config(const ModelConfig& c, std::string_view where) {
  check_range(where, "the number of layers", c.layers, 1, 10000);
  check_range(where, "the hidden size", c.hidden, 1, 1 << 20);
  check_range(where, "the feed-forward size", c.ffn, 1, 1 << 24);
  check_range(where, "the vocabulary size", c.vocab, 1, 1 << 24);
  check_range(where, "the number of heads", c.heads, 1, 1 << 16);
  check_range(where, "the number of key/value heads", c.kv_heads, 1, c.heads);
  check_range(where, "the head size", c.head_dim, 1, 1 << 16);
  check_range(where, "the context length", c.context, 1, int64_t{1} << 40);
  check_range(where, "the sliding window", c.sliding_window, 0, int64_t{1} << 40);
  if (c.heads % c.kv_heads != 0)
    fail(ErrorCode::kCorrupt, "{}: {} heads cannot share {} key/value heads", where, c.heads,
         c.kv_heads);
  if (!(c.norm_eps > 0 && c.norm_eps < 1))
    fail(ErrorCode::kCorrupt, "{}: the norm's epsilon is {}", where, c.norm_eps);
  for (const RopeConfig* r : {&c.rope, &c.rope_local}) {
    check_range(where, "the number of rotated dimensions", r->dims, 0, c.head_dim);
    if (r->dims % 2 != 0)
      fail(ErrorCode::kCorrupt, "{}: {} rotated dimensions, an odd number", where, r->dims);
    if (!(r->theta > 0) || !(r->factor > 0) || !std::isfinite(r->theta) ||
        !std::isfinite(r->factor))
      fail(ErrorCode::kCorrupt, "{}: rotary base {} and factor {}", where, r->theta, r->factor);
    for (const auto* list : {&r->short_factor, &r->long_factor, &r->freq_divisors}) {
      if (!list->empty() && static_cast<int64_t>(list->size()) != r->dims / 2)
        fail(ErrorCode::kCorrupt, "{}: {} rotary factors for {} rotated dimensions", where,
             list->size(), r->dims);
      for (double v : *list)
        if (!(v > 0) || !std::isfinite(v))
          fail(ErrorCode::kCorrupt, "{}: a rotary factor is {}", where, v);
    }
  }
  for (double v : {c.attention_softcap, c.final_softcap, c.attention_scale})
    if (!(v >= 0) || !std::isfinite(v))
      fail(ErrorCode::kCorrupt, "{}: a soft-cap or scale is {}", where, v);
}

std::string WeightSlot::name() const {
  return layer < 0 ? fmt::format("{}.{}", stem, suffix)
                   : fmt::format("blk.{}.{}.{}", layer, stem, suffix);
}

std::vector<WeightSlot> weight_slots(const ModelConfig& c) {
  std::vector<WeightSlot> slots;
  int64_t layer = -1;
  auto matrix = [&](const char* stem, int64_t out, int64_t in, bool bias = false) {
    slots.push_back({layer, stem, "weight", {out, in}});
    if (bias) slots.push_back({layer, stem, "bias", {out}});
  };
  auto norm = [&](const char* stem, int64_t size) {
    slots.push_back({layer, stem, "weight", {size}});
    if (c.norm_bias) slots.push_back({layer, stem, "bias", {size}});
  };
  matrix("token_embd", c.vocab, c.hidden);
  if (c.learned_positions) matrix("position_embd", c.context, c.hidden);
  for (layer = 0; layer < c.layers; ++layer) {
    norm("attn_norm", c.hidden);
    matrix("attn_q", c.heads * c.head_dim, c.hidden, c.qkv_bias);
    matrix("attn_k", c.kv_heads * c.head_dim, c.hidden, c.qkv_bias);
    matrix("attn_v", c.kv_heads * c.head_dim, c.hidden, c.qkv_bias);
    if (c.qk_norm) {
      norm("attn_q_norm", c.head_dim);
      norm("attn_k_norm", c.head_dim);
    }
    matrix("attn_output", c.hidden, c.heads * c.head_dim, c.o_bias);
    if (c.post_norms) norm("post_attention_norm", c.hidden);
    norm("ffn_norm", c.hidden);
    if (c.gated_mlp) matrix("ffn_gate", c.ffn, c.hidden, c.mlp_bias);
    matrix("ffn_up", c.ffn, c.hidden, c.mlp_bias);
    matrix("ffn_down", c.hidden, c.ffn, c.mlp_bias);
    if (c.post_norms) norm("post_ffw_norm", c.hidden);
  }
  layer = -1;
  norm("output_norm", c.hidden);
  if (!c.tied_embeddings) matrix("output", c.vocab, c.hidden);
  return slots;
}

void add_weight(ModelConfig& config, const WeightSource& file, std::string_view where,
                const WeightSlot& slot, const std::string& source, std::vector<RecipeStep> steps) {
  const TensorView* tensor = file.find(source);
  if (!tensor) fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where, source);
  if (!can_be_weight(tensor->dtype))
    fail(ErrorCode::kUnsupported, "{}: tensor {} has type {}, which cannot be a weight", where,
         source, dtype_name(tensor->dtype));
  DType dtype = tensor->dtype;
  std::vector<int64_t> dims = tensor->dims;
  for (const RecipeStep& step : steps) apply_shape(step, where, source, dtype, dims);
  if (dims != slot.dims)
    fail(ErrorCode::kCorrupt,
         "{}: tensor {} has shape [{}], which gives [{}] for {}; expected [{}]", where, source,
         fmt::join(tensor->dims, ", "), fmt::join(dims, ", "), slot.name(),
         fmt::join(slot.dims, ", "));
  if (dims.size() == 1 && dtype != DType::kF32) {
    steps.push_back({.kind = RecipeStep::Kind::kCast, .dtype = DType::kF32, .dims = {}});
    dtype = DType::kF32;
  }
  config.weights[slot.name()] = {{{source}, std::move(steps)}, dtype, std::move(dims)};
}

RecipeStep slice_rows(int64_t begin, int64_t end) {
  return {.kind = RecipeStep::Kind::kSliceRows, .a = begin, .b = end, .dims = {}};
}
RecipeStep permute_rows(int64_t heads) {
  return {.kind = RecipeStep::Kind::kPermuteRows, .a = heads, .dims = {}};
}
RecipeStep transpose() { return {.kind = RecipeStep::Kind::kTranspose, .dims = {}}; }
RecipeStep add_scalar(double value) {
  return {.kind = RecipeStep::Kind::kAddScalar, .value = value, .dims = {}};
}

FusedRows fused_rows(const ModelConfig& c, std::string_view stem) {
  int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, total = q + 2 * kv;
  if (stem == "attn_q") return {0, q, total};
  if (stem == "attn_k") return {q, q + kv, total};
  if (stem == "attn_v") return {q + kv, total, total};
  if (stem == "ffn_gate") return {0, c.ffn, 2 * c.ffn};
  TK_CHECK(stem == "ffn_up");
  return {c.ffn, 2 * c.ffn, 2 * c.ffn};
}

}  // namespace tokamak
