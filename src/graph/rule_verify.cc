#include "graph/rule_verify.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/hash.h"

namespace tokamak {
namespace {

constexpr double kDelta = 1e-10;     // relative error per node that a real rule may have
constexpr double kF32Delta = 2e-7;   // where a "~" number is a constant, which is stored as f32
constexpr double kNearDelta = 4e-6;  // where "~" numbers are off by 1e-6
// The replacement may be this many times more sensitive to rounding than the pattern.
constexpr double kUnstable = 1e4, kUnstableMixed = 1e7;
constexpr int kKinds = 8;   // ways to choose shapes and values, in turn
constexpr int kEnough = 6;  // a rule with fewer instances counts as never applying
constexpr int kEnds = 12;   // instances that are checked for coming to an end
constexpr int kFixedTries = 24;
constexpr int kRounded = 8;  // long instances of a rule that names a type of 16 bits
// How far a stated range must reach in both directions; an assumed one, beyond what models compute.
constexpr double kLeastRange = 50, kLeastAssumed = 1e6;
constexpr size_t kMostNamed = 15;  // extents of the rule's text that are tried
constexpr int64_t kMaxElements = 1 << 19;
constexpr double kHugeNumber = 1e25;
constexpr double kHugeExtent = 513;   // the longest axis of usual instances
constexpr double kLongest = 1 << 20;  // axis that is made to pass a number of the instance

bool all_in_field(const RewriteRule& rule) {
  if (rule.approximate) return false;
  return std::all_of(rule.terms.begin(), rule.terms.end(), [](const RuleTerm& t) {
    return t.kind != RuleTerm::Kind::kOp || t.op->field != nullptr;
  });
}

bool has_number(const RuleTerm& t) { return t.kind == RuleTerm::Kind::kNumber && t.near; }

struct Trial {  // how one instance is made and compared
  InstanceStyle style;
  Values values = Values::kNormal;
  bool in_field = false, wide = false;  // exact rules; wide: at float64
  bool few_digits = false;              // exact rules: as if f32 had fewer digits
  bool known = false;                   // what the conditions ask to be known is
  bool beyond = false;                  // real rules: values outside the stated ranges
  bool extreme = false;                 // real rules: one input is very large or very small
  int wanted = 1;                       // fixed trials: instances
  int bytes = -1;                       // the input of integers that takes all values -128..127
  SpecialNumbers special = SpecialNumbers::kSome;
  std::string name = "normal";
};

class Verifier {
 public:
  Verifier(const RewriteRule& rule, const VerifyEffort& effort)
      : rule_(rule), effort_(effort), rng_(effort.seed), field_(all_in_field(rule)) {
    Hash128 h;
    h.add(rule_.name);
    rng_ = Rng(effort_.seed ^ h.low());
    literals_ = rule_literals(rule);
    exact_ = rule.cls == RuleClass::kExact;
    bool numbers = std::any_of(rule.terms.begin(), rule.terms.end(), has_number);
    delta_ = numbers ? kF32Delta : kDelta;
    stateful_ = std::any_of(rule.vars.begin(), rule.vars.end(),
                            [](const RuleVar& v) { return v.kind == RuleVar::Kind::kState; });
    // Where shapes are left open, most instances are too simple to tell axes apart.
    bool open = std::any_of(rule.vars.begin(), rule.vars.end(), [](const RuleVar& v) {
      return v.kind == RuleVar::Kind::kTensor && !v.shaped;
    });
    bool moves = std::any_of(rule.terms.begin(), rule.terms.end(), [](const RuleTerm& t) {
      return std::any_of(t.attrs.begin(), t.attrs.end(),
                         [](const auto& a) {
                           return a.first == "dims" || a.first == "perm" || a.first == "axis";
                         }) ||
             t.open;
    });
    if (open && moves) effort_.instances *= 2;
    for (const RuleExpr& c : rule.conditions) {
      std::vector<RuleExpr> ways = ways_to_hold(c);
      if (ways.size() > 1) ways_.push_back({std::move(ways), {}});
    }
    counts_ = has_op({"iota"});
    powers_ = rule.text.find("pow2") != std::string::npos;
    huge_ = std::any_of(literals_.found.begin(), literals_.found.end(),
                        [](double v) { return std::abs(v) > kHugeNumber; });
    ranged_ = std::any_of(rule.vars.begin(), rule.vars.end(),
                          [](const RuleVar& v) { return v.range && !v.assumed; });
  }

