#pragma once
// The offline path: model file -> Graph -> passes -> PlanSet. compiler.cc is that path, top to
// bottom.
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/import/model_config.h"
#include "compile/stage_dump.h"
#include "graph/rule.h"
#include "plan/plan.h"

namespace tokamak {

struct FusionReport;  // compile/fuse/report.h
struct PassTiming;    // compile/pass.h

// Which plans a function gets.
enum class Shapes : uint8_t {
  kAuto,     // plans of a few sizes, each for every shape up to its own: nothing is padded
  kDynamic,  // one plan for every shape
  kBuckets,  // plans of fixed sizes, steps are padded up to the next; one plan for what has none
  kFixed,    // as kBuckets, and every symbol is padded: steps of a plan have one shape
};
Shapes shapes_from_name(std::string_view name);  // auto, dynamic, buckets, fixed

struct CompileOptions {
  std::string activations =
      "auto";  // "f32": never quantise activations; "auto": where the weights are quantised
  // Types that values are stored in between ops: "bf16", "f16,residual=f32", "f32"; empty: what the
  // backend asks for (the pass choose-storage).
  std::string storage;
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
  std::string machine;                    // machine file of the fusion planner; empty: built in
  std::shared_ptr<FusionReport> fusion;   // gets what the pass fuse decided; may be null
  // Op by op: no pass that is not needed for the result, no fusion, and no place of the arena used
  // twice. What speed-ups are measured against.
  bool eager = false;
  Shapes shapes = Shapes::kAuto;
  std::vector<int64_t> buckets;     // of T, for kBuckets and kFixed; empty: 1, 8, 16, 32, 64, ...
  std::shared_ptr<StageDump> dump;  // gets what each stage makes; may be null
  // Sees the function behind each pass, also behind those that are off; may be empty.
  std::function<void(const Function& function, const PassTiming& timing)> after_pass;
};

// The plain graph of a model: functions step, decode (and verify<k> on demand).
Module build_module(const ModelConfig& config, const CompileOptions& options);

PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options);

}  // namespace tokamak
