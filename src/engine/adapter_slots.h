#pragma once
// Which adapter is in which slot of the executable.
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/adapter.h"

namespace tokamak {

// A slot to fill before the next step: Executable::set_adapter.
struct AdapterAction {
  int32_t slot = 0;
  std::shared_ptr<const Adapter> adapter;
};

// Owned by the scheduler, engine thread only. A slot is used by the running sequences of its
// adapter; a slot without users keeps its content until another adapter needs it, the least
// recently used first. O(slots).
class AdapterSlots {
 public:
  explicit AdapterSlots(int64_t slots) : slots_(static_cast<size_t>(slots)) {}

  // The adapter is in a slot, or a slot has no users. nullptr: no adapter, which needs no slot.
  bool has_room(const Adapter* adapter) const;
  // The slot for one more sequence of the adapter; -1 for nullptr. has_room() must hold.
  int32_t take(const std::shared_ptr<const Adapter>& adapter);
  void release(int32_t slot);  // -1: does nothing

  // Slots to be filled since the last call, in order.
  void move_loads(std::vector<AdapterAction>& to);
  int64_t loads() const { return loads_; }
  uint64_t changes() const { return now_; }  // calls of take and release that had an effect
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }

 private:
  struct Slot {
    uint64_t id = 0;  // of the adapter; 0: empty
    int64_t users = 0;
    uint64_t last_use = 0;
  };
  std::vector<Slot> slots_;
  std::vector<AdapterAction> pending_;
  uint64_t now_ = 0;
  int64_t loads_ = 0;
};

}  // namespace tokamak
