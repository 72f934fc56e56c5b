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
int attend_bytes(const DecoderShape& shape, int batch) {
  int head = shape.head_dim, group = shape.heads / shape.kv_heads;
  int fixed = batch * (kMaxGroup + 2) * head * 2 + kDecodeWarps * (8 * kMaxGroup + kMaxGroup) * 4 +
              2 * kDecodeWarps * kMaxGroup * 4;
  return fixed + kDecodeWarps * group * head * 4;
}
// Sums of tiles, scales of the input and, of one sequence, the widest input.
int matvec_bytes(const DecoderShape& shape, int batch, DecodeWeight type) {
  if (batch > 1) return 2 * 4 * kDecodeWarps * 128 * 4 + kDecodeWarps * 16 * kMaxBatch * 4;
  int widest = std::max({shape.hidden, shape.mlp, shape.heads * shape.head_dim});
  int scales = decode_integers(type) ? widest / 32 * 4 : 0;
  return 2 * 4 * kDecodeWarps * 16 * 4 + kMaxBatch * 4 + widest * 2 + scales;
}

}  // namespace

// Measured: the fewer bytes a step reads, the more it waits for values instead of weights.
int DecodeVariant::in_flight(const DecoderShape& shape) const {
  if (decode_four_bits(type)) return 4;
  if (batch > 1) return 6;
  const bool small = shape.hidden <= 2048;
  if (decode_16_bits(type)) return small ? 6 : 8;
  return small ? 4 : 6;
}

std::string DecodeVariant::name() const {
  constexpr const char* kTypes[] = {"bf16", "fp8", "q8", "q4", "f16", "k"};
  return fmt::format("decode_{}_{}_{}_{}_{}_{}", batch > 1 ? "batch" : "one",
                     kTypes[static_cast<int>(type)], head_dim, group, slots, producers);
}

DecodeVariant DecodeVariant::of(const DecoderShape& shape, int batch, DecodeWeight type) {
  DecodeVariant v;
  v.head_dim = shape.head_dim;
  v.group = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.heads / shape.kv_heads)));
  v.batch = batch > 1 ? kMaxBatch : 1;
  v.type = decode_kernel_type(type);
  v.group = v.head_dim == 64 ? 8 : std::max(2, v.group);
  const bool wide = v.head_dim == 128 && v.group == 8;  // sums of eight heads take more room
  const bool blocks = type == DecodeWeight::kQ8 || type == DecodeWeight::kQ4;
  v.slots = v.batch > 1 ? (wide ? 4 : 5) : (wide || blocks ? 5 : 6);
  if (v.type == DecodeWeight::kK4) v.slots = 4;
  return v;
}

int DecodeVariant::shared_bytes(const DecoderShape& shape) const {
  auto align = [](int bytes) { return (bytes + 127) / 128 * 128; };
  // The ring; work of attention; rotations, sums of squares, positions.
  int ring = align(slots * (kDecodeWarps * decode_chunk_room(type) + 40) + 4);
  int work = kDecodeWarps * 40;
  int fixed = align(ring + batch * (head_dim / 2 * 8 + 2 * kDecodeWarps * 4 + 8) + work);
  int candidates = kDecodeWarps * 32 * 16;
  return fixed +
         std::max({matvec_bytes(shape, batch, type), attend_bytes(shape, batch), candidates});
}

DecodeWorkspace::DecodeWorkspace(const DecoderShape& shape, int max_batch, int blocks) {
  size_t used = 0;
  auto take = [&](int each, size_t size) {
    size_t start = used;
    used += align256(static_cast<size_t>(each) * static_cast<size_t>(max_batch) * size);
    return start;
  };
  after_attention = take(shape.hidden, sizeof(uint16_t));
  after_mlp = take(shape.hidden, sizeof(uint16_t));
  qkv = take(shape.qkv_rows(), sizeof(uint16_t));
  attention = take(shape.heads * shape.head_dim, sizeof(uint16_t));
  activated = take(shape.mlp, sizeof(uint16_t));
  partials = take(shape.heads * std::max(1, blocks / shape.kv_heads) * (shape.head_dim + 1),
                  sizeof(TaggedPair));
  candidates = take(blocks * 3, sizeof(TaggedPair));
  logits = take(shape.vocab, sizeof(float));
  bytes = used;
}

