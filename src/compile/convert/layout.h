#pragma once
// Where the weights of a graph are in a model file: the importers' recipes, read backwards.
#include <string>
#include <vector>

#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

// Decays of recurrent layers: GGUF has negative numbers, folders the logarithms of their opposites.
enum class Decays { kSame, kFromLog, kToLog };

// Linear attention: a folder has the value heads of a key head side by side, GGUF of Qwen3.5 the
// first of every key head, then the second of each. Rows, or columns, from `first` on.
struct HeadOrder {
  int64_t groups = 0;  // 0: the order stays
  int64_t share = 1, width = 1, first = 0;
  bool columns = false;
};

// A weight (or its rows from `first_row` on) in a tensor of the file: `steps` lead from the tensor
// to the weight.
struct FilePart {
  std::string weight;
  int64_t first_row = 0;
  std::vector<RecipeStep> steps;
  Decays decays = Decays::kSame;
  HeadOrder order = {};
  double factor = 1;  // Falcon-H1: GGUF has matrices times the factors of its blocks
};

struct FileTensor {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<FilePart> parts;
};

// Fails (kUnsupported) for families that the format does not have.
std::vector<FileTensor> gguf_layout(const ModelConfig& config);
// The configuration that the GGUF file of a model describes.
ModelConfig gguf_form(const ModelConfig& config);
std::vector<FileTensor> hf_layout(const ModelConfig& config);

// A tensor of the file in the type of its weights, or in f32 where its steps compute.
struct FileBytes {
  DType dtype = DType::kF32;
  std::span<const std::byte> bytes;
  std::vector<std::byte> owned;  // empty: `bytes` are those of the source
};
FileBytes assemble(const FileTensor& tensor, const ModelConfig& config, const WeightSource& source);

}  // namespace tokamak
