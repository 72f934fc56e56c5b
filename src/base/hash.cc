#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tokamak {
namespace {

uint64_t fold(uint64_t x, uint64_t y) {
  unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void Hash128::add(uint64_t word) {
  uint64_t a = a_, b = b_;
  a_ = fold(a ^ word, 0x9E3779B97F4A7C15) + b;
  b_ = fold(b + word, 0xC2B2AE3D27D4EB4F) ^ (a_ << 23 | a_ >> 41);
}

void Hash128::add(std::string_view text) {
  add(uint64_t{text.size()});
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    add(word);
  }
}

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", b_, a_); }

}  // namespace tokamak
