#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include "base/error.h"

namespace tokamak::cpu {

Buffer::Buffer(uint64_t bytes, uint64_t lead) {
  if (bytes == 0) return;
  constexpr uint64_t kPage = 4096;
  bytes_ = (bytes + kPage - 1) / kPage * kPage;
  lead_ = lead / kPage * kPage;
  void* p = mmap(nullptr, lead_ + bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    bytes_ = 0;
    fail(ErrorCode::kResourceExhausted,
         "cannot allocate {} bytes of memory: use a smaller model, context or batch", bytes);
  }
  data_ = static_cast<uint8_t*>(p) + lead_;
  // Not the lead: a huge page that reaches into it would be resident as a whole.
  if (bytes_ >= kHugePage) madvise(data_, bytes_, MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_) munmap(data_ - lead_, lead_ + bytes_);
}

}  // namespace tokamak::cpu
