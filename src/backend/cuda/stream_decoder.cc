#include "backend/cuda/stream_decoder.h"

#include <algorithm>
#include <cstdlib>

#include "backend/cuda/decode_pack.h"
#include "backend/cuda/images.h"
#include "base/error.h"
#include "base/log.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

constexpr int kCapability = 90;  // bulk copies and their barriers

// For comparisons: every step by the kernels of single ops.
bool stream_enabled() {
  const char* off = std::getenv("TOKAMAK_CUDA_STREAM");
  return !off || std::string_view(off) != "0";
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::unique_ptr<StreamDecoder> StreamDecoder::make(const Device& device, const PlanSet& plans,
                                                   const DeviceWeights& weights, const KvPool& kv,
                                                   const KernelLibrary& kernels,
                                                   const DeviceStream& stream, int64_t max_rows) {
  if (!stream_enabled()) return nullptr;
  auto refuse = [](std::string_view why) -> std::unique_ptr<StreamDecoder> {
    log::info("decode does not use the persistent kernel: {}", why);
    return nullptr;
  };
  auto plan = std::find_if(plans.plans.begin(), plans.plans.end(),
                           [](const Plan& p) { return p.function == "decode"; });
  if (plan == plans.plans.end()) return nullptr;
  if (device.capability() < kCapability) return refuse("the GPU is older than Hopper");
  std::string why;
  std::optional<PlannedDecoder> decoder = find_decoder(plans, *plan, why);
  if (!decoder) return refuse(why);
  for (int most : {static_cast<int>(std::min<int64_t>(max_rows, kMaxBatch)), 1}) {
    std::unique_ptr<StreamDecoder> made(new StreamDecoder(plans, *decoder, kv, kernels, most));
    try {
      made->load(device, weights, stream);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported && e.code() != ErrorCode::kResourceExhausted) throw;
      why = e.what();
      continue;
    }
    log::info("decode of 1 to {} sequences runs in the persistent kernel", most);
    return made;
  }
  return refuse(why);
}

StreamDecoder::StreamDecoder(const PlanSet& plans, PlannedDecoder decoder, const KvPool& kv,
                             const KernelLibrary& kernels, int max_batch)
    : plans_(plans),
      decoder_(std::move(decoder)),
      kv_(kv),
      kernels_(kernels),
      max_batch_(max_batch),
      embed_(kernels) {}

uint64_t StreamDecoder::bytes() const {
  uint64_t total = vectors_.bytes() + embedded_.bytes() + stream_->bytes();
  for (const Buffer& b : packed_) total += b.bytes();
  return total;
}

void StreamDecoder::load(const Device& device, const DeviceWeights& weights,
                         const DeviceStream& stream) {
  const DecoderShape& shape = decoder_.shape;
  for (const PlannedLayer& layer : decoder_.layers)  // before anything is copied
    for (const char* plane : {"k", "v"})
      if (kv_.state(layer.state).plane(plane).block_bytes !=
          int64_t{shape.kv_heads} * shape.page_size * shape.head_dim * 2)
        fail(ErrorCode::kUnsupported, "blocks of the KV cache are padded");
  DecoderWeights to;
  size_t elements = 0;
  for (const WeightEntry& w : plans_.weights)
    if (w.dims.size() == 1) elements += aligned(static_cast<size_t>(w.dims[0]));
  elements += decoder_.layers.size() * aligned(static_cast<size_t>(shape.qkv_rows()));
  vectors_ = Buffer(elements * sizeof(uint16_t));
  for (const PlannedLayer& l : decoder_.layers) {
    LayerWeights& layer = to.layers.emplace_back();
    layer = {};
    layer.attention_gains = vectors({l.attention_norm}, {shape.hidden}, weights);
    layer.mlp_gains = vectors({l.mlp_norm}, {shape.hidden}, weights);
    layer.query_gains = vectors({l.query_norm}, {shape.head_dim}, weights);
    layer.key_gains = vectors({l.key_norm}, {shape.head_dim}, weights);
    const int q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
    layer.qkv_bias = vectors({l.q_bias, l.k_bias, l.v_bias}, {q, kv, kv}, weights);
    layer.qkv = matrix(decoder_.type, {l.q, l.k, l.v}, false, weights, stream);
    layer.out = matrix(decoder_.type, {l.out}, false, weights, stream);
    if (decoder_.type == DecodeWeight::kBf16) {
      layer.gate_up = matrix(decoder_.type, {l.gate}, false, weights, stream);
      layer.up = weights.address(l.up);
    } else {
      layer.gate_up = matrix(decoder_.type, {l.gate, l.up}, true, weights, stream);
    }
    layer.down = matrix(decoder_.type, {l.down}, false, weights, stream);
    layer.keys = reinterpret_cast<DeviceAddress>(kv_.state(l.state).plane("k").base);
    layer.values = reinterpret_cast<DeviceAddress>(kv_.state(l.state).plane("v").base);
  }
  to.head = matrix(decoder_.head_type, {decoder_.head}, false, weights, stream);
  to.final_gains = vectors({decoder_.final_norm}, {shape.hidden}, weights);
  to.frequencies = weights.address(decoder_.frequencies);
  embedding_ = weights.address(decoder_.embedding);
  if (plans_.weights.at(decoder_.embedding).dtype == DType::kBF16)
    to.embedding = embedding_;
  else
    embedded_ = Buffer(static_cast<size_t>(max_batch_) * static_cast<size_t>(shape.hidden) * 2);
  stream.wait();
  const std::vector<std::byte> image = kernel_image("decode_stream");
  stream_ = std::make_unique<DecodeStream>(device, image.data(), shape, to, max_batch_);
}

