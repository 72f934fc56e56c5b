// Rows of any type to and from float: plain types here, blocks by one function per type.
#include "tensor/block_formats.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "tensor/block_formats_detail.h"

namespace tokamak {
namespace {

using block::Decoder;
using Encoder = void (*)(const float*, uint8_t*);

constexpr std::pair<DType, Decoder> kDecoders[] = {
    {DType::kQ4_0, block::decode_q4_0},       {DType::kQ4_1, block::decode_q4_1},
    {DType::kQ5_0, block::decode_q5_0},       {DType::kQ5_1, block::decode_q5_1},
    {DType::kQ8_0, block::decode_q8_0},       {DType::kQ8_1, block::decode_q8_1},
    {DType::kQ2_K, block::decode_q2_k},       {DType::kQ3_K, block::decode_q3_k},
    {DType::kQ4_K, block::decode_q4_k},       {DType::kQ5_K, block::decode_q5_k},
    {DType::kQ6_K, block::decode_q6_k},       {DType::kQ8_K, block::decode_q8_k},
    {DType::kIQ2_XXS, block::decode_iq2_xxs}, {DType::kIQ2_XS, block::decode_iq2_xs},
    {DType::kIQ2_S, block::decode_iq2_s},     {DType::kIQ3_XXS, block::decode_iq3_xxs},
    {DType::kIQ3_S, block::decode_iq3_s},     {DType::kIQ1_S, block::decode_iq1_s},
    {DType::kIQ1_M, block::decode_iq1_m},     {DType::kIQ4_NL, block::decode_iq4_nl},
    {DType::kIQ4_XS, block::decode_iq4_xs},   {DType::kTQ1_0, block::decode_tq1_0},
    {DType::kTQ2_0, block::decode_tq2_0},     {DType::kMXFP4, block::decode_mxfp4},
    {DType::kNVFP4, block::decode_nvfp4},     {DType::kQ1_0, block::decode_q1_0},
    {DType::kQ2_0, block::decode_q2_0},       {DType::kQ8A, block::decode_q8a},
    {DType::kInt16G128, block::decode_int16},
};

Decoder block_decoder(DType dtype) {
  static constexpr auto by_type = [] {
    std::array<Decoder, kDTypeCount> table{};
    for (const auto& [type, decode] : kDecoders) table[static_cast<size_t>(type)] = decode;
    return table;
  }();
  Decoder decode = by_type[static_cast<size_t>(dtype)];
  return decode ? decode : block::group_decoder(dtype);
}

constexpr std::pair<DType, Encoder> kEncoders[] = {
    {DType::kQ4_0, block::encode_q4_0},       {DType::kQ4_1, block::encode_q4_1},
    {DType::kQ5_0, block::encode_q5_0},       {DType::kQ5_1, block::encode_q5_1},
    {DType::kQ8_0, block::encode_q8_0},       {DType::kQ2_K, block::encode_q2_k},
    {DType::kQ3_K, block::encode_q3_k},       {DType::kQ4_K, block::encode_q4_k},
    {DType::kQ5_K, block::encode_q5_k},       {DType::kQ6_K, block::encode_q6_k},
    {DType::kIQ4_NL, block::encode_iq4_nl},   {DType::kIQ4_XS, block::encode_iq4_xs},
    {DType::kTQ1_0, block::encode_tq1_0},     {DType::kTQ2_0, block::encode_tq2_0},
    {DType::kMXFP4, block::encode_mxfp4},     {DType::kQ8A, block::encode_q8a},
    {DType::kInt16G128, block::encode_int16},
};

Encoder block_encoder(DType dtype) {
  for (const auto& [type, encode] : kEncoders)
    if (type == dtype) return encode;
  return nullptr;
}

// Elements of a plain type may be unaligned in a file (safetensors does not align them).
template <class T, class Convert>
void convert_row(const uint8_t* source, float* out, int64_t n, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

template <class T>
void cast_row(const uint8_t* source, float* out, int64_t n) {
  convert_row<T>(source, out, n, [](T v) { return static_cast<float>(v); });
}

void decode_plain(DType dtype, const uint8_t* p, float* out, int64_t n) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, p, static_cast<size_t>(n) * 4);
      return;
    case DType::kF16:
      return convert_row<uint16_t>(p, out, n, [](uint16_t h) { return block::half_to_float(h); });
    case DType::kBF16:
      return convert_row<uint16_t>(
          p, out, n, [](uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); });
    case DType::kF64:
      return cast_row<double>(p, out, n);
    case DType::kF8E4M3:
      return convert_row<uint8_t>(p, out, n, [](uint8_t b) { return block::f8e4m3_to_f32(b); });
    case DType::kF8E5M2:  // the upper byte of a half
      return convert_row<uint8_t>(
          p, out, n, [](uint8_t b) { return block::half_to_float(static_cast<uint16_t>(b << 8)); });
    case DType::kI8:
      return cast_row<int8_t>(p, out, n);
    case DType::kU8:
      return cast_row<uint8_t>(p, out, n);
    case DType::kI16:
      return cast_row<int16_t>(p, out, n);
    case DType::kI32:
      return cast_row<int32_t>(p, out, n);
    case DType::kI64:
      return cast_row<int64_t>(p, out, n);
    case DType::kBool:
      return convert_row<uint8_t>(p, out, n, [](uint8_t b) { return b ? 1.0f : 0.0f; });
    default:
      TK_CHECK(false, "{} is a block type", dtype_name(dtype));
  }
}

}  // namespace

