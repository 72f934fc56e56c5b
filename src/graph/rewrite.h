#pragma once
// Applies rewrite rules to a function until none fires. Rules are looked up by the op of their
// root; a node whose inputs have the wrong ops is rejected before anything is bound.
#include <map>
#include <string>
#include <vector>

#include "graph/rule.h"

namespace tokamak {

struct RewriteOptions {
  size_t budget = 100000;        // firings after which the rewriter gives up
  int rounds = 16;               // passes over the function
  size_t stop_after = SIZE_MAX;  // firings after which it stops, for bisection
};

struct RewriteStats {
  size_t fired = 0;
  int rounds = 0;
  std::map<std::string, size_t> per_rule;
  std::string last_rule, last_place;  // of the last firing: "%12 (mul, blk.0.norm)"
  bool exhausted = false;             // the budget ran out
  std::vector<std::string> cycles;    // "rule a, rule b": these undo each other
};

// Owned by the pass that runs it; rules and module outlive it. Cost: a few hash lookups per node
// and round, plus what the matching rules build.
class Rewriter {
 public:
  Rewriter(Module& module, const std::vector<const RewriteRule*>& rules,
           RewriteOptions options = {});
  RewriteStats run(Function& function);

 private:
  bool round(Function& function);
  Ref simplify(Function& to, Ref r, const std::string& name);
  std::optional<Ref> fire(Function& to, const RewriteRule& rule, Ref r, const std::string& name);

  Module& module_;
  RewriteOptions options_;
  std::map<const OpDef*, std::vector<const RewriteRule*>> by_root_;
  RewriteStats stats_;
  UseCount uses_;
  int depth_ = 0;
  std::vector<std::string> provenance_;  // of nodes that are being made
  NodeId place_ = 0;                     // in the function that is being rebuilt
  const Function *from_ = nullptr, *building_ = nullptr;
};

}  // namespace tokamak
