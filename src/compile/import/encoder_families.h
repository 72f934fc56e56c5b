#pragma once
// Facts about each family of encoders, and the tensor names of its files.
#include <span>
#include <string>
#include <string_view>

#include "compile/import/families.h"
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

struct EncoderFamily {
  struct Renamed {
    std::string_view stem, hf;
  };
  std::string_view architecture;  // GGUF's name where it has one; also ModelConfig::architecture
  std::string_view hf_names;      // model_type values of config.json, separated by spaces
  std::string_view prefix;        // of the tensors, unless the file leaves it out
  std::string_view layers;        // "encoder.layer"
  std::span<const Renamed> names;
  Activation head_activation = Activation::kTanh;
  bool learned_positions = true;
  bool padded_positions = false;  // positions of a text start after those of padding
  bool segments = true;
  bool biases = true;  // of every matrix and norm; else of those that have one in the file
  bool gated = false;
  bool norm_first = false;
  bool fused = false;  // q, k, v in one tensor; with norm_first gate and up too
  bool in_gguf = false;
};

std::span<const EncoderFamily> all_encoders();
const EncoderFamily* find_encoder(std::string_view architecture);
const EncoderFamily* find_encoder_hf(std::string_view model_type);

// Maps the tensors of a file to weights with canonical names. Refers to the file.
class EncoderNames {
 public:
  EncoderNames(const EncoderFamily& family, const WeightSource& weights, std::string_view where);
  EncoderNames(const EncoderFamily& family, const GgufFile& file);

  int64_t vocab() const;   // rows of the token table
  int64_t labels() const;  // rows of the classifier's output; 0: there is none
  // Fills config.weights; everything else in `config` is set. Fails, naming the tensor, if one is
  // missing, has another shape, or is not a known part of the model.
  void map(ModelConfig& config) const;

 private:
  std::string source(const WeightSlot& slot) const;
  bool has(const WeightSlot& slot) const { return weights_.find(source(slot)) != nullptr; }
  std::vector<WeightSlot> slots(const ModelConfig& config) const;
  bool is_fused(const WeightSlot& slot) const;

  const EncoderFamily& family_;
  const WeightSource& weights_;
  std::string where_, prefix_;
  bool gguf_;
};

}  // namespace tokamak
