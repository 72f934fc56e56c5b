#include "backend/cuda/stream_decoder.h"

#include <algorithm>

#include "backend/cuda/decode_pack.h"
#include "backend/cuda/images.h"
#include "base/error.h"
#include "plan/dispatch.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::unique_ptr<StreamDecoder> StreamDecoder::make(const Model& model, LaunchKind kind) {
  const std::vector<const Plan*> named = plans_with(model.plans, kind);
  if (named.empty()) return nullptr;
  if (model.device.capability() != kHopper)
    fail(ErrorCode::kUnsupported, "it needs a GPU of compute capability 9.0");
  std::string why;
  std::optional<PlannedDecoder> decoder = find_streamed(model.plans, *named[0], why);
  if (!decoder) fail(ErrorCode::kUnsupported, "plan {}: {}", plan_name(*named[0]), why);
  if (kind == LaunchKind::kStreamFp8) read_as_fp8(*decoder);
  int64_t batch = 1;
  for (const Plan* plan : named) batch = std::max(batch, most_of(model.plans, *plan, "B"));
  const int most = static_cast<int>(std::min<int64_t>(batch, kMaxBatch));
  // Before anything is allocated.
  DecodeStream::check_fits(model.device.multiprocessors(), model.device.shared_memory_limit(),
                           decoder->shape, product_types(model.plans, *decoder), most);
  std::unique_ptr<StreamDecoder> made(new StreamDecoder(model, std::move(*decoder), most));
  made->load();
  return made;
}

uint64_t StreamDecoder::bytes_for(const PlanSet& plans) {
  double bytes = 0;
  for (LaunchKind kind : {LaunchKind::kStream, LaunchKind::kStreamFp8}) {
    const std::vector<const Plan*> named = plans_with(plans, kind);
    if (named.empty()) continue;
    std::string why;
    std::optional<PlannedDecoder> decoder = find_streamed(plans, *named[0], why);
    if (!decoder) continue;  // make() fails
    if (kind == LaunchKind::kStreamFp8) read_as_fp8(*decoder);
    bytes += streamed_bytes(plans, *decoder, true);
  }
  return static_cast<uint64_t>(bytes);
}

StreamDecoder::StreamDecoder(const Model& model, PlannedDecoder decoder, int max_batch)
    : model_(model), decoder_(std::move(decoder)), max_batch_(max_batch), embed_(model.kernels) {}

uint64_t StreamDecoder::bytes() const {
  uint64_t total = vectors_.bytes() + embedded_.bytes() + stream_->bytes();
  for (const Buffer& b : packed_) total += b.bytes();
  return total;
}

void StreamDecoder::load() {
  const DeviceWeights& weights = model_.weights;
  const DecoderShape& shape = decoder_.shape;
  DecoderWeights to;
  size_t elements = 0;
  for (const WeightEntry& w : model_.plans.weights)
    if (w.dims.size() == 1) elements += aligned(static_cast<size_t>(w.dims[0]));
  elements += decoder_.layers.size() * aligned(static_cast<size_t>(shape.qkv_rows()));
  vectors_ = Buffer(elements * sizeof(uint16_t));
  for (const PlannedLayer& l : decoder_.layers) {
    LayerWeights& layer = to.layers.emplace_back();
    layer = {};
    layer.attention_gains = vectors({l.attention_norm}, {shape.hidden});
    layer.mlp_gains = vectors({l.mlp_norm}, {shape.hidden});
    layer.query_gains = vectors({l.query_norm}, {shape.head_dim});
    layer.key_gains = vectors({l.key_norm}, {shape.head_dim});
    const int q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
    layer.qkv_bias = vectors({l.q_bias, l.k_bias, l.v_bias}, {q, kv, kv});
    auto packed = [&](const std::vector<uint32_t>& parts, bool alternate) {
      return matrix(matrix_type(model_.plans, decoder_.type, parts), parts, alternate);
    };
    layer.qkv = packed({l.q, l.k, l.v}, false);
    layer.out = packed({l.out}, false);
    if (decode_16_bits(decoder_.type)) {
      layer.gate_up = packed({l.gate}, false);
      layer.up = weights.address(l.up);
    } else {
      layer.gate_up = packed({l.gate, l.up}, true);
    }
    layer.down = packed({l.down}, false);
    layer.keys = reinterpret_cast<DeviceAddress>(model_.kv.state(l.state).plane("k").base);
    layer.values = reinterpret_cast<DeviceAddress>(model_.kv.state(l.state).plane("v").base);
  }
  to.head = decoder_.expands_head ? expanded(decoder_.head)
                                  : matrix(decoder_.head_type, {decoder_.head}, false);
  to.final_gains = vectors({decoder_.final_norm}, {shape.hidden});
  to.frequencies = weights.address(decoder_.frequencies);
  embedding_ = weights.address(decoder_.embedding);
  if (model_.plans.weights.at(decoder_.embedding).dtype == DType::kBF16)
    to.embedding = embedding_;
  else
    embedded_ = Buffer(static_cast<size_t>(max_batch_) * static_cast<size_t>(shape.hidden) * 2);
  model_.stream.wait();
  const std::vector<std::byte> image = kernel_image("decode_stream");
  stream_ = std::make_unique<DecodeStream>(model_.device, image.data(), shape, to, max_batch_);
}