  RuleVerdict run() {
    for (const Trial& t : fixed_trials())
      if (!run_fixed(t)) return std::move(verdict_);
    while (verdict_.instances < effort_.instances && verdict_.tries < effort_.tries) {
      if (verdict_.instances == 0 && verdict_.tries > effort_.tries / 4) break;
      Trial t = trial(verdict_.tries++ % kKinds);
      Rng start = rng_;
      auto made = make_instance(rule_, literals_, t.style, rng_);
      if (!made) continue;
      size_t numbers = made->numbers.size();
      Tried tried = compare(*made, t, true);
      if (tried == Tried::kRefuted) return std::move(verdict_);
      if (tried != Tried::kSame || numbers == 0 || t.in_field) continue;
      if (borders_ < kBorders && !borders(start, t, made->numbers)) return std::move(verdict_);
      if (solved_++ < kSolved && !solutions(start, t, numbers)) return std::move(verdict_);
      if (stretched_ < kStretched && !stretch(start, t, *made)) return std::move(verdict_);
    }
    if (verdict_.instances < std::min(effort_.instances, kEnough)) {
      verdict_.message = fmt::format("never applies: {} of {} random instances match it",
                                     verdict_.instances, verdict_.tries);
      return std::move(verdict_);
    }
    verdict_.message = what_is_untried();
    verdict_.accepted = verdict_.message.empty();
    return std::move(verdict_);
  }

 private:
  enum class Tried : uint8_t { kNoMatch, kNothing, kSame, kRefuted };
  static constexpr int kBorders = 18;   // searches for the ends of what the conditions allow
  static constexpr int kSolved = 3;     // instances that are repeated with the solutions
  static constexpr int kStretched = 8;  // instances that are repeated with a longer axis

  struct Ways {
    std::vector<RuleExpr> all;
    std::set<size_t> tried;  // those that made the condition true on their own
  };

  void note_ways(const RuleInstance& x, const RuleMatch& match) {
    for (Ways& w : ways_) {
      std::vector<size_t> held;
      for (size_t i = 0; i < w.all.size(); ++i) {
        auto v = evaluate_expr(w.all[i], rule_, match, *x.fn, nullptr);
        if (v && v->is_bool() && v->as_bool()) held.push_back(i);
      }
      if (held.size() == 1) w.tried.insert(held[0]);
    }
  }

  // What the instances leave open. A range that is narrow would hide what the rule does wrong.
  std::string what_is_untried() const {
    for (const Ways& w : ways_)
      for (size_t i = 0; i < w.all.size(); ++i)
        if (!w.tried.contains(i))
          return fmt::format("no instance satisfies a condition by operand {} of its \"or\" alone",
                             i + 1);
    for (const RuleVar& v : rule_.vars) {
      if (!v.range) continue;
      auto end = [](const RuleExpr& e) {
        double sign = e.kind == RuleExpr::Kind::kCall && e.name == "neg" ? -1 : 1;
        const RuleExpr& number = sign < 0 ? e.args.at(0) : e;
        return number.value.is_number() ? sign * number.value.as_double() : 0.0;
      };
      const double least = v.assumed ? kLeastAssumed : kLeastRange;
      if (end(v.range->first) > -least || end(v.range->second) < least)
        return fmt::format("the range of {} does not contain {}..{}", v.name, -least, least);
    }
    return "";
  }

  Tried refuse(const std::string& what) {
    verdict_.message = what;
    return Tried::kRefuted;
  }