float f16_to_f32(uint16_t bits) { return block::half_to_float(bits); }

uint16_t f32_to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00 | static_cast<uint16_t>(bits >> 13 & 0x3ff);
  if (bits >= 0x47800000)
    return sign | 0x7c00;  // 65536 and above; the range below rounds by itself
  if (bits < 0x38800000) {
    // Subnormal half: adding 0.5 leaves exactly the wanted bits at the end of the mantissa,
    // rounded.
    float shifted = std::bit_cast<float>(bits) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  uint32_t rounded = bits + 0xfff + (bits >> 13 & 1) - (112u << 23);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

namespace {

// Rounds to odd: the last bit is set if the result is inexact, so that rounding it again, to at
// least two bits less, gives the same as rounding `value` directly.
float round_to_odd(double value) {
  auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1);
}

}  // namespace

float round_to_dtype(DType dtype, double value) {
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(round_to_odd(value)));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(round_to_odd(value)));
  return static_cast<float>(value);
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t f32_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 64);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void decode_row(DType dtype, const void* source, float* out, int64_t n) {
  const auto* p = static_cast<const uint8_t*>(source);
  const DTypeInfo& info = dtype_info(dtype);
  TK_CHECK(n >= 0 && n % info.block_elements == 0, "{} values of {}", n, info.name);
  if (n == 0) return;
  Decoder decode = block_decoder(dtype);
  if (!decode) return decode_plain(dtype, p, out, n);
  for (int64_t i = 0; i < n; i += info.block_elements, p += info.block_bytes) decode(p, out + i);
}

bool can_encode(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF64 || block_encoder(dtype) != nullptr;
}

void encode_row(DType dtype, const float* source, void* out, int64_t n) {
  auto* p = static_cast<uint8_t*>(out);
  const DTypeInfo& info = dtype_info(dtype);
  if (!can_encode(dtype)) fail(ErrorCode::kUnsupported, "cannot convert weights to {}", info.name);
  TK_CHECK(n >= 0 && n % info.block_elements == 0, "{} values of {}", n, info.name);
  if (n == 0) return;
  if (Encoder encode = block_encoder(dtype)) {
    for (int64_t i = 0; i < n; i += info.block_elements, p += info.block_bytes)
      encode(source + i, p);
    return;
  }
  if (dtype == DType::kF32) {
    std::memcpy(p, source, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (dtype == DType::kF64) {
      double wide = source[i];
      std::memcpy(p + i * 8, &wide, 8);
    } else {
      block::store_u16(p + i * 2,
                       dtype == DType::kF16 ? f32_to_f16(source[i]) : f32_to_bf16(source[i]));
    }
  }
}

}  // namespace tokamak
