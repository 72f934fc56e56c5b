#include "backend/cpu/pack.h"

#include <cstring>

#include "base/error.h"
#include "tensor/block_formats.h"
#include "tensor/block_formats_detail.h"

namespace tokamak::cpu {
namespace {

constexpr QLayout kLayouts[kQFormats] = {
    {1, 32, 0, 256, 0, 0, 18},           // q4_0
    {1, 64, 0, 256, 0, 0, 20},           // q4_1
    {1, 32, 0, 512, 0, 0, 34},           // q8_0
    {8, 64, 32, 256, 0, 0, 144},         // q4_k
    {8, 32, 32, 256, 128, 0, 210, 208},  // q6_k
    {1, 32, 0, 256, 0, 64, 22},          // q5_0
    {1, 64, 0, 256, 0, 64, 24},          // q5_1
    {8, 64, 32, 256, 0, 64, 176},        // q5_k
    {1, 48, 0, 256, 0, 0, 19},           // int4_g32
    {2, 48, 0, 256, 0, 0, 35},           // int4_g64
    {4, 48, 0, 256, 0, 0, 67},           // int4_g128
    {4, 48, 0, 512, 0, 0, 131},          // int8_g128
    {1, 32, 0, 256, 0, 0, 18},           // iq4_nl
    {1, 16, 0, 256, 0, 0, 17},           // mxfp4
    {8, 32, 16, 256, 0, 0, 136},         // iq4_xs
    {8, 32, 32, 0, 128, 64, 110, 108},   // q3_k
    {8, 64, 32, 0, 128, 0, 84, 80},      // q2_k
    {8, 32, 0, 0, 128, 0, 66, 64},       // tq2_0
};
constexpr DType kDTypes[kQFormats] = {
    DType::kQ4_0,     DType::kQ4_1,     DType::kQ8_0,   DType::kQ4_K,    DType::kQ6_K,
    DType::kQ5_0,     DType::kQ5_1,     DType::kQ5_K,   DType::kInt4G32, DType::kInt4G64,
    DType::kInt4G128, DType::kInt8G128, DType::kIQ4_NL, DType::kMXFP4,   DType::kIQ4_XS,
    DType::kQ3_K,     DType::kQ2_K,     DType::kTQ2_0};

bool is_group(QFormat format) { return qlayout(format).head == 48; }
bool is_byte(QFormat format) { return qlayout(format).low == 512; }
bool is_table(QFormat format) {
  return format == QFormat::kIQ4_NL || format == QFormat::kIQ4_XS || format == QFormat::kMXFP4;
}
bool has_exponents(QFormat format) { return qlayout(format).head == 16; }

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// One block of 32 of one row, taken apart: values without offset, and the bytes of its scales.
struct RowBlock {
  uint8_t q[32];
  uint8_t s0 = 0, s1 = 0;
};

void read_nibbles(const uint8_t* qs, RowBlock& b) {
  for (int j = 0; j < 16; ++j) {
    b.q[j] = qs[j] & 15;
    b.q[j + 16] = qs[j] >> 4;
  }
}
void read_fifth_bits(const uint8_t* qh, RowBlock& b) {
  uint32_t high;
  std::memcpy(&high, qh, 4);
  for (int j = 0; j < 32; ++j) b.q[j] |= static_cast<uint8_t>((high >> j & 1) << 4);
}
// Pairs of bits of 128 values in 32 bytes.
void read_pairs(const uint8_t* qs, int sub, RowBlock& b) {
  for (int j = 0; j < 32; ++j) b.q[j] = qs[32 * (sub / 4) + j] >> (2 * (sub % 4)) & 3;
}
// Six bits of a scale that is stored plus 32.
uint8_t signed_scale(int low, int high) {
  return static_cast<uint8_t>(((low & 15) | (high & 3) << 4) - 32);
}
void read_q3_k(const uint8_t* s, int sub, RowBlock& b) {
  read_pairs(s + 32, sub, b);
  for (int j = 0; j < 32; ++j) b.q[j] |= static_cast<uint8_t>((s[j] >> sub & 1) << 2);
  for (int half : {2 * sub, 2 * sub + 1})
    (half % 2 ? b.s1 : b.s0) =
        signed_scale(s[96 + half % 8] >> (half / 8 * 4), s[104 + half % 4] >> (half / 4 * 2));
}
void read_k_scales(const uint8_t* scales, int j, RowBlock& b) {
  if (j < 4) {
    b.s0 = scales[j] & 63;
    b.s1 = scales[j + 4] & 63;
  } else {
    b.s0 = static_cast<uint8_t>((scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4));
    b.s1 = static_cast<uint8_t>((scales[j + 4] >> 4) | (scales[j] >> 6 << 4));
  }
}

// Block `sub` of a super-block in the file's layout.
void read_block(QFormat format, const uint8_t* s, int sub, RowBlock& b) {
  switch (format) {
    case QFormat::kQ4_0:
    case QFormat::kQ4_1:
    case QFormat::kIQ4_NL:
    case QFormat::kMXFP4:
      read_nibbles(s + qlayout(format).source - 16, b);
      break;
    case QFormat::kQ8_0:
    case QFormat::kInt8G128:
      std::memcpy(b.q, s + (format == QFormat::kQ8_0 ? 2 : 3 + 32 * sub), 32);
      break;
    case QFormat::kQ5_0:
    case QFormat::kQ5_1:
      read_nibbles(s + qlayout(format).source - 16, b);
      read_fifth_bits(s + qlayout(format).source - 20, b);
      break;
    case QFormat::kQ4_K:
    case QFormat::kQ5_K: {
      read_k_scales(s + 4, sub, b);
      const uint8_t* qs = s + (format == QFormat::kQ4_K ? 16 : 48) + 32 * (sub / 2);
      for (int j = 0; j < 32; ++j) {
        b.q[j] = qs[j] >> (4 * (sub % 2)) & 15;
        if (format == QFormat::kQ5_K) b.q[j] |= static_cast<uint8_t>((s[16 + j] >> sub & 1) << 4);
      }
      break;
    }
    case QFormat::kQ6_K: {
      const uint8_t *ql = s + 64 * (sub / 4) + 32 * (sub % 2), *qh = s + 128 + 32 * (sub / 4);
      for (int j = 0; j < 32; ++j)
        b.q[j] = static_cast<uint8_t>((ql[j] >> (4 * (sub / 2 % 2)) & 15) |
                                      (qh[j] >> (2 * (sub % 4)) & 3) << 4);
      b.s0 = s[192 + 2 * sub];
      b.s1 = s[193 + 2 * sub];
      break;
    }
    case QFormat::kInt4G32:
    case QFormat::kInt4G64:
    case QFormat::kInt4G128:
      read_nibbles(s + 3 + 16 * sub, b);
      break;
    case QFormat::kIQ4_XS:
      read_nibbles(s + 8 + 16 * sub, b);
      b.s0 = signed_scale(s[4 + sub / 2] >> (sub % 2 * 4), load_u16(s + 2) >> (2 * sub));
      break;
    case QFormat::kQ3_K:
      read_q3_k(s, sub, b);
      break;
    case QFormat::kQ2_K:
      read_pairs(s + 16, sub, b);
      b.s0 = s[2 * sub];
      b.s1 = s[2 * sub + 1];
      break;
    case QFormat::kTQ2_0:
      read_pairs(s, sub, b);
      break;
    case QFormat::kCount:
      break;
  }
}

// Copies d and (m, dmin or the zero point) of a super-block in the file to those of a panel.
void copy_head(QFormat format, const uint8_t* s, int row, uint8_t* panel) {
  const QLayout& l = qlayout(format);
  if (has_exponents(format)) {
    panel[row] = s[l.d];
    return;
  }
  std::memcpy(panel + 2 * row, s + l.d, 2);
  if (l.head == 64) std::memcpy(panel + 32 + 2 * row, s + l.d + 2, 2);
  if (is_group(format)) panel[32 + row] = s[2];
}

// Where value k' (0..15 of nibble formats, 0..31 of q8_0) of a row lies.
int low_byte(const PackStyle& style, int row, int k) {
  return (k / style.group) * kPanel * style.group + row * style.group + k % style.group;
}
// Pairs of bits or single bits of the values in low byte p: the byte that has them, and the shift
// of the low nibble's value; the other value follows.
struct BitPlace {
  int byte, shift;
};
BitPlace bit_place(const PackStyle& style, int bits, int p) {
  int vectors = 8 / (2 * bits), index = p / style.vector;
  return {index / vectors * style.vector + p % style.vector, index % vectors * 2 * bits};
}
// The same with what they are of a value: use(byte of the block, shift, bits, first bit of them).
template <class Use>
void each_plane(const QLayout& l, const PackStyle& style, int p, Use&& use) {
  int first = l.low ? 4 : 0, at = l.low;
  for (int bits : {2, 1}) {
    int bytes = bits == 2 ? l.pairs : l.singles;
    if (!bytes) continue;
    BitPlace place = bit_place(style, bits, p);
    use(at + place.byte, place.shift, bits, first);
    at += bytes, first += bits;
  }
}

// Whether nibbles hold two rows, and where value k of a row then lies.
bool has_row_nibbles(QFormat format, const PackStyle& style) {
  const QLayout& l = qlayout(format);
  return style.row_nibbles && l.low == 256 && l.pairs + l.singles == 0 && !is_table(format);
}
int nibble_byte(int row, int k) { return row / 8 * 128 + k / 4 * 16 + row % 4 * 4 + k % 4; }
bool in_high_nibble(int row) { return row / 4 % 2; }

void write_block(QFormat format, const PackStyle& style, const RowBlock& b, int row, uint8_t* out) {
  const QLayout& l = qlayout(format);
  if (l.scales) out[row] = b.s0;
  if (l.scales > kPanel) out[kPanel + row] = b.s1;
  out += l.scales;
  if (is_byte(format)) {
    for (int k = 0; k < 32; ++k) out[low_byte(style, row, k)] = b.q[k] ^ style.xor8;
    return;
  }
  if (has_row_nibbles(format, style)) {
    for (int k = 0; k < 32; ++k)
      out[nibble_byte(row, k)] |=
          static_cast<uint8_t>(in_high_nibble(row) ? (b.q[k] ^ 8) << 4 : b.q[k]);
    return;
  }
  uint8_t flip = format == QFormat::kQ4_0 ? style.xor4 : 0;
  for (int k = 0; k < 16; ++k) {
    int p = low_byte(style, row, k), lo = b.q[k] ^ flip, hi = b.q[k + 16] ^ flip;
    if (l.low) out[p] = static_cast<uint8_t>((lo & 15) | (hi & 15) << 4);
    each_plane(l, style, p, [&](int byte, int shift, int bits, int first) {
      int mask = (1 << bits) - 1;
      out[byte] |= static_cast<uint8_t>((lo >> first & mask) << shift | (hi >> first & mask)
                                                                            << (shift + bits));
    });
  }
}

void unpack_block(QFormat format, const PackStyle& style, const uint8_t* in, int row, RowBlock& b) {
  const QLayout& l = qlayout(format);
  if (l.scales) b.s0 = in[row];
  if (l.scales > kPanel) b.s1 = in[kPanel + row];
  in += l.scales;
  if (is_byte(format)) {
    for (int k = 0; k < 32; ++k) b.q[k] = in[low_byte(style, row, k)] ^ style.xor8;
    return;
  }
  if (has_row_nibbles(format, style)) {
    for (int k = 0; k < 32; ++k) {
      uint8_t byte = in[nibble_byte(row, k)];
      b.q[k] = static_cast<uint8_t>(in_high_nibble(row) ? byte >> 4 ^ 8 : byte & 15);
    }
    return;
  }
  uint8_t flip = format == QFormat::kQ4_0 ? style.xor4 : 0;
  for (int k = 0; k < 16; ++k) {
    int p = low_byte(style, row, k), lo = l.low ? in[p] & 15 : 0, hi = l.low ? in[p] >> 4 : 0;
    each_plane(l, style, p, [&](int byte, int shift, int bits, int first) {
      int mask = (1 << bits) - 1;
      lo |= (in[byte] >> shift & mask) << first;
      hi |= (in[byte] >> (shift + bits) & mask) << first;
    });
    b.q[k] = static_cast<uint8_t>(lo ^ flip);
    b.q[k + 16] = static_cast<uint8_t>(hi ^ flip);
  }
}

// Compiled without fused multiply-add: the values are those of the file's decoder, bit for bit.
void decode_block(QFormat format, const RowBlock& b, float d, float m, float* out) {
  switch (format) {
    case QFormat::kQ4_0:
    case QFormat::kQ5_0:
    case QFormat::kTQ2_0: {
      int zero = format == QFormat::kQ4_0 ? 8 : format == QFormat::kQ5_0 ? 16 : 1;
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(b.q[j] - zero);
      break;
    }
    case QFormat::kQ8_0:
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(b.q[j]));
      break;
    case QFormat::kQ4_1:
    case QFormat::kQ5_1:
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(b.q[j]) + m;
      break;
    case QFormat::kQ4_K:
    case QFormat::kQ5_K: {
      float scale = d * static_cast<float>(b.s0), minimum = m * static_cast<float>(b.s1);
      for (int j = 0; j < 32; ++j) out[j] = scale * static_cast<float>(b.q[j]) - minimum;
      break;
    }
    case QFormat::kQ6_K:
    case QFormat::kQ3_K:
      for (int j = 0; j < 32; ++j) {
        float scale = d * static_cast<float>(static_cast<int8_t>(j < 16 ? b.s0 : b.s1));
        out[j] = scale * static_cast<float>(b.q[j] - (format == QFormat::kQ6_K ? 32 : 4));
      }
      break;
    case QFormat::kInt4G32:
    case QFormat::kInt4G64:
    case QFormat::kInt4G128:
      for (int j = 0; j < 32; ++j) out[j] = d * (static_cast<float>(b.q[j]) - m);
      break;
    case QFormat::kInt8G128:
      for (int j = 0; j < 32; ++j)
        out[j] = d * (static_cast<float>(static_cast<int8_t>(b.q[j])) - m);
      break;
    case QFormat::kMXFP4:
      for (int j = 0; j < 32; ++j) out[j] = d * block::kFp4Doubled[b.q[j]];
      break;
    case QFormat::kIQ4_NL:
    case QFormat::kIQ4_XS: {
      bool scaled = format == QFormat::kIQ4_XS;
      float scale = scaled ? d * static_cast<float>(static_cast<int8_t>(b.s0)) : d;
      for (int j = 0; j < 32; ++j) out[j] = scale * block::kIq4Values[b.q[j]];
      break;
    }
    case QFormat::kQ2_K:
      for (int j = 0; j < 32; ++j) {
        uint8_t s = j < 16 ? b.s0 : b.s1;
        float scale = d * static_cast<float>(s & 15), minimum = m * static_cast<float>(s >> 4);
        out[j] = scale * static_cast<float>(b.q[j]) - minimum;
      }
      break;
    case QFormat::kCount:
      break;
  }
}

}  // namespace

