#pragma once
// Tries to refute a rule: makes random uses of it and compares both sides by the meaning of the
// ops. docs/rewrite_rules.md says what is compared and how.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "graph/evaluate.h"
#include "graph/rule.h"

namespace tokamak {

struct VerifyEffort {
  int instances = 80;  // to compare
  int tries = 8000;    // random instances that may be made to get them
  uint64_t seed = 1;
  int rounds = 2;  // with seeds of their own: a single one misses about one wrong rule in 200
};

struct RuleVerdict {
  bool accepted = false;
  std::string message;  // the counterexample, or why there was nothing to compare
  int instances = 0, tries = 0, in_field = 0;
};

RuleVerdict verify_rule(const RewriteRule& rule, const VerifyEffort& effort = {});

// --- rule_instance.cc and rule_literals.cc: one random use of a rule.
constexpr int64_t kVastExtent = 600;  // from here on only fixed trials use an extent
constexpr int64_t kMaxVastElements = 1 << 23;
enum class Extents : uint8_t {
  kSmall,  // 1 to 8, up to four axes
  kLarge,  // one or two of 16 to 100
  kHuge,   // one of 257 to 513
  kVast,   // one of `vast`, the others at most 3
  kDeep,   // up to eight axes
  kFlat,   // one long axis, along which values are enumerated
};
struct InstanceStyle {
  Extents extents = Extents::kSmall;
  bool nasty = false;   // numbers may be infinite, NaN or zero of either sign
  bool powers = false;  // numbers are powers of two, whose products and inverses are exact
  bool jitter = false;  // "~" numbers are off by almost as much as the matcher allows
  int64_t vast = 4097;
  bool integers = false;  // variables of any type hold integers
  // Replaces the random choice number `first` by the value `second`.
  std::optional<std::pair<size_t, double>> set = std::nullopt;
  // Sets the extent named `first` to `second`; all other choices stay the same.
  std::optional<std::pair<std::string, int64_t>> stretch = std::nullopt;
};
struct RuleLiterals {
  std::vector<double> found;  // all numbers in the rule's text, and what it computes from them
  // Near the numbers of values and conditions, and near their sums and differences: where the
  // conditions change.
  std::vector<double> near;
  // What two numbers of the conditions give, and their roots: where an equation may hold.
  std::vector<double> solutions;
  // Positive integers in the text, their roots, and the integers next to them.
  std::vector<int64_t> extents;
  bool rounds = false;  // names a type of 16 bits
};
RuleLiterals rule_literals(const RewriteRule& rule);
// The ways in which a condition can hold: operands of "or", of a negated "and", of a product that
// is 0.
std::vector<RuleExpr> ways_to_hold(const RuleExpr& condition);
std::vector<std::string> open_extents(const RewriteRule& rule);  // names of extents
// False: a number of the function is rounded, so that it means another one in a finite field.
bool has_short_numbers(const Module& module, const Function& fn);
struct RuleInstance {
  Module module{"rule"};
  Function* fn = nullptr;
  Ref root;
  std::vector<Ref> vars;
  std::vector<double> numbers;   // attributes and scalars that the rule leaves open, as chosen
  std::vector<size_t> integers;  // those of them that are integer constants
  std::string text;              // "x: f32[2, 3], a = 0.5"
};
// nullopt: the random choices did not fit together. Equal generators make equal choices.
std::optional<RuleInstance> make_instance(const RewriteRule& rule, const RuleLiterals& literals,
                                          const InstanceStyle& style, Rng& rng);
// Rules may state any extents; instances that would take gigabytes are not tried.
bool is_small(const Function& fn, int64_t most);

// --- rule_values.cc: changes of random inputs.
// At float32 a meaning computes in float64 and rounds once, which hides most of what a rule changes
// in the last digit; at float64 with all digits nothing is hidden.
void add_digits(const Function& fn, EvalInputs<double>& inputs, Rng& rng);
// Scales one input, or all of them, by a large power of ten, up or down, and says which. `largest`:
// often up to the largest number.
std::string make_extreme(const Function& fn, bool largest, EvalInputs<double>& inputs, Rng& rng);
// Variables with a range get values from it unless `beyond`; assumed ranges only cut off what is
// beyond them. False: a range has no value.
bool limit_values(const RewriteRule& rule, const Function& fn, const RuleMatch& match, bool beyond,
                  Rng& rng, EvalInputs<double>& inputs);

// --- rule_compare.cc: both sides of an instance on given inputs.
struct RuleComparison {
  enum class Outcome : uint8_t { kNone, kSame, kDifferent };  // kNone: the pattern cannot run
  Outcome outcome = Outcome::kNone;
  std::string message;
};
struct CompareHow {
  double delta = 1e-10;        // relative error of every node that is tolerated at float64
  double unstable = INFINITY;  // how much more sensitive than the left side the right side may be
  bool overflow = false;       // nothing is compared where the left side overflows
  bool narrow = false;         // also at float32
  uint64_t seed = 1;
};
template <class S>
RuleComparison compare_bits(const Function& fn, Ref left, Ref right, const EvalInputs<S>& inputs,
                            const EvalVisitor<S>& visit = nullptr);
// As if f32 had 14 bits: there a value that is rounded twice, to f32 and then to 16 bits, often
// differs from one that is rounded once. With 24 bits one in 2^17 does.
RuleComparison compare_few_digits(const Function& fn, Ref left, Ref right,
                                  EvalInputs<double> inputs);
RuleComparison compare_reals(const Function& fn, Ref left, Ref right,
                             const EvalInputs<double>& inputs, const CompareHow& how);

// --- rule_ends.cc: whether the rule alone stops firing, on the instance and on variations of it
// whose inputs are constants or what the pattern's own ops make.
bool rule_ends(const RewriteRule& rule, RuleInstance& instance, Rng& rng);

}  // namespace tokamak
