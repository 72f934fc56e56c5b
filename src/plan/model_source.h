#pragma once
// Where the engine gets a model from: compiled in memory from a model file, or a bundle. Provided
// by api/, so that the engine never sees the compiler.
#include <cstdint>
#include <memory>
#include <string>

#include "plan/embedding_spec.h"
#include "plan/plan.h"
#include "plan/tokenizer_spec.h"
#include "plan/weight_source.h"

namespace tokamak {

// What people ask about a model before they use it.
struct ModelFacts {
  std::string format;        // "gguf" or "safetensors": of the file that it came from
  std::string architecture;  // as that file names it; "" = it does not
  std::string quantization;  // the type of most weights: "Q4_K", "BF16"
  int64_t parameters = 0, hidden = 0, layers = 0;
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual const PlanSet& plans() const = 0;
  virtual const WeightSource& weights() const = 0;
  virtual const TokenizerSpec& tokenizer() const = 0;
  virtual const Value& metadata() const = 0;  // whatever the file says about itself
  virtual const EmbeddingSpec& embedding() const = 0;
};

ModelFacts facts_of(const ModelSource& source);
// "134.52M", "8B": as Ollama writes it; "" for 0.
std::string parameters_text(int64_t parameters);

}  // namespace tokamak
