#pragma once
// A 128-bit running hash for fingerprints and cache keys. Not cryptographic: code
// that compares content across trust boundaries must compare the content itself.
#include <cstdint>
#include <string>
#include <string_view>

namespace tokamak {

class Hash128 {
 public:
  void add(uint64_t word);
  void add(std::string_view text);  // length first, so that "ab","c" and "a","bc" differ
  uint64_t low() const { return a_; }
  uint64_t high() const { return b_; }
  std::string hex() const;

 private:
  uint64_t a_ = 0x243F6A8885A308D3, b_ = 0x13198A2E03707344;  // digits of pi
};

}  // namespace tokamak
