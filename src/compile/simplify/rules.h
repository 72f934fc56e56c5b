#pragma once
// The compiler's own rewrite rules: text files beside this header, embedded in the program.
#include <string>
#include <string_view>
#include <vector>

#include "graph/rule.h"

namespace tokamak {

// Rules of one file ("canonical", "algebra", "recognize", "fold"), parsed once and kept for the
// life of the program. A rule whose hash is in verified.stamps loads without verification; any
// other is verified here, and refused with its counterexample.
const std::vector<RewriteRule>& rules_of(std::string_view group);
std::vector<std::string_view> rule_groups();

// Verifies what the text holds, unless `trusted`; throws Error(kInvalidArgument) with the
// counterexample.
std::vector<RewriteRule> load_rules(std::string_view text, bool trusted = false);

// One line per rule, "hash name", in order: what verified.stamps holds.
std::string rule_stamps();

}  // namespace tokamak