  // What every rule has to pass once: a very long axis, and all small integers in each variable.
  std::vector<Trial> fixed_trials() const {
    std::vector<Trial> out;
    if (stateful_) return out;  // random_inputs() makes long sequences
    Trial vast;
    vast.style.extents = Extents::kVast;
    vast.values = exact_ ? Values::kMixed : Values::kNormal;
    vast.name = "long";
    out.push_back(vast);
    // Lengths that the rule names; counting has more to show on a still longer axis.
    std::vector<int64_t> lengths;
    for (int64_t n : literals_.extents)
      if (n >= kVastExtent && lengths.size() < kMostNamed) lengths.push_back(n);
    if (counts_) lengths.push_back((1 << 18) + 1);
    for (int64_t n : lengths) {
      vast.style.vast = n;
      out.push_back(vast);
    }
    if (exact_) {
      Trial rounded = out.front();
      rounded.few_digits = rounded.style.powers = true;
      rounded.values = Values::kNormal;
      rounded.name = "rounded";
      rounded.wanted = literals_.rounds ? kRounded : 1;
      out.push_back(rounded);
    }
    if (has_op({"compare", "maximum", "minimum", "top_k"})) add_comparisons(out);
    int integers = 0;
    for (const RuleVar& v : rule_.vars) {
      if (v.kind != RuleVar::Kind::kTensor || (v.dtype != "i32" && v.dtype != "any")) continue;
      Trial bytes;
      bytes.style.extents = Extents::kFlat;
      bytes.style.integers = true;
      bytes.values = Values::kEach;
      bytes.bytes = integers++;
      bytes.name = "small integer";
      out.push_back(bytes);
    }
    return out;
  }
  // Numbers of the rule, and a long axis of numbers that are almost equal.
  void add_comparisons(std::vector<Trial>& out) const {
    Trial special;
    special.style.extents = Extents::kFlat;
    special.values = Values::kEach;
    special.name = "special";
    for (SpecialNumbers kind :
         {SpecialNumbers::kStated, SpecialNumbers::kCombined, SpecialNumbers::kInverted}) {
      special.special = kind;
      out.push_back(special);
    }
    if (!exact_) return;
    Trial close = out.front();
    close.values = Values::kClose;
    close.name = "close";
    out.push_back(close);
  }
  bool has_op(std::initializer_list<std::string_view> names) const {
    return std::any_of(rule_.terms.begin(), rule_.terms.end(), [&](const RuleTerm& t) {
      return t.op && std::find(names.begin(), names.end(), t.op->name) != names.end();
    });
  }
  bool run_fixed(const Trial& t) {
    const bool vast = t.style.extents == Extents::kVast;
    const bool named =
        vast && t.style.vast != InstanceStyle().vast;  // few instances fit such rules
    int wanted = named ? 3 : t.wanted, tries = wanted > 1 ? 5 * kFixedTries : kFixedTries;
    for (int i = 0; i < tries && wanted > 0; ++i) {
      ++verdict_.tries;
      Rng start = rng_;
      auto made = make_instance(rule_, literals_, t.style, rng_);
      if (!made) continue;
      std::vector<double> numbers = made->numbers;
      Tried tried = compare(*made, t, true);
      if (tried == Tried::kRefuted) return false;
      if (tried != Tried::kSame) continue;
      --wanted;
      if (vast && !numbers.empty() && !borders(start, t, numbers)) return false;
    }
    return true;
  }

