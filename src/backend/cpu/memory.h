#pragma once
// Large aligned buffers straight from the system: zero pages that cost nothing until touched, huge
// pages where the system grants them, and sizes that the ledger can count exactly.
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tokamak::cpu {

constexpr uint64_t kHugePage = 2u << 20;

// Owns its pages; movable. Rounded up to whole pages, which bytes() reports.
class Buffer {
 public:
  Buffer() = default;
  // Zeroed; throws Error(kResourceExhausted). lead: unused bytes before it, in whole pages. Buffers
  // that are filled side by side reach their huge pages, which take the system about a millisecond
  // each, at different times if their leads differ.
  explicit Buffer(uint64_t bytes, uint64_t lead = 0);
  ~Buffer();
  Buffer(Buffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)),
        bytes_(std::exchange(o.bytes_, 0)),
        lead_(std::exchange(o.lead_, 0)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(lead_, o.lead_);
    return *this;
  }
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t untouched() const;  // bytes of it that are not resident; asks the system, any thread

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0, lead_ = 0;
};

}  // namespace tokamak::cpu
