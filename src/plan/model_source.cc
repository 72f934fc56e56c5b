#include "plan/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

namespace tokamak {

ModelFacts facts_of(const ModelSource& source) {
  const PlanSet& plans = source.plans();
  ModelFacts facts;
  facts.hidden = plans.hidden;
  facts.layers = plans.layers;
  if (const Value& file = source.metadata(); file.is_object()) {
    facts.format = file.has("general.architecture") ? "gguf" : "safetensors";
    facts.architecture = file.get_string("general.architecture", file.get_string("model_type", ""));
  }
  // The embeddings may also be the output matrix: tensors count once.
  std::set<std::vector<std::string>> counted;
  std::map<DType, int64_t> by_type;
  for (const WeightEntry& weight : plans.weights) {
    if (!weight.constant.empty() || !counted.insert(weight.recipe.sources).second) continue;
    int64_t n = 1;
    for (int64_t d : weight.dims) n *= d;
    by_type[weight.dtype] += n;
    facts.parameters += n;
  }
  if (by_type.empty()) return facts;
  auto most = std::max_element(by_type.begin(), by_type.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; });
  facts.quantization = dtype_name(most->first);
  for (char& c : facts.quantization)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return facts;
}

std::string parameters_text(int64_t parameters) {
  struct Unit {
    double size;
    const char* name;
    int digits;
  };
  for (const Unit& unit : {Unit{1e9, "B", 1}, Unit{1e6, "M", 2}, Unit{1e3, "K", 0}}) {
    const double number = static_cast<double>(parameters) / unit.size;
    if (number < 1) continue;
    return fmt::format("{:.{}f}{}", number, number == std::floor(number) ? 0 : unit.digits,
                       unit.name);
  }
  return parameters > 0 ? std::to_string(parameters) : "";
}

}  // namespace tokamak
