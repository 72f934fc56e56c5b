#include "reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "backend/cuda/decode_pack.h"
#include "quantize.h"

namespace tokamak::cuda {

void on_all_cores(int n, const std::function<void(int)>& body) {
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  auto work = [&] {
    for (int i = next++; i < n; i = next++) body(i);
  };
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(work);
  for (auto& t : threads) t.join();
}

namespace {

// A power of two near sqrt(12 / width): products then keep the size of their input.
float matrix_width(int width) {
  return std::exp2(std::round(0.5f * std::log2(12.0f / static_cast<float>(width))));
}

constexpr uint32_t kCacheSeed = 900000;

}  // namespace

Filler::Filler(const void* cubin)
    : module_(cubin),
      bf16_(module_.function("fill_bf16")),
      f16_(module_.function("fill_f16")),
      f32_(module_.function("fill_f32")),
      packed_(module_.function("fill_packed")) {}

void Filler::fill(Handle kernel, DeviceAddress to, size_t count, const RandomSpec& spec) const {
  unsigned long long n = count;
  RandomSpec copy = spec;
  void* arguments[] = {&to, &n, &copy};
  check(driver().launch(kernel, 1024, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr), "fill");
}
void Filler::bf16(DeviceAddress to, size_t count, const RandomSpec& spec) const {
  fill(bf16_, to, count, spec);
}
void Filler::f16(DeviceAddress to, size_t count, const RandomSpec& spec) const {
  fill(f16_, to, count, spec);
}
void Filler::f32(DeviceAddress to, size_t count, const RandomSpec& spec) const {
  fill(f32_, to, count, spec);
}

void Filler::packed(DeviceAddress to, size_t words, int chunk_words, int data_words, uint32_t scale,
                    uint32_t mask) const {
  unsigned long long n = words;
  void* arguments[] = {&to, &n, &chunk_words, &data_words, &scale, &mask};
  check(driver().launch(packed_, 1024, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr), "fill");
}

TestModel::Piece TestModel::piece(int layer, int which) const {
  const DecoderShape& s = config_.shape;
  int heads = s.heads * s.head_dim;
  auto seed = static_cast<uint32_t>(layer * 16 + which + 1);
  auto matrix = [&](int rows, int width, float gain) {
    // As in Q4_K_M, some matrices have more bits.
    const bool more = config_.type == DecodeWeight::kK4 && which == kDown;
    return Piece{{0, matrix_width(width) * gain, seed},
                 rows,
                 width,
                 more ? DecodeWeight::kK8 : config_.type};
  };
  switch (which) {
    case kQkv:
      return matrix(s.qkv_rows(), s.hidden, 1);
    case kOut:
      return matrix(s.hidden, heads, 1);
    case kGateUp:
      return matrix(2 * s.mlp, s.hidden, 1);
    case kDown:
      return matrix(s.hidden, s.mlp, 1);
    case kQueryGains:
    case kKeyGains:
      return Piece{{1, 0.5f, seed}, config_.qk_norm ? 1 : 0, s.head_dim};
    case kBias:
      return Piece{{0, 0.5f, seed}, config_.qkv_bias ? 1 : 0, s.qkv_rows()};
    default:
      return Piece{{1, 0.5f, seed}, 1, s.hidden};
  }
}

DeviceAddress TestModel::add(const Filler& filler, const Piece& piece) {
  size_t count = static_cast<size_t>(piece.rows) * static_cast<size_t>(piece.width);
  if (count == 0) return 0;
  buffers_.emplace_back(count * 2);
  if (piece.type == DecodeWeight::kF16)
    filler.f16(buffers_.back().address(), count, piece.spec);
  else
    filler.bf16(buffers_.back().address(), count, piece.spec);
  weight_bytes_ += static_cast<double>(count) * 2;
  return buffers_.back().address();
}

TestModel::Piece TestModel::head_piece() const {
  const DecoderShape& s = config_.shape;
  return {{0, matrix_width(s.hidden) * 2, 700002}, s.vocab, s.hidden, config_.head_type};
}

DecodeMatrix TestModel::add_matrix(const Filler& filler, const Piece& piece) {
  if (decode_16_bits(piece.type)) return {add(filler, piece), 0, piece.type};
  DecodeMatrix matrix{0, 0, piece.type};
  const size_t bytes = packed_bytes(piece.type, piece.rows, piece.width);
  Buffer& data = buffers_.emplace_back(bytes);
  matrix.data = data.address();
  weight_bytes_ += static_cast<double>(bytes);
  std::vector<float> scales;
  if (config_.timing) {
    const int parts = decode_parts(piece.type, piece.width);
    const int chunk = decode_chunk_bytes(piece.type, piece.width / parts);
    const int of_data = piece.width / parts / 256 * decode_number_bytes(piece.type);
    // Halves 2^-12 and 2^-8: products keep about the size of their input.
    const uint32_t scale = decode_four_bits(piece.type) ? 0x1c001c00u : 0x0c000c00u;
    // All ones but the sign are not a number in E4M3.
    const uint32_t mask = piece.type == DecodeWeight::kFp8 ? 0xf7f7f7f7u : 0xffffffffu;
    filler.packed(matrix.data, bytes / 4, chunk / 4, of_data / 4, scale, mask);
    scales.assign(static_cast<size_t>(piece.rows), 0x1p-13f);
  } else {
    Quantized q = quantize(piece.type, plain(piece).values, piece.rows, piece.width);
    std::vector<uint8_t> packed(bytes);
    on_all_cores(packed_tiles(piece.rows), [&](int tile) {
      pack_tiles(piece.type, q.bytes.data(), piece.rows, piece.width, tile, tile + 1,
                 packed.data());
    });
    data.write(packed.data(), bytes);
    scales = q.row_scales;
  }
  if (piece.type != DecodeWeight::kFp8) return matrix;
  buffers_.emplace_back(scales.size() * 4);
  buffers_.back().write(scales.data(), scales.size() * 4);
  matrix.scales = buffers_.back().address();
  return matrix;
}

TestModel::TestModel(const TestShape& shape, const Filler& filler) : config_(shape) {
  const DecoderShape& s = config_.shape;
  for (int l = 0; l < s.layers; ++l) {
    LayerWeights w{};
    w.qkv = add_matrix(filler, piece(l, kQkv));
    w.out = add_matrix(filler, piece(l, kOut));
    w.gate_up = add_matrix(filler, piece(l, kGateUp));
    w.down = add_matrix(filler, piece(l, kDown));
    w.attention_gains = add(filler, piece(l, kAttentionGains));
    w.mlp_gains = add(filler, piece(l, kMlpGains));
    w.query_gains = add(filler, piece(l, kQueryGains));
    w.key_gains = add(filler, piece(l, kKeyGains));
    w.qkv_bias = add(filler, piece(l, kBias));
    double weights = weight_bytes_;
    int elements = config_.batch * config_.pages() * s.kv_heads * s.page_size;
    w.keys =
        add(filler, Piece{{0, 2, kCacheSeed + static_cast<uint32_t>(2 * l)}, elements, s.head_dim});
    w.values = add(
        filler, Piece{{0, 2, kCacheSeed + static_cast<uint32_t>(2 * l + 1)}, elements, s.head_dim});
    weight_bytes_ = weights;
    weights_.layers.push_back(w);
  }
  weights_.final_gains = add(filler, Piece{{1, 0.5f, 700001}, 1, s.hidden});
  weights_.head = add_matrix(filler, head_piece());
  double weights = weight_bytes_;
  weights_.embedding = add(filler, Piece{{0, 2, 700003}, s.vocab, s.hidden});
  weight_bytes_ = weights;
  for (int i = 0; i < s.head_dim / 2; ++i)
    frequencies_.push_back(
        static_cast<float>(std::pow(500000.0, -2.0 * i / static_cast<double>(s.head_dim))));
  buffers_.emplace_back(frequencies_.size() * sizeof(float));
  buffers_.back().write(frequencies_.data(), frequencies_.size() * sizeof(float));
  weights_.frequencies = buffers_.back().address();
  const int pages = config_.batch * config_.pages();
  for (int p = 0; p < pages; ++p) page_table_.push_back(p);
  for (int p = pages - 1; p > 0; --p)
    std::swap(page_table_[static_cast<size_t>(p)],
              page_table_[static_cast<size_t>(p * 7919 % (p + 1))]);
  pages_ = Buffer(page_table_.size() * sizeof(int32_t));
  pages_.write(page_table_.data(), page_table_.size() * sizeof(int32_t));
}

double TestModel::cache_bytes(int position) const {
  const DecoderShape& s = config_.shape;
  return 4.0 * position * s.kv_heads * s.head_dim * s.layers;
}

double TestModel::cached(int sequence, int layer, bool value, int position, int kv_head,
                         int d) const {
  const DecoderShape& s = config_.shape;
  auto page = static_cast<uint64_t>(
      page_table_[static_cast<size_t>(sequence * config_.pages() + position / s.page_size)]);
  uint64_t row = (page * static_cast<uint64_t>(s.kv_heads) + static_cast<uint64_t>(kv_head)) *
                     static_cast<uint64_t>(s.page_size) +
                 static_cast<uint64_t>(position % s.page_size);
  RandomSpec spec{0, 2, kCacheSeed + static_cast<uint32_t>(2 * layer + (value ? 1 : 0))};
  uint64_t i = row * static_cast<uint64_t>(s.head_dim) + static_cast<uint64_t>(d);
  return static_cast<double>(from_bf16(to_bf16(random_value(spec, i))));
}

TestModel::Matrix TestModel::plain(const Piece& piece) const {
  Matrix m;
  m.rows = piece.rows;
  m.width = piece.width;
  m.values.resize(static_cast<size_t>(m.rows) * static_cast<size_t>(m.width));
  on_all_cores(m.rows, [&](int r) {
    for (size_t i = 0; i < static_cast<size_t>(m.width); ++i) {
      size_t at = static_cast<size_t>(r) * static_cast<size_t>(m.width) + i;
      const float value = random_value(piece.spec, at);
      m.values[at] =
          piece.type == DecodeWeight::kF16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
    }
  });
  return m;
}
TestModel::Matrix TestModel::host(const Piece& piece) const {
  Matrix m = plain(piece);
  if (!decode_16_bits(piece.type))
    m.values = quantize(piece.type, m.values, m.rows, m.width).values;
  return m;
}
TestModel::Matrix TestModel::host_matrix(int layer, int which) const {
  return host(piece(layer, which));
}
TestModel::Matrix TestModel::host_head() const { return host(head_piece()); }
std::vector<float> TestModel::host_final_gains() const {
  return host(Piece{{1, 0.5f, 700001}, 1, config_.shape.hidden}).values;
}
std::vector<float> TestModel::host_embedding(int token) const {
  std::vector<float> row(static_cast<size_t>(config_.shape.hidden));
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = from_bf16(to_bf16(
        random_value(RandomSpec{0, 2, 700003}, static_cast<size_t>(token) * row.size() + i)));
  return row;
}

HostWeights::HostWeights(const TestModel& model) {
  for (int l = 0; l < model.config().shape.layers; ++l) {
    Layer& layer = layers.emplace_back();
    for (int which = 0; which < 9; ++which) layer.matrix[which] = model.host_matrix(l, which);
  }
  head = model.host_head();
}

Reference::Reference(const TestModel& model, const HostWeights& host, int sequence,
                     int cached_positions, bool rounded)
    : model_(model),
      host_(host),
      shape_(model.config().shape),
      rounded_(rounded),
      sequence_(sequence),
      first_(cached_positions),
      position_(cached_positions) {
  keys_.resize(host.layers.size());
  values_.resize(host.layers.size());
}

std::vector<double> Reference::product(const TestModel::Matrix& m, const std::vector<double>& x,
                                       double scale) const {
  std::vector<double> y(static_cast<size_t>(m.rows));
  on_all_cores(m.rows, [&](int r) {
    const float* row = m.values.data() + static_cast<size_t>(r) * static_cast<size_t>(m.width);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(row[i]) * x[i];
    y[static_cast<size_t>(r)] = sum * scale;
  });
  return y;
}

// The input of the matrix that follows, and the factor its products still need.
std::vector<double> Reference::normed(const std::vector<double>& x, const std::vector<float>& gains,
                                      double& scale) const {
  std::vector<double> out(x.size());
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double value = round(x[i]);
    squares += value * value;
    out[i] = round(value * static_cast<double>(gains[i]));
  }
  scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(shape_.eps));
  return out;
}

