#include "backend/cuda/decode_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "backend/cuda/decode_segments.h"
#include "backend/cuda/kernels.h"
#include "ops/attend.h"

namespace tokamak::cuda {
namespace {

struct NotDecoder {
  std::string why;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw NotDecoder{fmt::format(format, std::forward<Args>(args)...)};
}

// Walks from the logits back to the embedding. A value is what the last call before its reader
// wrote to the same place in the arena.
class DecoderFinder {
 public:
  DecoderFinder(const PlanSet& plans, const Plan& plan) : plans_(plans), plan_(plan) { link(); }

  PlannedDecoder find() {
    const KernelCall& head = *last_writer(output("logits"));
    require(head, "linear");
    no_bias(head);
    out_.head = weight(head.in[1]);
    out_.shape.vocab = extent(out_.head, 0);
    if (head.out[0].dtype != DType::kF32) refuse("logits that are not f32");
    const KernelCall* norm = producer(head, 0, "rms_norm");
    out_.final_norm = norm_weight(*norm);
    out_.shape.hidden = extent(out_.head, 1);
    const KernelCall* residual = producer(*norm, 0);
    if (residual->op == "gather") residual = producer(*residual, 0);  // the rows with outputs
    while (residual->op == "add") residual = read_layer(*residual);
    require(*residual, "embed");
    if (residual->in[0].kind != CallArg::Kind::kInput) refuse("ids that are computed");
    out_.embedding = weight(residual->in[1]);
    std::reverse(out_.layers.begin(), out_.layers.end());
    if (out_.layers.empty()) refuse("no layers");
    out_.shape.layers = static_cast<int>(out_.layers.size());
    out_.shape.page_size = static_cast<int>(plans_.groups.at(out_.group).block_size);
    return std::move(out_);
  }

 private:
  void link() {
    std::map<uint64_t, const KernelCall*> writer;
    for (const KernelCall& call : plan_.calls) {
      for (size_t i = 0; i < call.in.size(); ++i)
        if (call.in[i].kind == CallArg::Kind::kArena)
          if (auto it = writer.find(call.in[i].offset); it != writer.end())
            producers_[{&call, i}] = it->second;
      for (const CallArg& out : call.out)
        if (out.kind == CallArg::Kind::kArena) writer[out.offset] = &call;
      if (call.op == "append") appends_[call.in[0].index] = &call;
    }
    writers_ = std::move(writer);
  }

  const CallArg& output(std::string_view name) const {
    for (const PlanOutput& o : plan_.outputs)
      if (o.name == name) return o.arg;
    refuse("no output {}", name);
  }
  const KernelCall* last_writer(const CallArg& arg) const {
    auto it = writers_.find(arg.offset);
    if (arg.kind != CallArg::Kind::kArena || it == writers_.end())
      refuse("an output that no call writes");
    return it->second;
  }
  // What computes an input; products may read it as integers.
  const KernelCall* producer(const KernelCall& call, size_t input) const {
    auto it = producers_.find({&call, input});
    if (it == producers_.end()) refuse("{} of an input of the plan", call.op);
    if (it->second->op == "quantize") return producer(*it->second, 0);
    return it->second;
  }
  const KernelCall* producer(const KernelCall& call, size_t input, std::string_view op) const {
    const KernelCall* found = producer(call, input);
    require(*found, op);
    return found;
  }
  static void require(const KernelCall& call, std::string_view op) {
    if (call.op != op) refuse("{} where {} is expected ({})", call.op, op, call.label);
  }
  // The one of two inputs that `op` computes.
  std::pair<const KernelCall*, size_t> operand(const KernelCall& call, std::string_view op) const {
    for (size_t i = 0; i < 2; ++i)
      if (const KernelCall* found = producer(call, i); found->op == op) return {found, 1 - i};
    refuse("{} without {} ({})", call.op, op, call.label);
  }

