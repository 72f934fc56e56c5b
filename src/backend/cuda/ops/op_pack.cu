// Weights in the order of the persistent decode kernel (backend/cuda/decode_pack.h).
#include "backend/cuda/ops/args.h"
#include "backend/cuda/ops/blocks.cuh"

namespace tokamak::cuda {

TK_DEVICE const uint8_t* pack_source_row(const PackArgs& a, int64_t row) {
  int source = 0;
  if (a.alternate) {
    source = static_cast<int>(row % 2);
    row /= 2;
  } else {
    while (source < kPackSources && row >= a.rows[source]) row -= a.rows[source++];
  }
  if (source == kPackSources || row >= a.rows[source]) return nullptr;  // after the last
  return a.source[source] + row * a.row_bytes;
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
  bool four = a.type == DType::kQ4_0;
  const uint8_t* source = pack_source_row(a, row);
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

}  // namespace tokamak::cuda