void Reference::prepare_head(double* head, const float* gains, bool rotate) const {
  int d = shape_.head_dim, half = d / 2;
  double squares = 0;
  for (int i = 0; i < d; ++i) squares += head[i] * head[i];
  if (gains)
    for (int i = 0; i < d; ++i)
      head[i] *=
          static_cast<double>(gains[i]) / std::sqrt(squares / d + static_cast<double>(shape_.eps));
  for (int i = 0; i < half && rotate; ++i) {
    double angle = position_ * static_cast<double>(model_.frequencies()[static_cast<size_t>(i)]);
    double c = std::cos(angle) * static_cast<double>(shape_.rope_scale);
    double s = std::sin(angle) * static_cast<double>(shape_.rope_scale);
    int p = shape_.rope_interleaved ? 2 * i : i, q = shape_.rope_interleaved ? 2 * i + 1 : i + half;
    double a = head[p], b = head[q];
    head[p] = a * c - b * s;
    head[q] = b * c + a * s;
  }
  for (int i = 0; i < d; ++i) head[i] = round(head[i]);
}

double Reference::cached(int layer, bool value, int position, int kv_head, int d) const {
  if (position < first_) return model_.cached(sequence_, layer, value, position, kv_head, d);
  const auto& store = (value ? values_ : keys_)[static_cast<size_t>(layer)];
  return store[static_cast<size_t>(
      ((position - first_) * shape_.kv_heads + kv_head) * shape_.head_dim + d)];
}

