#pragma once
// SHA-256 (FIPS 180-4): published checksums of downloads, and names for secrets.
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tokamak {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  std::string hex();  // ends the message

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  uint64_t length_ = 0;
};

std::string sha256_hex(std::string_view text);
std::string sha256_file(const std::filesystem::path& path);

}  // namespace tokamak
