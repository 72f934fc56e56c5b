#pragma once
// Low-rank adapters (LoRA): a PEFT folder (adapter_config.json, adapter_model.safetensors) or a
// GGUF file -> the change of each weight of a model, in the model's own row order.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compile/import/families.h"
#include "compile/import/model_config.h"
#include "plan/weight_source.h"

namespace tokamak {

// The change of one weight [rows, columns]: b times a. The adapter's scale is part of b.
struct AdapterTarget {
  std::string weight;  // canonical name, "blk.3.attn_q.weight"
  int64_t rank = 0, rows = 0, columns = 0;
  std::vector<float> a;  // [rank, columns]
  std::vector<float> b;  // [rows, rank]
  // DoRA: the length that each row of the changed weight is scaled to; empty: not DoRA.
  std::vector<float> magnitude;
};

// A whole weight that takes the place of the model's (modules_to_save).
struct AdapterReplacement {
  WeightSlot slot;
  std::string tensor;             // in the adapter's file
  std::vector<RecipeStep> steps;  // from it to the weight
};

struct ImportedAdapter {
  std::string base;  // the model that it was trained for, as its files say; may be empty
  int64_t rank = 0;  // the largest of its targets
  bool dora = false;
  std::vector<AdapterTarget> targets;
  std::vector<AdapterReplacement> replaced;
  std::shared_ptr<const WeightSource> file;  // of their tensors; empty where there are none
};

// Reads the whole adapter. Fails with a one-line message that begins with the path: a missing or
// corrupt file, a kind of adapter that is not supported, a module that the model does not have, a
// shape that does not fit.
ImportedAdapter import_adapter(const std::filesystem::path& path, const ModelConfig& model);

// The files of an adapter at `path`: the file itself, or those of a PEFT folder.
std::vector<std::filesystem::path> adapter_files(const std::filesystem::path& path);

}  // namespace tokamak
