#pragma once
// Where the engine gets a model from: compiled in memory from a model file, or a bundle. Provided
// by api/, so that the engine never sees the compiler.
#include <memory>
#include <string>

#include "plan/embedding_spec.h"
#include "plan/plan.h"
#include "plan/tokenizer_spec.h"
#include "plan/weight_source.h"

namespace tokamak {

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual const PlanSet& plans() const = 0;
  virtual const WeightSource& weights() const = 0;
  virtual const TokenizerSpec& tokenizer() const = 0;
  virtual const Value& metadata() const = 0;  // whatever the file says about itself
  virtual const EmbeddingSpec& embedding() const = 0;
};

}  // namespace tokamak