// Vectors one after the other as bf16; zeros for those that the model does not have. 0: it has
// none of them.
DeviceAddress StreamDecoder::vectors(const std::vector<uint32_t>& parts,
                                     const std::vector<int>& lengths) {
  if (std::all_of(parts.begin(), parts.end(), [](uint32_t w) { return w == kNoWeight; })) return 0;
  std::vector<uint16_t> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto length = static_cast<size_t>(lengths[i]), first = values.size();
    values.resize(first + length);
    if (parts[i] == kNoWeight) continue;
    const WeightEntry& entry = model_.plans.weights.at(parts[i]);
    if (entry.dims != std::vector<int64_t>{lengths[i]})
      fail(ErrorCode::kUnsupported, "{} has another length than {}", entry.name, length);
    std::vector<std::byte> bytes(dtype_bytes(entry.dtype, lengths[i]));
    check(driver().copy_out(bytes.data(), model_.weights.address(parts[i]), bytes.size()),
          "reading a weight");
    std::vector<float> floats(length);
    decode_row(entry.dtype, bytes.data(), floats.data(), lengths[i]);
    std::transform(floats.begin(), floats.end(), values.begin() + static_cast<ptrdiff_t>(first),
                   f32_to_bf16);
  }
  const size_t at = vectors_used_, bytes = values.size() * sizeof(uint16_t);
  vectors_used_ += aligned(bytes);
  vectors_.write(values.data(), bytes, at);
  return vectors_.address() + at;
}

// Rows of 16 bits of several weights, one after the other; they stay where they are if that is so
// already.
DecodeMatrix StreamDecoder::joined(DecodeWeight type, const std::vector<uint32_t>& parts,
                                   size_t bytes) {
  DecodeMatrix out;
  out.type = type;
  out.data = model_.weights.address(parts[0]);
  if (model_.weights.together(parts)) return out;
  out.data = packed_.emplace_back(bytes).address();
  check(driver().stream_wait(nullptr), "clearing memory");
  DeviceAddress to = out.data;
  for (uint32_t part : parts) {
    auto size = static_cast<size_t>(weight_bytes(model_.plans.weights[part]));
    model_.stream.copy(to, model_.weights.address(part), size);
    to += size;
  }
  return out;
}

DecodeMatrix StreamDecoder::expanded(uint32_t weight) {
  const WeightEntry& entry = model_.plans.weights.at(weight);
  DecodeMatrix out;
  out.data = packed_.emplace_back(expanded_bytes(entry.dims.at(0), entry.dims.at(1))).address();
  check(driver().stream_wait(nullptr), "clearing memory");
  LaunchList list(model_.kernels);
  emit_expand(list, {entry.dtype, entry.dims, model_.weights.address(weight), 0}, out.data);
  list.run(model_.stream);
  return out;
}

