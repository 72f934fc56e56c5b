#include "backend/cuda/emulator/decode_host.h"

#include <cmath>
#include <map>
#include <vector>

#include "backend/cuda/keyed_noise.cuh"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

using Row = std::vector<float>;

float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// Rows of the weights of one kMatvec. decode_pack.h has the places of packed ones.
class HostWeights {
 public:
  explicit HostWeights(const DecodeInstruction& instruction) : in_(instruction) {}

  void row(int row, float* out) const {
    if (decode_16_bits(in_.type)) {
      const auto* matrix = static_cast<const std::byte*>(in_.weights);
      if (in_.values) {
        matrix = static_cast<const std::byte*>(row % 2 ? in_.values : in_.weights);
        row /= 2;
      }
      decode_row(in_.type == DecodeWeight::kF16 ? DType::kF16 : DType::kBF16,
                 matrix + static_cast<int64_t>(row) * in_.width * 2, out, in_.width);
      return;
    }
    for (int e = 0; e < in_.width; e += kGroup) group(row, e, out + e);
  }

 private:
  static constexpr int kGroup = 16;  // elements with one scale

  // Elements e to e + 15 of a row.
  void group(int row, int e, float* out) const {
    const int segments = in_.width / in_.parts / 256;
    const int chunk_bytes = decode_chunk_bytes(in_.type, in_.width / in_.parts);
    const int chunks = in_.parts * kDecodeWarps, s = e / 32 % segments, first = e % 32;
    const uint8_t* chunk = static_cast<const uint8_t*>(in_.weights) +
                           static_cast<int64_t>(row / 16) * chunks * chunk_bytes +
                           static_cast<int64_t>(e / 32 / segments) * chunk_bytes;
    const int r = row % 16, low = r / 8;
    auto lane = [r](int i) { return r % 8 * 4 + i / 8; };
    if (in_.type == DecodeWeight::kFp8) {
      constexpr int kByteOf[4] = {0, 2, 1, 3};
      for (int k = 0; k < kGroup; ++k) {
        const int i = first + k, j = i % 8;
        decode_row(DType::kF8E4M3,
                   reinterpret_cast<const std::byte*>(chunk) + s * 512 + lane(i) * 16 + low * 8 +
                       j / 4 * 4 + kByteOf[j % 4],
                   out + k, 1);
        out[k] *= static_cast<const float*>(in_.values)[row];
      }
      return;
    }
    const int words = decode_scale_bytes(in_.type) / 32;
    auto half = [&](int word) {
      uint16_t bits;
      std::memcpy(&bits,
                  chunk + segments * decode_number_bytes(in_.type) +
                      ((s * 8 + r % 8) * words + word) * 4 + low * 2,
                  2);
      return f16_to_f32(bits);
    };
    const float scale = half(words == 3 && first >= 16 ? 1 : 0);
    const float offset = words == 1 ? 0 : half(words - 1);
    const bool four = decode_four_bits(in_.type);
    for (int k = 0; k < kGroup; ++k) {
      const int i = first + k, j = i % 8;
      int number;
      if (four) {
        const uint8_t byte = chunk[s / 2 * 512 + lane(i) * 16 + s % 2 * 8 + low * 4 + j % 4];
        number = byte >> (j < 4 ? 0 : 4) & 15;
        if (number >= 8) number -= 16;
      } else {
        number = static_cast<int8_t>(chunk[s * 512 + lane(i) * 16 + low * 8 + j]);
      }
      out[k] = scale * static_cast<float>(number);
      if (words > 1) out[k] += offset;
    }
  }

  const DecodeInstruction& in_;
};

class DecodeHost {
 public:
  DecodeHost(const DecodeLaunch& launch, const DecodeInstruction* program)
      : l_(launch), program_(program), attended_(static_cast<size_t>(launch.batch)) {
    for (int b = 0; b < l_.batch; ++b) {
      residual_.push_back(embedding(b));
      chosen_.push_back(-1);
      best_.push_back(-INFINITY);
    }
  }

  void run() {
    for (int k = l_.first; k < l_.end; ++k) {
      const DecodeInstruction& in = program_[k];
      if (in.op == DecodeOp::kMatvec) multiply(in);
      for (int b = 0; b < l_.batch && in.op != DecodeOp::kMatvec; ++b) {
        if (in.op == DecodeOp::kAttend)
          attend(in, b);
        else
          write(in, b, attended_[static_cast<size_t>(b)]);
      }
      if (in.output) written_[in.output] = in.tag_out;
    }
    for (int b = 0; b < l_.batch; ++b) {
      DecodeState& state = l_.state[b];
      state.chosen = chosen_[static_cast<size_t>(b)];
      state.token = std::max(state.chosen, 0);
      ++state.position;
    }
  }

