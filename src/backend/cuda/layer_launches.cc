#include "backend/cuda/layer_launches.h"

#include <algorithm>

#include "backend/cuda/decode_attention.h"
#include "backend/cuda/launches.h"
#include "base/error.h"
#include "plan/dispatch.h"

namespace tokamak::cuda {
namespace {

template <class T>
T* at(DeviceAddress address) {
  return reinterpret_cast<T*>(address);
}

int64_t most_rows(const PlanSet& set, const std::vector<const Plan*>& plans) {
  int64_t rows = 0;
  for (const Plan* plan : plans)
    rows = std::max(rows, most_of(set, *plan, plan->function == "decode" ? "B" : "T"));
  return rows;
}

// The most rows for which layers with weights that are not bf16 are better run op by op; 0: all
// weights are bf16.
int64_t most_direct_rows(const PlanSet& set, const PlannedDecoder& decoder) {
  int64_t rows = 0;
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products())
      if (const DType type = set.weights.at(w).dtype; type != DType::kBF16)
        rows = std::min(rows == 0 ? direct_rows(type) : rows, direct_rows(type));
  return rows;
}
bool expands_weights(const PlanSet& set, const PlannedDecoder& decoder) {
  return most_direct_rows(set, decoder) > 0;
}

// A weight of a product that is neither bf16 nor made so.
const WeightEntry* unsupported_weight(const PlanSet& set, const PlannedDecoder& decoder) {
  auto unsupported = [&](uint32_t w) {
    const DType type = set.weights.at(w).dtype;
    return type != DType::kBF16 && !is_expandable(type);
  };
  if (unsupported(decoder.head)) return &set.weights.at(decoder.head);
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products())
      if (unsupported(w)) return &set.weights.at(w);
  return nullptr;
}

}  // namespace

std::optional<PlannedDecoder> LayerLaunches::find(const PlanSet& plans, const Plan& plan,
                                                  std::string& why) {
  if (plan.function != "step" && plan.function != "decode") {
    why = "it runs the functions step and decode";
    return std::nullopt;
  }
  std::optional<PlannedDecoder> decoder = find_decoder(plans, plan, why);
  if (!decoder) return std::nullopt;
  const DecoderShape& s = decoder->shape;
  const int64_t direct = most_direct_rows(plans, *decoder);
  auto apart = [&](const PlannedLayer& l) {
    return !DeviceWeights::will_be_together(plans, {l.q, l.k, l.v}) ||
           !DeviceWeights::will_be_together(plans, {l.gate, l.up});
  };
  const std::vector<PlannedLayer>& layers = decoder->layers;
  const int64_t rows = most_rows(plans, {&plan});
  if (const WeightEntry* other = unsupported_weight(plans, *decoder))
    why = fmt::format("{} weights ({})", dtype_name(other->dtype), other->name);
  else if (rows <= direct && !reads_as_stored(plans, *decoder))
    why = fmt::format("weights that are not bf16, and at most {} rows", direct);
  else if (s.head_dim != 64 && s.head_dim != 128)
    why = fmt::format("heads of {}", s.head_dim);
  else if (s.hidden % 32 != 0 || s.mlp % 32 != 0)
    why = "widths that are no multiples of 32";
  else if (direct == 0 && std::any_of(layers.begin(), layers.end(), apart))
    why = "weights of one product that do not follow each other";
  else
    return decoder;
  return std::nullopt;
}

bool LayerLaunches::reads_as_stored(const PlanSet& plans, const PlannedDecoder& decoder) {
  auto reads = [&](uint32_t w) {
    const WeightEntry& entry = plans.weights.at(w);
    return few_rows_reads(entry.dtype, entry.dims.at(1));
  };
  return std::all_of(decoder.layers.begin(), decoder.layers.end(), [&](const PlannedLayer& l) {
    const auto products = l.products();
    return std::all_of(products.begin(), products.end(), reads);
  });
}

// Offsets into the working memory.
struct LayerLaunches::Layout {
  size_t residual, normed, wide, queries, attended, gated, delta, turns, few_rows, expanded,
      bytes = 0;
  Layout(const DecoderShape& s, int64_t rows, bool expands) {
    auto take = [&](int64_t width, size_t element) {
      const size_t at = bytes;
      bytes += (static_cast<size_t>(rows * width) * element + 255) / 256 * 256;
      return at;
    };
    const int64_t heads = int64_t{s.heads} * s.head_dim;
    residual = take(s.hidden, 4);
    normed = take(s.hidden, 2);
    wide = take(std::max<int64_t>(s.qkv_rows(), 2 * int64_t{s.mlp}), 2);
    queries = take(heads, 2);
    attended = take(heads, 2);
    gated = take(s.mlp, 2);
    delta = take(s.hidden, 2);
    turns = take(s.head_dim, 4);
    few_rows = bytes;
    bytes += kFewRowsMemory;
    expanded = bytes;
    const int64_t widest = std::max({int64_t{s.qkv_rows()}, heads, 2 * int64_t{s.mlp}});
    if (expands) bytes += expanded_bytes(widest, s.hidden);
  }
};

