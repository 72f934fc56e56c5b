#pragma once
// Tests whether ops touch what they say. Very slow: for tests, and for the author of an op
// (TOKAMAK_AUDIT=1 runs every step this way).
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/exec.h"

namespace tokamak::cpu {

// Runs a stage thread by thread, each twice on the memory as it was before the stage: once as it
// is, once with everything poisoned that the thread did not say it reads. Throws Error(kInternal)
// when a byte changed that it did not say it writes, when the two results differ, or when two
// threads changed the same byte. Afterwards memory is as after the stage.
class StageAudit {
 public:
  // Everything that ops share: arena, scratch, angles, planes of the cache.
  explicit StageAudit(std::vector<std::span<uint8_t>> memory);
  void run(const CpuOp& op, const Tensor* in, const Tensor* out, const StepContext& context,
           std::string_view label);

 private:
  struct Bytes {  // of one region
    size_t region = 0, begin = 0, size = 0;
  };
  void resolve(const StepContext& c);
  void resolve_cells(const MemoryAccess& a, const StepContext& c);
  void add_bytes(uintptr_t begin, size_t size, bool write);
  void part(const CpuOp& op, const Tensor* in, const Tensor* out, const StepContext& c,
            std::string_view label);
  void check_outside(const std::vector<std::vector<uint8_t>>& before, const char* when,
                     std::string_view label, int thread);
  void restore(const std::vector<std::vector<uint8_t>>& from);

  std::vector<std::span<uint8_t>> memory_;
  // Before the stage; poisoned; after it; what a check expects; which thread changed a byte.
  std::vector<std::vector<uint8_t>> before_, poisoned_, after_, expected_, owner_;
  AccessList list_;
  std::vector<Bytes> reads_, writes_;
  std::vector<uint8_t> result_;
};

}  // namespace tokamak::cpu
