#pragma once
// Large aligned buffers straight from the system: zero pages that cost nothing until touched, huge
// pages where the system grants them, and sizes that the ledger can count exactly.
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tokamak::cpu {

// Owns its pages; movable. Rounded up to whole pages, which bytes() reports.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(uint64_t bytes);  // zeroed; throws Error(kResourceExhausted)
  ~Buffer();
  Buffer(Buffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tokamak::cpu
