#include "base/checksum.h"

#include <cstring>

#include "base/hash.h"

namespace tokamak {
namespace {

uint64_t mix(uint64_t x, uint64_t y) {
  unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr size_t kLanes = 4, kStripe = kLanes * 16;
constexpr uint64_t kKeys[kLanes] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                    0xD6E8FEB86659FD93};

}  // namespace

// Four independent lanes of 16 bytes each keep the multiplier busy. A lane's value enters its next
// product together with the data, so the order of stripes matters.
Checksum checksum(std::span<const std::byte> bytes) {
  uint64_t a[kLanes], b[kLanes];
  for (size_t i = 0; i < kLanes; ++i) a[i] = kKeys[i], b[i] = ~kKeys[i];
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= kStripe; left -= kStripe, p += kStripe)
    for (size_t i = 0; i < kLanes; ++i) {
      uint64_t x, y;
      std::memcpy(&x, p + i * 16, 8);
      std::memcpy(&y, p + i * 16 + 8, 8);
      a[i] = (a[i] << 29 | a[i] >> 35) ^ mix(x ^ kKeys[i], y ^ b[i]);
      b[i] += x + (y << 32 | y >> 32);
    }
  Hash128 hash;
  for (size_t i = 0; i < kLanes; ++i) hash.add(a[i]), hash.add(b[i]);
  hash.add(std::string_view(reinterpret_cast<const char*>(p), left));
  hash.add(uint64_t{bytes.size()});
  return {hash.low(), hash.high()};
}

std::string Checksum::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (uint64_t word : {high, low})
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[word >> shift & 15];
  return out;
}

}  // namespace tokamak
