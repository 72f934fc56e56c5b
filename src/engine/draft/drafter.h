#pragma once
// Proposes tokens that a step verifies.
#include <cstdint>
#include <span>
#include <vector>

namespace tokamak {

// `parent` is the index of the draft that this one continues; -1: it continues the known tokens. In
// a chain every token continues the one before it.
struct DraftToken {
  int32_t id = 0;
  int32_t parent = -1;
};

// Called on the engine's thread while a step is reserved: must be quick and must not throw.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // `ids` are all committed tokens of a sequence. Appends at most k tokens that may follow, each
  // after its parent; none is fine. What is left after the first token that is not valid (an id
  // outside the vocabulary, a parent that does not come before it, a branch where the plans have no
  // tree mask) is ignored.
  virtual void propose(std::span<const int32_t> ids, int32_t k, std::vector<DraftToken>& out) = 0;
};

}  // namespace tokamak
