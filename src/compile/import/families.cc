#include "compile/import/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tensor/group_formats.h"
#include "tensor/group_join.h"

namespace tokamak {
namespace {

void check_range(std::string_view where, std::string_view what, int64_t value, int64_t low,
                 int64_t high) {
  if (value < low || value > high)
    fail(ErrorCode::kCorrupt, "{}: {} is {}, expected {} to {}", where, what, value, low, high);
}

void check_experts(const ExpertConfig& e, std::string_view where) {
  check_range(where, "the number of experts", e.count, 1, 1 << 16);
  check_range(where, "the number of experts per token", e.used, 1, e.count);
  check_range(where, "the feed-forward size of an expert", e.ffn, 1, 1 << 24);
  check_range(where, "the feed-forward size of the shared expert", e.shared_ffn, 0, 1 << 24);
  check_range(where, "the number of groups of experts", e.groups, 1, e.count);
  check_range(where, "the number of groups per token", e.used_groups, 1, e.groups);
  if (e.count % e.groups != 0 || e.count / e.groups * e.used_groups < e.used)
    fail(ErrorCode::kCorrupt, "{}: {} of {} experts cannot be in {} of {} groups", where, e.used,
         e.count, e.used_groups, e.groups);
  if (!(e.scale > 0) || !std::isfinite(e.scale))
    fail(ErrorCode::kCorrupt,
         "{}: the scale of the experts' weights is {}, expected a positive number", where, e.scale);
}

void check_recurrent(const RecurrentConfig& r, std::string_view where) {
  check_range(where, "the number of state space heads", r.heads, 1, 1 << 16);
  check_range(where, "the channels of a head", r.head_dim, 1, 1 << 16);
  check_range(where, "the state size", r.state, r.short_conv ? 0 : 1, 1 << 16);
  check_range(where, "the number of groups of heads", r.groups, 1, r.heads);
  check_range(where, "the size of the convolution", r.taps, 2, 64);
  check_range(where, "the rank of the time steps", r.step_rank, 0, 1 << 16);
  if (r.heads % r.groups != 0)
    fail(ErrorCode::kCorrupt, "{}: {} state space heads do not divide into {} groups", where,
         r.heads, r.groups);
  if (!(r.step_low >= 0) || !(r.step_high >= 0) || !std::isfinite(r.step_high))
    fail(ErrorCode::kCorrupt, "{}: the limits of time steps, {} and {}, are not valid", where,
         r.step_low, r.step_high);
}

void check_altup(const ModelConfig& c, std::string_view where) {
  const AltUpConfig& a = c.altup;
  check_range(where, "the number of copies of the residual stream", a.copies, 2, 64);
  check_range(where, "the active copy", a.active, 0, a.copies - 1);
  check_range(where, "the size of a layer's embedding", a.width, 1, 1 << 16);
  check_range(where, "the vocabulary of the layers' embeddings", a.vocab, 1, c.vocab);
  check_range(where, "the rank of the path beside attention", a.rank, 1, 1 << 16);
  if (std::ssize(a.sparsity) != c.layers)
    fail(ErrorCode::kCorrupt, "{}: {} sparsities for {} layers, expected one for each", where,
         a.sparsity.size(), c.layers);
  for (double s : a.sparsity)
    if (std::isnan(s) || s == INFINITY)
      fail(ErrorCode::kCorrupt, "{}: a layer's sparsity is {}, expected a finite number", where, s);
}

void check_layers(const ModelConfig& c, std::string_view where) {
  check_range(where, "the size of a layer's embedding", c.altup.width, 0, 1 << 16);
  check_range(where, "the head size without a window", c.full_head_dim, 0, 1 << 16);
  check_range(where, "the number of key/value heads without a window", c.full_kv_heads, 0, c.heads);
  check_range(where, "the number of layers that share keys and values", c.shared_kv_layers, 0,
              c.layers - 1);
  for (int64_t l = 0; l < c.layers; ++l)
    if (c.kv_layer(l) < 0)
      fail(ErrorCode::kCorrupt,
           "{}: layer {} shares keys and values, but no layer of its kind has any", where, l);
  if (c.full_kv_heads > 0 && c.heads % c.full_kv_heads != 0)
    fail(ErrorCode::kCorrupt, "{}: {} heads cannot share {} key/value heads", where, c.heads,
         c.full_kv_heads);
}

void check_rope(const ModelConfig& c, std::string_view where) {
  for (const RopeConfig* r : {&c.rope, &c.rope_local}) {
    check_range(where, "the number of rotated dimensions", r->dims, 0,
                std::max(c.head_dim, c.full_head_dim));
    if (r->dims % 2 != 0)
      fail(ErrorCode::kCorrupt, "{}: {} rotated dimensions, expected an even number", where,
           r->dims);
    if (!(r->theta > 0) || !(r->factor > 0) || !std::isfinite(r->theta) ||
        !std::isfinite(r->factor))
      fail(ErrorCode::kCorrupt, "{}: the rotary base {} and factor {} must be positive numbers",
           where, r->theta, r->factor);
    for (const auto* list : {&r->short_factor, &r->long_factor, &r->freq_divisors}) {
      if (!list->empty() && static_cast<int64_t>(list->size()) != r->dims / 2)
        fail(ErrorCode::kCorrupt, "{}: {} rotary factors for {} rotated dimensions", where,
             list->size(), r->dims);
      for (double v : *list)
        if (!(v > 0) || !std::isfinite(v))
          fail(ErrorCode::kCorrupt, "{}: a rotary factor is {}, expected a positive number", where,
               v);
    }
  }
}

int64_t product_of(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
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
      if (!step.dims.empty() && dims[0] % step.dims[0] != 0)
        refuse(fmt::format("does not divide into parts of {} rows", step.dims[0]));
      dims[0] = step.dims.empty() ? step.b - step.a : dims[0] / step.dims[0] * (step.b - step.a);
      break;
    case Kind::kPermuteRows:
      if (dims.empty() || dims[0] % (2 * step.a) != 0 || step.b > dims[0] / step.a)
        refuse(fmt::format("does not divide into {} heads", step.a));
      break;
    case Kind::kTranspose:
      if (dims.size() != 2 && dims.size() != 3) refuse("is not a matrix");
      if (auto group = group_format(dtype);
          is_block_type(dtype) && !(group && group->code == GroupFormat::Code::kF8 &&
                                    dims[dims.size() - 2] % group->group == 0))
        fail(ErrorCode::kUnsupported, "{}: tensor {} is {}, which cannot be transposed", where,
             source, dtype_name(dtype));
      std::swap(dims[dims.size() - 2], dims.back());
      break;
    case Kind::kAddScalar:
    case Kind::kScale:
    case Kind::kScaleColumns:
    case Kind::kUnitRows:
    case Kind::kTernary:
      dtype = DType::kF32;
      break;
    case Kind::kCast:
      dtype = step.dtype;
      break;
    case Kind::kJoinMxfp4:
      if (dims.size() < 2 || (dims.back() != 16 && dims.back() != 32))
        refuse("does not hold MXFP4 or NVFP4 blocks");
      dtype = dims.back() == 16 ? DType::kMXFP4 : DType::kNVFP4;
      dims.pop_back();
      dims.back() *= dtype_info(dtype).block_elements;
      break;
    case Kind::kReshape:
      if (product_of(dims) != product_of(step.dims))
        refuse(fmt::format("is not [{}]", fmt::join(step.dims, ", ")));
      dims = step.dims;
      break;
    case Kind::kConcatRows:  // the first step, done by source_shape()
    case Kind::kJoinGroups:
    case Kind::kSortGroups:
      break;
  }
}

bool can_be_weight(DType dtype) {
  if (dtype == DType::kQ8_1 || dtype == DType::kQ8_K || dtype == DType::kQ8A)
    return false;  // activations
  return dtype_info(dtype).is_float || is_block_type(dtype);
}

}  // namespace

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
    fail(ErrorCode::kCorrupt, "{}: the norm's epsilon is {}, expected a number between 0 and 1",
         where, c.norm_eps);
  check_rope(c, where);
  for (double v : {c.attention_softcap, c.final_softcap, c.attention_scale, c.clip_qkv})
    if (!(v >= 0) || !std::isfinite(v))
      fail(ErrorCode::kCorrupt, "{}: a soft-cap or scale is {}, expected 0 or a positive number",
           where, v);
  for (double v : {c.embedding_scale, c.residual_scale, c.logit_scale})
    if (!(v > 0) || !std::isfinite(v))
      fail(ErrorCode::kCorrupt, "{}: a scale is {}, expected a positive number", where, v);
  if (c.temperature_scale != 0)
    check_range(where, "the length that scales queries", c.temperature_length, 1, int64_t{1} << 40);
  if (!std::isfinite(c.temperature_scale))
    fail(ErrorCode::kCorrupt, "{}: queries are scaled by {}, expected a finite number", where,
         c.temperature_scale);
  if (!c.xielu.empty() && std::ssize(c.xielu) != c.layers)
    fail(ErrorCode::kCorrupt, "{}: {} activations for {} layers, expected one for each", where,
         c.xielu.size(), c.layers);
  if (c.altup.copies > 0) check_altup(c, where);
  check_layers(c, where);
  if (c.experts.count > 0) check_experts(c.experts, where);
  if (c.recurrent.heads > 0) check_recurrent(c.recurrent, where);
  if (const LatentConfig& m = c.latent; m.rank > 0) {
    check_range(where, "the rank of the latent vector", m.rank, 1, 1 << 16);
    check_range(where, "the rank of the query vector", m.q_rank, 0, 1 << 16);
    check_range(where, "the unrotated part of a head", m.nope, 1, 1 << 16);
    check_range(where, "the rotated part of a head", m.rope, 2, 1 << 16);
    check_range(where, "the value size of a head", m.value, 1, 1 << 16);
  }
}

