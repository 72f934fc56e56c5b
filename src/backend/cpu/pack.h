#pragma once
// Weights in panels of 16 output rows ("qpanel16", "fpanel16"), made once while loading; nothing is
// requantised and the size stays that of the file format (formats whose scales have 6 bits keep
// them as bytes: q3_k 3.6, q4_k 2.8, q5_k 2.3 and iq4_xs 1.5 % more).
//
// Float types: [k][16 rows]. Quantised types: per panel a sequence of super-blocks of 1 to 8 blocks
// of 32 k:
//   head: d[16] (f16; mxfp4: e8m0), and for q4_1, q5_1: m[16], for q4_k, q5_k, q2_k: dmin[16], for
//   groups: zero[16] (int8)
//   then per block: scales (q4_k, q5_k: sc[16] m[16]; q6_k, q3_k: two int8 sc[16], q2_k: two sc[16]
//   with m in the high nibble; iq4_xs: int8 sc[16]), low bits, pairs of bits, single bits
// Low bits: byte p = (k' / group) * 16 * group + row * group + k' % group holds value k' and, for
// 4-bit parts, in its high nibble value k' + 16. Pairs and single bits: vectors of `vector` bytes,
// each holding these bits of the values of 2 (pairs) or 4 (single bits) vectors of low bits: bits
// of the low nibble's value, then of the high nibble's, for each of them in turn. 6-bit values are
// low bits and pairs, 5-bit ones low bits and single bits, 3-bit ones pairs and single bits, 2-bit
// ones pairs. With row_nibbles, formats of 4 bits and no more hold two rows in a byte instead: byte
// row / 8 * 128 + k / 4 * 16 + row % 4 * 4 + k % 4 has value k of this row in its low nibble (row %
// 8 < 4) or, minus 8, in its high nibble. Formats whose nibbles are places in a table do not.
#include <cstddef>
#include <optional>

#include "backend/cpu/kernel_table.h"
#include "tensor/dtype.h"

namespace tokamak::cpu {

struct QLayout {
  int blocks;               // blocks of 32 per super-block: 1, 2, 4 or 8
  int head;                 // bytes before them
  int scales;               // bytes per block
  int low, pairs, singles;  // bytes per block
  int source;               // bytes of a super-block of one row in the file
  int d = 0;                // where its scale is; dmin and m follow it
  int block_bytes() const { return scales + low + pairs + singles; }
  int bytes() const { return head + blocks * block_bytes(); }
};

std::optional<QFormat> qformat_of(DType dtype);
DType dtype_of(QFormat format);
const QLayout& qlayout(QFormat format);
std::optional<FType> ftype_of(DType dtype);

inline int64_t panels_of(int64_t rows) { return (rows + kPanel - 1) / kPanel; }
// Bytes of one panel over k values; k is a multiple of the format's block.
int64_t qpanel_bytes(QFormat format, int64_t k);
int64_t fpanel_bytes(FType type, int64_t k);

// rows: up to 16 row-major rows of the file format; the others of the panel become zero.
void pack_qpanel(QFormat format, const PackStyle& style, const std::byte* rows, int64_t row_bytes,
                 int count, int64_t k, uint8_t* out);
void pack_fpanel(FType type, const std::byte* rows, int64_t row_bytes, int count, int64_t k,
                 uint8_t* out);

// Rows of int16_g128 (kernel_table.h has the layout).
void pack_pair_panel(const std::byte* rows, int64_t row_bytes, int count, int64_t k, uint8_t* out);

// A panel of one style in another; the same values, bit for bit.
void repack_qpanel(QFormat format, const PackStyle& from, const PackStyle& to, int64_t k,
                   const uint8_t* in, uint8_t* out);

// The f32 values of k0 <= k < k0 + n (multiples of 32), bit-equal to decode_row of the file's row.
void decode_qpanel_row(QFormat format, const PackStyle& style, const uint8_t* panel, int row,
                       int64_t k0, int64_t n, float* out);

}  // namespace tokamak::cpu