  Trial trial(int kind) {
    static constexpr Extents kExtents[] = {Extents::kLarge, Extents::kLarge, Extents::kHuge,
                                           Extents::kDeep,  Extents::kDeep,  Extents::kFlat};
    Trial t;
    t.known = rng_.below(2);
    if (uint64_t i = rng_.below(16); i < std::size(kExtents)) t.style.extents = kExtents[i];
    // The rule may be for long axes only.
    if (verdict_.instances == 0 && kind == 5) t.style.extents = Extents::kVast;
    bool costly = t.style.extents == Extents::kFlat || t.style.extents == Extents::kHuge;
    costly |= t.style.extents == Extents::kVast;
    if (stateful_ && costly) t.style.extents = Extents::kLarge;
    if (field_ && kind == 7) {
      t.in_field = t.style.powers = true;
      t.name = "finite field";
    } else if (t.style.extents == Extents::kFlat) {
      t.style.nasty = exact_ && rng_.below(2);
      t.values = t.style.nasty ? Values::kEachNasty : Values::kEach;
      t.name = "enumerated";
    } else if (exact_) {
      static constexpr Values kValues[kKinds] = {Values::kNasty,  Values::kLarge, Values::kNasty,
                                                 Values::kMixed,  Values::kMixed, Values::kClose,
                                                 Values::kNormal, Values::kNasty};
      static constexpr const char* kNames[kKinds] = {"nasty", "large", "nasty",   "mixed",
                                                     "mixed", "close", "rounded", "nasty"};
      t.wide = kind == 3;
      t.few_digits = t.style.powers = kind == 6;
      // Where products of powers of two underflow, the smallest numbers show it.
      t.values = kind == 4 && powers_ ? Values::kNasty : kValues[kind];
      t.style.nasty = t.values == Values::kNasty;
      t.name = kNames[kind];
    } else {
      static constexpr Values kValues[kKinds] = {Values::kNormal, Values::kLarge, Values::kTiny,
                                                 Values::kMixed,  Values::kClose, Values::kMedium,
                                                 Values::kNormal, Values::kMixed};
      static constexpr const char* kNames[kKinds] = {"normal", "large",  "tiny",   "mixed",
                                                     "close",  "medium", "normal", "mixed"};
      t.extreme = rng_.below(huge_ ? 2 : 5) == 0;
      // Scores of attend may cancel: the bound does not know what the op rounds inside.
      if (stateful_ && kValues[kind] == Values::kMixed) kind = 0;
      t.values = t.extreme ? Values::kNormal : kValues[kind];
      t.name = t.extreme ? "extreme" : kNames[kind];
      t.style.jitter = rule_.approximate && rng_.below(2);
      t.beyond = ranged_ && rng_.below(2);
    }
    return t;
  }

  Tried compare(RuleInstance& x, const Trial& t, bool counts) {
    const UseCount once = [](Ref) { return 1; };  // with it, what is known is decided
    auto match = match_rule(rule_, *x.fn, x.root, t.known ? once : nullptr);
    if (!match) return Tried::kNoMatch;
    // Indices must suit the pattern only.
    InputHints hints{
        x.fn->nodes().size(), x.module.weights.size(), literals_.found, t.bytes, true, t.special};
    auto right = build_replacement(rule_, *match, x.module, *x.fn, "", nullptr);
    if (!right) return Tried::kNoMatch;
    bool vast = t.style.extents == Extents::kVast || t.style.stretch;
    if (!is_small(*x.fn, vast ? kMaxVastElements : kMaxElements)) return Tried::kNothing;
    if (t.in_field && !has_short_numbers(x.module, *x.fn)) return Tried::kNothing;
    EvalInputs<double> inputs;
    try {
      inputs = random_inputs(*x.fn, {}, rng_, t.values, hints);
    } catch (const Error&) {
      return Tried::kNothing;
    }
    std::string note;
    if (t.extreme) note = make_extreme(*x.fn, huge_, inputs, rng_);
    if (!exact_)  // the reals have one zero
      for (auto* tensors : {&inputs.tensors, &inputs.sources})
        for (auto& [name, tensor] : *tensors)
          for (double& v : tensor.f) v += 0.0;
    if (!limit_values(rule_, *x.fn, *match, t.beyond, rng_, inputs)) return Tried::kNothing;
    if (t.wide) add_digits(*x.fn, inputs, rng_);
    RuleComparison c = compare_as(x, *right, inputs, t);
    if (c.outcome == RuleComparison::Outcome::kNone) return Tried::kNothing;
    verdict_.instances += counts;
    verdict_.in_field += t.in_field;
    note_ways(x, *match);
    if (c.outcome == RuleComparison::Outcome::kDifferent)
      return refuse(fmt::format("{} [{}; {} values{}]", c.message, x.text, t.name, note));
    if (counts && !vast && ends_++ < kEnds && !rule_ends(rule_, x, rng_))
      return refuse(fmt::format("never ends: it applies to what it makes ({})", x.text));
    return Tried::kSame;
  }

