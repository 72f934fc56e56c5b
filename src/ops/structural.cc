// What a graph is made of beside computation: its nodes get their types from the module's
// declarations, so there is neither a type rule nor a meaning here.
#include "ops/tables.h"

namespace tokamak {
namespace {

OpDef structural(std::string_view name, std::string_view doc) {
  return {.name = name,
          .tier = Tier::kStructural,
          .min_inputs = 0,
          .max_inputs = 0,
          .infer = nullptr,
          .attr_names = {"name"},
          .required_attrs = 1,
          .doc = doc};
}

}  // namespace

std::vector<OpDef> structural_ops() {
  return {structural("input", "an input of the function"),
          structural("weight", "a weight of the module"),
          structural("constant", "a small tensor the compiler knows")};
}

}  // namespace tokamak
