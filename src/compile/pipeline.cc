// The ordered list of passes.
#include "compile/pass.h"

namespace tokamak {
namespace {

constexpr Pass kPipeline[] = {
    {"user-rules", "rules given on the command line", PassClass::kReal, true, apply_user_rules},
    {"absorb-latent",
     "latent attention: key matrices applied to queries, value matrices to results",
     PassClass::kReal, true, absorb_latent},
    {"canonicalize", "canonical form: identities, chains of casts, reshapes, transposes and slices",
     PassClass::kExact, true, canonicalize},
    {"fold-constants", "evaluates nodes whose inputs are constants", PassClass::kExact, true,
     fold_constants},
    {"recognize", "recognises norms, softmax, activations, rope and attention in primitives",
     PassClass::kReal, true, recognize},
    {"fold-scales", "folds scales into attributes, norms and f32 weights", PassClass::kReal, true,
     fold_scales},
    {"fold-norms", "folds norm weights into the f32 matrices that follow", PassClass::kReal, true,
     fold_norms},
    {"use-facts", "uses facts about inputs of decode and verify: rows 0, 1, 2 ... are all rows",
     PassClass::kExact, true, use_facts},
    {"quantize-activations",
     "rounds activations: to int8 for quantised weights, to bf16 for 16-bit ones",
     PassClass::kLossy, true, quantize_activations},
    {"choose-storage",
     "activations stored as f16 or bf16 where the backend or --storage asks for it",
     PassClass::kLossy, true, choose_storage},
    {"dead-code", "drops nodes that no result needs; writes to state are results",
     PassClass::kExact, true, remove_dead_code},
    {"fuse", "groups nodes that one kernel runs, chosen by predicted time", PassClass::kExact, true,
     fuse_regions, true},
};

}  // namespace

std::span<const Pass> pipeline() { return kPipeline; }

}  // namespace tokamak
