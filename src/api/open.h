#pragma once
// The composition root: from options to a compiled model, and to one that runs. Here the compiler,
// a backend and the engine meet; nothing below this lane knows all three. The public functions of
// tokamak/tokamak.h, the command line and the server stand on it.
#include <tokamak/tokamak.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/adapters.h"
#include "backend/backend.h"
#include "compile/bundle_compile.h"
#include "compile/open_model.h"
#include "engine/draft/drafter.h"
#include "engine/local_engine.h"
#include "serve/program/run.h"
#include "text/chat_template.h"
#include "text/embedding.h"
#include "text/grammar/grammar_cache.h"
#include "text/tokenizer.h"

namespace tokamak {

// The public options and those that only the tools of this repository need. As there, an empty,
// zero or unset value means the default.
struct OpenOptions : ModelOptions {
  std::string model;                    // path
  std::string chat_template_file;       // a file, a template, or the name of one in the model
  std::vector<std::string> dump_after;  // passes after which the graph is printed to stderr
  std::string dump_dir;                 // folder for what each stage of the compiler produces
  int64_t longest = 0;                  // no sequence will be longer than this; 0: not known
  bool tree_mask = false;               // CompileOptions::tree_mask
  int64_t exit_layers = 0;              // CompileOptions::exit_layers
  bool materialized_prefill = false;    // CompileOptions::materialized_prefill
  int64_t max_context = 0;              // unless `context` is set: at most this; 0: 8192
  int64_t max_logit_rows = 0;           // rows of a step with logits; 0: 64 or max_sequences
  int64_t kv_tokens = 0;     // instead of kv_cache_bytes: capacity of the KV cache in tokens
  int64_t kv_blocks = 0;     // instead of both: blocks of each group without a window
  std::string quantization;  // "fp8": see BackendOptions::fp8
  double gpu_memory_utilization = 0;        // instead of all: share of the GPU's memory to use
  uint64_t seed = 0;                        // of the tokens that the null backend makes up
  std::function<void(EngineConfig&)> tune;  // changes policies and limits; may be empty
  // Makes a drafter instead of that of `speculative`, with `tune` setting its limits; may be empty.
  std::function<std::unique_ptr<Drafter>()> make_drafter;
};
constexpr int64_t kDefaultContext = 8192, kDefaultSequences = 64, kDefaultStepTokens = 512,
                  kDefaultLogitRows = 64, kDefaultAdapters = 4;

// Throws Error(kInvalidArgument) for a value that no model can be opened with.
void check_options(const OpenOptions& options);
// Throws Error(kInvalidArgument) naming a sampling value that is out of range.
void check_generate_options(const GenerateOptions& options);
// The model's defaults with what the options set. Throws Error(kInvalidArgument) naming a value
// that is out of range.
SampleSpec sample_spec(const SampleSpec& defaults, const GenerateOptions& options);
// Whether any option says how tokens are chosen; also if it equals the default.
bool sets_sampling(const GenerateOptions& options);
// The compiler's share of the options.
CompileOptions compile_options(const OpenOptions& options);
std::unique_ptr<Backend> backend_for(const OpenOptions& options, const std::string& name);
// The machine file that the options name; without one, what `tokamak calibrate` has kept for this
// backend, if it was measured on this processor with as many threads; empty: built in.
std::string machine_file_for(const OpenOptions& options, const Backend& backend);
// Throws Error(kUnsupported) where the options ask for measured kernels and the backend has none.
void check_autotune(const CompileOptions& options, const Backend& backend);
int64_t symbol_limit(const PlanSet& plans, std::string_view symbol);  // 0: no such symbol

// Compiled, its weights not loaded. `explain`, `inspect --plan` and `bench latency` stop here.
struct CompiledSetup {
  std::unique_ptr<Backend> backend;  // null: a shared one
  std::unique_ptr<ModelSource> source;
  bool eager = false;  // to be loaded with LoadOptions::eager
};
// `shared`: a backend to compile for instead of a new one; bundles always get their own.
CompiledSetup compile_for(const OpenOptions& options, Backend* shared = nullptr);
const BundleModel* bundle_of(const CompiledSetup& setup);  // nullptr: not a bundle
// api/open_bundle.cc: throws Error(kInvalidArgument or kOutOfRange) for options that differ from,
// or exceed, what the bundle was compiled for. `cache` may be null.
CompiledSetup open_bundle(const OpenOptions& options, const CompileCache* cache);
// Compiles options.model, a model or another bundle, into the bundle `out`.
BundleReport make_bundle(const OpenOptions& options, const std::string& out);

// Everything a front end needs. Destroyed in reverse order: the engine stops before its backend
// goes.
struct LoadedModel {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model has none
  std::shared_ptr<grammar::GrammarCache> grammars;
  CompiledSetup draft;               // of a draft model; its backend is null if it has the model's
  std::unique_ptr<Drafter> drafter;  // null: no speculation
  EmbeddingSpec embedding;
  std::shared_ptr<const EmbeddingEncoder> embedder;
  std::shared_ptr<LocalEngine> engine;
  std::shared_ptr<AdapterHost> adapters;  // null: the model was opened without them
  SampleSpec defaults;                    // the model's own, for what a request does not set
  bool has_defaults = false;              // its files say something about sampling
  double load_seconds = 0;
  std::string context_hint;  // what a user can do when a text is too long
};
LoadedModel load_model(const OpenOptions& options);
bool shares_embedding(const PlanSet& plans);  // the embeddings are also the output matrix
// What programs run on (serve/program/run.h).
program::Host program_host(const LoadedModel& model);

// load_model as a handle of the public API.
Model open_model_handle(const OpenOptions& options);

}  // namespace tokamak
