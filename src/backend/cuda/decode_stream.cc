#include "backend/cuda/decode_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

size_t align256(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T>
T* at(DeviceAddress address) {
  return reinterpret_cast<T*>(address);
}

// Keeps the kernel's layout in numbers: queries and fresh values, scratch, peaks and masses, sums.
int attend_bytes(const DecoderShape& shape, int warps) {
  int head = shape.head_dim, group = shape.heads / shape.kv_heads;
  int fixed = (kMaxGroup + 2) * head * 2 + warps * (8 * kMaxGroup + kMaxGroup) * 4 +
              2 * warps * kMaxGroup * 4;
  return fixed + warps * group * head * 4;
}

}  // namespace

std::string DecodeVariant::name() const {
  return fmt::format("decode_stream_{}_{}_{}x{}_{}_{}", head_dim, group, warps, chunk_kb, slots,
                     producers);
}

DecodeVariant DecodeVariant::of(const DecoderShape& shape) {
  DecodeVariant v;
  v.head_dim = shape.head_dim;
  v.group = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.heads / shape.kv_heads)));
  if (v.head_dim == 64) v.group = 8;
  if (shape.hidden <= 2048) v.in_flight = 6;  // small steps wait more for values than for weights
  if (v.head_dim == 128 && v.group == 8) v.slots = 5;  // sums of eight heads take the room of one
  return v;
}

int DecodeVariant::shared_bytes(const DecoderShape& shape) const {
  auto align = [](int bytes) { return (bytes + 127) / 128 * 128; };
  int ring = align(slots * (warps * chunk_kb * 1024 + 40) + 4);
  int fixed = align(ring + head_dim / 2 * 8 + warps * (8 + 4 + 4));
  int widest = std::max({shape.hidden, shape.mlp, shape.heads * shape.head_dim}) * 2;
  return fixed + std::max(widest, attend_bytes(shape, warps));
}

DecodeWorkspace::DecodeWorkspace(const DecoderShape& shape, int blocks) {
  size_t used = 0;
  auto take = [&](size_t bytes) {
    size_t start = used;
    used += align256(bytes);
    return start;
  };
  auto words = [](int n) { return static_cast<size_t>(n) * sizeof(uint32_t); };
  auto count = [](int n) { return static_cast<size_t>(n); };
  after_attention = take(words(shape.hidden));
  after_mlp = take(words(shape.hidden));
  qkv = take(words(shape.qkv_rows()));
  attention = take(words(shape.heads * shape.head_dim));
  activated = take(words(shape.mlp));
  partials = take(count(shape.heads) * count(std::max(1, blocks / shape.kv_heads)) *
                  count(shape.head_dim + 1) * sizeof(TaggedPair));
  candidates = take(count(blocks) * 3 * sizeof(TaggedPair));
  logits = take(words(shape.vocab));
  bytes = used;
}

void check_decode_shape(const DecoderShape& s, const DecodeVariant& variant, int blocks) {
  auto require = [](bool holds, const char* what) {
    if (!holds) fail(ErrorCode::kUnsupported, "the persistent decode kernel needs {}", what);
  };
  int chunk = variant.chunk_kb * 512;  // elements
  auto fits = [&](int width) {
    int parts = (width + chunk - 1) / chunk;
    return width > 0 && width % parts == 0 && width / parts % 8 == 0;
  };
  require(s.layers > 0 && 6 * s.layers + 1 <= kMaxInstructions, "1 to 133 layers");
  require(s.head_dim == variant.head_dim && s.heads / std::max(1, s.kv_heads) <= variant.group,
          "a variant for these heads");
  require(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.heads / s.kv_heads <= kMaxGroup,
          "at most 8 query heads per key/value head");
  require(s.kv_heads <= blocks, "no more key/value heads than multiprocessors");
  require(fits(s.hidden) && fits(s.mlp) && fits(s.heads * s.head_dim),
          "widths that fall into equal chunks of 16 bytes");
  // Every block must own a row of every full vector: that is what keeps buffers from being
  // overwritten before the slowest block has read them.
  require(s.hidden >= blocks && s.qkv_rows() >= blocks && s.mlp >= blocks && s.vocab >= blocks,
          "widths of at least the number of multiprocessors");
  require(s.hidden <= kMaxOwnedRows * variant.warps * blocks, "a smaller hidden size");
  require(s.page_size > 0 && s.page_size % 8 == 0, "pages of a multiple of 8 positions");
}