uint64_t LayerLaunches::bytes_for(const PlanSet& plans) {
  const std::vector<const Plan*> named = plans_with(plans, LaunchKind::kLayers);
  std::string why;
  if (named.empty()) return 0;
  std::optional<PlannedDecoder> decoder = find(plans, *named[0], why);
  return decoder ? Layout(decoder->shape, most_rows(plans, named), expands_weights(plans, *decoder))
                       .bytes
                 : 0;
}

std::unique_ptr<LayerLaunches> LayerLaunches::make(const PlanSet& plans,
                                                   const DeviceWeights& weights, const KvPool& kv,
                                                   const Libraries& libraries) {
  const std::vector<const Plan*> named = plans_with(plans, LaunchKind::kLayers);
  if (named.empty()) return nullptr;
  std::string why;
  std::optional<PlannedDecoder> decoder = find(plans, *named[0], why);
  if (!decoder)
    fail(ErrorCode::kUnsupported, "plan {} cannot run as fused layers: {}", plan_name(*named[0]),
         why);
  const bool expands = expands_weights(plans, *decoder);
  for (const PlannedLayer& l : decoder->layers)
    TK_CHECK(expands || (weights.together({l.q, l.k, l.v}) && weights.together({l.gate, l.up})),
             "weights of one product are apart");
  return std::unique_ptr<LayerLaunches>(new LayerLaunches(plans, std::move(*decoder), weights, kv,
                                                          libraries, most_rows(plans, named)));
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
  const bool expands = expands_weights(plans, decoder_);
  direct_rows_ = libraries.hopper_blocks > 0 && reads_as_stored(plans, decoder_)
                     ? 0
                     : most_direct_rows(plans, decoder_);
  const Layout layout(decoder_.shape, rows, expands);
  memory_ = Buffer(layout.bytes);
  const DeviceAddress base = memory_.address();
  residual_ = base + layout.residual;
  normed_ = base + layout.normed;
  wide_ = base + layout.wide;
  queries_ = base + layout.queries;
  attended_ = base + layout.attended;
  gated_ = base + layout.gated;
  delta_ = base + layout.delta;
  turns_ = base + layout.turns;
  few_rows_ = base + layout.few_rows;
  expanded_ = expands ? base + layout.expanded : 0;
}

LayerLaunches::Matrix LayerLaunches::qkv(const PlannedLayer& l) const {
  return {{l.q, l.k, l.v}, decoder_.shape.qkv_rows(), decoder_.shape.hidden};
}
LayerLaunches::Matrix LayerLaunches::out(const PlannedLayer& l) const {
  const DecoderShape& s = decoder_.shape;
  return {{l.out}, s.hidden, int64_t{s.heads} * s.head_dim};
}
LayerLaunches::Matrix LayerLaunches::gate_up(const PlannedLayer& l) const {
  return {{l.gate, l.up}, 2 * int64_t{decoder_.shape.mlp}, decoder_.shape.hidden};
}
LayerLaunches::Matrix LayerLaunches::down(const PlannedLayer& l) const {
  return {{l.down}, decoder_.shape.hidden, decoder_.shape.mlp};
}
LayerLaunches::Matrix LayerLaunches::head() const {
  return {{decoder_.head}, decoder_.shape.vocab, decoder_.shape.hidden};
}

// The head is not made bf16: it is large, and few rows have an output.
bool LayerLaunches::in_place(const Matrix& m) const {
  return expanded_ == 0 || m.parts[0] == decoder_.head ||
         (m.parts.size() == 1 && plans_.weights.at(m.parts[0]).dtype == DType::kBF16);
}

Tensor LayerLaunches::weights_of(LaunchList& list, const Matrix& m) const {
  if (in_place(m))
    return {plans_.weights.at(m.parts[0]).dtype, {m.n, m.k}, weights_.address(m.parts[0]), 0};
  DeviceAddress to = expanded_;
  for (uint32_t part : m.parts) {
    const WeightEntry& w = plans_.weights.at(part);
    emit_expand(list, {w.dtype, w.dims, weights_.address(part), 0}, to);
    to += expanded_bytes(w.dims.at(0), w.dims.at(1));
  }
  return {DType::kBF16, {m.n, m.k}, expanded_, 0};
}

