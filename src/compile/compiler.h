#pragma once
// The offline path: model file -> Graph -> passes -> PlanSet. compiler.cc is that path, top to
// bottom.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "compile/import/model_config.h"
#include "graph/rule.h"
#include "plan/plan.h"

namespace tokamak {

struct CompileOptions {
  std::string activations =
      "auto";  // "f32": never quantise activations; "auto": where the weights are quantised
  DType kv_dtype = DType::kF16;
  int64_t block_size = 16;
  int64_t max_sequences = 64;       // upper bound of B
  int64_t max_tokens = 512;         // upper bound of T (token budget of a step)
  int64_t max_logit_rows = 64;      // upper bound of R: rows of a step that may ask for logits
  int64_t context = 0;              // longest sequence; 0: the model's own
  bool tree_mask = false;           // step takes `mask`: rows may be nodes of a draft tree
  std::vector<int> verify;          // numbers of drafts k to make verify<k> plans for
  std::vector<std::string> passes;  // run exactly these, in order; empty: the pipeline
  std::set<std::string> disabled_passes;  // names from compile/pipeline.cc
  std::set<std::string> dump_after;       // passes after which the function is printed to stderr
  std::vector<RewriteRule> rules;         // of the user, for the pass user-rules
};

// The plain graph of a model: functions step, decode (and verify<k> on demand).
Module build_module(const ModelConfig& config, const CompileOptions& options);

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options);

}  // namespace tokamak
