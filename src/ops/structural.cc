// Nodes that compute nothing: inputs, weights, constants and regions. Their types come from the
// module's declarations, so they have neither a type rule nor a meaning here.
#include "ops/tables.h"

namespace tokamak {
namespace {

OpDef structural(std::string_view name, OpDef::Role role, std::string_view doc) {
  return {.name = name,
          .tier = Tier::kStructural,
          .min_inputs = 0,
          .max_inputs = 0,
          .infer = nullptr,
          .attr_names = {"name"},
          .required_attrs = 1,
          .doc = doc,
          .role = role};
}

OpDef region(std::string_view name, bool writes, std::string_view doc) {
  return {.name = name,
          .tier = Tier::kRegion,
          .min_inputs = 0,
          .max_inputs = -1,
          .infer = nullptr,
          .attr_names = {"body"},
          .required_attrs = 1,
          .writes_state = writes,
          .doc = doc};
}

}  // namespace

std::vector<OpDef> structural_ops() {
  return {structural("input", OpDef::Role::kInput, "an input of the function"),
          structural("weight", OpDef::Role::kWeight, "a weight of the module"),
          structural("constant", OpDef::Role::kConstant, "a small tensor the compiler knows"),
          region("region", false, "a fused region: what its body, a function, computes"),
          region("region_write", true, "a fused region whose body writes a state")};
}

}  // namespace tokamak
