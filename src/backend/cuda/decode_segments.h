#pragma once
// Blocks of GGUF's formats as the persistent kernel takes them: 32 numbers of four or eight bits, a
// scale for each half of them, and what is added to all. Scales are rounded to halves.
#include <cstdint>

#include "backend/cuda/decode_program.h"
#include "tensor/dtype.h"

namespace tokamak::cuda {

// Which of the two takes weights of a type; kBf16: none.
constexpr DecodeWeight segments_of(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
      return DecodeWeight::kK4;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kQ8_0:
      return DecodeWeight::kK8;
    default:
      return DecodeWeight::kBf16;
  }
}

// A segment of a row. Half: value() and bits() of a half, mul() that is rounded once.
template <class Half>
class SegmentReader {
 public:
  TK_HOST_DEVICE SegmentReader(DType type, const uint8_t* row, int64_t segment) : type_(type) {
    read(row, segment);
  }
  // Numbers are signed.
  TK_HOST_DEVICE int number(int i) const {
    switch (type_) {
      case DType::kQ8_0:
        return static_cast<int8_t>(numbers_[i]);
      case DType::kQ4_0:
      case DType::kQ4_1:
        return nibble(i) - 8;
      case DType::kQ5_0:
      case DType::kQ5_1:
        return (nibble(i) | (high_[i / 8] >> i % 8 & 1) << 4) - 16;
      case DType::kQ4_K:
        return (numbers_[i] >> shift_ & 15) - 8;
      case DType::kQ5_K:
        return ((numbers_[i] >> shift_ & 15) | (high_[i] >> high_shift_ & 1) << 4) - 16;
      default:
        return ((numbers_[i] >> shift_ & 15) | (high_[i] >> high_shift_ & 3) << 4) - 32;
    }
  }
  uint16_t scale[2], offset = 0;

 private:
  TK_HOST_DEVICE void read(const uint8_t* row, int64_t segment) {
    switch (type_) {
      case DType::kQ4_0:
        return simple(row + segment * 18, 2, false);
      case DType::kQ4_1:
        return simple(row + segment * 20, 4, true);
      case DType::kQ5_0:
        return simple(row + segment * 22, 6, false);
      case DType::kQ5_1:
        return simple(row + segment * 24, 8, true);
      case DType::kQ8_0:
        return simple(row + segment * 34, 2, false);
      case DType::kQ6_K:
        return six_bits(row + segment / 8 * 210, static_cast<int>(segment % 8));
      default:
        return super_block(row + segment / 8 * (type_ == DType::kQ5_K ? 176 : 144),
                           static_cast<int>(segment % 8));
    }
  }
  TK_HOST_DEVICE static float half_at(const uint8_t* p) {
    return Half::value(static_cast<uint16_t>(p[0] | p[1] << 8));
  }
  TK_HOST_DEVICE int nibble(int i) const { return numbers_[i % 16] >> (i < 16 ? 0 : 4) & 15; }
  TK_HOST_DEVICE void set(float s, float less, float zero) {
    scale[0] = scale[1] = Half::bits(s);
    offset = Half::bits(zero * s - less);  // zero is a power of two: the product is exact
  }
  TK_HOST_DEVICE void simple(const uint8_t* block, int numbers, bool minimum) {
    numbers_ = block + numbers;
    high_ = block + numbers - 4;
    scale[0] = scale[1] = static_cast<uint16_t>(block[0] | block[1] << 8);
    if (minimum) set(half_at(block), -half_at(block + 2), type_ == DType::kQ4_1 ? 8.0f : 16.0f);
  }
  TK_HOST_DEVICE void super_block(const uint8_t* block, int sub) {
    const uint8_t* s = block + 4;
    const int sc = sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | s[sub - 4] >> 6 << 4;
    const int m = sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | s[sub] >> 6 << 4;
    numbers_ = block + (type_ == DType::kQ5_K ? 48 : 16) + 32 * (sub / 2);
    shift_ = 4 * (sub % 2);
    high_ = block + 16;
    high_shift_ = sub;
    set(Half::mul(half_at(block), static_cast<float>(sc)),
        Half::mul(half_at(block + 2), static_cast<float>(m)), type_ == DType::kQ5_K ? 16.0f : 8.0f);
  }
  TK_HOST_DEVICE void six_bits(const uint8_t* block, int segment) {
    const int half = segment / 4, quarter = segment % 4;
    numbers_ = block + 64 * half + 32 * (quarter % 2);
    shift_ = 4 * (quarter / 2);
    high_ = block + 128 + 32 * half;
    high_shift_ = 2 * quarter;
    for (int i = 0; i < 2; ++i) {
      const auto factor = static_cast<float>(static_cast<int8_t>(block[192 + 2 * segment + i]));
      scale[i] = Half::bits(Half::mul(half_at(block + 208), factor));
    }
  }

  DType type_;
  const uint8_t *numbers_ = nullptr, *high_ = nullptr;
  int shift_ = 0, high_shift_ = 0;
};

}  // namespace tokamak::cuda