  RuleComparison compare_as(const RuleInstance& x, Ref right, const EvalInputs<double>& inputs,
                            const Trial& t) {
    if (t.in_field) return compare_bits<Field>(*x.fn, x.root, right, convert_inputs<Field>(inputs));
    if (exact_ && t.few_digits) return compare_few_digits(*x.fn, x.root, right, inputs);
    if (exact_ && t.wide) return compare_bits<double>(*x.fn, x.root, right, inputs);
    if (exact_) return compare_bits<float>(*x.fn, x.root, right, convert_inputs<float>(inputs));
    CompareHow how;
    how.delta = t.style.jitter ? kNearDelta : delta_;
    how.overflow = t.beyond;
    if (!t.extreme && has_plain_numbers(x))
      how.unstable = stateful_ || t.values == Values::kLarge || t.values >= Values::kMixed
                         ? kUnstableMixed
                         : kUnstable;
    how.narrow = !t.style.jitter && has_plain_numbers(x);
    how.seed = rng_.next_u64();
    return compare_reals(*x.fn, x.root, right, inputs, how);
  }

  // Numbers that leave room before float32 overflows.
  static bool has_plain_numbers(const RuleInstance& x) {
    return std::all_of(x.numbers.begin(), x.numbers.end(), [](double v) {
      return v == 0 || (std::abs(v) >= 1e-3 && std::abs(v) <= 1e3);
    });
  }

