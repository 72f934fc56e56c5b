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

// Weights of one kMatvec, element by element. decode_pack.h has the places of packed ones.
struct HostWeights {
  const DecodeInstruction& in;

  float at(int row, int e) const {
    const auto* bytes = static_cast<const uint8_t*>(in.weights);
    if (decode_16_bits(in.type)) {
      const auto* matrix = static_cast<const uint16_t*>(in.weights);
      if (in.values) {
        matrix = static_cast<const uint16_t*>(row % 2 ? in.values : in.weights);
        row /= 2;
      }
      const uint16_t bits = matrix[static_cast<int64_t>(row) * in.width + e];
      return in.type == DecodeWeight::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    const bool four = decode_four_bits(in.type), fp8 = in.type == DecodeWeight::kFp8;
    const int segments = in.width / in.parts / 256;
    const int chunk_bytes = decode_chunk_bytes(in.type, in.width / in.parts);
    const int chunks = in.parts * kDecodeWarps, s = e / 32 % segments, i = e % 32;
    const uint8_t* chunk = bytes + static_cast<int64_t>(row / 16) * chunks * chunk_bytes +
                           static_cast<int64_t>(e / 32 / segments) * chunk_bytes;
    const int r = row % 16, lane = r % 8 * 4 + i / 8, low = r / 8, j = i % 8;
    if (fp8) {
      constexpr int kByteOf[4] = {0, 2, 1, 3};
      const auto* byte = reinterpret_cast<const std::byte*>(chunk) + s * 512 + lane * 16 + low * 8 +
                         j / 4 * 4 + kByteOf[j % 4];
      float value;
      decode_row(DType::kF8E4M3, byte, &value, 1);
      return value * static_cast<const float*>(in.values)[row];
    }
    int number;
    if (four) {
      const uint8_t byte = chunk[s / 2 * 512 + lane * 16 + s % 2 * 8 + low * 4 + j % 4];
      number = byte >> (j < 4 ? 0 : 4) & 15;
      if (number >= 8) number -= 16;
    } else {
      number = static_cast<int8_t>(chunk[s * 512 + lane * 16 + low * 8 + j]);
    }
    const int words = decode_scale_bytes(in.type) / 32;
    auto half = [&](int word) {
      uint16_t bits;
      std::memcpy(&bits,
                  chunk + segments * decode_number_bytes(in.type) +
                      ((s * 8 + r % 8) * words + word) * 4 + low * 2,
                  2);
      return f16_to_f32(bits);
    };
    const float value = half(words == 3 && i >= 16 ? 1 : 0) * static_cast<float>(number);
    return words == 1 ? value : value + half(words - 1);
  }
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
      for (int b = 0; b < l_.batch; ++b) {
        if (in.op == DecodeOp::kMatvec)
          multiply(in, b);
        else if (in.op == DecodeOp::kAttend)
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

  void multiply(const DecodeInstruction& in, int b) {
    Row x = in.flags & kFromEmbedding ? embedding(b) : read(in, b, in.width);
    float norm = 1;
    if (in.flags & kNormInput) {
      norm = inverse_norm(x);
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] *= gain(in.gains, i);
        if (decode_16_bits(in.type)) x[i] = rounded(x[i]);
      }
    }
    HostWeights weights{in};
    Row y(static_cast<size_t>(in.rows));
    for (int row = 0; row < in.rows; ++row) {
      double sum = 0;
      for (int e = 0; e < in.width; ++e) sum += weights.at(row, e) * x[static_cast<size_t>(e)];
      y[static_cast<size_t>(row)] = static_cast<float>(sum) * norm;
      if (in.bias) y[static_cast<size_t>(row)] += gain(in.bias, static_cast<size_t>(row));
    }
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