std::string WeightSlot::name() const {
  return layer < 0 ? fmt::format("{}.{}", stem, suffix)
                   : fmt::format("blk.{}.{}.{}", layer, stem, suffix);
}

std::string dense_stem(size_t index) { return fmt::format("dense_{}", index + 2); }

namespace {

// Collects the slots of one configuration, layer by layer.
class SlotList {
 public:
  explicit SlotList(const ModelConfig& config) : c_(config) {}
  std::vector<WeightSlot> make() {
    matrix("token_embd", c_.vocab, c_.hidden);
    if (c_.embedding_norm) norm("token_embd_norm", c_.hidden);
    if (c_.learned_positions) matrix("position_embd", c_.context, c_.hidden);
    if (c_.altup.width > 0) layer_embeddings();
    if (c_.altup.copies > 0) altup();
    for (layer_ = 0; layer_ < c_.layers; ++layer_) {
      if (c_.only_mlp(layer_))
        norm("attn_norm", c_.hidden);
      else if (c_.recurrent.at(layer_) && !c_.recurrent.beside)
        recurrent();
      else
        attention();
      if (c_.recurrent.beside) state_space();
      if (c_.alone && !c_.only_mlp(layer_)) continue;
      bool routed = c_.experts.count > 0 && c_.experts.layers[static_cast<size_t>(layer_)];
      if (routed) experts();
      if (!routed || c_.experts.beside_mlp) mlp();
      if (c_.post_norms) norm("post_ffw_norm", c_.hidden);
      if (c_.altup.width > 0) layer_embedding();
      if (c_.altup.copies > 0) altup_layer();
      if (c_.layer_scales) slots_.push_back({layer_, "layer_output_scale", "weight", {1}});
    }
    layer_ = -1;
    norm("output_norm", c_.hidden);
    if (!c_.tied_embeddings) matrix("output", c_.vocab, c_.hidden, c_.output_bias);
    for (size_t i = 0; i < c_.dense.size(); ++i)
      matrix(dense_stem(i), c_.dense[i], i == 0 ? c_.hidden : c_.dense[i - 1]);
    return std::move(slots_);
  }