  uint32_t weight(const CallArg& arg) const {
    if (arg.kind != CallArg::Kind::kWeight) refuse("a weight that is computed");
    return arg.index;
  }
  int extent(uint32_t weight, size_t axis) const {
    return static_cast<int>(plans_.weights.at(weight).dims.at(axis));
  }
  static void no_bias(const KernelCall& linear) {
    if (linear.in.size() > 2) refuse("a bias ({})", linear.label);
  }
  uint32_t norm_weight(const KernelCall& norm) {
    if (norm.in.size() != 2) refuse("a norm with {} operands ({})", norm.in.size(), norm.label);
    auto eps = static_cast<float>(norm.attrs.at("eps").as_double());
    if (norms_++ == 0) out_.shape.eps = eps;
    if (out_.shape.eps != eps) refuse("norms with several eps ({})", norm.label);
    return weight(norm.in[1]);
  }
  template <class T>
  void same(T& known, T value, bool first, const char* what) {
    if (first) known = value;
    if (known != value) refuse("layers with several {}", what);
  }

  // From the sum after the feed-forward part to the residual that the layer began with.
  const KernelCall* read_layer(const KernelCall& after_mlp) {
    PlannedLayer& layer = out_.layers.emplace_back();
    auto [down, rest] = operand(after_mlp, "linear");
    no_bias(*down);
    layer.down = weight(down->in[1]);
    const KernelCall* product = producer(*down, 0, "mul");
    auto [silu, other] = operand(*product, "silu");
    const KernelCall *gate = producer(*silu, 0, "linear"),
                     *up = producer(*product, other, "linear");
    no_bias(*gate);
    no_bias(*up);
    layer.gate = weight(gate->in[1]);
    layer.up = weight(up->in[1]);
    same(out_.shape.mlp, extent(layer.gate, 0), out_.layers.size() == 1, "widths");
    const KernelCall* norm = producer(*gate, 0, "rms_norm");
    if (producer(*up, 0) != norm) refuse("gate and up of different inputs");
    layer.mlp_norm = norm_weight(*norm);
    const KernelCall* after_attention = producer(after_mlp, rest, "add");
    if (producer(*norm, 0) != after_attention) refuse("a norm of another value ({})", norm->label);
    return read_attention(*after_attention, layer);
  }

