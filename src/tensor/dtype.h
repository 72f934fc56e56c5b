#pragma once
// Element types, plain and block-quantised. A block type stores `block_elements` values of one row
// in `block_bytes` bytes; byte layouts and decoders are in tensor/block_formats.h.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tokamak {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool,
  // Block formats of GGUF files.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ8_K,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ1_S,
  kIQ1_M,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,
  // Groups of 32, 64 or 128 values of a row with a scale, as quantised checkpoints store them
  // (tensor/group_formats.h): whole numbers of 2, 3, 4 and 8 bits with an f16 or f32 scale (F) and
  // a zero point, f8e4m3 and NF4 with an f32 scale.
  kInt2G32,
  kInt2G64,
  kInt2G128,
  kInt2G32F,
  kInt2G64F,
  kInt2G128F,
  kInt3G32,
  kInt3G64,
  kInt3G128,
  kInt3G32F,
  kInt3G64F,
  kInt3G128F,
  kInt4G32,
  kInt4G64,
  kInt4G128,
  kInt4G32F,
  kInt4G64F,
  kInt4G128F,
  kInt8G32,
  kInt8G64,
  kInt8G128,
  kInt8G32F,
  kInt8G64F,
  kInt8G128F,
  kF8G32,
  kF8G64,
  kF8G128,
  kNF4G32,
  kNF4G64,
  kNF4G128,
  // 128 values as int16 with an f32 scale (BlockInt16): matrices rounded at load for products with
  // activations in the same form.
  kInt16G128,
  // Activations quantised on the fly by the `quantize` op: 32 values as int8 with scale and sum
  // (BlockQ8A).
  kQ8A,
};
constexpr int kDTypeCount = static_cast<int>(DType::kQ8A) + 1;

struct DTypeInfo {
  DType dtype;
  std::string_view name;    // "f32", "q4_k"
  uint32_t block_elements;  // 1 for plain types
  uint32_t block_bytes;
  bool is_float;  // plain floating-point type
  int gguf_id;    // type id in GGUF files, -1 if none
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }
inline bool is_block_type(DType dtype) { return dtype_info(dtype).block_elements > 1; }
std::optional<DType> dtype_from_name(std::string_view name);
std::optional<DType> dtype_from_gguf_id(uint32_t id);

// Bytes of `n` consecutive elements of one row; n must be a multiple of the block (TK_CHECK).
size_t dtype_bytes(DType dtype, int64_t n);

}  // namespace tokamak
