#pragma once
// Byte layout of quantised panels (pack.h) as constants, for the kernels of all levels.

namespace {

// In the order of QFormat (kernel_table.h).
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
  kFInt8G128,
  kFIQ4_NL,
  kFMXFP4,
  kFIQ4_XS,
  kFQ3_K,
  kFQ2_K,
  kFTQ2_0
};

template <int F>
struct PanelShape {
  static constexpr bool zeros = F >= kFInt4G32 && F <= kFInt8G128;  // instead of minimums
  static constexpr bool scaled_minimums = F == kFQ4_K || F == kFQ5_K;
  static constexpr bool minimum = F == kFQ4_1 || F == kFQ5_1 || scaled_minimums || zeros;
  static constexpr bool halves = F == kFQ6_K || F == kFQ3_K || F == kFQ2_K;  // a scale per 16
  static constexpr bool half_minimums = F == kFQ2_K;  // and a minimum, in the high nibble of it
  static constexpr bool signed_scales = F == kFQ6_K || F == kFQ3_K || F == kFIQ4_XS;
  static constexpr bool exponents = F == kFMXFP4;  // e8m0 instead of f16 numbers
  // Nibbles are places in a table of values.
  static constexpr bool table = F == kFIQ4_NL || F == kFIQ4_XS || F == kFMXFP4;
  static constexpr bool bytes8 = F == kFQ8_0 || F == kFInt8G128;
  static constexpr bool two_bits = F == kFQ2_K || F == kFQ3_K || F == kFTQ2_0;  // no nibbles
  static constexpr int blocks = scaled_minimums || halves || F == kFIQ4_XS || F == kFTQ2_0 ? 8
                                : F == kFInt4G128 || F == kFInt8G128                       ? 4
                                : F == kFInt4G64                                           ? 2
                                                                                           : 1;
  static constexpr int head = exponents ? 16 : zeros ? 48 : minimum || half_minimums ? 64 : 32;
  static constexpr int scales = scaled_minimums || halves ? 32 : F == kFIQ4_XS ? 16 : 0;
  static constexpr int low = bytes8 ? 512 : two_bits ? 0 : 256;
  static constexpr int pairs = F == kFQ6_K || two_bits ? 128 : 0;  // two bits of each value
  static constexpr int singles = F == kFQ5_0 || F == kFQ5_1 || F == kFQ5_K || F == kFQ3_K ? 64 : 0;
  static constexpr int high = pairs + singles;
  static constexpr int single_bit = two_bits ? 2 : 4, pair_bit = two_bits ? 0 : 4;
  static constexpr bool nibbles = low == 256 && high == 0 && !table;  // and nothing else
  static constexpr int block_bytes = scales + low + high;
  static constexpr int bytes = head + blocks * block_bytes;
  // Stored values are unsigned; this is subtracted through the sums of the activations.
  static constexpr int offset = F == kFQ6_K    ? 32
                                : F == kFQ5_0  ? 16
                                : F == kFQ4_0  ? 8
                                : F == kFQ3_K  ? 4
                                : F == kFTQ2_0 ? 1
                                               : 0;
};

// Values of the formats with a table; those of mxfp4 are doubled, and its scales halved.
alignas(16) constexpr signed char kIq4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr signed char kFp4Table[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                   0, -1, -2, -3, -4, -6, -8, -12};
template <int F>
constexpr const signed char* kTable = PanelShape<F>::exponents ? kFp4Table : kIq4Table;

}  // namespace
