// Weights in the order of the persistent decode kernel (backend/cuda/decode_pack.h), and as bf16.
#include "backend/cuda/decode_segments.h"
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/blocks.cuh"

namespace tokamak::cuda {

// source: the weight that the row is of.
TK_DEVICE const uint8_t* pack_source_row(const PackArgs& a, int64_t row, int& source) {
  source = 0;
  if (a.alternate) {
    source = static_cast<int>(row % 2);
    row /= 2;
  } else {
    while (source < kPackSources && row >= a.rows[source]) row -= a.rows[source++];
  }
  if (source == kPackSources || row >= a.rows[source]) return nullptr;  // after the last
  return a.source[source] + row * a.row_bytes[source];
}

// Element i of four bits, of a block of q4_0, less 8 in two's complement.
TK_DEVICE uint32_t q4_number(const uint8_t* block, int i) {
  return (uint32_t{block[2 + i % 16]} >> (i < 16 ? 0 : 4) & 15) ^ 8;
}

// A thread has one row's block of 32: neighbours read neighbouring blocks.
TK_KERNEL(op_pack, PackArgs, kElementThreads) {
  constexpr int kTileRows = 16, kConsumers = 8;
  int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  int64_t blocks = a.width / 32;
  if (i >= a.tiles * kTileRows * blocks) return;
  int64_t row = i / blocks, segment = i % blocks;
  bool four = a.type[0] == DType::kQ4_0;
  int which;
  const uint8_t* source = pack_source_row(a, row, which);
  const uint8_t* block = source ? source + segment * (four ? 18 : 34) : nullptr;
  int64_t segments = blocks / (a.parts * kConsumers), bytes = segments * (four ? 256 : 512);
  uint8_t* chunk = a.to + row / kTileRows * (a.parts * kConsumers * (bytes + segments * 32)) +
                   segment / segments * (bytes + segments * 32);
  int s = static_cast<int>(segment % segments), r = static_cast<int>(row % kTileRows);
  int lane = r % 8 * 4, low = r / 8;
  for (int q = 0; q < 4; ++q) {
    if (four) {
      uint32_t word = 0;
      for (int j = 0; j < 4 && block; ++j)
        word |= (q4_number(block, 8 * q + j) | q4_number(block, 8 * q + j + 4) << 4) << 8 * j;
      uint8_t* to = chunk + s / 2 * 512 + (lane + q) * 16 + s % 2 * 8 + low * 4;
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      Words2 words = {0, 0};
      if (block) words = {word_at(block + 2 + 8 * q), word_at(block + 6 + 8 * q)};
      *reinterpret_cast<Words2*>(chunk + s * 512 + (lane + q) * 16 + low * 8) = words;
    }
  }
  uint16_t scale = block ? *reinterpret_cast<const uint16_t*>(block) : uint16_t{0};
  *reinterpret_cast<uint16_t*>(chunk + bytes + (s * 8 + r % 8) * 4 + low * 2) = scale;
}

struct DeviceHalf {
  TK_DEVICE static float value(uint16_t bits) { return half_value(bits); }
  TK_DEVICE static uint16_t bits(float x) { return half_bits(x); }
  TK_DEVICE static float mul(float a, float b) { return mul_rn(a, b); }
};

// The same for kK4 and kK8, whatever the blocks are.
TK_KERNEL(op_pack_segments, PackArgs, kElementThreads) {
  constexpr int kTileRows = 16, kConsumers = 8;
  const int64_t i = int64_t{blockIdx.x} * kElementThreads + threadIdx.x, blocks = a.width / 32;
  if (i >= a.tiles * kTileRows * blocks) return;
  const int64_t row = i / blocks, segment = i % blocks;
  const DecodeWeight type = a.eight ? DecodeWeight::kK8 : DecodeWeight::kK4;
  const int64_t segments = blocks / (a.parts * kConsumers);
  const int64_t numbers = segments * decode_number_bytes(type);
  const int64_t bytes = numbers + segments * decode_scale_bytes(type);
  uint8_t* chunk = a.to + (row / kTileRows * (a.parts * kConsumers) + segment / segments) * bytes;
  int which;
  const uint8_t* source = pack_source_row(a, row, which);
  if (!source) return;  // zeros
  const SegmentReader<DeviceHalf> reader(a.type[which], source, segment);
  const int s = static_cast<int>(segment % segments), r = static_cast<int>(row % kTileRows);
  for (int lane = 0; lane < 4; ++lane) {
    uint32_t words[2] = {};
    for (int j = 0; j < 8; ++j) {
      const auto number = static_cast<uint32_t>(reader.number(lane * 8 + j));
      if (a.eight)
        words[j / 4] |= (number & 255) << j % 4 * 8;
      else
        words[0] |= (number & 15) << (j % 4 * 8 + j / 4 * 4);
    }
    uint8_t* to = chunk + (r % 8 * 4 + lane) * 16;
    if (a.eight)
      *reinterpret_cast<Words2*>(to + s * 512 + r / 8 * 8) = {words[0], words[1]};
    else
      *reinterpret_cast<uint32_t*>(to + s / 2 * 512 + s % 2 * 8 + r / 8 * 4) = words[0];
  }
  const int each = a.eight ? 3 : 2;  // words of a row and the one eight further
  auto* scales = reinterpret_cast<uint16_t*>(chunk + numbers) + (s * 8 + r % 8) * each * 2 + r / 8;
  scales[0] = reader.scale[0];
  if (a.eight) scales[2] = reader.scale[1];
  scales[each * 2 - 2] = reader.offset;
}

TK_DEVICE void expand8(DType type, const uint8_t* row, int64_t at, float (&out)[8]) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return load8(row, type, at, out);
    case DType::kMXFP4:
      return decode8_mxfp4(row, at, out);
    case DType::kQ8A: {
      const uint8_t* block = row + at / 32 * 40;
      unpack_bytes(*reinterpret_cast<const Words2*>(block + 8 + at % 32), out);
#pragma unroll
      for (int j = 0; j < 8; ++j) out[j] = mul_rn(*reinterpret_cast<const float*>(block), out[j]);
      return;
    }
    default:
      return decode8(type, row, at, out);
  }
}

