// Encoders of the super-blocks of 256, of the ternary types and of those with a table of values.
#include <algorithm>
#include <array>

#include "tensor/block_formats_search.h"

namespace tokamak::block {
namespace {

// q4_k and q5_k: scales and minima of eight sub-blocks in 12 bytes; the fifth bit apart.
void encode_with_minima(const float* x, int levels, uint8_t* qs, uint8_t* high, uint8_t* block) {
  std::array<ScaleMin, 8> fits;
  float top_scale = 0, top_minimum = 0;
  for (int sub = 0; sub < 8; ++sub) {
    fits[sub] = search_scale_min(x + 32 * sub, 32, levels);
    top_scale = std::max(top_scale, fits[sub].scale);
    top_minimum = std::max(top_minimum, fits[sub].minimum);
  }
  store_u16(block, f32_to_f16(top_scale / 63));
  store_u16(block + 2, f32_to_f16(top_minimum / 63));
  float d = load_half(block), dmin = load_half(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    int sc = nearest(fits[sub].scale * inverse(d), 0, 63);
    int m = nearest(fits[sub].minimum * inverse(dmin), 0, 63);
    pack_scale_min(sub, sc, m, block + 4);
    // Levels are chosen against the scale and minimum as they will be decoded.
    float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
    for (int j = 0; j < 32; ++j) {
      int q = nearest((x[32 * sub + j] + minimum) * inverse(scale), 0, levels);
      qs[32 * (sub / 2) + j] |= static_cast<uint8_t>((q & 15) << 4 * (sub % 2));
      if (high) high[j] |= static_cast<uint8_t>(q >> 4 << sub);
    }
  }
}

int nearest_iq4(float x) {
  int best = 0;
  for (int k = 1; k < 16; ++k)
    if (std::fabs(x - kIq4Values[k]) < std::fabs(x - kIq4Values[best])) best = k;
  return best;
}

// The scale of 32 values whose best levels of the table leave the smallest error, weighted by x^2.
float search_iq4_scale(const float* x) {
  float peak = signed_peak(x, 32);
  if (peak == 0 || !std::isfinite(peak)) return 0;
  float best = peak / kIq4Values[0];
  double best_gain = -1;
  for (int step = -14; step <= 14; ++step) {  // both ends of the table may take the peak
    float end = step < 0 ? kIq4Values[0] - static_cast<float>(2 * step + 14)
                         : kIq4Values[15] + static_cast<float>(2 * step - 14);
    float inverse_scale = end / peak;
    double xq = 0, qq = 0;
    for (int j = 0; j < 32; ++j) {
      double v = kIq4Values[nearest_iq4(x[j] * inverse_scale)];
      double w = static_cast<double>(x[j]) * x[j];
      xq += w * x[j] * v;
      qq += w * v * v;
    }
    if (qq > 0 && xq * xq / qq > best_gain) {
      best_gain = xq * xq / qq;
      best = static_cast<float>(xq / qq);
    }
  }
  return best;
}

void pack_iq4(const float* x, float scale, uint8_t* out) {
  float id = inverse(scale);
  for (int j = 0; j < 16; ++j)
    out[j] = static_cast<uint8_t>(nearest_iq4(x[j] * id) | nearest_iq4(x[j + 16] * id) << 4);
}

// -1, 0 or 1 as 0, 1 or 2.
int ternary(float x, float id) { return truncated(std::round(x * id), -1, 1) + 1; }

}  // namespace

void encode_q2_k(const float* x, uint8_t* block) {
  std::array<ScaleMin, 16> fits;
  float top_scale = 0, top_minimum = 0;
  for (int sub = 0; sub < 16; ++sub) {
    fits[sub] = search_scale_min(x + 16 * sub, 16, 3);
    top_scale = std::max(top_scale, fits[sub].scale);
    top_minimum = std::max(top_minimum, fits[sub].minimum);
  }
  std::memset(block, 0, 84);
  store_u16(block + 80, f32_to_f16(top_scale / 15));
  store_u16(block + 82, f32_to_f16(top_minimum / 15));
  float d = load_half(block + 80), dmin = load_half(block + 82);
  for (int sub = 0; sub < 16; ++sub) {
    int sc = nearest(fits[sub].scale * inverse(d), 0, 15);
    int m = nearest(fits[sub].minimum * inverse(dmin), 0, 15);
    block[sub] = static_cast<uint8_t>(sc | m << 4);
    float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
    uint8_t* qs = block + 16 + 32 * (sub / 8) + 16 * (sub % 2);
    for (int j = 0; j < 16; ++j)
      qs[j] |= static_cast<uint8_t>(nearest((x[16 * sub + j] + minimum) * inverse(scale), 0, 3)
                                    << 2 * (sub / 2 % 4));
  }
}

void encode_q3_k(const float* x, uint8_t* block) {
  float scales[16];
  for (int sub = 0; sub < 16; ++sub) scales[sub] = search_scale(x + 16 * sub, 4);
  std::memset(block, 0, 110);
  store_u16(block + 108, f32_to_f16(signed_peak(scales, 16) / -32.0f));
  float d = load_half(block + 108);
  for (int sub = 0; sub < 16; ++sub) {
    int sc = nearest(scales[sub] * inverse(d), -32, 31), stored = sc + 32;
    block[96 + sub % 8] |= static_cast<uint8_t>((stored & 15) << sub / 8 * 4);
    block[104 + sub % 4] |= static_cast<uint8_t>(stored >> 4 << sub / 4 * 2);
    float inverse_scale = inverse(d * static_cast<float>(sc));
    uint8_t *qs = block + 32 + 32 * (sub / 8) + 16 * (sub % 2), *high = block + 16 * (sub % 2);
    for (int j = 0; j < 16; ++j) {
      int q = nearest(x[16 * sub + j] * inverse_scale, -4, 3) + 4;
      qs[j] |= static_cast<uint8_t>((q & 3) << 2 * (sub / 2 % 4));
      high[j] |= static_cast<uint8_t>(q >> 2 << sub / 2);
    }
  }
}

void encode_q4_k(const float* x, uint8_t* block) {
  std::memset(block, 0, 144);
  encode_with_minima(x, 15, block + 16, nullptr, block);
}

void encode_q5_k(const float* x, uint8_t* block) {
  std::memset(block, 0, 176);
  encode_with_minima(x, 31, block + 48, block + 16, block);
}

void encode_q6_k(const float* x, uint8_t* block) {
  float scales[16];
  for (int sub = 0; sub < 16; ++sub) scales[sub] = search_scale(x + 16 * sub, 32);
  std::memset(block, 0, 210);
  store_u16(block + 208, f32_to_f16(signed_peak(scales, 16) / -128.0f));
  float d = load_half(block + 208);
  for (int sub = 0; sub < 16; ++sub) {
    int sc = nearest(scales[sub] * inverse(d), -128, 127);
    block[192 + sub] = static_cast<uint8_t>(sc);
    float inverse_scale = inverse(d * static_cast<float>(sc));
    int half = sub / 8, quarter = sub / 2 % 4;
    for (int j = 0; j < 16; ++j) {
      int q = nearest(x[16 * sub + j] * inverse_scale, -32, 31) + 32, column = 16 * (sub % 2) + j;
      block[64 * half + 32 * (quarter % 2) + column] |=
          static_cast<uint8_t>((q & 15) << 4 * (quarter / 2));
      block[128 + 32 * half + column] |= static_cast<uint8_t>(q >> 4 << 2 * quarter);
    }
  }
}

void encode_iq4_nl(const float* x, uint8_t* block) {
  store_u16(block, f32_to_f16(search_iq4_scale(x)));
  pack_iq4(x, load_half(block), block + 2);
}

void encode_iq4_xs(const float* x, uint8_t* block) {
  float scales[8];
  for (int group = 0; group < 8; ++group) scales[group] = search_iq4_scale(x + 32 * group);
  std::memset(block, 0, 136);
  store_u16(block, f32_to_f16(signed_peak(scales, 8) / -32.0f));
  float d = load_half(block);
  uint32_t high = 0;
  for (int group = 0; group < 8; ++group) {
    int sc = nearest(scales[group] * inverse(d), -32, 31), stored = sc + 32;
    block[4 + group / 2] |= static_cast<uint8_t>((stored & 15) << group % 2 * 4);
    high |= static_cast<uint32_t>(stored >> 4) << 2 * group;
    pack_iq4(x + 32 * group, d * static_cast<float>(sc), block + 8 + 16 * group);
  }
  store_u16(block + 2, static_cast<uint16_t>(high));
}

// Five base-3 digits in a byte, as a fraction of 256.
void encode_tq1_0(const float* x, uint8_t* block) {
  float d = std::fabs(signed_peak(x, 256)), id = inverse(d);
  auto digits = [&](uint8_t* bytes, int count, int per_byte) {
    for (int j = 0; j < count; ++j) {
      int value = 0;
      for (int n = 0; n < 5; ++n)
        value = 3 * value + (n < per_byte ? ternary(x[n * count + j], id) : 0);
      bytes[j] = static_cast<uint8_t>((value * 256 + 242) / 243);
    }
    x += count * per_byte;
  };
  digits(block, 32, 5);
  digits(block + 32, 16, 5);
  digits(block + 48, 4, 4);
  store_u16(block + 52, f32_to_f16(d));
}

void encode_tq2_0(const float* x, uint8_t* block) {
  float d = std::fabs(signed_peak(x, 256)), id = inverse(d);
  std::memset(block, 0, 64);
  for (int i = 0; i < 256; ++i)
    block[32 * (i / 128) + i % 32] |= static_cast<uint8_t>(ternary(x[i], id) << 2 * (i / 32 % 4));
  store_u16(block + 64, f32_to_f16(d));
}

}  // namespace tokamak::block
