#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "graph/rule_verify.h"
#include "graph/sensitivity.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

using Outcome = RuleComparison::Outcome;

constexpr int kSamples = 3;            // runs that measure rounding errors
constexpr double kSafety = 4;          // for directions that these runs did not take
constexpr double kNarrow = 0x1p-22;    // rounding errors of a few float32 operations
constexpr double kLargest = 1e30;      // of what is compared at float32: larger values may overflow
constexpr double kSmallest = 1e-37;    // differences at float32 that are underflow
constexpr double kUnderflow = 1e-300;  // differences at float64 that are underflow
constexpr double kNoise = 1e-13;       // errors beside the largest input that no float32 shows
constexpr double kNoDigits = 0.1;      // relative error at which float32 says nothing

std::string number(double v) { return double_text(v); }
std::string number(Field v) { return fmt::format("{} (mod 2^61 - 1)", v.value()); }

template <class T>
RuleComparison different(size_t element, T left, T right, std::string_view where = "") {
  return {Outcome::kDifferent, fmt::format("element {}: the pattern gives {}, the replacement {}{}",
                                           element, number(left), number(right), where)};
}

RuleComparison fails(const Error& e) {
  return {Outcome::kDifferent, fmt::format("only the replacement fails: {}", e.what())};
}

bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}
bool same_bits(Field a, Field b) { return a == b; }

bool is_f32(const Type& type) {
  return type.kind == Type::Kind::kTensor && type.tensor.dtype == DType::kF32;
}

// Rounded to nearest even with 14 bits, three more than f16 has.
double few_digits(double v) {
  int exponent = 0;
  double mantissa = std::frexp(v, &exponent);  // as it is where v is not finite
  return std::isfinite(v) ? std::ldexp(std::nearbyint(std::ldexp(mantissa, 14)), exponent - 14) : v;
}

std::vector<double> numbers_of(const EvalTensor<double>& t) {
  return t.integer ? std::vector<double>(t.i.begin(), t.i.end()) : t.f;
}

// Whether finite values grew beyond all numbers, or their exponential became zero. Dividing by zero
// and leaving the domain of a function are something else.
class RangeWatch {
 public:
  explicit RangeWatch(const Function& fn) : fn_(fn) {}
  void operator()(const Node& node, const EvalTensor<double>& t) {
    if (node.op->name == "exp") left_ |= std::count(t.f.begin(), t.f.end(), 0.0) > 0;
    if (std::all_of(t.f.begin(), t.f.end(), [](double v) { return std::isfinite(v); })) return;
    bool fresh = node.op->tier != Tier::kStructural;
    for (Ref r : node.inputs) fresh &= !broken_.contains(r.node);
    broken_.insert(static_cast<NodeId>(&node - fn_.nodes().data()));
    if (!fresh) return;
    for (std::string_view op : {"div", "log", "sqrt", "rsqrt", "rms_norm", "layer_norm"})
      if (node.op->name == op) return;
    left_ = true;
  }
  bool left() const { return left_; }

 private:
  const Function& fn_;
  std::set<NodeId> broken_;
  bool left_ = false;
};

// What an op rounds. Inputs are the numbers they are, and data that is moved stays what it is; the
// small change of inputs is for what float64 rounds inside of an op.
double rounding(const Node& node) {
  if (node.op->role == OpDef::Role::kInput) return 1e-5;
  return node.op->role != OpDef::Role::kOp || node.op->storage ? 1 : 0;
}

class RealComparer {
 public:
  RealComparer(const Function& fn, Ref left, Ref right, const EvalInputs<double>& inputs,
               const CompareHow& how)
      : fn_(fn), left_(left), right_(right), inputs_(inputs), how_(how) {
    double largest = 1;
    for (const auto& [name, t] : inputs.tensors)
      for (double v : t.f) largest = std::max(largest, std::abs(v));
    noise_ = kNoise * largest;
  }

  RuleComparison run() {
    if (how_.overflow) {
      RangeWatch watch(fn_);
      if (!left_runs(std::ref(watch)) || watch.left()) return {};
    }
    try {
      spread_ = measure_spread(
          [&](const EvalVisitor<double>& visit) {
            auto out = evaluate_refs<double>(fn_, inputs_, std::array{left_, right_}, visit);
            return std::vector{numbers_of(out[0]), numbers_of(out[1])};
          },
          how_.delta, kSamples, how_.seed, &rounding);
    } catch (const Error& e) {
      return left_runs(nullptr) ? fails(e) : RuleComparison{};
    }
    for (size_t i = 0; i < spread_.values[0].size(); ++i)
      if (RuleComparison c = wide(i); c.outcome == Outcome::kDifferent) return c;
    if (how_.narrow)
      if (RuleComparison c = narrow(); c.outcome == Outcome::kDifferent) return c;
    return {compared_ ? Outcome::kSame : Outcome::kNone, ""};
  }

