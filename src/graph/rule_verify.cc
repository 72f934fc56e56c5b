#include "graph/rule_verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "graph/evaluate.h"
#include "graph/rewrite.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr double kBound = 1e-9;      // real rules, of the largest magnitude that was computed
constexpr double kNearBound = 3e-6;  // with constants that are matched within 1e-6

constexpr int64_t kMaxElements = 1 << 22;

bool all_in_field(const RewriteRule& rule) {
  if (rule.approximate) return false;
  return std::all_of(rule.terms.begin(), rule.terms.end(), [](const RuleTerm& t) {
    return t.kind != RuleTerm::Kind::kOp || t.op->field != nullptr;
  });
}

// The field knows no rounding: 1/3 as a double is another number there than 1 / 3.
bool is_short(const Value& v) {
  int exponent = 0;
  double mantissa = v.is_double() ? std::ldexp(std::frexp(v.as_double(), &exponent), 32) : 0;
  return mantissa == std::floor(mantissa);
}

// Rules may spell out any extents; what would take gigabytes is not tried.
bool is_small(const Function& fn) {
  int64_t total = 0;
  for (const Node& node : fn.nodes())
    for (const Type& t : node.outputs)
      if (t.kind == Type::Kind::kTensor) {
        int64_t n = t.tensor.elements().constant().value_or(kMaxElements);
        if (n >= kMaxElements || (total += n) >= kMaxElements) return false;
      }
  return true;
}

bool has_short_numbers(const Module& module, const Function& fn) {
  for (const ConstantDecl& c : module.constants)
    if (!std::all_of(c.values.begin(), c.values.end(), [](double v) { return is_short(Value(v)); }))
      return false;
  for (const Node& node : fn.nodes())
    for (const auto& [key, value] : node.attrs.as_object())
      if (!is_short(value)) return false;
  return true;
}

std::string number(double v) { return double_text(v); }
std::string number(Field v) { return fmt::format("{} (mod 2^61 - 1)", v.value()); }

class Verifier {
 public:
  Verifier(const RewriteRule& rule, const VerifyEffort& effort)
      : rule_(rule), effort_(effort), rng_(effort.seed), field_(all_in_field(rule)) {}

  RuleVerdict run() {
    Hash128 h;
    h.add(rule_.name);
    rng_ = Rng(effort_.seed ^ h.low());
    while (verdict_.instances < effort_.instances && verdict_.tries < effort_.tries) {
      int kind = verdict_.tries++ % 8;
      bool in_field = field_ && kind == 7;
      if (!one(kind, in_field)) return std::move(verdict_);
    }
    if (verdict_.instances < std::min(effort_.instances, 6)) {
      verdict_.message = fmt::format("never applies: {} of {} random instances match it",
                                     verdict_.instances, verdict_.tries);
      return std::move(verdict_);
    }
    verdict_.accepted = true;
    return std::move(verdict_);
  }

 private:
  bool refuse(const std::string& what) {
    verdict_.message = what;
    return false;
  }

  // False: the rule is refuted.
  bool one(int kind, bool in_field) {
    bool exact = rule_.cls == RuleClass::kExact;
    bool nasty = exact && !in_field && kind % 2 == 0;
    std::optional<RuleInstance> made = make_instance(rule_, rng_, nasty, in_field);
    if (!made) return true;
    RuleInstance& x = *made;
    auto match = match_rule(rule_, *x.fn, x.root, nullptr);
    if (!match) return true;
    auto right = build_replacement(rule_, *match, x.module, *x.fn, "", nullptr);
    if (!right) return true;
    if (!is_small(*x.fn)) return true;
    if (in_field && !has_short_numbers(x.module, *x.fn)) return true;
    x.fn->set_result("left", x.root);
    x.fn->set_result("right", *right);
    static constexpr Values kReal[] = {Values::kNormal, Values::kLarge, Values::kTiny,
                                       Values::kMixed};
    Values values = exact ? (nasty ? Values::kNasty : Values::kMixed) : kReal[kind % 4];
    if (in_field) values = Values::kNormal;
    for (const StateDecl& s : x.module.states) x.fn->set_result(s.name, x.fn->find_input(s.name));
    EvalInputs<double> inputs;
    try {
      inputs = random_inputs(*x.fn, {}, rng_, values);
      limit(x, *match, inputs);
    } catch (const Error&) {
      return true;
    }
    bool wide = exact && kind == 3;
    if (wide) add_digits(x, inputs);
    bool fine = in_field         ? compare<Field>(x, inputs, values)
                : exact && !wide ? compare<float>(x, inputs, values)
                                 : compare<double>(x, inputs, values);
    return fine && (verdict_.instances > 24 || ends(x));
  }

