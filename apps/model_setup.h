#pragma once
// From command-line flags to a running model: the place where the compiler and the engine meet.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "compile/model_source.h"
#include "engine/local_engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tokamak {

class BundleModel;

struct ModelFlags {
  std::string model;
  std::string backend = "cpu";
  std::string activations = "auto";
  std::string storage;
  std::string kv_dtype = "f16";
  std::string machine_file;
  std::string template_name;  // which chat template; empty: the default one
  std::vector<std::string> disabled_passes, dump_after;
  int threads = 0;
  int64_t context = 0;    // 0: the model's own, at most kDefaultContext
  int64_t longest = 0;    // no sequence gets longer than this; 0: not known
  int64_t kv_tokens = 0;  // 0: derived from context and max_sequences
  uint64_t kv_bytes = 0;  // instead of kv_tokens: as many blocks as fit into so much memory
  int64_t kv_blocks = 0;  // instead of kv_tokens: blocks of each group that keeps all tokens
  std::function<void(EngineConfig&)> tune;  // sets policies and limits; may be empty
  int64_t max_sequences = 64;
  int64_t max_tokens = 512;  // token budget of one step
  int64_t max_logit_rows = 64;
  uint64_t seed = 0;
  std::string mode = "compiled";  // or eager
  std::string shapes = "auto";
  std::vector<int64_t> buckets;
  std::string dump_dir;
  bool no_compile_cache = false, no_verify = false;
  // What the caller needs of a bundle, whose limits were set when it was made; 0: nothing special.
  int64_t need_sequences = 0;
  const CLI::App* verb = nullptr;             // whose flags these are
  bool given(const std::string& flag) const;  // on the command line
};
constexpr int64_t kDefaultContext = 8192;

void add_model_argument(CLI::App& verb, ModelFlags& flags);
void add_model_flags(CLI::App& verb,
                     ModelFlags& flags);  // --backend --threads --context --seed --activations ...
void add_template_flag(CLI::App& verb, ModelFlags& flags);  // --template-name

// Compiled but not loaded: what `bench latency` drives step by step.
struct CompiledSetup {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;
  bool eager = false;  // to be loaded with LoadOptions::eager
};
CompileOptions compile_options(const ModelFlags& flags);  // without the context
// The backend that the flags ask for.
std::unique_ptr<Backend> backend_for(const ModelFlags& flags, const std::string& name);
int64_t context_for(const ModelFlags& flags, const ModelConfig& config);
// apps/bundle_setup.cc: a bundle for these flags; throws Error(kOutOfRange) naming the limit when
// they ask for more than it was compiled for.
CompiledSetup open_bundle(const ModelFlags& flags, const CompileCache* cache);
const BundleModel* bundle_of(const CompiledSetup& setup);             // nullptr: it is none
int64_t symbol_limit(const PlanSet& plans, std::string_view symbol);  // 0: there is none
DType kv_dtype_of(const ModelFlags& flags);                           // i8 for "int8"
CompiledSetup compile_for(const ModelFlags& flags);

// Loads weights with a progress bar on a terminal.
std::unique_ptr<Executable> load_weights(const CompiledSetup& setup, std::vector<int64_t> kv_blocks,
                                         int64_t max_rows);

// Everything a front end needs. Destroyed in reverse order: the engine stops before its backend
// goes.
struct LoadedModel {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null when the file has none
  std::shared_ptr<LocalEngine> engine;
  double load_seconds = 0;
  std::string context_hint;  // what a user can do when a text is too long
};
LoadedModel load_model(const ModelFlags& flags);

// Renders the model's template around `messages` and tokenises it; throws if the file has no
// template.
std::vector<int32_t> encode_chat(const LoadedModel& model, Value messages,
                                 bool add_generation_prompt = true);

}  // namespace tokamak