std::vector<double> Reference::attend(int layer, std::vector<double> qkv) {
  const HostWeights::Layer& w = host_.layers[static_cast<size_t>(layer)];
  int d = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
  auto gains = [&](int which) {
    return w.matrix[which].rows ? w.matrix[which].values.data() : nullptr;
  };
  for (double& v : qkv) v = round(v);
  for (int h = 0; h < shape_.heads + 2 * shape_.kv_heads; ++h) {
    bool query = h < shape_.heads, value = h >= shape_.heads + shape_.kv_heads;
    prepare_head(qkv.data() + h * d,
                 value ? nullptr : gains(query ? TestModel::kQueryGains : TestModel::kKeyGains),
                 !value);
  }
  const double* fresh = qkv.data() + shape_.heads * d;
  auto& keys = keys_[static_cast<size_t>(layer)];
  auto& values = values_[static_cast<size_t>(layer)];
  keys.insert(keys.end(), fresh, fresh + shape_.kv_heads * d);
  values.insert(values.end(), fresh + shape_.kv_heads * d, fresh + 2 * shape_.kv_heads * d);
  std::vector<double> out(static_cast<size_t>(shape_.heads * d));
  on_all_cores(shape_.heads, [&](int h) {
    std::vector<double> weight(static_cast<size_t>(position_) + 1);
    double peak = -INFINITY, mass = 0;
    for (int p = 0; p <= position_; ++p) {
      double score = 0;
      for (int i = 0; i < d; ++i)
        score += qkv[static_cast<size_t>(h * d + i)] * cached(layer, false, p, h / group, i);
      weight[static_cast<size_t>(p)] = score / std::sqrt(static_cast<double>(d));
      peak = std::max(peak, weight[static_cast<size_t>(p)]);
    }
    for (double& v : weight) mass += v = std::exp(v - peak);
    for (int p = 0; p <= position_; ++p)
      for (int i = 0; i < d; ++i)
        out[static_cast<size_t>(h * d + i)] +=
            weight[static_cast<size_t>(p)] / mass * cached(layer, true, p, h / group, i);
  });
  return out;
}