std::optional<QFormat> qformat_of(DType dtype) {
  for (int i = 0; i < kQFormats; ++i)
    if (kDTypes[i] == dtype) return static_cast<QFormat>(i);
  return std::nullopt;
}
DType dtype_of(QFormat format) { return kDTypes[static_cast<int>(format)]; }
const QLayout& qlayout(QFormat format) { return kLayouts[static_cast<int>(format)]; }

std::optional<FType> ftype_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FType::kF32;
    case DType::kF16:
      return FType::kF16;
    case DType::kBF16:
      return FType::kBF16;
    default:
      return std::nullopt;
  }
}

int64_t qpanel_bytes(QFormat format, int64_t k) {
  const QLayout& l = qlayout(format);
  TK_CHECK(k % (l.blocks * kQuantBlock) == 0);
  return k / (l.blocks * kQuantBlock) * l.bytes();
}
int64_t fpanel_bytes(FType type, int64_t k) { return k * kPanel * (type == FType::kF32 ? 4 : 2); }

namespace {

// Formats whose bytes are only moved: groups of 4 or 8 bytes of a row, some with their bits
// flipped.
void pack_moved(QFormat format, const PackStyle& style, const uint8_t* source, int row,
                int64_t blocks, uint8_t* out) {
  const QLayout& l = qlayout(format);
  uint64_t flip = format == QFormat::kQ8_0   ? 0x0101010101010101u * style.xor8
                  : format == QFormat::kQ4_0 ? 0x1111111111111111u * style.xor4
                                             : 0;
  int values = l.low / kPanel, first = l.source - values;
  for (int64_t b = 0; b < blocks; ++b, source += l.source, out += l.bytes()) {
    std::memcpy(out + 2 * row, source, 2);
    if (l.head == 64) std::memcpy(out + 32 + 2 * row, source + 2, 2);
    for (int i = 0; i < values; i += 8) {
      uint64_t word;
      std::memcpy(&word, source + first + i, 8);
      word ^= flip;
      uint8_t* to = out + l.head + low_byte(style, row, i);
      if (style.group == 8) {
        std::memcpy(to, &word, 8);
      } else {
        std::memcpy(to, &word, 4);
        std::memcpy(to + kPanel * 4, reinterpret_cast<uint8_t*>(&word) + 4, 4);
      }
    }
  }
}

// The same with two rows in a byte. The row of the low nibbles comes first and replaces what was
// there.
void pack_row_nibbles(QFormat format, const uint8_t* source, int row, int64_t blocks,
                      uint8_t* out) {
  const QLayout& l = qlayout(format);
  for (int64_t b = 0; b < blocks; ++b, source += l.source, out += l.bytes()) {
    std::memcpy(out + 2 * row, source, 2);
    if (l.head == 64) std::memcpy(out + 32 + 2 * row, source + 2, 2);
    for (int k = 0; k < 32; k += 4) {
      uint32_t word, held;
      std::memcpy(&word, source + l.source - 16 + k % 16, 4);
      word = (k < 16 ? word : word >> 4) & 0x0f0f0f0f;
      uint8_t* to = out + l.head + nibble_byte(row, k);
      if (in_high_nibble(row)) {
        std::memcpy(&held, to, 4);
        word = held | (word ^ 0x08080808) << 4;
      }
      std::memcpy(to, &word, 4);
    }
  }
}

bool is_moved(QFormat format) {
  return format == QFormat::kQ4_0 || format == QFormat::kQ4_1 || format == QFormat::kQ8_0;
}

}  // namespace

