#include "tensor/group_formats.h"

#include <utility>

#include "base/error.h"
#include "tensor/block_formats_detail.h"

namespace tokamak {
namespace {

using Code = GroupFormat::Code;

constexpr int kSizes = 3;                   // 32, 64, 128
constexpr int kPlainBits[] = {2, 3, 4, 8};  // of whole numbers
constexpr int kPerBits = 2 * kSizes;        // f16 and f32 scales
constexpr int kIntTypes = 4 * kPerBits;
constexpr int kTypes = kIntTypes + 2 * kSizes;

constexpr GroupFormat format_at(int i) {
  GroupFormat f;
  f.group = 32 << i % kSizes;
  if (i < kIntTypes) {
    f.bits = kPlainBits[i / kPerBits];
    f.wide = i % kPerBits >= kSizes;
    return f;
  }
  f.wide = true;
  f.code = i - kIntTypes < kSizes ? Code::kF8 : Code::kNF4;
  f.bits = f.code == Code::kF8 ? 8 : 4;
  return f;
}
constexpr int index_of(DType dtype) {
  return static_cast<int>(dtype) - static_cast<int>(DType::kInt2G32);
}
static_assert(index_of(DType::kNF4G128) == kTypes - 1);

// The values of bitsandbytes' 4-bit normal float.
constexpr float kNf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

template <int I>
void decode_group(const uint8_t* block, float* out) {
  constexpr GroupFormat f = format_at(I);
  float scale;
  if constexpr (f.wide)
    std::memcpy(&scale, block, 4);
  else
    scale = block::load_half(block);
  const uint8_t* q = block + f.head_bytes();
  int zero = f.has_zero() ? static_cast<int8_t>(block[f.scale_bytes()]) : 0;
  for (int i = 0; i < f.group; ++i) {
    if constexpr (f.code == Code::kF8) {
      out[i] = scale * block::f8e4m3_to_f32(q[i]);
    } else if constexpr (f.bits == 8) {
      out[i] = scale * static_cast<float>(static_cast<int8_t>(q[i]) - zero);
    } else if constexpr (f.bits == 4) {
      int code = q[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
      out[i] = scale * (f.code == Code::kNF4 ? kNf4[code] : static_cast<float>(code - zero));
    } else {
      int at = i * f.bits, word = q[at / 8];
      if (at % 8 + f.bits > 8) word |= q[at / 8 + 1] << 8;
      out[i] = scale * static_cast<float>((word >> at % 8 & ((1 << f.bits) - 1)) - zero);
    }
  }
}

template <int... I>
block::Decoder decoder_at(int i, std::integer_sequence<int, I...>) {
  static constexpr block::Decoder table[] = {decode_group<I>...};
  return table[i];
}

}  // namespace

std::optional<GroupFormat> group_format(DType dtype) {
  int i = index_of(dtype);
  return i >= 0 && i < kTypes ? std::optional(format_at(i)) : std::nullopt;
}

DType group_dtype(const GroupFormat& f) {
  for (int i = 0; i < kTypes; ++i) {
    GroupFormat at = format_at(i);
    if (at.code == f.code && at.bits == f.bits && at.group == f.group && at.wide == f.wide)
      return static_cast<DType>(static_cast<int>(DType::kInt2G32) + i);
  }
  TK_CHECK(false, "no type for groups of {} with {} bits", f.group, f.bits);
  return DType::kF32;
}

void write_group(const GroupFormat& f, float scale, int zero, const uint8_t* codes, uint8_t* out) {
  if (f.wide)
    std::memcpy(out, &scale, 4);
  else
    block::store_u16(out, f32_to_f16(scale));
  if (f.has_zero()) out[f.scale_bytes()] = static_cast<uint8_t>(zero);
  uint8_t* q = out + f.head_bytes();
  if (f.bits == 8) {
    std::memcpy(q, codes, static_cast<size_t>(f.group));
  } else if (f.bits == 4) {
    for (int b = 0; b < f.group; b += 32)
      for (int j = 0; j < 16; ++j)
        *q++ = static_cast<uint8_t>(codes[b + j] | codes[b + j + 16] << 4);
  } else {
    std::memset(q, 0, static_cast<size_t>(f.group * f.bits / 8));
    for (int i = 0, at = 0; i < f.group; ++i, at += f.bits) {
      int word = codes[i] << at % 8;
      q[at / 8] |= static_cast<uint8_t>(word);
      if (word > 255) q[at / 8 + 1] |= static_cast<uint8_t>(word >> 8);
    }
  }
}

namespace block {

Decoder group_decoder(DType dtype) {
  int i = index_of(dtype);
  if (i < 0 || i >= kTypes) return nullptr;
  return decoder_at(i, std::make_integer_sequence<int, kTypes>());
}

}  // namespace block
}  // namespace tokamak