// Rows of several weights as one matrix, in turn where they alternate.
DecodeMatrix StreamDecoder::matrix(DecodeWeight type, const std::vector<uint32_t>& parts,
                                   bool alternate) {
  PackArgs args{};
  size_t bytes = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightEntry& entry = model_.plans.weights.at(parts[i]);
    args.source[i] = reinterpret_cast<const uint8_t*>(model_.weights.address(parts[i]));
    args.rows[i] = entry.dims.at(0);
    args.width = entry.dims.at(1);
    args.type[i] = entry.dtype;
    args.row_bytes[i] = static_cast<int64_t>(dtype_bytes(entry.dtype, args.width));
    bytes += static_cast<size_t>(weight_bytes(entry));
    rows += entry.dims[0];
  }
  if (decode_16_bits(type)) return joined(type, parts, bytes);
  DecodeMatrix out;
  out.type = type;
  const int width = static_cast<int>(args.width);
  out.data = packed_.emplace_back(packed_bytes(type, static_cast<int>(rows), width)).address();
  args.parts = decode_parts(type, width);
  args.tiles = packed_tiles(static_cast<int>(rows));
  args.to = reinterpret_cast<uint8_t*>(out.data);
  args.alternate = alternate;
  int64_t threads = args.tiles * 16 * (args.width / 32);
  const bool segments = decode_kernel_type(type) == DecodeWeight::kK4;
  args.eight = type == DecodeWeight::kK8;
  const char* kernel = segments ? "op_pack_segments" : "op_pack";
  if (type == DecodeWeight::kFp8) {
    out.scales = packed_.emplace_back(static_cast<size_t>(rows) * sizeof(float)).address();
    args.scales = reinterpret_cast<float*>(out.scales);
    threads = args.tiles * 16 * 32;
    kernel = "op_pack_fp8";
  }
  check(driver().stream_wait(nullptr), "clearing memory");
  LaunchList list(model_.kernels);
  list.add("op_pack", kernel, {(threads + kElementThreads - 1) / kElementThreads}, kElementThreads,
           args);
  list.run(model_.stream);
  return out;
}

bool StreamDecoder::takes(const StepInputs& step) const {
  const size_t batch = step.ids.size();
  if (batch < 1 || batch > static_cast<size_t>(max_batch_) || step.kv_len.size() != batch)
    return false;
  for (size_t b = 0; b < batch; ++b)
    if (step.seq[b] != static_cast<int32_t>(b) || step.pos[b] != step.slot[b] ||
        step.kv_len[b] != step.slot[b] + 1)
      return false;
  return true;
}

void StreamDecoder::make_states(std::span<const int32_t> ids, std::span<const int32_t> pos,
                                DecodeState* to) const {
  for (size_t b = 0; b < ids.size(); ++b) {
    // Embeddings that were looked up before the step are in the order of its sequences.
    const int32_t token = embedded_.bytes() > 0 ? static_cast<int32_t>(b) : ids[b];
    to[b] = {token, pos[b], -1, 0};
  }
}

void StreamDecoder::launch(const DeviceStream& stream, const Batch& batch) {
  DecodeStep step;
  step.state = batch.state;
  step.logits = batch.logits;
  if (embedded_.bytes() > 0) {
    embed(stream, batch);
    step.embedding = embedded_.address();
  }
  stream_->launch(stream.get(), reinterpret_cast<DeviceAddress>(batch.view.table),
                  batch.view.stride, batch.sampling, 0, step);
}

void StreamDecoder::embed(const DeviceStream& stream, const Batch& batch) {
  const auto rows = batch.sampling.size();
  if (batch.ids != embed_ids_ || rows != embed_rows_) {
    const WeightEntry& table = model_.plans.weights.at(decoder_.embedding);
    embed_.clear();
    emit_embedding(
        embed_, model_.kv, table, embedding_, batch.ids,
        {DType::kBF16, {static_cast<int64_t>(rows), table.dims[1]}, embedded_.address(), 0});
    embed_ids_ = batch.ids;
    embed_rows_ = rows;
  }
  embed_.run(stream);
}

}  // namespace tokamak::cuda