  // At float32 a meaning computes in float64 and rounds once, which hides most of what a rule
  // changes in the last digit; at float64 with all digits nothing is hidden.
  void add_digits(const RuleInstance& x, EvalInputs<double>& inputs) {
    for (auto& [name, t] : inputs.tensors) {
      Ref r = x.fn->find_input(name);
      if (!r.valid() || x.fn->tensor(r).dtype != DType::kF32) continue;
      for (double& v : t.f) v *= 1 + rng_.uniform(-1e-8, 1e-8);
    }
  }

  // Variables with a range get values from it.
  void limit(const RuleInstance& x, const RuleMatch& match, EvalInputs<double>& inputs) {
    for (const RuleVar& v : rule_.vars) {
      if (!v.range) continue;
      auto lo = evaluate_expr(v.range->first, rule_, match, *x.fn, nullptr),
           hi = evaluate_expr(v.range->second, rule_, match, *x.fn, nullptr);
      if (!lo || !hi || !lo->is_number() || !hi->is_number())
        fail(ErrorCode::kInvalidArgument, "the range of {} is not a number", v.name);
      for (auto* tensors : {&inputs.tensors, &inputs.sources}) {
        auto it = tensors->find(v.name);
        if (it == tensors->end()) continue;
        double a = lo->as_double(), b = hi->as_double();
        for (double& f : it->second.f) f = static_cast<float>(rng_.uniform(a, b));
        for (int32_t& i : it->second.i)
          i = static_cast<int32_t>(
              a + static_cast<double>(rng_.below(static_cast<uint64_t>(std::max(b - a, 1.0)))));
      }
    }
  }

  template <class S>
  bool compare(const RuleInstance& x, const EvalInputs<double>& inputs, Values values) {
    EvalResults<S> out;
    try {
      out = evaluate<S>(*x.fn, convert_inputs<S>(inputs));
    } catch (const Error&) {  // an index out of range, a zero divisor in the field: no instance
      return true;
    }
    const EvalTensor<S>&l = out.tensors.at("left"), &r = out.tensors.at("right");
    ++verdict_.instances;
    verdict_.in_field += std::is_same_v<S, Field>;
    if (l.i != r.i) return refuse(counterexample(x, "integers differ", values));
    for (size_t i = 0; i < l.f.size(); ++i)
      if (!same(l.f[i], r.f[i], out.largest))
        return refuse(
            counterexample(x,
                           fmt::format("element {}: the pattern gives {}, the replacement {}", i,
                                       number(l.f[i]), number(r.f[i])),
                           values));
    return true;
  }

  bool same(float a, float b, double) const {
    return (std::isnan(a) && std::isnan(b)) ||
           std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  }
  bool same(Field a, Field b, double) const { return a == b; }
  bool same(double a, double b, double largest) const {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    if (rule_.cls == RuleClass::kExact)
      return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
    if (std::isinf(a) || std::isinf(b)) return a == b;
    double bound = rule_.approximate ? kNearBound : kBound;
    return std::abs(a - b) <= bound * std::max({std::abs(a), std::abs(b), 1e-4 * largest});
  }

  // The rule alone, applied until it does not fire any more: also where variables stand for
  // constants or for what the pattern's own ops make, which it may take for another part of itself.
  bool ends(RuleInstance& x) {
    for (int i = 0; i < 2 && x.module.states.empty(); ++i) {
      Module module = x.module.clone();
      Function& fn = module.add_function("nested");
      if (nest(x, module, fn) && !ends(x, module, fn)) return false;
    }
    x.fn->set_result("right", x.root);
    return ends(x, x.module, *x.fn);
  }

