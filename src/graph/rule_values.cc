#include <algorithm>
#include <cmath>

#include "graph/input_numbers.h"
#include "graph/rule_verify.h"

namespace tokamak {

void add_digits(const Function& fn, EvalInputs<double>& inputs, Rng& rng) {
  for (auto& [name, t] : inputs.tensors) {
    Ref r = fn.find_input(name);
    if (!r.valid() || fn.tensor(r).dtype != DType::kF32) continue;
    for (double& v : t.f) v *= 1 + rng.uniform(-1e-8, 1e-8);
  }
}

std::string make_extreme(const Function& fn, bool largest, EvalInputs<double>& inputs, Rng& rng) {
  std::vector<std::pair<std::string, EvalTensor<double>*>> all;
  for (auto& [name, t] : inputs.tensors)
    if (!t.f.empty()) all.emplace_back(name, &t);
  for (auto& [name, t] : inputs.sources)
    if (!t.f.empty()) all.emplace_back(name, &t);
  if (all.empty()) return "";
  auto scale = [&](const std::string& name, EvalTensor<double>& t, int power) {
    static constexpr double kMost = 3.38e38;  // bf16 holds it too
    Ref r = fn.find_input(name);
    DType dtype = r.valid() ? fn.tensor(r).dtype : DType::kF32;
    if (dtype == DType::kF16) power = 3;
    for (double& v : t.f) v = round_to(dtype, std::clamp(v * std::pow(10.0, power), -kMost, kMost));
    return fmt::format(", {} by 1e{}", name, power);
  };
  if (all.size() > 1 && rng.below(3) == 0) {  // all alike: what two of them give may overflow
    int power = rng.below(2) ? 22 : -22;
    std::string note;
    for (auto& [name, t] : all) note += scale(name, *t, power);
    return note;
  }
  static constexpr int kPowers[] = {12, 20, 29, 34, 38, -12, -20, -30};
  auto& [name, t] = all[rng.below(all.size())];
  if (largest && rng.below(2)) return scale(name, *t, 40);  // nearly all are the largest number
  return scale(name, *t, kPowers[rng.below(std::size(kPowers))]);
}

bool limit_values(const RewriteRule& rule, const Function& fn, const RuleMatch& match, bool beyond,
                  Rng& rng, EvalInputs<double>& inputs) {
  for (const RuleVar& v : rule.vars) {
    if (!v.range || (beyond && !v.assumed)) continue;
    auto lo = evaluate_expr(v.range->first, rule, match, fn, nullptr),
         hi = evaluate_expr(v.range->second, rule, match, fn, nullptr);
    if (!lo || !hi || !lo->is_number() || !hi->is_number()) return false;
    for (auto* tensors : {&inputs.tensors, &inputs.sources})
      if (auto it = tensors->find(v.name); it != tensors->end())
        for (double& f : it->second.f)
          f = static_cast<float>(v.assumed ? std::clamp(f, lo->as_double(), hi->as_double())
                                           : rng.uniform(lo->as_double(), hi->as_double()));
  }
  return true;
}

}  // namespace tokamak
