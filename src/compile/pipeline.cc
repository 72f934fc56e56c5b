// THE ordered list of passes.
#include "compile/pass.h"

namespace tokamak {
namespace {

constexpr Pass kPipeline[] = {
    {"quantize-activations", "int8 activations in front of matrices with quantised weights",
     quantize_activations},
    {"dead-code", "drops nodes that no result needs; writes to state are results",
     remove_dead_code},
};

}  // namespace

std::span<const Pass> pipeline() { return kPipeline; }

}  // namespace tokamak
