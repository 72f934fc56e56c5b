#pragma once
// The offline path: model file -> Graph -> passes -> PlanSet. compiler.cc is that path, from top to
// bottom.
#include <cstdint>
#include <filesystem>
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
#include "plan/model_source.h"
#include "plan/plan.h"

namespace tokamak {

class CompileCache;   // compile/cache.h
struct FusionReport;  // compile/fuse/report.h
struct PassTiming;    // compile/pass.h

// Which plans a function gets.
enum class Shapes : uint8_t {
  kAuto,     // plans for a few sizes, each for every shape up to its size, without padding
  kDynamic,  // one plan for every shape
  kBuckets,  // plans of fixed sizes, to which steps are padded; one plan for all other shapes
  kFixed,    // as kBuckets, and every symbol is padded: steps of a plan have one shape
};
Shapes shapes_from_name(std::string_view name);  // auto, dynamic, buckets, fixed
std::string_view shapes_name(Shapes shapes);

// Loads plans with the weights of a model, to measure them.
using TrialLoader =
    std::function<std::unique_ptr<Executable>(const PlanSet& plans, const LoadOptions& options)>;

struct CompileOptions {
  std::string activations = "auto";  // "f32": never quantise activations; "auto": where the weights
                                     // are quantised; "bf16": round them to bf16 wherever a kernel
                                     // takes that; "i16": products of int16 where a kernel has
                                     // them; "mixed": as auto, and bf16 in plans of many rows
  int64_t bf16_rows = 0;  // of "mixed": rows from which a plan has many; 0: Backend::bf16_rows()
  // Types that values are stored in between ops: "bf16", "f16,residual=f32", "f32"; empty: what the
  // backend asks for (the pass choose-storage).
  std::string storage;
  DType kv_dtype = DType::kF16;
  int64_t block_size = 16;
  int64_t max_sequences = 64;   // upper bound of B
  int64_t max_tokens = 512;     // upper bound of T (token budget of a step)
  int64_t max_logit_rows = 64;  // upper bound of R: rows of a step that may ask for logits
  int64_t context = 0;          // longest sequence; 0: the model's own, at most max_context
  int64_t max_context = 0;      // 0: no such bound
  int64_t longest = 0;          // no sequence will be longer than this; 0: not known
  std::vector<std::string> merge_adapters;  // paths: added to the weights (compile/adapters.h)
  int64_t adapter_slots = 0;                // adapters that rows of a step can choose from; 0: none
  int64_t adapter_rank = 16;                // largest rank of one in a slot
  int64_t exit_layers = 0;    // of kExitFunction; 0: no such function, -1: a third of all
  bool layer_logits = false;  // add kLayersFunction
  std::string pooling;        // "mean", "cls" or "last"; empty: as the model's files say
  // Latent attention: step computes keys and values of each head, other functions stay absorbed.
  bool materialized_prefill = false;
  bool tree_mask = false;                 // step takes `mask`: rows may be nodes of a draft tree
  std::vector<int> verify;                // numbers of drafts k that get verify<k> plans
  std::vector<std::string> passes;        // run exactly these, in order; empty: the pipeline
  std::set<std::string> disabled_passes;  // names from compile/pipeline.cc
  std::set<std::string> dump_after;       // passes after which the function is printed to stderr
  std::vector<RewriteRule> rules;         // the user's, for the pass user-rules
  std::string machine;                    // machine file of the fusion planner; empty: built in
  std::shared_ptr<FusionReport> fusion;   // receives the decisions of the pass fuse; may be null
  // Op by op: only passes that the result needs, no fusion, no reuse of arena memory. The baseline
  // for speed-ups.
  bool eager = false;
  // Measure the kernels that the cost model ranks first, and take the fastest (compile/autotune.h).
  bool autotune = false;
  Shapes shapes = Shapes::kAuto;
  std::vector<int64_t> buckets;     // of T, for kBuckets and kFixed; empty: 1, 8, 16, 32, 64, ...
  int64_t pads_decode_above = 0;    // as the backend says (Backend::pads_decode_above), for kAuto
  std::shared_ptr<StageDump> dump;  // receives the output of each stage; may be null
  TrialLoader load_trial;  // for autotune (compile/autotune.h); compile_model() and bundles set it
  // Called after each pass, also for passes that are off; may be empty.
  std::function<void(const Function& function, const PassTiming& timing)> after_pass;
};

// Compiles a model file for a backend. The result keeps the file mapped. `cache` may be null.
std::unique_ptr<ModelSource> compile_model(const std::filesystem::path& path, Backend& backend,
                                           CompileOptions options,
                                           const CompileCache* cache = nullptr);

// Its parts. The context that the options choose for a model; throws Error(kInvalidArgument) for
// one that it cannot have.
int64_t choose_context(const CompileOptions& options, const ModelConfig& config);
// What options and model decide for each other: the context, the pooling, and steps that hold a
// whole text of an encoder. Throws Error(kInvalidArgument / kUnsupported).
void fit_options(CompileOptions& options, ModelConfig& config);
// The plain graph of a model: the function step (compile/models).
Module build_module(const ModelConfig& config, const CompileOptions& options);
// From the plain graph to plans. Of the config only the sizes count.
PlanSet compile_module(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options);

}  // namespace tokamak