  const KernelCall* read_attention(const KernelCall& after_attention, PlannedLayer& layer) {
    auto [out, rest] = operand(after_attention, "linear");
    no_bias(*out);
    layer.out = weight(out->in[1]);
    const KernelCall* attend = producer(*out, 0, "attend");
    check_attend(*attend);
    layer.state = attend->in[1].index;
    auto append = appends_.find(layer.state);
    if (append == appends_.end()) refuse("a state that is only read ({})", attend->label);
    const std::vector<PlaneEntry>& planes = plans_.states.at(layer.state).planes;
    if (planes.size() != 2 || planes[0].name != "k" || planes[1].name != "v")
      refuse("a state of other planes than k and v");
    const KernelCall* norm = nullptr;
    read_product(rotated(*attend, 0, layer.query_norm), norm, layer.q, layer.q_bias);
    read_product(rotated(*append->second, 4, layer.key_norm), norm, layer.k, layer.k_bias);
    read_product(producer(*append->second, 5, "linear"), norm, layer.v, layer.v_bias);
    layer.attention_norm = norm_weight(*norm);
    const KernelCall* before = producer(after_attention, rest);
    if (producer(*norm, 0) != before) refuse("a norm of another value ({})", norm->label);
    return before;
  }
  void check_attend(const KernelCall& attend) {
    for (const char* operand : {"sinks", "slopes"})
      if (attend.attrs.get_int(operand, 0) != 0) refuse("{} ({})", operand, attend.label);
    if (attend.in.size() > 8 && attend.in[8].kind != CallArg::Kind::kInput)
      refuse("a mask that is computed ({})", attend.label);
    if (attend.attrs.get_int("window", 0) != 0) refuse("a window ({})", attend.label);
    if (attend.attrs.get_double("softcap", 0) != 0) refuse("a soft-cap ({})", attend.label);
    if (attend_key_planes(attend.attrs) != std::vector<std::string>{"k"} ||
        attend_value_plane(attend.attrs) != "v")
      refuse("keys of several planes");
    const StateEntry& state = plans_.states.at(attend.in[1].index);
    DecoderShape& shape = out_.shape;
    const bool first = out_.layers.size() == 1;
    same(shape.heads, constant(attend.in[0].dims.at(1)), first, "numbers of heads");
    same(shape.head_dim, constant(attend.in[0].dims.at(2)), first, "sizes of heads");
    same(shape.kv_heads, static_cast<int>(state.planes.at(0).dims.at(0)), first,
         "numbers of heads");
    same(shape.score_scale, static_cast<float>(attend.attrs.at("scale").as_double()), first,
         "scales of scores");
    same(out_.group, attend.in[2].index, first, "KV groups");
    same(shape.cache_f16, state.planes[0].dtype == DType::kF16, first, "types of the KV cache");
    for (const PlaneEntry& plane : state.planes)
      if (plane.dtype != DType::kF16 && plane.dtype != DType::kBF16)
        refuse("a KV cache of {}", dtype_name(plane.dtype));
      else if (plane.dtype != state.planes[0].dtype)
        refuse("keys and values of different types");
      else if (plane.dims.size() != 2 || plane.dims[1] != shape.head_dim)
        refuse("keys and values of several widths");
  }
  static int constant(const SymExpr& e) {
    auto value = e.constant();
    if (!value) refuse("extents that vary");
    return static_cast<int>(*value);
  }
  // A rotated head; before that it may be normed.
  const KernelCall* rotated(const KernelCall& reader, size_t input, uint32_t& norm) {
    const KernelCall* rope = producer(reader, input, "rope");
    const uint32_t frequencies = weight(rope->in[2]);
    if (out_.frequencies == kNoWeight) {
      out_.frequencies = frequencies;
      out_.shape.rope_scale = static_cast<float>(rope->attrs.get_double("scale", 1.0));
    }
    if (frequencies != out_.frequencies ||
        out_.shape.rope_scale != static_cast<float>(rope->attrs.get_double("scale", 1.0)))
      refuse("several rotations");
    if (plans_.weights.at(frequencies).dtype != DType::kF32 ||
        2 * extent(frequencies, 0) != out_.shape.head_dim)
      refuse("heads that are rotated in part");
    const KernelCall* from = producer(*rope, 0);
    if (from->op == "rms_norm") {
      norm = norm_weight(*from);
      from = producer(*from, 0);
    }
    require(*from, "linear");
    return from;
  }
  // q, k and v have to read the same norm.
  void read_product(const KernelCall* linear, const KernelCall*& norm, uint32_t& matrix,
                    uint32_t& bias) {
    matrix = weight(linear->in[1]);
    if (linear->in.size() > 2) bias = weight(linear->in[2]);
    const KernelCall* from = producer(*linear, 0, "rms_norm");
    if (from->out[0].dtype != DType::kBF16)
      refuse("values stored as {}: the kernel stores bf16 (--storage bf16,residual=f32)",
             dtype_name(from->out[0].dtype));
    if (norm && norm != from) refuse("q, k and v of different inputs");
    norm = from;
  }

  const PlanSet& plans_;
  const Plan& plan_;
  std::map<std::pair<const KernelCall*, size_t>, const KernelCall*> producers_;
  std::map<uint64_t, const KernelCall*> writers_;  // at the end of the plan
  std::map<uint32_t, const KernelCall*> appends_;  // by state
  PlannedDecoder out_;
  int norms_ = 0;
};

std::optional<DecodeWeight> streamed_type(DType type) {
  switch (type) {
    case DType::kBF16:
      return DecodeWeight::kBf16;
    case DType::kF16:
      return DecodeWeight::kF16;
    case DType::kQ8_0:
      return DecodeWeight::kQ8;
    case DType::kQ4_0:
      return DecodeWeight::kQ4;
    default:
      return std::nullopt;
  }
}
DecodeWeight product_type(const WeightEntry& entry) {
  if (const auto type = streamed_type(entry.dtype)) return *type;
  refuse("{} weights ({})", dtype_name(entry.dtype), entry.name);
}

// Block formats that are not read as they are, and mixtures, are packed as kK4 and kK8.
bool takes_segments(const PlanSet& plans, const PlannedDecoder& decoder) {
  const DType first = plans.weights.at(decoder.layers[0].out).dtype;
  bool mixed = !streamed_type(first), segments = true;
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products()) {
      const DType type = plans.weights.at(w).dtype;
      mixed = mixed || type != first;
      segments = segments && segments_of(type) != DecodeWeight::kBf16;
    }
  return mixed && segments;
}

// Files with Q4_0 weights usually have a head of Q6_K.
void set_types(const PlanSet& plans, PlannedDecoder& decoder) {
  const WeightEntry& head = plans.weights.at(decoder.head);
  if (takes_segments(plans, decoder)) {
    decoder.type = DecodeWeight::kK4;
    if (segments_of(head.dtype) != DecodeWeight::kBf16) {
      decoder.head_type = matrix_type(plans, decoder.type, {decoder.head});
      return;
    }
  }
  decoder.expands_head = !streamed_type(head.dtype) && is_expandable(head.dtype);
  decoder.head_type = decoder.expands_head ? DecodeWeight::kBf16 : product_type(head);
  if (decoder.type == DecodeWeight::kK4) return;
  decoder.type = product_type(plans.weights.at(decoder.layers[0].out));
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products())
      if (product_type(plans.weights.at(w)) != decoder.type)
        refuse("layers with weights of several types");
}

}  // namespace

