#pragma once
// Byte layout of quantised panels (pack.h) for the x86 levels.

namespace {

enum : int {
  kFQ4_0,
  kFQ4_1,
  kFQ8_0,
  kFQ4_K,
  kFQ6_K,
  kFQ5_0,
  kFQ5_1,
  kFQ5_K,
  kFInt4G32,
  kFInt4G64,
  kFInt4G128,
  kFInt8G128
};

template <int F>
struct Panel {
  static constexpr bool k_quant = F == kFQ4_K || F == kFQ5_K || F == kFQ6_K;
  static constexpr bool zeros = F >= kFInt4G32;  // zero points instead of minimums
  static constexpr bool minimum = F == kFQ4_1 || F == kFQ5_1 || F == kFQ4_K || F == kFQ5_K || zeros;
  static constexpr bool bytes8 = F == kFQ8_0 || F == kFInt8G128;
  static constexpr bool halves = F == kFQ6_K;  // a scale per 16
  static constexpr int blocks = k_quant                              ? 8
                                : F == kFInt4G128 || F == kFInt8G128 ? 4
                                : F == kFInt4G64                     ? 2
                                                                     : 1;
  static constexpr int head = zeros ? 48 : minimum ? 64 : 32;
  static constexpr int scales = k_quant ? 32 : 0;
  static constexpr int low = bytes8 ? 512 : 256;
  static constexpr int high = F == kFQ6_K                                   ? 128
                              : (F == kFQ5_0 || F == kFQ5_1 || F == kFQ5_K) ? 64
                                                                            : 0;
  static constexpr int block_bytes = scales + low + high;
  static constexpr int bytes = head + blocks * block_bytes;
  // Stored values are unsigned; this is taken off through the sums of the activations.
  static constexpr int offset = F == kFQ6_K ? 32 : F == kFQ5_0 ? 16 : F == kFQ4_0 ? 8 : 0;
};

}  // namespace
