#pragma once
// Tries to refute a rule: instantiates it with random shapes and values and compares both sides by
// the meaning of the ops. Class exact: float32 with signed zeros, infinities, NaN and denormals,
// and float64 with all its digits, bit for bit. Class real: float64 over normal, large, tiny and
// mixed magnitudes, within a bound. Both: the finite field, where all ops of the rule are inside
// it; and the rule alone must come to an end.
#include "base/rng.h"
#include "graph/rule.h"

namespace tokamak {

struct VerifyEffort {
  int instances = 64;  // that must have been compared
  int tries = 6000;    // random instances that may be made to get them
  uint64_t seed = 1;
};

struct RuleVerdict {
  bool accepted = false;
  std::string message;  // the counterexample, or why there was nothing to compare
  int instances = 0, tries = 0, in_field = 0;
};

RuleVerdict verify_rule(const RewriteRule& rule, const VerifyEffort& effort = {});

// --- rule_instance.cc: one random use of a rule.
struct RuleInstance {
  Module module{"rule"};
  Function* fn = nullptr;
  Ref root;
  std::vector<Ref> vars;
  std::string text;  // "x: f32[2, 3], a = 0.5"
};
// `powers`: numbers are powers of two, whose products and inverses are exact. nullopt: the random
// choices did not fit together.
std::optional<RuleInstance> make_instance(const RewriteRule& rule, Rng& rng, bool nasty,
                                          bool powers);

}  // namespace tokamak
