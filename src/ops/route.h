#pragma once
// Which experts a token passes, and with which weights: one row of moe_route. Shared by the op's
// definition and by kernels, so that both choose the same experts.
#include <cstdint>
#include <span>

#include "base/value.h"

namespace tokamak {

struct RouteRule {
  int64_t used = 0;                     // experts per token
  bool sigmoid = false;                 // scores; otherwise a softmax over all experts
  bool normalize = false;               // weights are divided by their sum
  double scale = 1.0;                   // of the weights
  int64_t groups = 1, used_groups = 1;  // experts come from the best groups only
};
RouteRule route_rule(const Value& attrs);

// `scores` holds the logits and receives the scores; `bias` (may be empty) is added to them where
// experts are compared; `choice` is scratch of the same length. Experts are ordered by descending
// choice, equal ones by index. A group's score is the largest choice of its experts, with sigmoid
// scores the sum of the two largest.
void route_row(const RouteRule& rule, std::span<double> scores, std::span<const double> bias,
               std::span<double> choice, std::span<double> weights, std::span<int32_t> experts);

}  // namespace tokamak
