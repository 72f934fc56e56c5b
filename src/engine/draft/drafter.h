#pragma once
// Proposes tokens that a step verifies. The scheduler only sees "so many tokens wanted".
#include <cstdint>
#include <span>
#include <vector>

namespace tokamak {

// Called on the engine's thread while a step is reserved: must be quick, must not throw.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // `ids` are all committed tokens of a sequence. Appends at most k ids that may follow; none is
  // fine.
  virtual void propose(std::span<const int32_t> ids, int32_t k, std::vector<int32_t>& out) = 0;
};

}  // namespace tokamak
