#pragma once
// Linear layers of quantised checkpoints: GPTQ, AWQ, compressed-tensors, fp8 and bitsandbytes.
// Which layers are quantised is read from the tensors; quantization_config says how. Every layer
// becomes a weight of a group type (tensor/group_formats.h) with the values of the checkpoint.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/value.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"
#include "tensor/group_formats.h"

namespace tokamak {

class QuantizedWeights {
 public:
  // `configs`: config.json and what it nests; the first with a quantization_config counts. Fails
  // with kUnsupported, naming the method, for those that are not read. Refers to its arguments.
  QuantizedWeights(std::initializer_list<const Value*> configs, const WeightSource& weights,
                   std::string_view where);

  bool quantized(const std::string& module) const;  // "model.layers.0.mlp.up_proj"

  // The matrices of some modules, one after the other: [rows of all, columns].
  struct Matrix {
    std::vector<std::string> sources;
    std::vector<RecipeStep> steps;
    int64_t rows = 0, columns = 0;
    double factor = 1;   // of the whole
    std::string order;   // not empty: the tensor with the group of each column, and how many
    int64_t groups = 0;  // groups there are; inputs must be gathered in the order of groups
  };
  // Fails, naming the tensor, if one is missing or has a wrong shape.
  Matrix matrix(const std::vector<std::string>& modules) const;

  // BitNet: inputs of quantised layers are rounded to 255 steps per token; weights may be stored
  // as they were before their rounding.
  bool rounds_inputs() const { return method_ == "bitnet"; }
  bool rounds_weights() const { return online_; }

  // Tensors besides the weights that a quantised model may have and that are not needed: scales of
  // activations and of the KV cache, and the parts of quantised layers.
  bool is_side_tensor(std::string_view name) const;

 private:
  // One module before the modules of a weight agree on a type.
  struct Found {
    RecipeStep step;
    GroupFormat format;
    std::vector<std::string> sources;
    int64_t joined = 0;  // columns of a block: 32 of MXFP4, 64 of NVFP4; 0: neither
    double factor = 1;
  };
  Found gptq(const std::string& module) const;
  Found awq(const std::string& module) const;
  Found packed(const std::string& module) const;
  Found mxfp4(const std::string& module) const;
  Found nvfp4(const std::string& module, const TensorView& whole) const;
  Found plain(const std::string& module) const;
  Found nf4(const std::string& module) const;
  Found ternary(const std::string& module) const;
  Found find(const std::string& module) const;

  const TensorView& need(const std::string& name) const;
  const TensorView& need_matrix(const std::string& name) const;
  int64_t columns_per_scale(const std::string& module, int64_t k, int64_t groups) const;
  int group_size(const std::string& module, int64_t k, int64_t columns) const;
  void add_order(Found& found, const std::string& tensor, int64_t groups) const;
  // Scales stay f16 if that is exact.
  bool needs_f32(const std::string& scales) const;
  void check_parts(const Found& found) const;
  void read_compressed();
  void read_bitnet();

  const WeightSource& weights_;
  std::string where_, method_;
  const Value* config_ = nullptr;
  int64_t bits_ = 0, config_group_ = 0;  // 0: not given, or different ones
  int64_t block_rows_ = 0, block_columns_ = 0;
  bool symmetric_ = false, minus_one_ = false, online_ = false;
};

}  // namespace tokamak
