#include "engine/adapter_slots.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace tokamak {

bool AdapterSlots::has_room(const Adapter* adapter) const {
  return adapter == nullptr || std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) {
           return s.users == 0 || s.id == adapter->id;
         });
}

int32_t AdapterSlots::take(const std::shared_ptr<const Adapter>& adapter) {
  if (!adapter) return -1;
  Slot* best = nullptr;
  for (Slot& s : slots_) {
    if (s.id == adapter->id) {
      best = &s;
      break;
    }
    if (s.users == 0 && (best == nullptr || s.last_use < best->last_use)) best = &s;
  }
  TK_CHECK(best != nullptr, "no slot for adapter {}", adapter->name);
  auto slot = static_cast<int32_t>(best - slots_.data());
  if (best->id != adapter->id) {
    best->id = adapter->id;
    pending_.push_back({slot, adapter});
    ++loads_;
  }
  ++best->users;
  best->last_use = ++now_;
  return slot;
}

void AdapterSlots::release(int32_t slot) {
  if (slot < 0) return;
  Slot& s = slots_[static_cast<size_t>(slot)];
  TK_CHECK(s.users > 0, "slot {} has no users", slot);
  --s.users;
  s.last_use = ++now_;
}

void AdapterSlots::move_loads(std::vector<AdapterAction>& to) {
  std::move(pending_.begin(), pending_.end(), std::back_inserter(to));
  pending_.clear();
}

}  // namespace tokamak
