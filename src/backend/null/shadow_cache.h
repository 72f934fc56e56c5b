#pragma once
// What the null backend remembers instead of keys and values: for every slot, which token of which
// history was written to it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/null/null_model.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

struct ShadowCell {
  uint64_t chain = 0;  // 0: nothing was written, or garbage
  int32_t token = -1, position = -1;
};

// Owned by a NullExecutable. A default-constructed one has no cells, and its calls do nothing.
class ShadowCache {
 public:
  ShadowCache() = default;
  ShadowCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks);

  bool on() const { return !cells_.empty(); }
  size_t groups() const { return cells_.size(); }
  void copy(const std::vector<BlockCopy>& copies);
  void move(const std::vector<SlotMove>& moves);
  // A logical slot of sequence b. Throws Error(kInternal) when its block is not in the table.
  ShadowCell& cell(const StepInputs& step, size_t group, size_t b, int64_t slot);
  // Everything that sequence b reads from earlier steps is what it wrote itself. Throws
  // Error(kInternal).
  void check_context(const StepInputs& step, size_t b, const NullModel& model);

  uint64_t block_bytes(uint32_t group) const;
  void read(uint32_t group, std::span<const int32_t> blocks, std::span<std::byte> bytes) const;
  void write(uint32_t group, std::span<const int32_t> blocks, std::span<const std::byte> bytes);
  uint64_t bytes() const;

 private:
  std::vector<GroupEntry> groups_;
  std::vector<std::vector<ShadowCell>> cells_;  // per group, physical slots
};

}  // namespace tokamak