void pack_qpanel(QFormat format, const PackStyle& style, const std::byte* rows, int64_t row_bytes,
                 int count, int64_t k, uint8_t* out) {
  const QLayout& l = qlayout(format);
  if (count < kPanel || !is_moved(format))
    std::memset(out, 0, static_cast<size_t>(qpanel_bytes(format, k)));
  int64_t supers = k / (l.blocks * kQuantBlock);
  for (int row = 0; row < count; ++row) {
    const auto* source = reinterpret_cast<const uint8_t*>(rows + row * row_bytes);
    if (is_moved(format)) {
      if (has_row_nibbles(format, style)) {
        pack_row_nibbles(format, source, row, supers, out);
        continue;
      }
      pack_moved(format, style, source, row, supers, out);
      continue;
    }
    uint8_t* to = out;
    for (int64_t super = 0; super < supers; ++super, source += l.source, to += l.bytes()) {
      copy_head(format, source, row, to);
      for (int sub = 0; sub < l.blocks; ++sub) {
        RowBlock b;
        read_block(format, source, sub, b);
        write_block(format, style, b, row, to + l.head + sub * l.block_bytes());
      }
    }
  }
}

void repack_qpanel(QFormat format, const PackStyle& from, const PackStyle& to, int64_t k,
                   const uint8_t* in, uint8_t* out) {
  const QLayout& l = qlayout(format);
  std::memset(out, 0, static_cast<size_t>(qpanel_bytes(format, k)));
  for (int64_t super = k / (l.blocks * kQuantBlock); super > 0; --super) {
    std::memcpy(out, in, static_cast<size_t>(l.head));
    for (int sub = 0; sub < l.blocks; ++sub)
      for (int row = 0; row < kPanel; ++row) {
        int at = l.head + sub * l.block_bytes();
        RowBlock b;
        unpack_block(format, from, in + at, row, b);
        write_block(format, to, b, row, out + at);
      }
    in += l.bytes();
    out += l.bytes();
  }
}

