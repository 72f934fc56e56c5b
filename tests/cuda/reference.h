#pragma once
// A decoder with random weights, on the device and in double precision on the host.
#include <functional>
#include <vector>

#include "backend/cuda/decode_stream.h"
#include "random_values.h"

namespace tokamak::cuda {

struct TestShape {
  DecoderShape shape;
  bool qk_norm = false, qkv_bias = false;
  int max_positions = 1024;  // of a sequence
  int batch = 1;
  DecodeWeight type = DecodeWeight::kBf16, head_type = DecodeWeight::kBf16;
  bool timing = false;  // packed weights are random bits, which no host copy matches
  int pages() const { return (max_positions + shape.page_size - 1) / shape.page_size; }
};

// Fills device memory with random values.
class Filler {
 public:
  explicit Filler(const void* cubin);
  void bf16(DeviceAddress to, size_t count, const RandomSpec& spec) const;
  void f16(DeviceAddress to, size_t count, const RandomSpec& spec) const;
  void f32(DeviceAddress to, size_t count, const RandomSpec& spec) const;
  // Random packed weights: the first words of each chunk are random bits of `mask`, the others
  // scales.
  void packed(DeviceAddress to, size_t words, int chunk_words, int data_words, uint32_t scale,
              uint32_t mask) const;

 private:
  KernelModule module_;
  void fill(Handle kernel, DeviceAddress to, size_t count, const RandomSpec& spec) const;
  Handle bf16_, f16_, f32_, packed_;
};

// All weights of a decoder: where they are on the device, and the rule of their values.
class TestModel {
 public:
  TestModel(const TestShape& shape, const Filler& filler);
  const TestShape& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  DeviceAddress page_table() const { return pages_.address(); }
  double weight_bytes() const { return weight_bytes_; }  // read by a step
  double cache_bytes(int position) const;                // read by a step
  double cached(int sequence, int layer, bool value, int position, int kv_head, int d) const;

  struct Matrix {
    std::vector<float> values;  // [rows, width]
    int rows = 0, width = 0;
  };
  // The host's copy of a weight, by the order in which they were made.
  Matrix host_matrix(int layer, int which) const;
  Matrix host_head() const;
  std::vector<float> host_embedding(int token) const;
  enum Which {
    kQkv,
    kOut,
    kGateUp,
    kDown,
    kAttentionGains,
    kMlpGains,
    kQueryGains,
    kKeyGains,
    kBias
  };
  std::vector<float> host_final_gains() const;
  const std::vector<float>& frequencies() const { return frequencies_; }

 private:
  struct Piece {
    RandomSpec spec;
    int rows = 0, width = 0;
    DecodeWeight type = DecodeWeight::kBf16;
  };
  DeviceAddress add(const Filler& filler, const Piece& piece);
  DecodeMatrix add_matrix(const Filler& filler, const Piece& piece);
  Piece head_piece() const;
  Piece piece(int layer, int which) const;
  Matrix plain(const Piece& piece) const;  // before quantisation
  Matrix host(const Piece& piece) const;
  TestShape config_;
  DecoderWeights weights_;
  std::vector<Buffer> buffers_;
  Buffer pages_;
  std::vector<int32_t> page_table_;
  std::vector<float> frequencies_;
  double weight_bytes_ = 0;
};

// The host's copies of all matrices.
struct HostWeights {
  explicit HostWeights(const TestModel& model);
  struct Layer {
    TestModel::Matrix matrix[9];
  };
  std::vector<Layer> layers;
  TestModel::Matrix head;
};

// One sequence of the same decoder in double precision. `rounded`: bf16 where the kernel has it.
class Reference {
 public:
  Reference(const TestModel& model, const HostWeights& host, int sequence, int cached_positions,
            bool rounded);
  std::vector<double> step(int token);

 private:
  double round(double value) const {
    return rounded_ ? static_cast<double>(from_bf16(to_bf16(static_cast<float>(value)))) : value;
  }
  std::vector<double> product(const TestModel::Matrix& m, const std::vector<double>& x,
                              double scale) const;
  std::vector<double> normed(const std::vector<double>& x, const std::vector<float>& gains,
                             double& scale) const;
  std::vector<double> attend(int layer, std::vector<double> qkv);
  void prepare_head(double* head, const float* gains, bool rotate) const;
  double cached(int layer, bool value, int position, int kv_head, int d) const;

  const TestModel& model_;
  const HostWeights& host_;
  const DecoderShape& shape_;
  bool rounded_;
  int sequence_, first_, position_;
  std::vector<std::vector<double>> keys_, values_;  // appended, per layer
};

void on_all_cores(int n, const std::function<void(int)>& body);

// ||a - b||^2 / ||b||^2
double nmse(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace tokamak::cuda
