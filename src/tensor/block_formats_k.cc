// Super-blocks of 256 with quantised scales (K-quants), and the ternary types.
#include "tensor/block_formats_detail.h"

namespace tokamak::block {

void decode_q2_k(const uint8_t* block, float* out) {
  const uint8_t *scales = block, *qs = block + 16;
  float d = load_half(block + 80), dmin = load_half(block + 82);
  for (int sub = 0; sub < 16; ++sub) {  // 16 values each; 8 sub-blocks share 32 bytes
    float scale = d * static_cast<float>(scales[sub] & 15);
    float minimum = dmin * static_cast<float>(scales[sub] >> 4);
    const uint8_t* q = qs + 32 * (sub / 8) + 16 * (sub % 2);
    int shift = 2 * (sub / 2 % 4);
    for (int j = 0; j < 16; ++j)
      out[16 * sub + j] = scale * static_cast<float>(q[j] >> shift & 3) - minimum;
  }
}

void decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t *hmask = block, *qs = block + 32, *scales = block + 96;
  float d = load_half(block + 108);
  for (int sub = 0; sub < 16; ++sub) {
    int low = scales[sub % 8] >> (sub / 8 * 4) & 15;
    int high = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
    float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t *q = qs + 32 * (sub / 8) + 16 * (sub % 2), *h = hmask + 16 * (sub % 2);
    int shift = 2 * (sub / 2 % 4), bit = sub / 2;
    for (int j = 0; j < 16; ++j) {
      int value = (q[j] >> shift & 3) - (h[j] >> bit & 1 ? 0 : 4);
      out[16 * sub + j] = scale * static_cast<float>(value);
    }
  }
}

void decode_q4_k(const uint8_t* block, float* out) {
  float d = load_half(block), dmin = load_half(block + 2);
  const uint8_t *scales = block + 4, *qs = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    int sc, m;
    unpack_scale_min(scales, sub, sc, m);
    float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
    const uint8_t* q = qs + 32 * (sub / 2);
    int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j)
      out[32 * sub + j] = scale * static_cast<float>(q[j] >> shift & 15) - minimum;
  }
}

void decode_q5_k(const uint8_t* block, float* out) {
  float d = load_half(block), dmin = load_half(block + 2);
  const uint8_t *scales = block + 4, *qh = block + 16, *qs = block + 48;
  for (int sub = 0; sub < 8; ++sub) {
    int sc, m;
    unpack_scale_min(scales, sub, sc, m);
    float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
    const uint8_t* q = qs + 32 * (sub / 2);
    int shift = 4 * (sub % 2);
    for (int j = 0; j < 32; ++j) {
      int value = (q[j] >> shift & 15) | (qh[j] >> sub & 1) << 4;
      out[32 * sub + j] = scale * static_cast<float>(value) - minimum;
    }
  }
}

void decode_q6_k(const uint8_t* block, float* out) {
  float d = load_half(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *ql = block + 64 * half, *qh = block + 128 + 32 * half;
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192 + 8 * half);
    for (int sub = 0; sub < 8; ++sub) {  // 16 values each
      int quarter = sub / 2, column = 16 * (sub % 2);
      const uint8_t *low = ql + 32 * (quarter % 2) + column, *high = qh + column;
      int low_shift = 4 * (quarter / 2), high_shift = 2 * quarter;
      float scale = d * static_cast<float>(scales[sub]);
      float* o = out + 128 * half + 16 * sub;
      for (int j = 0; j < 16; ++j) {
        int value = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
        o[j] = scale * static_cast<float>(value - 32);
      }
    }
  }
}

void decode_q8_k(const uint8_t* block, float* out) {
  float d;
  std::memcpy(&d, block, sizeof d);
  for (int j = 0; j < 256; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[4 + j]));
}

// Five base-3 digits in a byte as a fraction of 256: multiplying by 3^n brings digit n to the top.
void decode_tq1_0(const uint8_t* block, float* out) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  float d = load_half(block + 52);
  auto digits = [&](const uint8_t* bytes, int count, int per_byte) {
    for (int n = 0; n < per_byte; ++n)
      for (int j = 0; j < count; ++j) {
        auto turned = static_cast<uint8_t>(bytes[j] * kPowers[n]);
        *out++ = d * static_cast<float>((turned * 3 >> 8) - 1);
      }
  };
  digits(block, 32, 5);
  digits(block + 32, 16, 5);
  digits(block + 48, 4, 4);
}

void decode_tq2_0(const uint8_t* block, float* out) {
  float d = load_half(block + 64);
  for (int half = 0; half < 2; ++half)
    for (int shift = 0; shift < 8; shift += 2)
      for (int j = 0; j < 32; ++j)
        *out++ = d * static_cast<float>((block[32 * half + j] >> shift & 3) - 1);
}

}  // namespace tokamak::block