std::vector<BlasProduct> LayerLaunches::products() const {
  const PlannedLayer& l = decoder_.layers.front();
  std::vector<BlasProduct> list;
  for (const Matrix& m : {qkv(l), out(l), gate_up(l), down(l), head()}) {
    const bool here = in_place(m);
    if (here && plans_.weights.at(m.parts[0]).dtype != DType::kBF16) continue;  // the head
    BlasProduct p;
    p.w = here ? weights_.address(m.parts[0]) : expanded_;
    p.out = m.parts[0] == decoder_.head ? DType::kF32 : DType::kBF16;
    p.n = m.n;
    p.k = m.k;
    p.rows = rows_;
    list.push_back(p);
  }
  return list;
}

// True: the product runs in few_rows.cu. sums: where they are left to the reader, if they are.
bool LayerLaunches::few_rows(LaunchList& list, FewRowsProduct p, const Matrix& w,
                             FewRowsSums* sums) const {
  const int blocks = libraries_.hopper_blocks;
  p.type = plans_.weights.at(w.parts[0]).dtype;
  auto other_type = [&](uint32_t part) { return plans_.weights.at(part).dtype != p.type; };
  if (std::any_of(w.parts.begin(), w.parts.end(), other_type) || !weights_.together(w.parts))
    return false;
  p.w = weights_.address(w.parts[0]);
  p.k = w.k;
  if (!few_rows_takes(p, blocks)) return false;
  const bool split = sums && few_rows_splits(p, blocks);
  const FewRowsLaunch l = few_rows_launch(p, few_rows_, blocks, split);
  if (split) *sums = l.args.sums;
  list.add_overlapped("few_rows", l.kernel, {l.blocks}, l.threads, l.args, l.shared_bytes);
  return true;
}

// The same with a launch per part, whose types may differ.
bool LayerLaunches::few_rows_by_parts(LaunchList& list, FewRowsProduct p, const Matrix& w) const {
  std::vector<FewRowsProduct> parts;
  p.k = w.k;
  p.pitch = w.n;
  for (uint32_t part : w.parts) {
    const WeightEntry& entry = plans_.weights.at(part);
    p.n = entry.dims.at(0);
    p.type = entry.dtype;
    p.w = weights_.address(part);
    if (!few_rows_takes(p, libraries_.hopper_blocks)) return false;
    parts.push_back(p);
    p.y += static_cast<DeviceAddress>(p.n) * sizeof(uint16_t);
  }
  for (const FewRowsProduct& part : parts) {
    const FewRowsLaunch l = few_rows_launch(part, few_rows_, libraries_.hopper_blocks, false);
    list.add_overlapped("few_rows", l.kernel, {l.blocks}, l.threads, l.args, l.shared_bytes);
  }
  return true;
}

// y[rows, n] = x[rows, k] * w^T, or its sums.
FewRowsSums LayerLaunches::product(LaunchList& list, DeviceAddress x, const Matrix& w, int64_t rows,
                                   DeviceAddress y, DType out) const {
  if (rows > kMostFewRows && in_place(w) &&
      plans_.weights.at(w.parts[0]).dtype != DType::kBF16) {  // the head: some rows at a time
    const size_t x_row = dtype_bytes(DType::kBF16, w.k), y_row = dtype_bytes(out, w.n);
    for (int64_t first = 0; first < rows; first += kMostFewRows)
      product(list, x + static_cast<size_t>(first) * x_row, w, std::min(kMostFewRows, rows - first),
              y + static_cast<size_t>(first) * y_row, out);
    return {};
  }
  FewRowsProduct few{.x = x, .y = y, .rows = rows, .n = w.n, .f32 = out == DType::kF32};
  FewRowsSums sums{};
  if (few_rows(list, few, w, few.f32 ? nullptr : &sums)) return sums;
  if (w.parts.size() > 1 && few_rows_by_parts(list, few, w)) return sums;
  KernelCall call;
  call.op = "linear";
  const StepView view;
  CallSite site{call, {}, {}, kv_, view, {}, libraries_};
  site.in = {{DType::kBF16, {rows, w.k}, x, 0}, weights_of(list, w)};
  site.out = {{out, {rows, w.n}, y, 0}};
  emit_linear(site, list);
  return sums;
}

// To gated_.
void LayerLaunches::gate(LaunchList& list, const Matrix& w, int64_t rows) const {
  const int64_t n = decoder_.shape.mlp;
  FewRowsProduct few{.x = normed_, .y = gated_, .rows = rows, .n = n, .gated = true};
  if (few_rows(list, few, w, nullptr)) return;
  product(list, normed_, w, rows, wide_);
  GateArgs args{at<uint16_t>(wide_), at<uint16_t>(gated_), rows, n};
  const int64_t blocks = (rows * n / 8 + kElementThreads - 1) / kElementThreads;
  list.add_overlapped("op_layer", "op_gate", {std::min<int64_t>(132 * 16, blocks)}, kElementThreads,
                      args);
}