void read_as_fp8(PlannedDecoder& decoder) {
  if (decoder.type == DecodeWeight::kBf16) decoder.type = DecodeWeight::kFp8;
  if (decoder.head_type == DecodeWeight::kBf16 && !decoder.expands_head)
    decoder.head_type = DecodeWeight::kFp8;
}

DecodeWeight matrix_type(const PlanSet& plans, DecodeWeight kernel,
                         const std::vector<uint32_t>& parts) {
  if (kernel != DecodeWeight::kK4) return kernel;
  return std::all_of(parts.begin(), parts.end(),
                     [&](uint32_t w) {
                       return segments_of(plans.weights.at(w).dtype) == DecodeWeight::kK4;
                     })
             ? DecodeWeight::kK4
             : DecodeWeight::kK8;
}

DecoderWeights product_types(const PlanSet& plans, const PlannedDecoder& decoder) {
  DecoderWeights types;
  for (const PlannedLayer& l : decoder.layers) {
    LayerWeights& to = types.layers.emplace_back();
    to.qkv.type = matrix_type(plans, decoder.type, {l.q, l.k, l.v});
    to.out.type = matrix_type(plans, decoder.type, {l.out});
    to.gate_up.type = matrix_type(plans, decoder.type, {l.gate, l.up});
    to.down.type = matrix_type(plans, decoder.type, {l.down});
  }
  types.head.type = decoder.head_type;
  return types;
}

double streamed_bytes(const PlanSet& plans, const PlannedDecoder& decoder, bool packed) {
  double bytes = 0;
  auto add = [&](DecodeWeight type, const std::vector<uint32_t>& parts) {
    const bool expanded = decoder.expands_head && parts[0] == decoder.head;
    const bool as_stored = decode_16_bits(type) && !expanded;
    const double each =
        decode_16_bits(type) ? 2.0 : (decode_number_bytes(type) + decode_scale_bytes(type)) / 512.0;
    for (uint32_t w : parts) {
      const std::vector<int64_t>& dims = plans.weights.at(w).dims;
      if (!packed || !as_stored)
        bytes += each * static_cast<double>(dims.at(0)) * static_cast<double>(dims.at(1));
    }
  };
  auto add_layers = [&](const std::vector<uint32_t>& parts) {
    add(matrix_type(plans, decoder.type, parts), parts);
  };
  for (const PlannedLayer& l : decoder.layers) {
    add_layers({l.q, l.k, l.v});
    add_layers({l.out});
    add_layers({l.gate, l.up});
    add_layers({l.down});
  }
  add(decoder.head_type, {decoder.head});
  return bytes;
}

std::optional<PlannedDecoder> find_decoder(const PlanSet& plans, const Plan& plan,
                                           std::string& why) {
  try {
    return DecoderFinder(plans, plan).find();
  } catch (const NotDecoder& found) {
    why = found.why;
    return std::nullopt;
  }
}

std::optional<PlannedDecoder> find_streamed(const PlanSet& plans, const Plan& plan,
                                            std::string& why) {
  std::optional<PlannedDecoder> decoder = find_decoder(plans, plan, why);
  if (!decoder) return std::nullopt;
  try {
    set_types(plans, *decoder);
    return decoder;
  } catch (const NotDecoder& found) {
    why = found.why;
    return std::nullopt;
  }
}

}  // namespace tokamak::cuda