  // Goes to the ends of what the conditions allow for each number in turn, and halfway there. Every
  // instance repeats the choices made from `start`, with one number changed.
  bool borders(const Rng& start, const Trial& t, const std::vector<double>& numbers) {
    ++borders_;
    static constexpr double kFar[] = {1e6, -1e6, 0.0, 1e-6, 37.0, -1.0};
    size_t which = static_cast<size_t>(borders_) % std::min<size_t>(numbers.size(), 4);
    double good = numbers[which];
    double bad =
        kFar[static_cast<size_t>(borders_) / std::min<size_t>(numbers.size(), 4) % std::size(kFar)];
    if (!std::isfinite(good)) return true;
    double from = good;
    for (int step = 0; step < 40 && good != bad; ++step) {
      double middle = step == 0                                      ? bad
                      : good * bad > 0 && std::abs(good / bad) > 1e3 ? std::sqrt(good * bad)
                      : good * bad > 0 && std::abs(bad / good) > 1e3 ? std::sqrt(good * bad)
                                                                     : good + (bad - good) / 2;
      if (good * bad > 0 && middle > 0 && good < 0) middle = -middle;
      bool matches = matches_with(start, t, which, middle);
      if (matches && step == 0) {
        good = bad;
        break;
      }
      if (step > 0) (matches ? good : bad) = middle;
    }
    for (double v : {good, from + 0.5 * (good - from), from + 0.9 * (good - from)}) {
      auto made = with_number(start, t, which, v);
      if (made && compare(*made, t, false) == Tried::kRefuted) return false;
    }
    return true;
  }
  // Sets each number to what may satisfy an equation among the conditions, and to what satisfies
  // none of the comparisons that finite numbers do.
  bool solutions(const Rng& start, const Trial& t, size_t numbers) {
    std::vector<double> values = literals_.solutions;
    for (double v : {INFINITY, -INFINITY, NAN}) values.push_back(v);
    for (size_t which = 0; which < std::min<size_t>(numbers, 4); ++which)
      for (double v : values) {
        auto made = with_number(start, t, which, v);
        if (made && compare(*made, t, false) == Tried::kRefuted) return false;
      }
    return true;
  }
  // A condition may ask for a number beyond all extents, in any spelling (integer(c) / 300 > 300):
  // finds the least one that it allows, and makes each named axis longer than that.
  bool stretch(const Rng& start, const Trial& t, const RuleInstance& made) {
    for (size_t which = 0; which < std::min<size_t>(made.numbers.size(), 4); ++which) {
      double least = least_number(start, t, which, made.numbers[which]);
      if (std::abs(least) < kHugeExtent) continue;
      ++stretched_;
      bool integer = std::count(made.integers.begin(), made.integers.end(), which) > 0;
      if (std::abs(least) > kLongest) {
        if (!integer || !counts_) continue;
        refuse(fmt::format("holds only for integers from {} on, longer than any axis that is tried",
                           least));
        return false;
      }
      const auto beyond = static_cast<int64_t>(std::abs(least)) + 2;
      for (const std::string& name : open_extents(rule_))
        for (int64_t n : {beyond, 3 * beyond}) {  // counts may be about half of an extent
          Trial longer = t;
          longer.style.stretch = {name, n};
          longer.name = "stretched";
          auto instance = with_number(start, longer, which, least);
          if (instance && compare(*instance, longer, false) == Tried::kRefuted) return false;
        }
    }
    return true;
  }
  // The number nearest to 0 that the conditions allow in place of `good`, of the same sign.
  double least_number(const Rng& start, const Trial& t, size_t which, double good) {
    if (!(std::abs(good) >= kHugeExtent && std::isfinite(good))) return 0;
    double bad = std::copysign(1.0, good);
    if (matches_with(start, t, which, bad)) return bad;
    while (std::abs(good) > std::abs(bad) + 1) {
      double middle = std::abs(good / bad) > 4 ? std::copysign(std::sqrt(good * bad), good)
                                               : bad + (good - bad) / 2;
      middle = std::floor(middle);
      if (middle == good || middle == bad) break;
      (matches_with(start, t, which, middle) ? good : bad) = middle;
    }
    return good;
  }
  std::optional<RuleInstance> with_number(Rng rng, const Trial& t, size_t which, double value) {
    InstanceStyle style = t.style;
    style.set = {which, value};
    return make_instance(rule_, literals_, style, rng);
  }
  bool matches_with(const Rng& rng, const Trial& t, size_t which, double value) {
    auto made = with_number(rng, t, which, value);
    return made && match_rule(rule_, *made->fn, made->root, nullptr);
  }

  const RewriteRule& rule_;
  VerifyEffort effort_;
  Rng rng_;
  bool field_, exact_ = false, ranged_ = false, stateful_ = false;
  bool powers_ = false;  // asks for powers of two
  bool huge_ = false;    // has numbers that only extreme values reach
  bool counts_ = false;  // has an op whose values grow with the length of an axis
  double delta_ = kDelta;
  int borders_ = 0, ends_ = 0, solved_ = 0, stretched_ = 0;
  RuleLiterals literals_;
  std::vector<Ways> ways_;
  RuleVerdict verdict_;
};

}  // namespace

RuleVerdict verify_rule(const RewriteRule& rule, const VerifyEffort& effort) {
  RuleVerdict verdict = Verifier(rule, effort).run();
  VerifyEffort next = effort;
  for (int round = 1; round < effort.rounds && verdict.accepted; ++round) {
    next.seed = Rng(next.seed).next_u64();
    RuleVerdict more = Verifier(rule, next).run();
    more.instances += verdict.instances;
    more.tries += verdict.tries;
    more.in_field += verdict.in_field;
    verdict = std::move(more);
  }
  return verdict;
}

}  // namespace tokamak