 private:
  // False: an index is out of range, so this is no input of the pattern.
  bool left_runs(const EvalVisitor<double>& visit) const {
    try {
      evaluate_refs<double>(fn_, inputs_, std::array{left_}, visit);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // At float64.
  RuleComparison wide(size_t i) {
    double l = spread_.values[0][i], r = spread_.values[1][i];
    double by_left = spread_.by[0][i], by_right = spread_.by[1][i];
    if (!std::isfinite(l)) {
      if (std::isinf(by_left)) return {};
      bool same = std::isnan(l) ? !std::isfinite(r) : l == r;
      return same ? RuleComparison{} : different(i, l, r);
    }
    if (std::isinf(by_left)) return {};
    compared_ = true;
    if (!std::isfinite(r) || std::isinf(by_right)) return different(i, l, r);
    double own = by_left + how_.delta * std::abs(l);
    if (by_right > how_.unstable * own && by_right > noise_)
      return {Outcome::kDifferent,
              fmt::format("element {}: the replacement gives {} with {:.0e} times the rounding "
                          "error of the pattern",
                          i, number(r), by_right / own)};
    if (std::abs(l - r) <= kSafety * (own + by_right) + kUnderflow) return {};
    return different(i, l, r);
  }

  // At float32 the replacement gives what the pattern gives or, where that overflows or loses
  // digits, what it gives over the reals.
  RuleComparison narrow() {
    EvalInputs<float> inputs = convert_inputs<float>(inputs_);
    EvalTensor<float> l, r;
    try {
      l = evaluate_refs<float>(fn_, inputs, std::array{left_})[0];
    } catch (const Error&) {
      return {};
    }
    try {
      r = evaluate_refs<float>(fn_, inputs, std::array{right_})[0];
    } catch (const Error& e) {
      return fails(e);
    }
    const double scale = kNarrow / how_.delta;
    for (size_t i = 0; i < r.f.size(); ++i) {
      double real = spread_.values[0][i], by_left = spread_.by[0][i] * scale,
             by_right = spread_.by[1][i] * scale;
      if (!std::isfinite(real) || std::abs(real) > kLargest) continue;
      if (how_.overflow && !std::isfinite(l.f[i])) continue;
      if (std::max(by_left, by_right) > kNoDigits * std::abs(real)) continue;
      double bound = kSafety * (by_left + by_right + kNarrow * std::abs(real)) + kSmallest;
      auto close = [&](double v) { return v == r.f[i] || std::abs(v - r.f[i]) <= bound; };
      bool same = std::isnan(l.f[i]) && std::isnan(r.f[i]);
      if (same || close(l.f[i]) || close(real)) continue;
      return different(i, double(l.f[i]), double(r.f[i]), " at float32");
    }
    for (size_t i = 0; i < r.i.size(); ++i)
      if (r.i[i] != l.i[i] && r.i[i] != spread_.values[0][i])
        return different(i, double(l.i[i]), double(r.i[i]), " at float32");
    return {};
  }

  const Function& fn_;
  Ref left_, right_;
  const EvalInputs<double>& inputs_;
  const CompareHow& how_;
  Spread spread_;
  double noise_ = 0;
  bool compared_ = false;
};

}  // namespace

template <class S>
RuleComparison compare_bits(const Function& fn, Ref left, Ref right, const EvalInputs<S>& inputs,
                            const EvalVisitor<S>& visit) {
  EvalTensor<S> l, r;
  try {
    l = evaluate_refs<S>(fn, inputs, std::array{left}, visit)[0];
  } catch (const Error&) {  // an index out of range, a zero divisor in the field
    return {};
  }
  try {
    r = evaluate_refs<S>(fn, inputs, std::array{right}, visit)[0];
  } catch (const Error& e) {
    if (std::is_same_v<S, Field>) return {};  // the field has no image of some values
    return fails(e);
  }
  for (size_t i = 0; i < l.i.size(); ++i)
    if (l.i[i] != r.i[i]) return different(i, double(l.i[i]), double(r.i[i]));
  for (size_t i = 0; i < l.f.size(); ++i)
    if (!same_bits(l.f[i], r.f[i])) return different(i, l.f[i], r.f[i]);
  return {Outcome::kSame, ""};
}
template RuleComparison compare_bits(const Function&, Ref, Ref, const EvalInputs<float>&,
                                     const EvalVisitor<float>&);
template RuleComparison compare_bits(const Function&, Ref, Ref, const EvalInputs<double>&,
                                     const EvalVisitor<double>&);
template RuleComparison compare_bits(const Function&, Ref, Ref, const EvalInputs<Field>&,
                                     const EvalVisitor<Field>&);

RuleComparison compare_few_digits(const Function& fn, Ref left, Ref right,
                                  EvalInputs<double> inputs) {
  auto round = [](std::vector<double>& values) {
    for (double& v : values) v = few_digits(v);
  };
  for (NodeId id : fn.inputs())
    if (const Type& type = fn.node(id).outputs[0]; is_f32(type))
      round(inputs.tensors.at(fn.node(id).attrs.at("name").as_string()).f);
  for (auto& [name, source] : inputs.sources) round(source.f);
  auto store = [&](const Node& node, EvalTensor<double>& t) {
    if ((node.op->storage || node.op->role == OpDef::Role::kWeight) && is_f32(node.outputs[0]))
      round(t.f);
  };
  return compare_bits<double>(fn, left, right, inputs, store);
}

RuleComparison compare_reals(const Function& fn, Ref left, Ref right,
                             const EvalInputs<double>& inputs, const CompareHow& how) {
  return RealComparer(fn, left, right, inputs, how).run();
}

}  // namespace tokamak
