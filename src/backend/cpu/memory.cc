#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"

namespace tokamak::cpu {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

Buffer::Buffer(uint64_t bytes, uint64_t lead) {
  if (bytes == 0) return;
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

uint64_t Buffer::untouched() const {
  unsigned char pages[8192];
  uint64_t absent = 0;
  for (uint64_t at = 0; at < bytes_; at += sizeof pages * kPage) {
    uint64_t part = std::min<uint64_t>(bytes_ - at, sizeof pages * kPage);
    if (mincore(data_ + at, part, pages) != 0) return 0;
    absent += static_cast<uint64_t>(
        std::count_if(pages, pages + part / kPage, [](unsigned char p) { return (p & 1) == 0; }));
  }
  return absent * kPage;
}

}  // namespace tokamak::cpu