// A block of threads has 8 values each of one row.
TK_KERNEL(op_expand, ExpandArgs, kElementThreads) {
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kElementThreads + threadIdx.x) * 8;
  if (at >= a.width) return;
  float v[8];
  expand8(a.type, a.x + row * a.row_bytes, at, v);
  *reinterpret_cast<Words4*>(a.y + row * a.width + at) = {
      pack_brain(v[0], v[1]), pack_brain(v[2], v[3]), pack_brain(v[4], v[5]),
      pack_brain(v[6], v[7])};
}

// The nearest E4M3, even where two are as near; too large: the largest.
TK_DEVICE uint32_t e4m3_bits(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80;
  const float size = fabsf(x);
  if (size < 0x1p-6f) return sign | static_cast<uint32_t>(rintf(size * 0x1p9f));
  uint32_t rest = bits & 0x7fffffff;
  rest = (rest + 0x7ffff + (rest >> 20 & 1)) >> 20;  // exponent and three bits
  rest -= (127 - 7) << 3;
  return sign | (rest > 0x7e ? 0x7e : rest);
}

// Rows of bf16 as E4M3 with a scale each. A warp per row.
TK_KERNEL(op_pack_fp8, PackArgs, kElementThreads) {
  constexpr int kTileRows = 16, kConsumers = 8;
  constexpr float kLargest = 448;
  const int64_t row = (int64_t{blockIdx.x} * kElementThreads + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (row >= a.tiles * kTileRows) return;
  int which;
  const auto* source = reinterpret_cast<const uint16_t*>(pack_source_row(a, row, which));
  float most = 0;
  for (int64_t i = lane; i < a.width && source; i += kWarp)
    most = fmaxf(most, fabsf(brain_value(source[i])));
  most = warp_max(most);
  const float scale = most > 0 ? most / kLargest : 1.0f;
  if (lane == 0 && source) a.scales[row] = scale;
  const int64_t segments = a.width / 32 / (a.parts * kConsumers), bytes = segments * 512;
  uint8_t* tile = a.to + row / kTileRows * (a.parts * kConsumers * bytes);
  const int r = static_cast<int>(row % kTileRows);
  for (int64_t word = lane; word < a.width / 4; word += kWarp) {
    const int64_t segment = word / 8;
    const int e = static_cast<int>(word % 8) * 4;
    uint32_t v[4] = {};
    for (int j = 0; j < 4 && source; ++j)
      v[j] = e4m3_bits(brain_value(source[word * 4 + j]) / scale);
    uint8_t* to = tile + segment / segments * bytes + segment % segments * 512 +
                  (r % 8 * 4 + e / 8) * 16 + r / 8 * 8 + e % 8;
    *reinterpret_cast<uint32_t*>(to) = v[0] | v[2] << 8 | v[1] << 16 | v[3] << 24;
  }
}

}  // namespace tokamak::cuda
