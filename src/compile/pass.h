#pragma once
// A pass rewrites a function. Every pass is named and timed, can be disabled, and the graph is
// verified after it. compile/pipeline.cc is the ordered list of passes.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/compiler.h"
#include "graph/rebuild.h"

namespace tokamak {

struct PassTiming {
  std::string name;
  double seconds = 0;
  size_t nodes_before = 0, nodes_after = 0;
  bool skipped = false;
  size_t fired = 0;                       // rewrites and folds
  std::map<std::string, size_t> rules;    // how often each rule fired
  std::map<std::string, size_t> refused;  // what it left unchanged, by reason
};

// The context of a pass. The pointers are for tools and may be null.
struct PassContext {
  const Backend& backend;
  const CompileOptions& options;
  PassTiming* timing = nullptr;
  size_t* firings_left = nullptr;      // remaining rewrites: decremented for bisection
  std::string* last_firing = nullptr;  // "rule silu at %7 (mul)"
};

enum class PassClass : uint8_t {
  kExact,  // the same bits from the reference interpreter
  kReal,   // equal over the reals
  kLossy,  // changes values on purpose (quantisation)
};

struct Pass {
  std::string_view name;
  std::string_view what;  // one-line description
  PassClass cls;
  bool on;  // by default
  void (*run)(Module& module, Function& function, const PassContext& context);
  bool final = false;  // runs for each planned function, after decode was specialised from step
};

std::span<const Pass> pipeline();
const Pass* find_pass(std::string_view name);
// The passes selected by the options, in order: --passes, or the pipeline without disabled passes.
// Throws Error(kInvalidArgument) naming an unknown pass.
std::vector<const Pass*> chosen_passes(const CompileOptions& options);
std::vector<PassTiming> run_passes(Module& module, Function& function, const PassContext& context);
// The same in two halves: before other functions are specialised from this one, and for each
// function at the end.
std::vector<PassTiming> run_general_passes(Module& module, Function& function,
                                           const PassContext& context);
std::vector<PassTiming> run_final_passes(Module& module, Function& function,
                                         const PassContext& context);
// For decode and verify, which are specialised from an already optimised function: the passes that
// use their additional facts.
void run_derived_passes(Module& module, Function& function, const PassContext& context);

// The text of CompileOptions::storage: "bf16", "f16,residual=f32". Throws Error(kInvalidArgument).
StorageWish storage_from_text(std::string_view text);

// Passes.
void quantize_activations(Module& module, Function& function, const PassContext& context);
// Products with int8 activations take bf16 ones where a kernel multiplies them; not a pass of the
// pipeline, but for functions of many rows (--activations mixed).
void round_to_bf16(Module& module, Function& function, const PassContext& context);
void choose_storage(Module& module, Function& function, const PassContext& context);
void apply_user_rules(Module& module, Function& function, const PassContext& context);
void absorb_latent(Module& module, Function& function, const PassContext& context);
void canonicalize(Module& module, Function& function, const PassContext& context);
void fold_constants(Module& module, Function& function, const PassContext& context);
void recognize(Module& module, Function& function, const PassContext& context);
void fold_scales(Module& module, Function& function, const PassContext& context);
void fold_norms(Module& module, Function& function, const PassContext& context);
void use_facts(Module& module, Function& function, const PassContext& context);
void remove_dead_code(Module& module, Function& function, const PassContext& context);
void fuse_regions(Module& module, Function& function, const PassContext& context);

}  // namespace tokamak