 private:
  void matrix(const std::string& stem, int64_t out, int64_t in, bool bias = false) {
    slots_.push_back({layer_, stem, "weight", {out, in}});
    if (bias) slots_.push_back({layer_, stem, "bias", {out}});
  }
  void norm(const char* stem, int64_t size) {
    if (c_.unit_norms) return;
    slots_.push_back({layer_, stem, "weight", {size}});
    if (c_.norm_bias) slots_.push_back({layer_, stem, "bias", {size}});
  }
  void latent_attention() {
    const LatentConfig& m = c_.latent;
    norm("attn_norm", c_.hidden);
    int64_t in = m.q_rank > 0 ? m.q_rank : c_.hidden;
    if (m.q_rank > 0) {
      matrix("attn_q_a", m.q_rank, c_.hidden);
      norm("attn_q_a_norm", m.q_rank);
    }
    matrix("attn_q_nope", c_.heads * m.nope, in);
    matrix("attn_q_pe", c_.heads * m.rope, in);
    matrix("attn_kv_c", m.rank, c_.hidden);
    norm("attn_kv_a_norm", m.rank);
    matrix("attn_k_pe", m.rope, c_.hidden);
    slots_.push_back({layer_, "attn_k_b", "weight", {c_.heads, m.rank, m.nope}});
    slots_.push_back({layer_, "attn_v_b", "weight", {c_.heads, m.value, m.rank}});
    matrix("attn_output", c_.hidden, c_.heads * m.value);
    norm("ffn_norm", c_.hidden);
  }
  void attention() {
    if (c_.latent.rank > 0) return latent_attention();
    int64_t head = c_.head_dim_at(layer_);
    int64_t q = c_.heads * head, kv = c_.kv_heads_at(layer_) * head;
    if (c_.pre_norms) norm("attn_norm", c_.hidden);
    matrix("attn_q", q, c_.hidden, c_.qkv_bias);
    if (c_.attention_gate) matrix("attn_gate", q, c_.hidden);
    bool own_keys = !c_.shares_kv(layer_) || c_.shared_kv_weights;
    if (own_keys) matrix("attn_k", kv, c_.hidden, c_.qkv_bias);
    bool own_values = own_keys && !(c_.keys_are_values && !c_.windowed(layer_));
    if (own_values) matrix("attn_v", kv, c_.hidden, c_.qkv_bias);
    if (c_.qk_norm || c_.wide_qk_norm) {
      if (c_.head_qk_norm) {  // without biases
        slots_.push_back({layer_, "attn_q_norm", "weight", {q}});
        slots_.push_back({layer_, "attn_k_norm", "weight", {kv}});
      } else {
        norm("attn_q_norm", c_.wide_qk_norm ? q : head);
        if (own_keys) norm("attn_k_norm", c_.wide_qk_norm ? kv : head);
      }
    }
    if (c_.sub_norms) norm("attn_sub_norm", q);
    matrix("attn_output", c_.hidden, q, c_.o_bias);
    if (c_.attention_sinks) slots_.push_back({layer_, "attn_sinks", "weight", {c_.heads}});
    if (c_.post_norms) norm("post_attention_norm", c_.hidden);
    if (c_.pre_norms && !c_.alone && (!c_.parallel || c_.two_norms)) norm("ffn_norm", c_.hidden);
  }
  void layer_embeddings() {
    const AltUpConfig& a = c_.altup;
    matrix("per_layer_token_embd", a.vocab, c_.layers * a.width);
    matrix("per_layer_model_proj", c_.layers * a.width, c_.hidden);
    norm("per_layer_proj_norm", a.width);
  }
  void layer_embedding() {
    matrix("inp_gate", c_.altup.width, c_.hidden);
    matrix("proj", c_.hidden, c_.altup.width);
    norm("post_norm", c_.hidden);
  }
  void altup() {
    const AltUpConfig& a = c_.altup;
    for (const char* stem : {"altup_proj", "altup_unembd_proj"})
      for (int64_t i = 0; i + 1 < a.copies; ++i)
        matrix(fmt::format("{}_{}", stem, i), c_.hidden, c_.hidden);
  }
  void altup_layer() {
    const AltUpConfig& a = c_.altup;
    matrix("altup_correct_coef", a.copies, a.copies);
    norm("altup_correct_scale", c_.hidden);
    matrix("altup_predict_coef", a.copies * a.copies, a.copies);
    matrix("altup_router", a.copies, c_.hidden);
    norm("altup_router_norm", c_.hidden);
    matrix("laurel_l", a.rank, c_.hidden);
    matrix("laurel_r", c_.hidden, a.rank);
    norm("laurel_post_norm", c_.hidden);
  }
  void recurrent() {
    const RecurrentConfig& r = c_.recurrent;
    norm("attn_norm", c_.hidden);
    if (r.short_conv) return short_conv();
    state_space();
    if (!c_.alone) norm("ffn_norm", c_.hidden);
  }
  // Mamba: steps and vectors are computed from what the convolution gives.
  void channel_space() {
    const RecurrentConfig& r = c_.recurrent;
    int64_t inner = r.inner(), rank = r.step_rank;
    matrix("ssm_gate", inner, c_.hidden);
    matrix("ssm_in", inner, c_.hidden);
    slots_.push_back({layer_, "ssm_conv1d", "weight", {inner, r.taps}});
    if (r.conv_bias) slots_.push_back({layer_, "ssm_conv1d", "bias", {inner}});
    matrix("ssm_x", rank + 2 * r.state, inner);
    matrix("ssm_dt", inner, rank, true);
    if (r.step_norms && !r.unit_step_norms)
      for (const auto& [stem, size] :
           {std::pair("ssm_dt_norm", rank), {"ssm_b_norm", r.state}, {"ssm_c_norm", r.state}})
        norm(stem, size);
    slots_.push_back({layer_, "ssm_a", "weight", {inner, r.state}});
    slots_.push_back({layer_, "ssm_d", "weight", {inner}});
    matrix("ssm_out", c_.hidden, inner);
  }
  void state_space() {
    const RecurrentConfig& r = c_.recurrent;
    if (r.step_rank > 0) return channel_space();
    matrix("ssm_gate", r.inner(), c_.hidden);
    if (r.delta) {
      matrix("ssm_q", r.groups * r.state, c_.hidden);
      matrix("ssm_k", r.groups * r.state, c_.hidden);
      matrix("ssm_v", r.inner(), c_.hidden);
      matrix("ssm_rate", r.heads, c_.hidden);
    } else {
      matrix("ssm_xbc", r.channels(), c_.hidden);
    }
    matrix("ssm_step", r.heads, c_.hidden);
    slots_.push_back({layer_, "ssm_conv1d", "weight", {r.channels(), r.taps}});
    if (r.conv_bias) slots_.push_back({layer_, "ssm_conv1d", "bias", {r.channels()}});
    slots_.push_back({layer_, "ssm_dt", "bias", {r.heads}});
    slots_.push_back({layer_, "ssm_a", "weight", {r.heads}});
    if (!r.delta) slots_.push_back({layer_, "ssm_d", "weight", {r.heads}});
    if (r.norm_groups > 0) norm("ssm_norm", r.delta ? r.head_dim : r.inner());
    matrix("ssm_out", c_.hidden, r.inner());
  }
  void short_conv() {
    for (const char* stem : {"ssm_b", "ssm_c", "ssm_x", "ssm_out"})
      matrix(stem, c_.hidden, c_.hidden);
    slots_.push_back({layer_, "ssm_conv1d", "weight", {c_.hidden, c_.recurrent.taps}});
    norm("ffn_norm", c_.hidden);
  }
  void mlp() {
    int64_t ffn = c_.ffn_at(layer_);
    if (c_.gated_mlp) matrix("ffn_gate", ffn, c_.hidden, c_.mlp_bias);
    matrix("ffn_up", ffn, c_.hidden, c_.mlp_bias);
    if (c_.sub_norms) norm("ffn_sub_norm", ffn);
    matrix("ffn_down", c_.hidden, ffn, c_.mlp_bias);
  }
  void experts() {
    const ExpertConfig& e = c_.experts;
    matrix("ffn_gate_inp", e.count, c_.hidden, e.bias);
    if (e.score_bias) slots_.push_back({layer_, "exp_probs_b", "bias", {e.count}});
    if (e.beside_mlp) {
      slots_.push_back({layer_, "ffn_gate_inp", "scale", {c_.hidden}});
      slots_.push_back({layer_, "ffn_down_exps", "scale", {e.count}});
      for (const char* stem : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"})
        norm(stem, c_.hidden);
    }
    for (const char* stem : {"ffn_gate_exps", "ffn_up_exps"})
      if (c_.gated_mlp || stem != std::string_view("ffn_gate_exps"))
        slots_.push_back({layer_, stem, "weight", {e.count, e.ffn, c_.hidden}});
    slots_.push_back({layer_, "ffn_down_exps", "weight", {e.count, c_.hidden, e.ffn}});
    if (e.bias) {
      for (const char* stem : {"ffn_gate_exps", "ffn_up_exps"})
        slots_.push_back({layer_, stem, "bias", {e.count, e.ffn}});
      slots_.push_back({layer_, "ffn_down_exps", "bias", {e.count, c_.hidden}});
    }
    if (e.shared_ffn == 0) return;
    if (e.shared_gate) matrix("ffn_gate_inp_shexp", 1, c_.hidden);
    if (c_.gated_mlp) matrix("ffn_gate_shexp", e.shared_ffn, c_.hidden);
    matrix("ffn_up_shexp", e.shared_ffn, c_.hidden);
    matrix("ffn_down_shexp", c_.hidden, e.shared_ffn);
  }

  const ModelConfig& c_;
  int64_t layer_ = -1;
  std::vector<WeightSlot> slots_;
};

// The common type and shape of the sources, with their rows one after the other.
TensorView source_shape(const WeightSource& file, std::string_view where,
                        const std::vector<std::string>& sources, bool joined) {
  TensorView out;
  for (const std::string& source : sources) {
    const TensorView* tensor = file.find(source);
    if (!tensor) fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where, source);
    if (!can_be_weight(tensor->dtype) && !joined)
      fail(ErrorCode::kUnsupported, "{}: tensor {} has type {}, which cannot be a weight", where,
           source, dtype_name(tensor->dtype));
    if (tensor->dtype == DType::kF8E4M3 && !joined && file.find(source + "_scale"))
      fail(ErrorCode::kUnsupported,
           "{}: tensor {} has scales; quantization_config in config.json must name the method",
           where, source);
    if (&source == &sources[0]) {
      out.dtype = tensor->dtype;
      out.dims = tensor->dims;
      if (sources.size() == 1) return out;
      if (out.dims.empty()) fail(ErrorCode::kCorrupt, "{}: tensor {} has no rows", where, source);
      out.dims[0] *= static_cast<int64_t>(sources.size());
    } else if (const TensorView* first = file.find(sources[0]);
               tensor->dtype != first->dtype || tensor->dims != first->dims) {
      fail(ErrorCode::kUnsupported, "{}: tensors {} and {} differ in type or shape", where,
           sources[0], source);
    }
  }
  return out;
}

}  // namespace

