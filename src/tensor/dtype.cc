#include "tensor/dtype.h"

#include "base/error.h"

namespace tokamak {
namespace {

constexpr DTypeInfo kInfos[] = {
    {DType::kF32, "f32", 1, 4, true, 0},
    {DType::kF16, "f16", 1, 2, true, 1},
    {DType::kBF16, "bf16", 1, 2, true, 30},
    {DType::kF64, "f64", 1, 8, true, 28},
    {DType::kF8E4M3, "f8e4m3", 1, 1, true, -1},
    {DType::kF8E5M2, "f8e5m2", 1, 1, true, -1},
    {DType::kI8, "i8", 1, 1, false, 24},
    {DType::kU8, "u8", 1, 1, false, -1},
    {DType::kI16, "i16", 1, 2, false, 25},
    {DType::kI32, "i32", 1, 4, false, 26},
    {DType::kI64, "i64", 1, 8, false, 27},
    {DType::kBool, "bool", 1, 1, false, -1},
    {DType::kQ4_0, "q4_0", 32, 18, false, 2},
    {DType::kQ4_1, "q4_1", 32, 20, false, 3},
    {DType::kQ5_0, "q5_0", 32, 22, false, 6},
    {DType::kQ5_1, "q5_1", 32, 24, false, 7},
    {DType::kQ8_0, "q8_0", 32, 34, false, 8},
    {DType::kQ8_1, "q8_1", 32, 36, false, 9},
    {DType::kQ2_K, "q2_k", 256, 84, false, 10},
    {DType::kQ3_K, "q3_k", 256, 110, false, 11},
    {DType::kQ4_K, "q4_k", 256, 144, false, 12},
    {DType::kQ5_K, "q5_k", 256, 176, false, 13},
    {DType::kQ6_K, "q6_k", 256, 210, false, 14},
    {DType::kQ8_K, "q8_k", 256, 292, false, 15},
    {DType::kIQ2_XXS, "iq2_xxs", 256, 66, false, 16},
    {DType::kIQ2_XS, "iq2_xs", 256, 74, false, 17},
    {DType::kIQ2_S, "iq2_s", 256, 82, false, 22},
    {DType::kIQ3_XXS, "iq3_xxs", 256, 98, false, 18},
    {DType::kIQ3_S, "iq3_s", 256, 110, false, 21},
    {DType::kIQ1_S, "iq1_s", 256, 50, false, 19},
    {DType::kIQ1_M, "iq1_m", 256, 56, false, 29},
    {DType::kIQ4_NL, "iq4_nl", 32, 18, false, 20},
    {DType::kIQ4_XS, "iq4_xs", 256, 136, false, 23},
    {DType::kTQ1_0, "tq1_0", 256, 54, false, 34},
    {DType::kTQ2_0, "tq2_0", 256, 66, false, 35},
    {DType::kMXFP4, "mxfp4", 32, 17, false, 39},
    {DType::kNVFP4, "nvfp4", 64, 36, false, 40},
    {DType::kQ1_0, "q1_0", 128, 18, false, 41},
    {DType::kQ2_0, "q2_0", 64, 18, false, 42},
    {DType::kInt2G32, "int2_g32", 32, 11, false, -1},
    {DType::kInt2G64, "int2_g64", 64, 19, false, -1},
    {DType::kInt2G128, "int2_g128", 128, 35, false, -1},
    {DType::kInt2G32F, "int2_g32f", 32, 13, false, -1},
    {DType::kInt2G64F, "int2_g64f", 64, 21, false, -1},
    {DType::kInt2G128F, "int2_g128f", 128, 37, false, -1},
    {DType::kInt3G32, "int3_g32", 32, 15, false, -1},
    {DType::kInt3G64, "int3_g64", 64, 27, false, -1},
    {DType::kInt3G128, "int3_g128", 128, 51, false, -1},
    {DType::kInt3G32F, "int3_g32f", 32, 17, false, -1},
    {DType::kInt3G64F, "int3_g64f", 64, 29, false, -1},
    {DType::kInt3G128F, "int3_g128f", 128, 53, false, -1},
    {DType::kInt4G32, "int4_g32", 32, 19, false, -1},
    {DType::kInt4G64, "int4_g64", 64, 35, false, -1},
    {DType::kInt4G128, "int4_g128", 128, 67, false, -1},
    {DType::kInt4G32F, "int4_g32f", 32, 21, false, -1},
    {DType::kInt4G64F, "int4_g64f", 64, 37, false, -1},
    {DType::kInt4G128F, "int4_g128f", 128, 69, false, -1},
    {DType::kInt8G32, "int8_g32", 32, 35, false, -1},
    {DType::kInt8G64, "int8_g64", 64, 67, false, -1},
    {DType::kInt8G128, "int8_g128", 128, 131, false, -1},
    {DType::kInt8G32F, "int8_g32f", 32, 37, false, -1},
    {DType::kInt8G64F, "int8_g64f", 64, 69, false, -1},
    {DType::kInt8G128F, "int8_g128f", 128, 133, false, -1},
    {DType::kF8G32, "f8_g32", 32, 36, false, -1},
    {DType::kF8G64, "f8_g64", 64, 68, false, -1},
    {DType::kF8G128, "f8_g128", 128, 132, false, -1},
    {DType::kNF4G32, "nf4_g32", 32, 20, false, -1},
    {DType::kNF4G64, "nf4_g64", 64, 36, false, -1},
    {DType::kNF4G128, "nf4_g128", 128, 68, false, -1},
    {DType::kInt16G128, "int16_g128", 128, 260, false, -1},
    {DType::kQ8A, "q8a", 32, 40, false, -1},
};
static_assert(sizeof(kInfos) / sizeof(kInfos[0]) == kDTypeCount);

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  const DTypeInfo& info = kInfos[static_cast<int>(dtype)];
  TK_DCHECK(info.dtype == dtype);
  return info;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kInfos)
    if (info.name == name) return info.dtype;
  return std::nullopt;
}

std::optional<DType> dtype_from_gguf_id(uint32_t id) {
  for (const DTypeInfo& info : kInfos)
    if (info.gguf_id == static_cast<int>(id)) return info.dtype;
  return std::nullopt;
}

size_t dtype_bytes(DType dtype, int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  TK_CHECK(n >= 0 && n % info.block_elements == 0, "{} values do not fill whole {} blocks", n,
           info.name);
  return static_cast<size_t>(n) / info.block_elements * info.block_bytes;
}

}  // namespace tokamak