// Vectors one after the other as bf16; zeros for those that the model does not have. 0: it has
// none of them.
DeviceAddress StreamDecoder::vectors(const std::vector<uint32_t>& parts,
                                     const std::vector<int>& lengths,
                                     const DeviceWeights& weights) {
  if (std::all_of(parts.begin(), parts.end(), [](uint32_t w) { return w == kNoWeight; })) return 0;
  std::vector<uint16_t> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto length = static_cast<size_t>(lengths[i]), first = values.size();
    values.resize(first + length);
    if (parts[i] == kNoWeight) continue;
    const WeightEntry& entry = plans_.weights.at(parts[i]);
    if (entry.dims != std::vector<int64_t>{lengths[i]})
      fail(ErrorCode::kUnsupported, "{} has another length than {}", entry.name, length);
    std::vector<std::byte> bytes(dtype_bytes(entry.dtype, lengths[i]));
    check(driver().copy_out(bytes.data(), weights.address(parts[i]), bytes.size()),
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

// Rows of several weights as one matrix, in turn where they alternate. bf16 rows stay where they
// are if they follow each other in memory.
DecodeMatrix StreamDecoder::matrix(DecodeWeight type, const std::vector<uint32_t>& parts,
                                   bool alternate, const DeviceWeights& weights,
                                   const DeviceStream& stream) {
  DecodeMatrix out;
  out.type = type;
  PackArgs args{};
  bool together = true;
  size_t bytes = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightEntry& entry = plans_.weights.at(parts[i]);
    args.source[i] = reinterpret_cast<const uint8_t*>(weights.address(parts[i]));
    args.rows[i] = entry.dims.at(0);
    args.width = entry.dims.at(1);
    args.type = entry.dtype;
    together = together && weights.address(parts[i]) == weights.address(parts[0]) + bytes;
    bytes += static_cast<size_t>(weight_bytes(entry));
    rows += entry.dims[0];
  }
  if (type == DecodeWeight::kBf16) {
    out.data = weights.address(parts[0]);
    if (together) return out;
    out.data = packed_.emplace_back(bytes).address();
    check(driver().stream_wait(nullptr), "clearing memory");
    DeviceAddress to = out.data;
    for (uint32_t part : parts) {
      auto size = static_cast<size_t>(weight_bytes(plans_.weights[part]));
      stream.copy(to, weights.address(part), size);
      to += size;
    }
    return out;
  }
  const int width = static_cast<int>(args.width);
  out.data = packed_.emplace_back(packed_bytes(type, static_cast<int>(rows), width)).address();
  check(driver().stream_wait(nullptr), "clearing memory");
  args.row_bytes = static_cast<int64_t>(dtype_bytes(args.type, args.width));
  args.parts = decode_parts(type, width);
  args.tiles = packed_tiles(static_cast<int>(rows));
  args.to = reinterpret_cast<uint8_t*>(out.data);
  args.alternate = alternate;
  LaunchList list(kernels_);
  const int64_t threads = args.tiles * 16 * (args.width / 32);
  list.add("op_pack", "op_pack", {(threads + kElementThreads - 1) / kElementThreads},
           kElementThreads, args);
  list.run(stream);
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
    const WeightEntry& table = plans_.weights.at(decoder_.embedding);
    embed_.clear();
    KernelCall call;
    call.op = "embed";
    StepView view;
    CallSite site{call, {}, {}, kv_, view, {}};
    site.in.push_back({DType::kI32, {static_cast<int64_t>(rows)}, batch.ids, 0});
    site.in.push_back({table.dtype, table.dims, embedding_, 0});
    site.out.push_back(
        {DType::kBF16, {static_cast<int64_t>(rows), table.dims[1]}, embedded_.address(), 0});
    emit_gather(site, embed_);
    embed_ids_ = batch.ids;
    embed_rows_ = rows;
  }
  embed_.run(stream);
}

}  // namespace tokamak::cuda