void check_decode_model(const DecoderShape& s, const DecoderWeights& w, int max_batch, int blocks) {
  auto require = [](bool holds, const char* what) {
    if (!holds) fail(ErrorCode::kUnsupported, "the persistent decode kernel needs {}", what);
  };
  auto tiles = [&](const DecodeMatrix& m, int rows) {  // of the busiest block
    int all = (rows + decode_tile_rows(m.type) - 1) / decode_tile_rows(m.type);
    return (all + blocks - 1) / blocks;
  };
  auto fits = [&](const DecodeMatrix& m, int rows, int width) {
    int parts = decode_parts(m.type, width);
    if (width <= 0 || parts == 0) return false;
    // Inputs of several sequences that do not fit in registers: all sums of a block have to.
    bool held = parts <= (decode_four_bits(m.type) ? 1 : 2);
    return max_batch == 1 || held || tiles(m, rows) <= 4;
  };
  require(max_batch >= 1 && max_batch <= kMaxBatch, "1 to 8 sequences");
  require(s.layers > 0 && 6 * s.layers + 1 <= kMaxInstructions, "1 to 123 layers");
  require(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.heads / s.kv_heads <= kMaxGroup,
          "at most 8 query heads per key/value head");
  require(s.head_dim == 64 || s.head_dim == 128, "heads of 64 or 128");
  require(s.kv_heads <= blocks, "no more key/value heads than multiprocessors");
  require(s.page_size > 0 && s.page_size % 8 == 0, "pages of a multiple of 8 positions");
  require(static_cast<int>(w.layers.size()) == s.layers, "weights of every layer");
  const char* widths = "widths that fall into equal parts of segments";
  for (const LayerWeights& l : w.layers) {
    require(fits(l.qkv, s.qkv_rows(), s.hidden) && fits(l.gate_up, 2 * s.mlp, s.hidden) &&
                fits(l.out, s.hidden, s.heads * s.head_dim) && fits(l.down, s.hidden, s.mlp),
            widths);
    const DecodeWeight type = decode_kernel_type(w.layers[0].out.type);
    for (const DecodeMatrix* m : {&l.qkv, &l.out, &l.gate_up, &l.down})
      require(decode_kernel_type(m->type) == type, "layers of one weight type");
    require(type != DecodeWeight::kK4 || max_batch == 1, "one sequence where weights are K-quants");
    const bool packed = !decode_16_bits(type);
    require(tiles(l.out, s.hidden) <= (packed && max_batch > 1 ? 8 : 16), "a smaller hidden size");
  }
  require(fits(w.head, s.vocab, s.hidden), widths);
}

std::vector<DecodeInstruction> make_decode_program(const DecoderShape& s, const DecoderWeights& w,
                                                   const DecodeWorkspace& layout,
                                                   DeviceAddress base) {
  std::vector<DecodeInstruction> program;
  auto values = [&](size_t offset) { return at<uint16_t>(base + offset); };
  auto matvec = [&](uint32_t flags, const DecodeMatrix& weights, DeviceAddress gains, int width,
                    int rows, const uint16_t* input, uint16_t* output, int tag_in, int tag_out) {
    DecodeInstruction in{};
    in.op = DecodeOp::kMatvec;
    in.flags = flags;
    in.type = weights.type;
    in.parts = static_cast<uint16_t>(decode_parts(weights.type, width));
    in.weights = at<void>(weights.data);
    in.values = at<void>(weights.scales);
    in.gains = at<void>(gains);
    in.width = width;
    in.rows = rows;
    in.input = input;
    in.output = output;
    in.tag_in = tag_in;
    in.tag_out = tag_out;
    program.push_back(in);
  };
  uint16_t* after_attention = values(layout.after_attention);
  uint16_t* after_mlp = values(layout.after_mlp);
  uint16_t *qkv = values(layout.qkv), *attention = values(layout.attention);
  const int heads_width = s.heads * s.head_dim;
  for (int l = 0; l < s.layers; ++l) {
    const LayerWeights& layer = w.layers[static_cast<size_t>(l)];
    matvec(kNormInput | (l == 0 ? kFromEmbedding : 0u), layer.qkv, layer.attention_gains, s.hidden,
           s.qkv_rows(), after_mlp, qkv, l - 1, l);
    program.back().bias = at<void>(layer.qkv_bias);
    DecodeInstruction attend{}, combine{};
    attend.op = DecodeOp::kAttend;
    attend.weights = at<void>(layer.keys);
    attend.values = at<void>(layer.values);
    attend.gains = at<void>(layer.query_gains);
    attend.gains_k = at<void>(layer.key_gains);
    attend.input = qkv;
    attend.tag_in = attend.tag_out = l;
    program.push_back(attend);
    combine.op = DecodeOp::kCombine;
    combine.output = attention;
    combine.tag_in = combine.tag_out = l;
    program.push_back(combine);
    matvec(kAddResidual, layer.out, 0, heads_width, s.hidden, attention, after_attention, l, l);
    matvec(kNormInput | kGated, layer.gate_up, layer.mlp_gains, s.hidden, 2 * s.mlp,
           after_attention, values(layout.activated), l, l);
    if (layer.up) program.back().values = at<void>(layer.up);
    matvec(kAddResidual, layer.down, 0, s.mlp, s.hidden, values(layout.activated), after_mlp, l, l);
  }
  matvec(kNormInput | kToLogits, w.head, w.final_gains, s.hidden, s.vocab, after_mlp, nullptr,
         s.layers - 1, 0);
  return program;
}

