#pragma once
// The KV cache on the device. Planes of all states are parts of one allocation; ops/args.h has the
// layout of a plane.
#include <span>
#include <string_view>
#include <vector>

#include "backend/cuda/driver.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/ops/args.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak::cuda {

// Owned by an executable, used by its thread. Everything is ordered by the stream.
class KvPool {
 public:
  KvPool(const PlanSet& plans, const std::vector<int64_t>& blocks);

  struct State {
    uint32_t group = 0;
    std::vector<std::string> names;
    std::vector<PlaneArgs> planes;
    const PlaneArgs& plane(std::string_view name) const;  // Error(kCorrupt) when absent
  };
  const State& state(uint32_t index) const { return states_.at(index); }
  int block_size(uint32_t group) const { return groups_.at(group).block_size; }
  int64_t blocks(uint32_t group) const { return groups_.at(group).blocks; }
  uint64_t block_bytes(uint32_t group) const;
  uint64_t bytes() const { return memory_.bytes() + planes_.bytes(); }

  void copy_blocks(const std::vector<BlockCopy>& copies, const DeviceStream& stream) const;
  void move_slots(const std::vector<SlotMove>& moves, const KernelLibrary& kernels,
                  const DeviceStream& stream) const;
  void read_blocks(uint32_t group, std::span<const int32_t> blocks, std::byte* to,
                   const DeviceStream& stream) const;
  void write_blocks(uint32_t group, std::span<const int32_t> blocks, const std::byte* from,
                    const DeviceStream& stream) const;

 private:
  struct Group {
    int block_size = 0;
    int64_t blocks = 0;
    std::vector<PlaneArgs> planes;  // of all its states
    size_t planes_at = 0;           // their place in planes_, bytes
  };
  std::vector<State> states_;
  std::vector<Group> groups_;
  Buffer memory_, planes_;
};

}  // namespace tokamak::cuda