 private:
  Row embedding(int b) const {
    Row out(static_cast<size_t>(l_.hidden));
    const auto* from = static_cast<const uint16_t*>(l_.embedding) +
                       static_cast<int64_t>(l_.state[b].token) * l_.hidden;
    for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_f32(from[i]);
    return out;
  }
  Row read(const DecodeInstruction& in, int b, int width) const {
    auto it = written_.find(in.input);
    TK_CHECK(it != written_.end() && it->second == in.tag_in,
             "an instruction reads a value that was not written");
    Row out(static_cast<size_t>(width));
    const uint16_t* from = in.input + static_cast<int64_t>(b) * width;
    for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_f32(from[i]);
    return out;
  }
  static void write(const DecodeInstruction& in, int b, const Row& values) {
    uint16_t* to = in.output + static_cast<int64_t>(b) * std::ssize(values);
    for (size_t i = 0; i < values.size(); ++i) to[i] = f32_to_bf16(values[i]);
  }
  static float gain(const void* gains, size_t i) {
    return bf16_to_f32(static_cast<const uint16_t*>(gains)[i]);
  }
  float inverse_norm(const Row& x) const {
    double squares = 0;
    for (float v : x) squares += double{v} * v;
    return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size()) + l_.eps));
  }

  // Each row of the weights is decoded once for all sequences.
  void multiply(const DecodeInstruction& in) {
    std::vector<Row> x, y(static_cast<size_t>(l_.batch), Row(static_cast<size_t>(in.rows)));
    std::vector<float> norm;
    for (int b = 0; b < l_.batch; ++b) {
      x.push_back(in.flags & kFromEmbedding ? embedding(b) : read(in, b, in.width));
      norm.push_back(in.flags & kNormInput ? inverse_norm(x.back()) : 1);
      if (in.flags & kNormInput) apply_gains(in, x.back());
    }
    const HostWeights weights(in);
    Row w(static_cast<size_t>(in.width));
    for (int row = 0; row < in.rows; ++row) {
      weights.row(row, w.data());
      for (size_t b = 0; b < x.size(); ++b) {
        double sum = 0;
        for (size_t e = 0; e < w.size(); ++e) sum += w[e] * x[b][e];
        float& result = y[b][static_cast<size_t>(row)] = static_cast<float>(sum) * norm[b];
        if (in.bias) result += gain(in.bias, static_cast<size_t>(row));
      }
    }
    for (int b = 0; b < l_.batch; ++b) finish(in, b, std::move(y[static_cast<size_t>(b)]));
  }
  static void apply_gains(const DecodeInstruction& in, Row& x) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= gain(in.gains, i);
      if (decode_16_bits(in.type)) x[i] = rounded(x[i]);
    }
  }
  void finish(const DecodeInstruction& in, int b, Row y) {
    if (in.flags & kGated) {
      for (size_t i = 0; i < y.size() / 2; ++i)
        y[i] = y[2 * i] / (1 + std::exp(-y[2 * i])) * y[2 * i + 1];
      y.resize(y.size() / 2);
    }
    if (in.flags & kAddResidual) {
      Row& sum = residual_[static_cast<size_t>(b)];
      for (size_t i = 0; i < y.size(); ++i) y[i] = sum[i] += y[i];
    }
    if (in.flags & kToLogits)
      choose(b, y);
    else
      write(in, b, y);
  }
  void choose(int b, const Row& logits) {
    std::copy(logits.begin(), logits.end(), l_.logits + int64_t{b} * l_.vocab);
    const DecodeSampling& s = l_.sampling[b];
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!std::isfinite(logits[i])) {
        chosen_[static_cast<size_t>(b)] = -1;
        return;
      }
      double score = logits[i];
      if (s.temperature > 0)
        score = score / s.temperature +
                keyed_gumbel(s.seed, s.choice, l_.state[b].position + 1, static_cast<int32_t>(i));
      if (score > best_[static_cast<size_t>(b)]) {
        best_[static_cast<size_t>(b)] = score;
        chosen_[static_cast<size_t>(b)] = static_cast<int32_t>(i);
      }
    }
  }

  float stored(uint16_t bits) const { return l_.cache_f16 ? f16_to_f32(bits) : bf16_to_f32(bits); }
  uint16_t store(float x) const { return l_.cache_f16 ? f32_to_f16(x) : f32_to_bf16(x); }
  // A head of the new position as the cache has it.
  std::vector<uint16_t> head_of(const Row& qkv, int head, const void* gains, bool rotate,
                                int b) const {
    const size_t d = static_cast<size_t>(dim_);
    Row x(qkv.begin() + static_cast<ptrdiff_t>(d) * head,
          qkv.begin() + static_cast<ptrdiff_t>(d) * (head + 1));
    if (gains) {
      const float norm = inverse_norm(x);
      for (size_t i = 0; i < d; ++i) x[i] *= norm * gain(gains, i);
    }
    TK_CHECK(!l_.rope_interleaved);
    for (size_t i = 0; rotate && i < d / 2; ++i) {
      const double angle = double(l_.state[b].position) * double(l_.frequencies[i]);
      const auto c = static_cast<float>(std::cos(angle) * l_.rope_scale),
                 s = static_cast<float>(std::sin(angle) * l_.rope_scale);
      const float u = x[i], v = x[i + d / 2];
      x[i] = u * c - v * s;
      x[i + d / 2] = v * c + u * s;
    }
    std::vector<uint16_t> out;
    for (float v : x) out.push_back(store(v));
    return out;
  }
  int64_t place(int b, int position, int kv_head) const {
    const int64_t page = l_.pages[int64_t{b} * l_.page_stride + position / l_.page_size];
    return ((page * l_.kv_heads + kv_head) * l_.page_size + position % l_.page_size) * dim_;
  }
  void attend(const DecodeInstruction& in, int b) {
    // The width of a head follows from the instruction that wrote the input.
    for (int k = l_.first; k < l_.end; ++k)
      if (program_[k].output == in.input) dim_ = program_[k].rows / (l_.heads + 2 * l_.kv_heads);
    const Row qkv = read(in, b, (l_.heads + 2 * l_.kv_heads) * dim_);
    auto* keys = static_cast<uint16_t*>(const_cast<void*>(in.weights));
    auto* values = static_cast<uint16_t*>(const_cast<void*>(in.values));
    const int last = l_.state[b].position;
    for (int h = 0; h < l_.kv_heads; ++h) {
      const auto key = head_of(qkv, l_.heads + h, in.gains_k, true, b);
      const auto value = head_of(qkv, l_.heads + l_.kv_heads + h, nullptr, false, b);
      std::copy(key.begin(), key.end(), keys + place(b, last, h));
      std::copy(value.begin(), value.end(), values + place(b, last, h));
    }
    Row& out = attended_[static_cast<size_t>(b)];
    out.assign(static_cast<size_t>(l_.heads * dim_), 0);
    for (int h = 0; h < l_.heads; ++h) {
      const auto query = head_of(qkv, h, in.gains, true, b);
      const int kv_head = h / (l_.heads / l_.kv_heads);
      std::vector<double> score;
      for (int p = 0; p <= last; ++p) {
        double sum = 0;
        for (int i = 0; i < dim_; ++i)
          sum += stored(query[static_cast<size_t>(i)]) * stored(keys[place(b, p, kv_head) + i]);
        score.push_back(sum * l_.score_scale);
      }
      const double peak = *std::max_element(score.begin(), score.end());
      double mass = 0;
      for (double& s : score) mass += s = std::exp(s - peak);
      for (int i = 0; i < dim_; ++i) {
        double sum = 0;
        for (int p = 0; p <= last; ++p)
          sum += score[static_cast<size_t>(p)] * stored(values[place(b, p, kv_head) + i]);
        out[static_cast<size_t>(h * dim_ + i)] = static_cast<float>(sum / mass);
      }
    }
  }

  const DecodeLaunch& l_;
  const DecodeInstruction* program_;
  int dim_ = 0;
  std::vector<Row> residual_, attended_;
  std::vector<int32_t> chosen_;
  std::vector<double> best_;
  std::map<const uint16_t*, int32_t> written_;  // buffer -> tag
};

}  // namespace

bool is_decode_kernel(std::string_view name) {
  return name.starts_with("decode_one_") || name.starts_with("decode_batch_");
}

void run_decode_program(const DecodeLaunch& launch, const DecodeInstruction* program) {
  DecodeHost(launch, program).run();
}

}  // namespace tokamak::cuda