std::vector<WeightSlot> weight_slots(const ModelConfig& config) { return SlotList(config).make(); }

void add_weight(ModelConfig& config, const WeightSource& file, std::string_view where,
                const WeightSlot& slot, const std::vector<std::string>& sources,
                std::vector<RecipeStep> steps) {
  auto is_join = [](const RecipeStep& s) { return s.kind == RecipeStep::Kind::kJoinMxfp4; };
  bool joined = std::any_of(steps.begin(), steps.end(), is_join);
  bool groups = !steps.empty() && steps[0].kind == RecipeStep::Kind::kJoinGroups;
  TensorView from;
  if (groups)
    from = {steps[0].dtype,
            {static_cast<int64_t>(sources.size()) / group_parts(steps[0]) * steps[0].dims[0],
             steps[0].dims[1]},
            {}};
  else
    from = source_shape(file, where, sources, joined);
  auto& [dtype, dims, bytes] = from;
  std::vector<int64_t> found = dims;
  for (const RecipeStep& step : steps) apply_shape(step, where, sources[0], dtype, dims);
  if (dims != slot.dims)
    fail(ErrorCode::kCorrupt,
         "{}: tensor {} has shape [{}], which gives [{}] for {}; expected [{}]", where, sources[0],
         fmt::join(found, ", "), fmt::join(dims, ", "), slot.name(), fmt::join(slot.dims, ", "));
  if (sources.size() > 1 && !groups)
    steps.insert(steps.begin(), {.kind = RecipeStep::Kind::kConcatRows, .dims = {}});
  if (dims.size() == 1 && dtype != DType::kF32) {
    steps.push_back({.kind = RecipeStep::Kind::kCast, .dtype = DType::kF32, .dims = {}});
    dtype = DType::kF32;
  }
  config.weights[slot.name()] = {{sources, std::move(steps)}, dtype, std::move(dims)};
}

}  // namespace tokamak