  bool ends(const RuleInstance& x, Module& module, Function& fn) {
    RewriteOptions options;
    options.budget = 200;
    RewriteStats stats = Rewriter(module, {&rule_}, options).run(fn);
    if (stats.exhausted || !stats.cycles.empty() || stats.rounds >= options.rounds)
      return refuse(fmt::format("never ends: it applies to what it makes ({})", x.text));
    return true;
  }

  // Copies the pattern with other things for its inputs; false: they do not fit.
  bool nest(const RuleInstance& x, Module& module, Function& to) {
    std::vector<std::vector<Ref>> now(x.root.node + 1);
    try {
      for (NodeId id = 0; id < now.size(); ++id) {
        const Node& node = x.fn->node(id);
        std::vector<Ref> in;
        for (Ref r : node.inputs) in.push_back(now[r.node][r.output]);
        if (node.op->name == "input")
          now[id] = {stand_in(x, node, module, to)};
        else
          now[id] = copy_of(node, to, in);
      }
    } catch (const Error& e) {
      if (e.code() == ErrorCode::kInternal) throw;
      return false;
    }
    to.set_result("right", now[x.root.node][x.root.output]);
    return true;
  }

  static std::vector<Ref> copy_of(const Node& node, Function& to, const std::vector<Ref>& in) {
    if (node.op->name == "weight") return {to.weight(node.attrs.at("name").as_string())};
    if (node.op->name == "constant") return {to.constant(node.attrs.at("name").as_string())};
    return to.add_multi(node.op->name, in, node.attrs);
  }

  Ref stand_in(const RuleInstance& x, const Node& input, Module& module, Function& to) {
    const std::string name = input.attrs.at("name").as_string();
    const Type& type = input.outputs[0];
    DType dtype = type.tensor.dtype;
    uint64_t choice = rng_.below(4);
    if (choice == 0 && (dtype == DType::kF32 || dtype == DType::kI32)) {
      ConstantDecl c{"nested." + name, type.tensor, {}};
      for (int64_t n = type.tensor.elements().constant().value(); n > 0; --n)
        c.values.push_back(static_cast<double>(2 + rng_.below(5)));
      module.add_constant(c);
      return to.constant(c.name);
    }
    std::vector<NodeId> fitting;
    for (NodeId id = 0; id <= x.root.node; ++id)
      if (const Node& node = x.fn->node(id);
          node.op->tier != Tier::kStructural && !node.inputs.empty() && node.outputs.size() == 1 &&
          node.outputs[0].tensor.dtype == dtype && same_extents(node.outputs[0], type))
        fitting.push_back(id);
    if (choice == 1 || fitting.empty()) return to.add_input(name, type);
    const Node& node = x.fn->node(fitting[rng_.below(fitting.size())]);
    std::vector<Ref> in;
    for (Ref r : node.inputs) {
      const Node& from = x.fn->node(r.node);
      in.push_back(from.op->name == "constant" || from.op->name == "weight"
                       ? copy_of(from, to, {})[0]
                       : to.add_input(fmt::format("{}.{}", name, in.size()), x.fn->type(r)));
    }
    return to.add(node.op->name, std::move(in), node.attrs);
  }

  std::string counterexample(const RuleInstance& x, const std::string& what, Values values) const {
    static constexpr const char* kNames[] = {"normal", "large", "tiny", "mixed", "nasty"};
    return fmt::format("{} [{}; {} values]", what, x.text, kNames[static_cast<int>(values)]);
  }

  const RewriteRule& rule_;
  VerifyEffort effort_;
  Rng rng_;
  bool field_;
  RuleVerdict verdict_;
};

}  // namespace

RuleVerdict verify_rule(const RewriteRule& rule, const VerifyEffort& effort) {
  return Verifier(rule, effort).run();
}

}  // namespace tokamak