std::vector<DecodeInstruction> make_decode_program(const DecoderShape& s, const DecoderWeights& w,
                                                   const DecodeWorkspace& layout,
                                                   DeviceAddress base) {
  std::vector<DecodeInstruction> program;
  auto words = [&](size_t offset) { return at<uint32_t>(base + offset); };
  auto matvec = [&](uint32_t flags, DeviceAddress weights, DeviceAddress gains, int width, int rows,
                    const uint32_t* input, uint32_t* output, int tag_in, int tag_out) {
    DecodeInstruction in{};
    in.op = DecodeOp::kMatvec;
    in.flags = flags;
    in.weights = at<void>(weights);
    in.gains = at<void>(gains);
    in.width = width;
    in.rows = rows;
    in.input = input;
    in.output = output;
    in.tag_in = tag_in;
    in.tag_out = tag_out;
    program.push_back(in);
  };
  uint32_t *after_attention = words(layout.after_attention), *after_mlp = words(layout.after_mlp);
  uint32_t *qkv = words(layout.qkv), *attention = words(layout.attention);
  int heads_width = s.heads * s.head_dim;
  for (int l = 0; l < s.layers; ++l) {
    const LayerWeights& layer = w.layers[static_cast<size_t>(l)];
    matvec(kNormInput | (l == 0 ? kFromEmbedding : 0u), layer.qkv, layer.attention_gains, s.hidden,
           s.qkv_rows(), after_mlp, qkv, l - 1, l);
    program.back().bias = at<void>(layer.qkv_bias);
    DecodeInstruction attend{};
    attend.op = DecodeOp::kAttend;
    attend.weights = at<void>(layer.keys);
    attend.values = at<void>(layer.values);
    attend.gains = at<void>(layer.query_gains);
    attend.gains_k = at<void>(layer.key_gains);
    attend.input = qkv;
    attend.tag_in = attend.tag_out = l;
    program.push_back(attend);
    DecodeInstruction combine{};
    combine.op = DecodeOp::kCombine;
    combine.output = attention;
    combine.tag_in = combine.tag_out = l;
    program.push_back(combine);
    matvec(kAddResidual, layer.out, 0, heads_width, s.hidden, attention, after_attention, l, l);
    matvec(kNormInput | kGated, layer.gate_up, layer.mlp_gains, s.hidden, 2 * s.mlp,
           after_attention, words(layout.activated), l, l);
    matvec(kAddResidual, layer.down, 0, s.mlp, s.hidden, words(layout.activated), after_mlp, l, l);
  }
  matvec(kNormInput | kToLogits, w.head, w.final_gains, s.hidden, s.vocab, after_mlp, nullptr,
         s.layers - 1, 0);
  return program;
}