void pack_fpanel(FType type, const std::byte* rows, int64_t row_bytes, int count, int64_t k,
                 uint8_t* out) {
  auto pack = [&]<class T>(T* to) {
    for (int64_t i = 0; i < k; ++i)
      for (int row = 0; row < kPanel; ++row) {
        T value = 0;
        if (row < count)
          std::memcpy(&value, rows + row * row_bytes + i * static_cast<int64_t>(sizeof(T)),
                      sizeof(T));
        std::memcpy(to + i * kPanel + row, &value, sizeof(T));
      }
  };
  if (type == FType::kF32)
    pack(reinterpret_cast<uint32_t*>(out));
  else
    pack(reinterpret_cast<uint16_t*>(out));
}

void pack_pair_panel(const std::byte* rows, int64_t row_bytes, int count, int64_t k, uint8_t* out) {
  std::memset(out, 0, static_cast<size_t>(k / kPairBlock * kPairPanelBlock));
  for (int64_t b = 0; b < k / kPairBlock; ++b, out += kPairPanelBlock)
    for (int row = 0; row < count; ++row) {
      BlockInt16 block;
      std::memcpy(&block, rows + row * row_bytes + b * static_cast<int64_t>(sizeof block),
                  sizeof block);
      std::memcpy(out + row * sizeof(float), &block.scale, sizeof(float));
      for (int i = 0; i < kPairBlock; i += 2)
        std::memcpy(out + (kPanel + i / 2 * kPanel + row) * 4, block.q + i, 4);
    }
}

void decode_qpanel_row(QFormat format, const PackStyle& style, const uint8_t* panel, int row,
                       int64_t k0, int64_t n, float* out) {
  const QLayout& l = qlayout(format);
  for (int64_t k = k0; k < k0 + n; k += kQuantBlock, out += kQuantBlock) {
    const uint8_t* super = panel + k / (l.blocks * kQuantBlock) * l.bytes();
    float d = has_exponents(format) ? block::half_of_e8m0(super[row])
                                    : f16_to_f32(load_u16(super + 2 * row));
    float m = 0.0f;
    if (l.head == 64) m = f16_to_f32(load_u16(super + 32 + 2 * row));
    if (is_group(format)) m = static_cast<float>(static_cast<int8_t>(super[32 + row]));
    RowBlock b;
    int64_t sub = k / kQuantBlock % l.blocks;
    unpack_block(format, style, super + l.head + sub * l.block_bytes(), row, b);
    decode_block(format, b, d, m, out);
  }
}

}  // namespace tokamak::cpu
