// Super-blocks of 256 whose values come from codebooks (IQ types). iq_grids.inc holds the codebooks
// packed; they are unpacked at compile time.
#include <array>

#include "tensor/block_formats_detail.h"

namespace tokamak::block {
namespace {

#include "tensor/iq_grids.inc"

template <int Elements, size_t N, size_t V>
constexpr auto unpack_grid(const uint16_t (&words)[N], const int8_t (&values)[V]) {
  constexpr int kBits = 16 / Elements;
  std::array<std::array<int8_t, Elements>, N> grid{};
  for (size_t i = 0; i < N; ++i)
    for (int j = 0; j < Elements; ++j)
      grid[i][j] = values[words[i] >> (kBits * j) & ((1 << kBits) - 1)];
  return grid;
}

constexpr int8_t kIq2Values[] = {8, 25, 43};
constexpr int8_t kIq3XxsValues[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3SValues[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIq1Values[] = {-1, 0, 1};
constexpr auto kIq2XxsGrid = unpack_grid<8>(kIq2XxsWords, kIq2Values);
constexpr auto kIq2XsGrid = unpack_grid<8>(kIq2XsWords, kIq2Values);
constexpr auto kIq2SGrid = unpack_grid<8>(kIq2SWords, kIq2Values);
constexpr auto kIq3XxsGrid = unpack_grid<4>(kIq3XxsWords, kIq3XxsValues);
constexpr auto kIq3SGrid = unpack_grid<4>(kIq3SWords, kIq3SValues);
constexpr auto kIq1Grid = unpack_grid<8>(kIq1Words, kIq1Values);

// Seven stored signs; the eighth makes the number of minus signs even.
uint8_t complete_signs(uint32_t seven) {
  seven &= 127;
  return static_cast<uint8_t>(seven | (std::popcount(seven) & 1) << 7);
}

template <class Entry>
void write_signed(const Entry& entry, float scale, uint8_t signs, float* out) {
  for (size_t j = 0; j < entry.size(); ++j) {
    float value = scale * static_cast<float>(entry[j]);
    out[j] = signs >> j & 1 ? -value : value;
  }
}

}  // namespace

void decode_iq2_xxs(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* index = block + 2 + 8 * group;
    uint32_t signs = load_u32(index + 4);
    float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k)
      write_signed(kIq2XxsGrid[index[k]], scale, complete_signs(signs >> 7 * k),
                   out + 32 * group + 8 * k);
  }
}

void decode_iq2_xs(const uint8_t* block, float* out) {
  float d = load_half(block);
  const uint8_t* scales = block + 66;
  for (int k = 0; k < 32; ++k) {
    uint16_t word = load_u16(block + 2 + 2 * k);
    int nibble = scales[k / 4] >> (k / 2 % 2 * 4) & 15;
    float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
    write_signed(kIq2XsGrid[word & 511], scale, complete_signs(word >> 9), out + 8 * k);
  }
}

void decode_iq2_s(const uint8_t* block, float* out) {
  float d = load_half(block);
  const uint8_t *low = block + 2, *signs = block + 34, *high = block + 66, *scales = block + 74;
  for (int k = 0; k < 32; ++k) {
    int index = low[k] | (high[k / 4] >> (k % 4 * 2) & 3) << 8;
    int nibble = scales[k / 4] >> (k / 2 % 2 * 4) & 15;
    float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
    write_signed(kIq2SGrid[index], scale, signs[k], out + 8 * k);
  }
}

void decode_iq3_xxs(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* index = block + 2 + 8 * group;
    uint32_t signs = load_u32(block + 66 + 4 * group);
    float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
    for (int k = 0; k < 4; ++k) {
      uint8_t eight = complete_signs(signs >> 7 * k);
      float* o = out + 32 * group + 8 * k;
      write_signed(kIq3XxsGrid[index[2 * k]], scale, eight & 15, o);
      write_signed(kIq3XxsGrid[index[2 * k + 1]], scale, eight >> 4, o + 4);
    }
  }
}

void decode_iq3_s(const uint8_t* block, float* out) {
  float d = load_half(block);
  const uint8_t *low = block + 2, *high = block + 66, *signs = block + 74, *scales = block + 106;
  for (int k = 0; k < 64; ++k) {
    int index = low[k] | (high[k / 8] >> k % 8 & 1) << 8;
    int nibble = scales[k / 16] >> (k / 8 % 2 * 4) & 15;
    float scale = d * static_cast<float>(1 + 2 * nibble);
    write_signed(kIq3SGrid[index], scale, signs[k / 2] >> (k % 2 * 4) & 15, out + 4 * k);
  }
}

void decode_iq1_s(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int group = 0; group < 8; ++group) {
    uint16_t head = load_u16(block + 34 + 2 * group);
    float scale = d * static_cast<float>(2 * (head >> 12 & 7) + 1);
    float delta = head & 0x8000 ? -0.125f : 0.125f;
    for (int k = 0; k < 4; ++k) {
      const auto& entry = kIq1Grid[block[2 + 4 * group + k] | (head >> 3 * k & 7) << 8];
      for (int j = 0; j < 8; ++j)
        out[32 * group + 8 * k + j] = scale * (static_cast<float>(entry[j]) + delta);
    }
  }
}

void decode_iq1_m(const uint8_t* block, float* out) {
  const uint8_t *low = block, *high = block + 32, *scales = block + 48;
  uint32_t d_bits = 0;  // the half is spread over the top nibbles of four words
  for (int i = 0; i < 4; ++i)
    d_bits |= static_cast<uint32_t>(load_u16(scales + 2 * i) >> 12) << 4 * i;
  float d = half_to_float(static_cast<uint16_t>(d_bits));
  for (int k = 0; k < 32; ++k) {
    int three = load_u16(scales + 2 * (k / 8)) >> (k / 2 % 4 * 3) & 7;
    float scale = d * static_cast<float>(2 * three + 1);
    int nibble = high[k / 2] >> (k % 2 * 4) & 15;
    float delta = nibble & 8 ? -0.125f : 0.125f;
    const auto& entry = kIq1Grid[low[k] | (nibble & 7) << 8];
    for (int j = 0; j < 8; ++j) out[8 * k + j] = scale * (static_cast<float>(entry[j]) + delta);
  }
}

void decode_iq4_nl(const uint8_t* block, float* out) {
  float d = load_half(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * kIq4Values[block[2 + j] & 15];
    out[j + 16] = d * kIq4Values[block[2 + j] >> 4];
  }
}

void decode_iq4_xs(const uint8_t* block, float* out) {
  float d = load_half(block);
  uint16_t high = load_u16(block + 2);
  for (int group = 0; group < 8; ++group) {
    int low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    float scale = d * static_cast<float>((low | (high >> 2 * group & 3) << 4) - 32);
    const uint8_t* q = block + 8 + 16 * group;
    for (int j = 0; j < 16; ++j) {
      out[32 * group + j] = scale * kIq4Values[q[j] & 15];
      out[32 * group + j + 16] = scale * kIq4Values[q[j] >> 4];
    }
  }
}

}  // namespace tokamak::block