DecodeStream::DecodeStream(const Device& device, const void* cubin, const DecoderShape& shape,
                           const DecoderWeights& weights, const DecodeVariant& variant)
    : shape_(shape),
      weights_(weights),
      variant_(variant),
      blocks_(device.multiprocessors()),
      shared_bytes_(variant.shared_bytes(shape)),
      layout_(shape, blocks_),
      module_(cubin),
      workspace_(layout_.bytes),
      state_(sizeof(DecodeState)) {
  check_decode_shape(shape, variant, blocks_);
  if (shared_bytes_ > device.shared_memory_limit())
    fail(ErrorCode::kUnsupported, "{} needs {} bytes of shared memory, the GPU has {}",
         variant.name(), shared_bytes_, device.shared_memory_limit());
  function_ = module_.function(variant.name().c_str(), shared_bytes_);
  int resident = 0;
  check(driver().blocks_per_multiprocessor(&resident, function_, variant.threads(),
                                           static_cast<size_t>(shared_bytes_)),
        "asking for the occupancy");
  if (resident < 1)
    fail(ErrorCode::kUnsupported, "{} does not fit on a multiprocessor", variant.name());
  program_ = make_decode_program(shape, weights, layout_, workspace_.address());
  instructions_ = static_cast<int>(program_.size());
  module_.write_global("decode_program", program_.data(),
                       program_.size() * sizeof(DecodeInstruction));
}

void DecodeStream::set_state(int32_t token, int32_t position) {
  DecodeState state{token, position, -1, 0};
  state_.write(&state, sizeof state);
}

void DecodeStream::launch(Handle stream, DeviceAddress pages, const DecodeSampling& sampling,
                          DeviceAddress profile) {
  DecodeLaunch launch{};
  launch.state = state_.as<DecodeState>();
  launch.embedding = at<void>(weights_.embedding);
  launch.pages = at<int32_t>(pages);
  launch.frequencies = at<float>(weights_.frequencies);
  launch.partials = workspace_.as<TaggedPair>(layout_.partials);
  launch.candidates = workspace_.as<TaggedPair>(layout_.candidates);
  launch.logits = workspace_.as<float>(layout_.logits);
  launch.profile = at<unsigned long long>(profile);
  launch.timeout_ns = static_cast<unsigned long long>(timeout_ms_) * 1'000'000;
  launch.seed = sampling.seed;
  launch.temperature = sampling.temperature;
  launch.choice = sampling.choice;
  launch.tag_base = step_++ * static_cast<uint32_t>(shape_.layers);
  launch.instructions = instructions_;
  launch.in_flight = variant_.in_flight;
  launch.hidden = shape_.hidden;
  launch.heads = shape_.heads;
  launch.kv_heads = shape_.kv_heads;
  launch.page_size = shape_.page_size;
  launch.vocab = shape_.vocab;
  launch.eps = shape_.eps;
  launch.score_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  launch.rope_scale = shape_.rope_scale;
  launch.rope_interleaved = shape_.rope_interleaved;
  void* arguments[] = {&launch};
  auto blocks = static_cast<unsigned>(blocks_), threads = static_cast<unsigned>(variant_.threads());
  check(driver().launch_cooperative(function_, blocks, 1, 1, threads, 1, 1,
                                    static_cast<unsigned>(shared_bytes_), stream, arguments),
        "launching a decode step");
}

DecodeState DecodeStream::finish(Handle stream) {
  check(driver().stream_wait(stream), "running decode steps");
  DecodeState state{};
  state_.read(&state, sizeof state);
  if (state.error) {
    workspace_.zero();  // no tag of the dead step survives
    step_ = 0;
    uint32_t instruction = state.error - 1;
    state.error = 0;
    state_.write(&state, sizeof state);
    fail(ErrorCode::kInternal, "a decode step waited {} ms for the input of instruction {} of {}",
         timeout_ms_, instruction, instructions_);
  }
  return state;
}

std::vector<float> DecodeStream::logits() const {
  std::vector<float> values(static_cast<size_t>(shape_.vocab));
  workspace_.read(values.data(), values.size() * sizeof(float), layout_.logits);
  return values;
}

void DecodeStream::corrupt_tag(int instruction) {
  std::vector<DecodeInstruction> broken = program_;
  if (instruction >= 0) broken.at(static_cast<size_t>(instruction)).tag_in += 1000;
  module_.write_global("decode_program", broken.data(), broken.size() * sizeof(DecodeInstruction));
}

}  // namespace tokamak::cuda
