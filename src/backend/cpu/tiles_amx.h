#pragma once
// Tile registers of the matrix unit. Asm of its own: the compiler's intrinsics do not tell it that
// memory is read. A configuration is what the thread has now: other code in the process may have
// changed it.
#include <cstdint>

namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Storing the configuration takes a tenth of the time of loading one.
TK_INLINE void use_tiles(const TileConfig& wanted) {
  TileConfig now;
  asm volatile("sttilecfg %0" : "=m"(now));
  __m512i a = _mm512_load_si512(&now), b = _mm512_load_si512(&wanted);
  if (_mm512_cmpneq_epi32_mask(a, b) != 0) asm volatile("ldtilecfg %0" : : "m"(wanted));
}

template <int tile>
TK_INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
TK_INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
TK_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
// sums = x . w of signed bytes, in 32 bits.
template <int sums, int x, int w>
TK_INLINE void tile_product() {
  asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(sums), "i"(x), "i"(w));
}

// sums += x . w of bf16 numbers, in f32.
template <int sums, int x, int w>
TK_INLINE void tile_add_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(x), "i"(w));
}

}  // namespace
