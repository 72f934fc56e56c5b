#pragma once
// The KV cache: per state and plane one array of blocks. Inside a block, rows of 16 tokens form
// panels, so that attention reads keys and values with the same kernels as weights:
//   key plane    [head][tokens / 16][width][16 tokens]            a vector gives scores of 16 keys
//   value plane  [head][tokens / 16][width / 16][16 tokens][16]   a vector gives 16 output values
// A plane that is key and value at once (latent attention) is stored as keys are.
// A state per sequence is a row-major array of f32 for each block.
// A plane of int8 has the float scales of a panel's 16 tokens after the panel's values.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/memory.h"
#include "backend/cpu/pack.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak::cpu {

struct KvPlane {
  std::string name;
  FType type = FType::kF32;
  bool key = false;
  int64_t heads = 1, width = 0;  // per token
  int64_t padded = 0;            // width of values rounded up to 16
  int64_t element = 4;           // bytes
  int64_t scale_at = 0;          // where a panel's 16 scales begin; 0: it has none
  int64_t panel_bytes = 0;       // one head, 16 tokens
  int64_t head_bytes = 0;        // one head of a block
  int64_t block_bytes = 0;
  Buffer memory;

  uint8_t* panel(int64_t block, int64_t head, int64_t panel) const {
    return memory.data() + block * block_bytes + head * head_bytes + panel * panel_bytes;
  }
  // The panel of a key plane as a value panel of f32; `wide` holds a panel of keys as f32.
  void turn_panel(const KernelTable& kernels, const void* panel, float* wide, float* out) const;
  float* scales(uint8_t* panel) const { return reinterpret_cast<float*>(panel + scale_at); }
};

struct KvState {
  uint32_t group = 0;
  int64_t block_size = 16;
  bool per_sequence = false;  // a block is one row of floats
  std::vector<KvPlane> planes;
  const KvPlane& plane(std::string_view name) const;
  // Heads that all planes have in common; 1 where planes differ.
  int64_t heads() const {
    for (const KvPlane& p : planes)
      if (p.heads != planes[0].heads) return 1;
    return planes[0].heads;
  }
};

// Owned by the executable. Written by its thread and the pool's, under the loops of a step.
class KvStore {
 public:
  KvStore() = default;
  // Which planes are keys follows from the attend calls of the plans. Throws Error(kUnsupported)
  // for what no kernel here can read: blocks that are not a multiple of 16 tokens.
  KvStore(const PlanSet& plans, const std::vector<int64_t>& blocks);

  const KvState& state(uint32_t index) const { return states_[index]; }
  void copy_blocks(const std::vector<BlockCopy>& copies);
  void move_slots(const std::vector<SlotMove>& moves);
  // Whole blocks of a group, plane by plane, as they are in memory.
  uint64_t block_bytes(uint32_t group) const;
  void read_blocks(uint32_t group, std::span<const int32_t> blocks, std::byte* to) const;
  void write_blocks(uint32_t group, std::span<const int32_t> blocks, const std::byte* from);
  uint64_t bytes() const;
  uint64_t untouched() const;

 private:
  std::vector<KvState> states_;
};

}  // namespace tokamak::cpu