DecodeStream::DecodeStream(const Device& device, const void* cubin, const DecoderShape& shape,
                           const DecoderWeights& weights, int max_batch)
    : shape_(shape),
      weights_(weights),
      max_batch_(max_batch),
      blocks_(device.multiprocessors()),
      layout_(shape, max_batch, blocks_),
      module_(cubin) {
  check_fits(blocks_, device.shared_memory_limit(), shape, weights, max_batch);
  workspace_ = Buffer(layout_.bytes);
  state_ = Buffer(sizeof(DecodeState) * kMaxBatch);
  const DecodeWeight type = weights.layers[0].out.type;
  for (int several = 0; several < (max_batch > 1 ? 2 : 1); ++several) {
    layers_[several] = load_kernel(several ? max_batch : 1, type);
    head_[several] = load_kernel(several ? max_batch : 1, weights.head.type);
  }
  program_ = make_decode_program(shape, weights, layout_, workspace_.address());
  instructions_ = static_cast<int>(program_.size());
  module_.write_global("decode_program", program_.data(),
                       program_.size() * sizeof(DecodeInstruction));
}

void DecodeStream::check_fits(int multiprocessors, int shared_memory, const DecoderShape& shape,
                              const DecoderWeights& weights, int max_batch) {
  check_decode_model(shape, weights, max_batch, multiprocessors);
  for (int batch : {1, max_batch})
    for (DecodeWeight type : {weights.layers[0].out.type, weights.head.type}) {
      const DecodeVariant variant = DecodeVariant::of(shape, batch, type);
      if (int bytes = variant.shared_bytes(shape); bytes > shared_memory)
        fail(ErrorCode::kUnsupported, "{} needs {} bytes of shared memory, the GPU has {}",
             variant.name(), bytes, shared_memory);
    }
}

DecodeStream::Kernel DecodeStream::load_kernel(int batch, DecodeWeight type) const {
  Kernel kernel;
  kernel.variant = DecodeVariant::of(shape_, batch, type);
  kernel.shared_bytes = kernel.variant.shared_bytes(shape_);
  const std::string name = kernel.variant.name();
  kernel.function = module_.function(name.c_str(), kernel.shared_bytes);
  int resident = 0;
  check(driver().blocks_per_multiprocessor(&resident, kernel.function, kernel.variant.threads(),
                                           static_cast<size_t>(kernel.shared_bytes)),
        "asking for the occupancy");
  if (resident < 1) fail(ErrorCode::kUnsupported, "{} does not fit on a multiprocessor", name);
  return kernel;
}

void DecodeStream::set_state(int sequence, int32_t token, int32_t position) {
  DecodeState state{token, position, -1, 0};
  state_.write(&state, sizeof state, static_cast<size_t>(sequence) * sizeof state);
}

void DecodeStream::restart() {
  workspace_.zero();
  DecodeState done{};
  state_.read(&done, sizeof done);  // the copy waits for what came before
  step_ = 0;
}

