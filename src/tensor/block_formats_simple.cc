// Blocks with one level of scales: of 32 values, nvfp4 and q2_0 of 64, q1_0 of 128.
#include "tensor/block_formats_detail.h"

namespace tokamak::block {
namespace {

// Four-bit floats E2M1 times two, so that all are integers; the scales are halved in turn.
// Half of an unsigned E4M3; the format defines 0x7f as zero.
float half_of_ue4m3(uint8_t e) {
  if (e == 0x7f) return 0.0f;
  int exponent = e >> 3 & 15;
  float mantissa = static_cast<float>(e & 7);
  if (exponent == 0) return mantissa * 0x1p-10f;
  return (1.0f + mantissa / 8.0f) * std::ldexp(1.0f, exponent - 8);
}

}  // namespace

void decode_q4_0(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int j = 0; j < 16; ++j) {
    uint8_t b = block[2 + j];
    out[j] = d * static_cast<float>((b & 15) - 8);
    out[j + 16] = d * static_cast<float>((b >> 4) - 8);
  }
}

void decode_q4_1(const uint8_t* block, float* out) {
  float d = load_half(block), m = load_half(block + 2);
  for (int j = 0; j < 16; ++j) {
    uint8_t b = block[4 + j];
    out[j] = d * static_cast<float>(b & 15) + m;
    out[j + 16] = d * static_cast<float>(b >> 4) + m;
  }
}

void decode_q5_0(const uint8_t* block, float* out) {
  float d = load_half(block);
  uint32_t high = load_u32(block + 2);
  for (int j = 0; j < 16; ++j) {
    uint8_t b = block[6 + j];
    int lo = (b & 15) | (high >> j & 1) << 4, hi = b >> 4 | (high >> (j + 16) & 1) << 4;
    out[j] = d * static_cast<float>(lo - 16);
    out[j + 16] = d * static_cast<float>(hi - 16);
  }
}

void decode_q5_1(const uint8_t* block, float* out) {
  float d = load_half(block), m = load_half(block + 2);
  uint32_t high = load_u32(block + 4);
  for (int j = 0; j < 16; ++j) {
    uint8_t b = block[8 + j];
    uint32_t lo = (b & 15u) | (high >> j & 1) << 4, hi = b >> 4 | (high >> (j + 16) & 1) << 4;
    out[j] = d * static_cast<float>(lo) + m;
    out[j + 16] = d * static_cast<float>(hi) + m;
  }
}

void decode_q8_0(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
}

void decode_q8_1(const uint8_t* block, float* out) {
  float d = load_half(block);  // the second half is the sum of the block, not needed here
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[4 + j]));
}

void decode_q8a(const uint8_t* block, float* out) {
  float scale;
  std::memcpy(&scale, block, sizeof scale);
  for (int j = 0; j < 32; ++j)
    out[j] = scale * static_cast<float>(static_cast<int8_t>(block[8 + j]));
}

void decode_int16(const uint8_t* block, float* out) {
  BlockInt16 b;
  std::memcpy(&b, block, sizeof b);
  for (int j = 0; j < 128; ++j) out[j] = b.scale * static_cast<float>(b.q[j]);
}

void decode_mxfp4(const uint8_t* block, float* out) {
  float d = half_of_e8m0(block[0]);
  for (int j = 0; j < 16; ++j) {
    uint8_t b = block[1 + j];
    out[j] = d * kFp4Doubled[b & 15];
    out[j + 16] = d * kFp4Doubled[b >> 4];
  }
}

void decode_nvfp4(const uint8_t* block, float* out) {
  for (int s = 0; s < 4; ++s) {
    float d = half_of_ue4m3(block[s]);
    const uint8_t* q = block + 4 + 8 * s;
    for (int j = 0; j < 8; ++j) {
      out[16 * s + j] = d * kFp4Doubled[q[j] & 15];
      out[16 * s + j + 8] = d * kFp4Doubled[q[j] >> 4];
    }
  }
}

void decode_q1_0(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int j = 0; j < 128; ++j) out[j] = block[2 + j / 8] >> j % 8 & 1 ? d : -d;
}

void decode_q2_0(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int j = 0; j < 64; ++j)
    out[j] = d * static_cast<float>((block[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
}

}  // namespace tokamak::block
