#pragma once
// A 128-bit checksum of bytes, fast enough for gigabytes of weights (memory speed on one core). It
// detects accidental damage; it is not secure against forgery.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tokamak {

struct Checksum {
  uint64_t low = 0, high = 0;
  bool operator==(const Checksum&) const = default;
  std::string hex() const;
};

Checksum checksum(std::span<const std::byte> bytes);

}  // namespace tokamak
