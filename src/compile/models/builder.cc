#include "compile/models/builder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compile/adapters.h"
#include "compile/import/families.h"
#include "compile/models/rope.h"

namespace tokamak {
namespace {

TensorType i32(std::string axis, SymExpr extent) {
  return {DType::kI32, {{std::move(axis), std::move(extent), false}}};
}

int64_t served_context(const ModelConfig& config, const CompileOptions& options) {
  return options.context > 0 ? options.context : config.context;
}

}  // namespace

ModelBuilder::ModelBuilder(const ModelConfig& config, const CompileOptions& options)
    : config(config),
      options(options),
      module_(config.name.empty() ? config.architecture : config.name) {
  module_.symbols = {{"T", 1, options.max_tokens, 1},
                     {"B", 1, options.max_sequences, 1},
                     {"R", 1, options.max_logit_rows, 1}};
  if (!config.embedding.encoder) declare_states();
  if (options.tree_mask && !config.embedding.encoder)
    module_.symbols.push_back({"M", 1, options.max_tokens, 1});
  fn_ = &module_.add_function("step");
  fn_->set_provenance("models/" + config.architecture);
  layers_ = config.layers;
  if (config.embedding.encoder)
    declare_encoder_inputs();
  else
    declare_inputs(SymExpr::symbol("T"), SymExpr::symbol("R"));
}

void ModelBuilder::begin_function(std::string_view name, int64_t layers) {
  fn_ = &module_.add_function(std::string(name));
  fn_->set_provenance("models/" + config.architecture);
  layers_ = layers;
  mask = {};
  views_.clear();
  states_.clear();
}

// Rows of "exit" are the last ones of their sequences, so it needs no mask. It takes and writes the
// states of its layers.
bool ModelBuilder::next_function() {
  if (options.exit_layers > 0 && fn_->name() == "step") {
    begin_function(kExitFunction, options.exit_layers);
    fn_->facts() = {{"q_start", Fact::Kind::kIotaTimes, 1},
                    {"out_rows", Fact::Kind::kIotaTimes, 1}};
    declare_inputs(SymExpr::symbol("B"), SymExpr::symbol("B"));
    return true;
  }
  if (!options.layer_logits || fn_->name() == kLayersFunction) return false;
  begin_function(kLayersFunction, config.layers);
  declare_inputs(SymExpr::symbol("T"), SymExpr::symbol("R"));
  module_.symbols.push_back({"L", 1, options.max_logit_rows, 1});
  layer_rows_ = fn_->add_input(std::string(kLayerRows), Type::of(i32("l", SymExpr::symbol("L"))));
  return true;
}

void ModelBuilder::before_layer(Ref x) {
  if (!layer_rows_.valid()) return;
  layer_sums_.push_back(op("gather", {x, out_rows}, Value::Object{{"axis", 0}}, "layer_rows"));
}

// The sums of a row become neighbours, so that their index does not depend on the number of rows.
void ModelBuilder::finish_layers() {
  constexpr size_t kMostInputs = 4;  // kernels take few
  SymExpr rows = SymExpr::symbol("R") * SymExpr(std::ssize(layer_sums_));
  std::vector<Ref> parts = layer_sums_;
  while (parts.size() > 1) {
    std::vector<Ref> wider;
    for (size_t i = 0; i < parts.size(); i += kMostInputs) {
      std::vector<Ref> group(
          parts.begin() + static_cast<std::ptrdiff_t>(i),
          parts.begin() + static_cast<std::ptrdiff_t>(std::min(i + kMostInputs, parts.size())));
      wider.push_back(group.size() == 1 ? group[0]
                                        : op("concat", group, Value::Object{{"axis", 1}}));
    }
    parts = std::move(wider);
  }
  Ref sums = op("reshape", {parts[0]},
                Value::Object{{"dims", Value::Array{rows.text(), std::to_string(config.hidden)}},
                              {"axes", Value::Array{"r", "n"}}});
  Ref wanted = op("gather", {sums, layer_rows_}, Value::Object{{"axis", 0}}, "layer_rows");
  fn_->set_result(std::string(kLayerLogits), head(wanted));
}

void ModelBuilder::declare_inputs(const SymExpr& t, const SymExpr& r) {
  SymExpr b = SymExpr::symbol("B");
  bool exits = layers_ < config.layers;
  ids = fn_->add_input("ids", Type::of(i32("t", t)));
  pos = fn_->add_input("pos", Type::of(i32("t", t)));
  seq = fn_->add_input("seq", Type::of(i32("t", t)));
  slot = fn_->add_input("slot", Type::of(i32("t", t)));
  q_start = fn_->add_input("q_start", Type::of(i32("b1", b + 1)));
  kv_len = fn_->add_input("kv_len", Type::of(i32("b", b)));
  out_rows = fn_->add_input("out_rows", Type::of(i32("r", r)));
  if (options.adapter_slots > 0)
    adapter = fn_->add_input(std::string(kAdapterInput), Type::of(i32("t", t)));
  if (options.tree_mask && !exits) {
    TensorType type = i32("t", t);
    type.dims.push_back({"m", SymExpr::symbol("M"), false});
    mask = fn_->add_input("mask", Type::of(std::move(type)));
  }
  for (const GroupDecl& g : module_.groups) {
    bool used = false;
    for (int64_t l = 0; l < layers_; ++l) used = used || uses_group(l, g.name);
    if (used) views_.emplace_back(g.name, fn_->add_input("view." + g.name, Type::view(g.name)));
  }
  for (size_t i = 0, n = first_state(layers_); i < n; ++i) {
    const StateDecl& s = module_.states[i];
    states_.push_back(fn_->add_input(s.name, Type::state(s.name)));
  }
}

// No state: a sequence is computed whole.
void ModelBuilder::declare_encoder_inputs() {
  SymExpr t = SymExpr::symbol("T");
  ids = fn_->add_input("ids", Type::of(i32("t", t)));
  pos = fn_->add_input("pos", Type::of(i32("t", t)));
  seq = fn_->add_input("seq", Type::of(i32("t", t)));
  q_start = fn_->add_input("q_start", Type::of(i32("b1", SymExpr::symbol("B") + 1)));
  out_rows = fn_->add_input("out_rows", Type::of(i32("r", SymExpr::symbol("R"))));
  if (config.token_types > 1)
    types = fn_->add_input(std::string(kSegmentInput), Type::of(i32("t", t)));
}

// The rows before a step's own that the convolution reads, and the state of every channel.
void ModelBuilder::declare_recurrent_states(int64_t layer) {
  const RecurrentConfig& r = config.recurrent;
  TensorType rows{DType::kF32, {{"j", r.taps - 1, false}, {"c", r.channels(), false}}};
  TensorType heads{DType::kF32,
                   {{"h", r.heads, false}, {"p", r.head_dim, false}, {"n", r.state, false}}};
  for (const auto& [name, type] : {std::pair("conv", rows), {"ssm", heads}})
    if (!r.short_conv || type == rows)
      module_.states.push_back({fmt::format("{}.{}", name, layer),
                                "recurrent",
                                StateDecl::Growth::kPerSequence,
                                {{"s", type}}});
}

void ModelBuilder::declare_states() {
  if (config.recurrent.heads > 0 && (options.exit_layers > 0 || options.tree_mask))
    fail(ErrorCode::kUnsupported,
         "speculation needs a model without recurrent layers: their state cannot be rolled back");
  auto used = [&](std::string_view group) {
    for (int64_t l = 0; l < config.layers; ++l)
      if (uses_group(l, group)) return true;
    return false;
  };
  if (used("full")) module_.groups.push_back({"full", 0, options.block_size});
  if (used("window"))
    module_.groups.push_back({"window", config.sliding_window, options.block_size});
  if (used("recurrent")) module_.groups.push_back({"recurrent", 0, kSequenceBlock});
  for (int64_t l = 0; l < config.layers - config.shared_kv_layers; ++l) {
    if (config.only_mlp(l)) continue;
    if (!attends(l)) {
      declare_recurrent_states(l);
      continue;
    }
    TensorType plane{options.kv_dtype,
                     {{"kvh", config.kv_heads_at(l), false}, {"hd", config.head_dim_at(l), false}}};
    std::vector<PlaneDecl> planes = {{"k", plane}, {"v", plane}};
    if (const LatentConfig& m = config.latent; m.rank > 0)
      planes = {{"c", {options.kv_dtype, {{"c", m.rank, false}}}},
                {"kr", {options.kv_dtype, {{"kr", m.rope, false}}}}};
    module_.states.push_back(
        {fmt::format("kv.{}", l), kv_group(l), StateDecl::Growth::kPerToken, std::move(planes)});
    if (config.recurrent.at(l)) declare_recurrent_states(l);
  }
}

size_t ModelBuilder::first_state(int64_t layer) const {
  size_t n = 0;
  for (int64_t l = 0; l < layer; ++l) {
    if (config.only_mlp(l) || config.shares_kv(l)) continue;
    if (attends(l)) ++n;
    if (config.recurrent.at(l)) n += static_cast<size_t>(config.recurrent.states());
  }
  return n;
}

bool ModelBuilder::uses_group(int64_t layer, std::string_view group) const {
  if (config.only_mlp(layer)) return false;
  if (group == "recurrent") return config.recurrent.at(layer);
  return attends(layer) && kv_group(layer) == group;
}

Ref ModelBuilder::view_of(std::string_view group) const {
  auto view =
      std::find_if(views_.begin(), views_.end(), [&](const auto& p) { return p.first == group; });
  return view->second;
}

bool ModelBuilder::slides(int64_t layer) const {
  return config.sliding_window > 0 && static_cast<size_t>(layer) < config.layer_slides.size() &&
         config.layer_slides[static_cast<size_t>(layer)];
}

bool ModelBuilder::rotates(int64_t layer) const {
  return config.layer_rotates.empty() || config.layer_rotates[static_cast<size_t>(layer)];
}

bool ModelBuilder::has(const std::string& name) const { return config.weights.contains(name); }

Ref ModelBuilder::weight(const std::string& name) {
  if (!module_.find_weight(name)) {
    auto it = config.weights.find(name);
    if (it == config.weights.end())
      fail(ErrorCode::kCorrupt, "the model file has no tensor \"{}\", which {} needs", name,
           config.architecture);
    const ModelConfig::Weight& w = it->second;
    TensorType type{w.dtype, {}};
    for (size_t i = 0; i < w.dims.size(); ++i) {
      bool last = i + 1 == w.dims.size(), stack = w.dims.size() == 3 && i == 0;
      type.dims.push_back({w.dims.size() == 1 ? "n"
                           : last             ? "k"
                           : stack            ? "e"
                                              : "n",
                           w.dims[i], false});
    }
    module_.add_weight({name, std::move(type), w.recipe});
  }
  return fn_->weight(name);
}

Ref ModelBuilder::constant(const std::string& name, const std::vector<double>& values) {
  module_.add_constant(
      {name, {DType::kF32, {{"n", static_cast<int64_t>(values.size()), false}}}, values});
  return fn_->constant(name);
}

Ref ModelBuilder::op(std::string_view name, std::vector<Ref> in, Attrs attrs, std::string label) {
  return fn_->add(name, std::move(in), std::move(attrs), std::move(label));
}

std::vector<Ref> ModelBuilder::op_multi(std::string_view name, std::vector<Ref> in, Attrs attrs,
                                        std::string label) {
  return fn_->add_multi(name, std::move(in), std::move(attrs), std::move(label));
}

Ref ModelBuilder::embed(Ref index, const std::string& table) {
  return op("embed", {index, weight(table + ".weight")}, {}, table);
}

Ref ModelBuilder::linear(Ref x, const std::string& prefix) {
  Ref sorted = x;
  if (has(prefix + ".order"))  // columns of the matrix are sorted by group (GPTQ with desc_act)
    sorted = op("gather", {x, weight(prefix + ".order")}, Value::Object{{"axis", int64_t{-1}}},
                prefix + ".order");
  std::vector<Ref> in = {sorted, weight(prefix + ".weight")};
  const double factor = config.weights.find(prefix + ".weight")->second.factor;
  if (has(prefix + ".bias") && factor == 1.0) in.push_back(weight(prefix + ".bias"));
  Ref y = op("linear", std::move(in), {}, prefix);
  if (factor != 1.0) {
    y = op("scale", {y}, Value::Object{{"value", factor}});
    if (has(prefix + ".bias")) y = op("add", {y, weight(prefix + ".bias")});
  }
  return adapter.valid() && has_adapter_slots(config, prefix) ? adapt(y, x, prefix) : y;
}

Ref ModelBuilder::adapter_weight(const std::string& name, std::vector<Dim> dims) {
  if (!module_.find_weight(name))
    module_.add_weight({name, {DType::kF32, std::move(dims)}, {{name}, {}}});
  return fn_->weight(name);
}

Ref ModelBuilder::adapt(Ref y, Ref x, const std::string& prefix) {
  const ModelConfig::Weight& w = config.weights.at(prefix + ".weight");
  Dim s{"s", options.adapter_slots, false}, r{"r", options.adapter_rank, false};
  std::string name = std::string(kAdapterWeights) + prefix;
  Ref a = adapter_weight(name + ".a", {s, r, {"k", w.dims[1], false}});
  Ref b = adapter_weight(name + ".b", {s, {"n", w.dims[0], false}, r});
  return op("add", {y, op("lora", {x, a, b, adapter}, {}, name)});
}

Ref ModelBuilder::norm(Ref x, const std::string& prefix, double epsilon) {
  Attrs eps = Value::Object{{"eps", epsilon > 0 ? epsilon : config.norm_eps}};
  if (config.unit_norms)
    return op(config.norm == NormKind::kRms ? "rms_norm" : "layer_norm",
              {x, constant("norm", std::vector<double>(static_cast<size_t>(config.hidden), 1.0))},
              eps, prefix);
  Ref w = weight(prefix + ".weight");
  if (config.norm == NormKind::kRms) return op("rms_norm", {x, w}, eps, prefix);
  if (has(prefix + ".bias")) return op("layer_norm", {x, w, weight(prefix + ".bias")}, eps, prefix);
  return op("layer_norm", {x, w}, eps, prefix);
}

Ref ModelBuilder::head_norm(Ref x, const std::string& prefix) {
  const TensorType& t = fn_->tensor(x);
  Attrs shape = Value::Object{{"dims", Value::Array{t.extent(1).text(), t.extent(2).text()}},
                              {"axes", Value::Array{"h", "hd"}}};
  Ref ones = constant("head_norm", std::vector<double>(static_cast<size_t>(config.head_dim), 1.0));
  Ref y = op(config.norm == NormKind::kRms ? "rms_norm" : "layer_norm", {x, ones},
             Value::Object{{"eps", config.norm_eps}}, prefix);
  return op("mul", {y, op("reshape", {weight(prefix + ".weight")}, std::move(shape))});
}

Ref ModelBuilder::scaled(Ref x, double scale) {
  return scale == 1.0 ? x : op("scale", {x}, Value::Object{{"value", scale}});
}

Ref ModelBuilder::clip(Ref x, double limit) {
  return op("maximum",
            {op("minimum", {x, constant("limit", {limit})}), constant("floor", {-limit})});
}

Ref ModelBuilder::unit_norm(Ref x, int64_t width) {
  std::vector<double> ones(static_cast<size_t>(width), 1.0);
  return op("rms_norm", {x, constant("unit", ones)}, Value::Object{{"eps", config.norm_eps}});
}

Ref ModelBuilder::heads(Ref x, int64_t count, int64_t dim) {
  Attrs attrs = Value::Object{{"dims", Value::Array{fn_->tensor(x).extent(0).text(),
                                                    std::to_string(count), std::to_string(dim)}},
                              {"axes", Value::Array{"t", "h", "hd"}}};
  return op("reshape", {x}, std::move(attrs));
}

Ref ModelBuilder::merge_heads(Ref x) {
  const TensorType& t = fn_->tensor(x);
  Attrs attrs =
      Value::Object{{"dims", Value::Array{t.extent(0).text(), (t.extent(1) * t.extent(2)).text()}},
                    {"axes", Value::Array{"t", "n"}}};
  return op("reshape", {x}, std::move(attrs));
}

Ref ModelBuilder::rope(Ref x, int64_t layer) {
  if (!rotates(layer)) return x;
  bool local = slides(layer) && config.rope_local.dims > 0;
  const RopeConfig& rope = local ? config.rope_local : config.rope;
  RopeTable table = rope_table(rope, served_context(config, options));
  Ref freqs = constant(local ? "rope.local" : "rope", table.inv_freq);
  return op("rope", {x, pos, freqs}, Value::Object{{"scale", table.scale}});
}

Ref ModelBuilder::temper(Ref q) {
  if (config.temperature_scale == 0) return q;
  auto cast = [&](Ref x, const char* to) { return op("cast", {x}, Value::Object{{"dtype", to}}); };
  Ref one = constant("one", {1.0});
  auto length = static_cast<double>(config.temperature_length);
  Ref position = cast(pos, "f32");
  if (!config.temperature_everywhere) position = op("add", {position, one});
  Ref lengths = op("div", {position, constant("temperature", {length})});
  Ref whole = cast(cast(lengths, "i32"), "f32");
  Ref factor = op("scale", {op("log", {op("add", {whole, one})})},
                  Value::Object{{"value", config.temperature_scale}});
  Attrs shape = Value::Object{{"dims", Value::Array{fn_->tensor(pos).extent(0).text(), "1", "1"}},
                              {"axes", Value::Array{"t", "h", "hd"}}};
  return op("mul", {q, op("reshape", {op("add", {factor, one})}, std::move(shape))});
}

Ref ModelBuilder::activation(Ref x, Activation kind) {
  switch (kind) {
    case Activation::kSilu:
      return op("silu", {x});
    case Activation::kGeluTanh:
      return op("gelu", {x}, Value::Object{{"approximate", "tanh"}});
    case Activation::kGeluErf:
      return op("gelu", {x}, Value::Object{{"approximate", "none"}});
    case Activation::kRelu:
      return op("relu", {x});
    case Activation::kRelu2:
      x = op("relu", {x});
      return op("mul", {x, x});
    case Activation::kTanh:
      return op("tanh", {x});
    case Activation::kXielu:
      break;
  }
  TK_CHECK(false);
  return {};
}

Ref ModelBuilder::activation(Ref x, int64_t layer) {
  if (config.activation != Activation::kXielu) return activation(x);
  const XieluConfig& a = config.xielu[static_cast<size_t>(layer)];
  Ref high = op("relu", {x}), low = op("minimum", {x, constant("zero", {0.0})});
  Ref curve = op("sub", {op("sub", {op("exp", {low}), constant("one", {1.0})}), low});
  Ref bent = op("add", {scaled(op("mul", {high, high}), a.p), scaled(curve, a.n)});
  return op("add", {bent, scaled(x, a.beta)});
}

double ModelBuilder::score_scale(int64_t layer) const {
  double scale = config.attention_scale > 0 ? config.attention_scale
                                            : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  return config.scale_by_layer ? scale / static_cast<double>(layer + 1) : scale;
}

Ref ModelBuilder::attend_rows(int64_t layer, Ref q, Ref k, Ref v) {
  Value::Object attrs = {{"scale", score_scale(layer)}};
  if (slides(layer)) attrs.emplace_back("window", config.sliding_window);
  return op("attend_rows", {q, k, v, q_start}, std::move(attrs),
            fmt::format("blk.{}.attend", layer));
}

// Writes both planes; returns what attention takes.
std::vector<Ref> ModelBuilder::append(int64_t layer, Ref q, Ref first, Ref second) {
  Ref view = view_of(kv_group(layer));
  Ref& state = states_[first_state(layer)];
  state = op("append", {state, view, seq, slot, first, second}, {},
             fmt::format("blk.{}.append", layer));
  std::vector<Ref> in = {q, state, view, pos, seq, slot, q_start, kv_len};
  if (mask.valid()) in.push_back(mask);
  return in;
}

Ref ModelBuilder::append_and_attend_latent(int64_t layer, Ref q, Ref c, Ref kr) {
  std::vector<Ref> in = append(layer, q, c, kr);
  for (const char* stem : {"attn_k_b", "attn_v_b"})
    in.push_back(weight(fmt::format("blk.{}.{}.weight", layer, stem)));
  return op("attend_latent", std::move(in), Value::Object{{"scale", score_scale(layer)}},
            fmt::format("blk.{}.attend", layer));
}

Ref ModelBuilder::append_and_attend(int64_t layer, Ref q, Ref k, Ref v) {
  return attend(layer, append(layer, q, k, v));
}

Ref ModelBuilder::attend_shared(int64_t layer, Ref q) {
  int64_t own = config.kv_layer(layer);
  std::vector<Ref> in = {
      q, states_[first_state(own)], view_of(kv_group(own)), pos, seq, slot, q_start, kv_len};
  if (mask.valid()) in.push_back(mask);
  return attend(layer, std::move(in));
}

Ref ModelBuilder::attend(int64_t layer, std::vector<Ref> in) {
  Value::Object attrs = {{"scale", score_scale(layer)}};
  if (slides(layer) && config.chunked) {
    attrs.emplace_back("chunk", config.sliding_window);
    return op("attend_chunk", std::move(in), std::move(attrs), fmt::format("blk.{}.attend", layer));
  }
  if (slides(layer)) attrs.emplace_back("window", config.sliding_window);
  if (config.attention_softcap > 0) attrs.emplace_back("softcap", config.attention_softcap);
  if (config.attention_sinks) {
    attrs.emplace_back("sinks", 1);
    in.push_back(weight(fmt::format("blk.{}.attn_sinks.weight", layer)));
  }
  if (!config.alibi.empty()) {
    attrs.emplace_back("slopes", 1);
    in.push_back(constant("alibi", config.alibi));
  }
  return op("attend", std::move(in), std::move(attrs), fmt::format("blk.{}.attend", layer));
}

Ref ModelBuilder::advance(int64_t layer, int which, std::string_view name, std::vector<Ref> in) {
  Ref& state = states_[first_state(layer) + static_cast<size_t>(which + (attends(layer) ? 1 : 0))];
  std::vector<Ref> all = {state, view_of("recurrent"), q_start, kv_len};
  all.insert(all.end(), in.begin(), in.end());
  std::vector<Ref> out = op_multi(name, std::move(all), {}, fmt::format("blk.{}.{}", layer, name));
  state = out[0];
  return out[1];
}

Module ModelBuilder::finish_encoder(Ref x) {
  Ref out = config.embedding.pooling == Pooling::kMean
                ? op("mean_rows", {x, seq, q_start, out_rows}, {}, "pool")
                : op("gather", {x, out_rows}, Value::Object{{"axis", 0}}, "pool");
  if (config.embedding.classifies()) {
    if (has("cls.weight")) out = activation(linear(out, "cls"), config.head_activation);
    if (has("cls_norm.weight")) out = norm(out, "cls_norm");
    out = linear(out, "cls.output");
  }
  for (size_t i = 0; i < config.dense.size(); ++i) {
    out = linear(out, dense_stem(i));
    if (config.dense_tanh) out = op("tanh", {out});
  }
  fn_->set_result("hidden", out);
  return std::move(module_);
}

Ref ModelBuilder::head(Ref x) { return linear(x, has("output.weight") ? "output" : "token_embd"); }

void ModelBuilder::finish(Ref x, const std::string& final_norm) {
  Ref rows = op("gather", {x, out_rows}, Value::Object{{"axis", 0}}, "out_rows");
  Ref hidden = norm(rows, final_norm);
  Ref logits = head(hidden);
  if (config.logit_scale != 1.0)
    logits = op("scale", {logits}, Value::Object{{"value", config.logit_scale}});
  if (config.final_softcap > 0)
    logits = op("softcap", {logits}, Value::Object{{"cap", config.final_softcap}});
  fn_->set_result("logits", logits);
  fn_->set_result("hidden", hidden);
  if (layer_rows_.valid()) finish_layers();
  for (size_t l = 0; l < states_.size(); ++l) fn_->set_result(module_.states[l].name, states_[l]);
}

}  // namespace tokamak