void DecodeStream::launch(Handle stream, DeviceAddress pages, int page_stride,
                          std::span<const DecodeSampling> sampling, DeviceAddress profile,
                          const DecodeStep& step) {
  const int batch = static_cast<int>(sampling.size());
  TK_CHECK(batch >= 1 && batch <= max_batch_);
  // Values of more sequences may be in the other phase, unless every step ends in the same one.
  if (batch > last_batch_ && step_ > 0 && shape_.layers % 2 != 0) {
    check(driver().stream_wait(stream), "running decode steps");
    restart();
  }
  last_batch_ = batch;
  DecodeLaunch launch{};
  launch.state = step.state ? at<DecodeState>(step.state) : state_.as<DecodeState>();
  launch.embedding = at<void>(step.embedding ? step.embedding : weights_.embedding);
  launch.pages = at<int32_t>(pages);
  launch.page_stride = page_stride;
  launch.batch = batch;
  launch.frequencies = at<float>(weights_.frequencies);
  launch.partials = workspace_.as<TaggedPair>(layout_.partials);
  launch.candidates = workspace_.as<TaggedPair>(layout_.candidates);
  launch.logits = step.logits ? at<float>(step.logits) : workspace_.as<float>(layout_.logits);
  launch.profile = at<unsigned long long>(profile);
  launch.timeout_ns = static_cast<unsigned long long>(timeout_ms_) * 1'000'000;
  std::copy(sampling.begin(), sampling.end(), launch.sampling);
  launch.tag_base = step_++ * static_cast<uint32_t>(shape_.layers);
  launch.instructions = instructions_;
  launch.residual_tile_rows = decode_tile_rows(weights_.layers[0].out.type);
  launch.hidden = shape_.hidden;
  launch.heads = shape_.heads;
  launch.kv_heads = shape_.kv_heads;
  launch.page_size = shape_.page_size;
  launch.vocab = shape_.vocab;
  launch.eps = shape_.eps;
  launch.score_scale = shape_.score_scale > 0
                           ? shape_.score_scale
                           : 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  launch.rope_scale = shape_.rope_scale;
  launch.rope_interleaved = shape_.rope_interleaved;
  launch.cache_f16 = shape_.cache_f16;
  const Kernel &layers = layers_[batch > 1], &head = head_[batch > 1];
  const int last = instructions_ - 1;
  if (layers.function == head.function) {
    launch_part(stream, layers, launch, 0, instructions_);
  } else {
    launch_part(stream, layers, launch, 0, last);
    launch_part(stream, head, launch, last, instructions_);
  }
}

void DecodeStream::launch_part(Handle stream, const Kernel& kernel, DecodeLaunch& launch, int first,
                               int end) {
  launch.first = first;
  launch.end = end;
  launch.in_flight = in_flight_ > 0 ? in_flight_ : kernel.variant.in_flight(shape_);
  void* arguments[] = {&launch};
  check(driver().launch_cooperative(kernel.function, static_cast<unsigned>(blocks_), 1, 1,
                                    static_cast<unsigned>(kernel.variant.threads()), 1, 1,
                                    static_cast<unsigned>(kernel.shared_bytes), stream, arguments),
        "launching a decode step");
}

std::vector<DecodeState> DecodeStream::finish(Handle stream) {
  check(driver().stream_wait(stream), "running decode steps");
  std::vector<DecodeState> states(static_cast<size_t>(std::max(1, last_batch_)));
  state_.read(states.data(), states.size() * sizeof(DecodeState));
  const DecodeState first = states[0];
  if (first.error) {
    states[0].error = 0;
    state_.write(states.data(), sizeof(DecodeState));
  }
  check_step(first);
  return states;
}

void DecodeStream::check_step(const DecodeState& first) {
  if (!first.error) return;
  restart();
  fail(ErrorCode::kInternal, "a decode step waited {} ms for the input of instruction {} of {}",
       timeout_ms_, first.error - 1, instructions_);
}

std::vector<float> DecodeStream::logits(int sequence) const {
  std::vector<float> values(static_cast<size_t>(shape_.vocab));
  size_t bytes = values.size() * sizeof(float);
  workspace_.read(values.data(), bytes, layout_.logits + static_cast<size_t>(sequence) * bytes);
  return values;
}

void DecodeStream::corrupt_tag(int instruction) {
  std::vector<DecodeInstruction> broken = program_;
  if (instruction >= 0) broken.at(static_cast<size_t>(instruction)).tag_out += 1001;
  module_.write_global("decode_program", broken.data(), broken.size() * sizeof(DecodeInstruction));
}

}  // namespace tokamak::cuda
