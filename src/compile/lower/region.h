#pragma once
// Graph -> Region: the body of a fused region as Loop IR and anchors (plan/region.h).
#include <optional>
#include <string>

#include "graph/graph.h"
#include "plan/region.h"

namespace tokamak {

struct BuiltRegion {
  std::optional<Region> region;
  std::string reason;  // why there is none, for people
  explicit operator bool() const { return region.has_value(); }
};

// A body that lowers as a whole becomes one program. Otherwise ops without a loop form are anchors,
// and what lies between them is grouped: connected ops that depend on the same number of anchors
// (along the longest path) become one program, or several where one iteration space does not fit
// all of their results. Never throws for a body that it cannot express.
BuiltRegion build_region(const Function& body);

}  // namespace tokamak
