#include "backend/cuda/layer_launches.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

// For comparisons: one kernel per op.
bool layers_enabled() {
  const char* off = std::getenv("TOKAMAK_CUDA_LAYERS");
  return !off || std::string_view(off) != "0";
}

template <class T>
T* at(DeviceAddress address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

std::unique_ptr<LayerLaunches> LayerLaunches::make(const PlanSet& plans, const Plan& plan,
                                                   const DeviceWeights& weights, const KvPool& kv,
                                                   const Libraries& libraries, int64_t rows) {
  std::string why;
  if (!layers_enabled()) return nullptr;
  std::optional<PlannedDecoder> decoder = find_decoder(plans, plan, why);
  if (!decoder || decoder->type != DecodeWeight::kBf16 || decoder->head_type != DecodeWeight::kBf16)
    return nullptr;
  const DecoderShape& s = decoder->shape;
  if ((s.head_dim != 64 && s.head_dim != 128) || s.hidden % 32 != 0 || s.mlp % 32 != 0)
    return nullptr;
  std::unique_ptr<LayerLaunches> made(
      new LayerLaunches(plans, std::move(*decoder), weights, kv, libraries, rows));
  for (const PlannedLayer& l : made->decoder_.layers)
    if (l.q_bias != kNoWeight || l.k_bias != kNoWeight || l.v_bias != kNoWeight ||
        !made->together({l.q, l.k, l.v}) || !made->together({l.gate, l.up}))
      return nullptr;
  return made;
}

LayerLaunches::LayerLaunches(const PlanSet& plans, PlannedDecoder decoder,
                             const DeviceWeights& weights, const KvPool& kv,
                             const Libraries& libraries, int64_t rows)
    : plans_(plans),
      decoder_(std::move(decoder)),
      weights_(weights),
      kv_(kv),
      libraries_(libraries),
      rows_(rows) {
  const DecoderShape& s = decoder_.shape;
  const int64_t heads = int64_t{s.heads} * s.head_dim;
  size_t total = 0;
  std::vector<std::pair<DeviceAddress*, size_t>> parts;
  auto part = [&](DeviceAddress& address, int64_t width, size_t element) {
    parts.emplace_back(&address, total);
    total += (static_cast<size_t>(rows * width) * element + 255) / 256 * 256;
  };
  part(residual_, s.hidden, 4);
  part(normed_, s.hidden, 2);
  part(wide_, std::max<int64_t>(s.qkv_rows(), 2 * int64_t{s.mlp}), 2);
  part(queries_, heads, 2);
  part(attended_, heads, 2);
  part(gated_, s.mlp, 2);
  part(delta_, s.hidden, 2);
  memory_ = Buffer(total);
  for (auto& [address, offset] : parts) *address = memory_.address() + offset;
}

// Rows of these weights follow each other in memory.
bool LayerLaunches::together(std::initializer_list<uint32_t> weights) const {
  DeviceAddress next = 0;
  for (uint32_t w : weights) {
    if (next != 0 && weights_.address(w) != next) return false;
    next = weights_.address(w) + static_cast<DeviceAddress>(weight_bytes(plans_.weights.at(w)));
  }
  return true;
}

// y[rows, n] = x[rows, k] * w^T; the rows of w may be those of several weights.
void LayerLaunches::product(LaunchList& list, DeviceAddress x, uint32_t weight, int64_t rows,
                            int64_t n, int64_t k, DeviceAddress y, DType out) const {
  KernelCall call;
  call.op = "linear";
  const StepView view;
  CallSite site{call, {}, {}, kv_, view, {}, libraries_};
  site.in = {{DType::kBF16, {rows, k}, x, 0}, {DType::kBF16, {n, k}, weights_.address(weight), 0}};
  site.out = {{out, {rows, n}, y, 0}};
  emit_linear(site, list);
}

void LayerLaunches::add_norm(LaunchList& list, const void* delta, uint32_t norm, DeviceAddress y,
                             int64_t rows, DeviceAddress chosen) const {
  AddNormArgs args{};
  args.residual = at<float>(residual_);
  args.delta = static_cast<const uint16_t*>(delta);
  args.w = at<void>(weights_.address(norm));
  args.tw = plans_.weights.at(norm).dtype;
  args.y = at<uint16_t>(y);
  args.rows = at<int32_t>(chosen);
  args.n = decoder_.shape.hidden;
  args.eps = decoder_.shape.eps;
  list.add_overlapped("op_layer", "op_add_norm", {rows}, kLayerThreads, args);
}

void LayerLaunches::rotate(LaunchList& list, const PlannedLayer& layer, const Step& step,
                           const StepView& view) const {
  const DecoderShape& s = decoder_.shape;
  RotateArgs args{};
  args.x = at<uint16_t>(wide_);
  args.q = at<uint16_t>(queries_);
  args.pos = at<int32_t>(step.pos);
  args.seq = at<int32_t>(step.seq);
  args.slot = at<int32_t>(step.slot);
  args.frequencies = at<float>(weights_.address(decoder_.frequencies));
  for (auto [weight, gains] : {std::pair{layer.query_norm, &args.query_gains},
                               std::pair{layer.key_norm, &args.key_gains}}) {
    if (weight == kNoWeight) continue;
    *gains = at<void>(weights_.address(weight));
    args.tg = plans_.weights.at(weight).dtype;
  }
  args.view = view.views.at(decoder_.group);
  args.key = kv_.state(layer.state).plane("k");
  args.value = kv_.state(layer.state).plane("v");
  args.heads = s.heads;
  args.kv_heads = s.kv_heads;
  args.d = s.head_dim;
  args.eps = s.eps;
  args.rope_scale = s.rope_scale;
  constexpr int kHeads = kLayerThreads / 32;  // of a block
  const int heads = s.heads + 2 * s.kv_heads;
  list.add_overlapped("op_layer", "op_rotate_append", {step.tokens, (heads + kHeads - 1) / kHeads},
                      kLayerThreads, args);
}

void LayerLaunches::attend(LaunchList& list, const PlannedLayer& layer, const Step& step,
                           const StepView& view, Scratch scratch) const {
  const DecoderShape& s = decoder_.shape;
  KernelCall call;
  call.op = "attend";
  call.attrs.set("scale", double{s.score_scale});
  CallSite site{call, {}, {}, kv_, view, scratch, libraries_};
  auto ints = [](DeviceAddress address, int64_t n) { return Tensor{DType::kI32, {n}, address, 0}; };
  const Tensor heads{DType::kBF16, {step.tokens, s.heads, s.head_dim}, queries_, 0};
  site.in = {heads,
             {DType::kF32, {}, 0, layer.state},
             {DType::kF32, {}, 0, decoder_.group},
             ints(step.pos, step.tokens),
             ints(step.seq, step.tokens),
             ints(step.slot, step.tokens),
             ints(step.q_start, step.sequences + 1),
             ints(step.kv_len, step.sequences)};
  site.out = {heads};
  site.out[0].address = attended_;
  emit_attend(site, list);
}

void LayerLaunches::embed(LaunchList& list, const Step& step, const StepView& view) const {
  const WeightEntry& table = plans_.weights.at(decoder_.embedding);
  KernelCall call;
  call.op = "embed";
  CallSite site{call, {}, {}, kv_, view, {}, {}};
  site.in = {{DType::kI32, {step.tokens}, step.ids, 0},
             {table.dtype, table.dims, weights_.address(decoder_.embedding), 0}};
  site.out = {{DType::kF32, {step.tokens, table.dims[1]}, residual_, 0}};
  emit_gather(site, list);
}

void LayerLaunches::emit(const Step& step, const StepView& view, Scratch scratch,
                         LaunchList& list) const {
  const DecoderShape& s = decoder_.shape;
  const int64_t heads = int64_t{s.heads} * s.head_dim, rows = step.tokens;
  TK_CHECK(rows <= rows_ && view.causal, "{} rows of at most {}", rows, rows_);
  embed(list, step, view);
  const void* delta = nullptr;
  for (const PlannedLayer& l : decoder_.layers) {
    add_norm(list, delta, l.attention_norm, normed_, rows);
    product(list, normed_, l.q, rows, s.qkv_rows(), s.hidden, wide_);
    rotate(list, l, step, view);
    attend(list, l, step, view, scratch);
    product(list, attended_, l.out, rows, s.hidden, heads, delta_);
    delta = at<void>(delta_);
    add_norm(list, delta, l.mlp_norm, normed_, rows);
    product(list, normed_, l.gate, rows, 2 * int64_t{s.mlp}, s.hidden, wide_);
    GateArgs gate{at<uint16_t>(wide_), at<uint16_t>(gated_), rows, s.mlp};
    list.add(
        "op_layer", "op_gate",
        {std::min<int64_t>(132 * 16, (rows * s.mlp / 8 + kElementThreads - 1) / kElementThreads)},
        kElementThreads, gate);
    product(list, gated_, l.down, rows, s.hidden, s.mlp, delta_);
  }
  add_norm(list, delta, decoder_.final_norm, normed_, step.outputs, step.out_rows);
  product(list, normed_, decoder_.head, step.outputs, s.vocab, s.hidden, step.logits, DType::kF32);
}

}  // namespace tokamak::cuda