void LayerLaunches::turns(LaunchList& list, const Step& step) const {
  TurnArgs args{};
  args.pos = at<int32_t>(step.pos);
  args.frequencies = at<float>(weights_.address(decoder_.frequencies));
  args.turns = at<float>(turns_);
  args.rows = step.tokens;
  args.half = decoder_.shape.head_dim / 2;
  args.scale = decoder_.shape.rope_scale;
  list.add_overlapped("op_layer", "op_rope_turns",
                      {(args.rows * args.half + kElementThreads - 1) / kElementThreads},
                      kElementThreads, args);
}

// To normed_.
void LayerLaunches::add_norm(LaunchList& list, const Delta& delta, uint32_t norm, int64_t rows,
                             DeviceAddress chosen) const {
  AddNormArgs args{};
  args.residual = at<float>(residual_);
  args.delta = delta.sums.planes ? nullptr : at<uint16_t>(delta.values);
  args.sums = delta.sums;
  args.w = at<void>(weights_.address(norm));
  args.tw = plans_.weights.at(norm).dtype;
  args.y = at<uint16_t>(normed_);
  args.rows = at<int32_t>(chosen);
  args.n = decoder_.shape.hidden;
  args.eps = decoder_.shape.eps;
  list.add_overlapped("op_layer", add_norm_kernel(args.n), {rows}, add_norm_threads(args.n), args);
}

void LayerLaunches::rotate(LaunchList& list, const FewRowsSums& sums, const PlannedLayer& layer,
                           const Step& step, const StepView& view) const {
  const DecoderShape& s = decoder_.shape;
  RotateArgs args{};
  args.x = at<uint16_t>(wide_);
  args.sums = sums;
  args.q = at<uint16_t>(queries_);
  args.seq = at<int32_t>(step.seq);
  args.slot = at<int32_t>(step.slot);
  args.turns = at<float>(turns_);
  auto read = [&](uint32_t weight, const void*& address, DType& type) {
    if (weight == kNoWeight) return;
    address = at<void>(weights_.address(weight));
    type = plans_.weights.at(weight).dtype;
  };
  read(layer.query_norm, args.query_gains, args.tg);
  read(layer.key_norm, args.key_gains, args.tg);
  read(layer.q_bias, args.query_bias, args.tb);
  read(layer.k_bias, args.key_bias, args.tb);
  read(layer.v_bias, args.value_bias, args.tb);
  args.view = view.views.at(decoder_.group);
  args.key = kv_.state(layer.state).plane("k");
  args.value = kv_.state(layer.state).plane("v");
  args.heads = s.heads;
  args.kv_heads = s.kv_heads;
  args.d = s.head_dim;
  args.eps = s.eps;
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
  if (step.mask != 0)
    site.in.push_back({DType::kI32, {step.tokens, step.mask_width}, step.mask, 0});
  site.out = {heads};
  site.out[0].address = attended_;
  emit_attend(site, list);
}

void LayerLaunches::emit(const Step& step, const StepView& view, Scratch scratch,
                         LaunchList& list) const {
  const DecoderShape& s = decoder_.shape;
  const int64_t rows = step.tokens;
  TK_CHECK(rows <= rows_ && view.causal, "{} rows of at most {}", rows, rows_);
  if (rows == step.sequences && rows <= kAttentionMaxBatch && libraries_.hopper_blocks > 0)
    emit_attention_table(list, libraries_, reinterpret_cast<const int32_t*>(step.kv_len), rows,
                         s.kv_heads);
  turns(list, step);
  // Overlaps with nothing before, so that those after it may rely on the table.
  emit_embedding(list, kv_, plans_.weights.at(decoder_.embedding),
                 weights_.address(decoder_.embedding), step.ids,
                 {DType::kF32, {rows, s.hidden}, residual_, 0});
  Delta delta;
  for (const PlannedLayer& l : decoder_.layers) {
    add_norm(list, delta, l.attention_norm, rows);
    rotate(list, product(list, normed_, qkv(l), rows, wide_), l, step, view);
    attend(list, l, step, view, scratch);
    delta = {delta_, product(list, attended_, out(l), rows, delta_)};
    add_norm(list, delta, l.mlp_norm, rows);
    gate(list, gate_up(l), rows);
    delta = {delta_, product(list, gated_, down(l), rows, delta_)};
  }
  add_norm(list, delta, decoder_.final_norm, step.outputs, step.out_rows);
  product(list, normed_, head(), step.outputs, step.logits, DType::kF32);
}

}  // namespace tokamak::cuda