std::vector<double> Reference::step(int token) {
  std::vector<float> row = model_.host_embedding(token);
  std::vector<double> x(row.begin(), row.end());
  auto rounded = [&](std::vector<double> v) {
    for (double& e : v) e = round(e);
    return v;
  };
  auto add = [&](const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };
  double scale = 1;
  for (int l = 0; l < shape_.layers; ++l) {
    const HostWeights::Layer& w = host_.layers[static_cast<size_t>(l)];
    std::vector<double> in = normed(x, w.matrix[TestModel::kAttentionGains].values, scale);
    std::vector<double> qkv = product(w.matrix[TestModel::kQkv], in, scale);
    if (w.matrix[TestModel::kBias].rows)
      for (size_t i = 0; i < qkv.size(); ++i)
        qkv[i] += static_cast<double>(w.matrix[TestModel::kBias].values[i]);
    add(product(w.matrix[TestModel::kOut], rounded(attend(l, qkv)), 1));
    in = normed(x, w.matrix[TestModel::kMlpGains].values, scale);
    std::vector<double> gate_up = product(w.matrix[TestModel::kGateUp], in, scale);
    std::vector<double> activated(gate_up.size() / 2);
    for (size_t i = 0; i < activated.size(); ++i)
      activated[i] = gate_up[2 * i] / (1 + std::exp(-gate_up[2 * i])) * gate_up[2 * i + 1];
    add(product(w.matrix[TestModel::kDown], rounded(activated), 1));
  }
  std::vector<double> in = normed(x, model_.host_final_gains(), scale);
  ++position_;
  return product(host_.head, in, scale);
}

double nmse(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, power = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    double e = static_cast<double>(a[i]) - b[i];
    difference += e * e;
    power += b[i] * b[i];
  }
  return difference / power;
}

}  // namespace tokamak::cuda
