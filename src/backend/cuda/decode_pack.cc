#include "backend/cuda/decode_pack.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/decode_segments.h"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

constexpr size_t kBlock = 32;  // elements with one scale

// One row of the source in the form that is packed.
struct SourceRow {
  const uint8_t* bytes;  // null: a row after the last
  DecodeWeight type;

  const uint8_t* block(size_t element) const {
    return bytes + element / kBlock * (type == DecodeWeight::kQ8 ? 34 : 18);
  }
  uint8_t number(size_t element) const {
    size_t i = element % kBlock;
    switch (type) {
      case DecodeWeight::kFp8:
        return bytes ? bytes[element] : 0;
      case DecodeWeight::kQ8:
        return bytes ? block(element)[2 + i] : 0;
      default:
        if (!bytes) return 0;
        return static_cast<uint8_t>((block(element)[2 + i % 16] >> (i < 16 ? 0 : 4) & 15) ^ 8);
    }
  }
  uint16_t scale(size_t element) const {
    uint16_t half = 0;
    if (bytes) std::memcpy(&half, block(element), sizeof half);
    return half;
  }
};

size_t row_bytes(DecodeWeight type, size_t width) {
  if (type == DecodeWeight::kFp8) return width;
  if (type == DecodeWeight::kK4) return dtype_bytes(DType::kQ4_K, static_cast<int64_t>(width));
  if (type == DecodeWeight::kK8) return dtype_bytes(DType::kQ6_K, static_cast<int64_t>(width));
  return width / kBlock * (type == DecodeWeight::kQ8 ? 34 : 18);
}

struct HostHalf {
  static float value(uint16_t bits) { return f16_to_f32(bits); }
  static uint16_t bits(float x) { return f32_to_f16(x); }
  static float mul(float a, float b) { return a * b; }
};

// 16 rows of one segment of kK4 or kK8.
void pack_k_segment(DecodeWeight type, const SourceRow* rows, size_t s, size_t segment,
                    size_t segments, uint8_t* to) {
  const bool eight = type == DecodeWeight::kK8;
  for (size_t row = 0; row < 16; ++row) {
    if (!rows[row].bytes) continue;
    const SegmentReader<HostHalf> reader(eight ? DType::kQ6_K : DType::kQ4_K, rows[row].bytes,
                                         static_cast<int64_t>(segment));
    for (size_t e = 0; e < kBlock; ++e) {
      const size_t lane = row % 8 * 4 + e / 8, low = row / 8, i = e % 8;
      const auto number = static_cast<uint8_t>(reader.number(static_cast<int>(e)));
      if (eight) {
        to[s * 512 + lane * 16 + low * 8 + i] = number;
      } else {
        uint8_t& byte = to[s / 2 * 512 + lane * 16 + s % 2 * 8 + low * 4 + i % 4];
        byte = static_cast<uint8_t>(byte | (number & 15) << (i < 4 ? 0 : 4));
      }
    }
    const uint16_t halves[] = {reader.scale[0], eight ? reader.scale[1] : reader.offset,
                               reader.offset};
    const size_t count = eight ? 3 : 2;
    uint8_t* scales = to + segments * static_cast<size_t>(decode_number_bytes(type)) +
                      (s * 8 + row % 8) * count * 4 + row / 8 * 2;
    for (size_t i = 0; i < count; ++i) std::memcpy(scales + i * 4, &halves[i], sizeof halves[i]);
  }
}

// 16 rows of one segment. `to`: the chunk, `s`: segment of the chunk, `element`: its first.
void pack_segment(DecodeWeight type, const SourceRow* rows, size_t s, size_t element, uint8_t* to) {
  constexpr size_t kByteOf[4] = {0, 2, 1, 3};
  for (size_t row = 0; row < 16; ++row)
    for (size_t e = 0; e < kBlock; ++e) {
      const size_t lane = row % 8 * 4 + e / 8, low = row / 8, i = e % 8;
      const uint8_t number = rows[row].number(element + e);
      if (type == DecodeWeight::kQ4) {
        uint8_t& byte = to[s / 2 * 512 + lane * 16 + s % 2 * 8 + low * 4 + i % 4];
        byte = static_cast<uint8_t>(byte | number << (i < 4 ? 0 : 4));
      } else {
        const size_t byte = type == DecodeWeight::kFp8 ? kByteOf[i % 4] : i % 4;
        to[s * 512 + lane * 16 + low * 8 + i / 4 * 4 + byte] = number;
      }
    }
}

void pack_scales(const SourceRow* rows, size_t s, size_t element, uint8_t* scales) {
  for (size_t row = 0; row < 16; ++row) {
    const uint16_t half = rows[row].scale(element);
    std::memcpy(scales + (s * 8 + row % 8) * 4 + row / 8 * 2, &half, sizeof half);
  }
}

}  // namespace

size_t packed_bytes(DecodeWeight type, int rows, int width) {
  const int parts = decode_parts(type, width);
  if (decode_16_bits(type) || parts == 0)
    fail(ErrorCode::kUnsupported, "weights of width {} cannot be packed for the decode kernel",
         width);
  return static_cast<size_t>(packed_tiles(rows)) * static_cast<size_t>(parts) * kDecodeWarps *
         static_cast<size_t>(decode_chunk_bytes(type, width / parts));
}

void pack_tiles(DecodeWeight type, const void* source, int rows, int width, int first, int end,
                uint8_t* out) {
  const size_t tile_bytes = packed_bytes(type, 16, width);
  const auto parts = static_cast<size_t>(decode_parts(type, width)),
             all = static_cast<size_t>(width);
  const size_t segments = all / parts / 256, chunks = parts * kDecodeWarps;
  const size_t chunk_bytes = tile_bytes / chunks;
  for (int tile = first; tile < end; ++tile) {
    SourceRow of_tile[16];
    for (int r = 0; r < 16; ++r) {
      const int row = tile * 16 + r;
      const auto* bytes =
          static_cast<const uint8_t*>(source) + static_cast<size_t>(row) * row_bytes(type, all);
      of_tile[r] = {row < rows ? bytes : nullptr, type};
    }
    uint8_t* to = out + static_cast<size_t>(tile) * tile_bytes;
    std::fill_n(to, tile_bytes, uint8_t{0});
    for (size_t s = 0; s < chunks * segments; ++s) {
      uint8_t* chunk = to + s / segments * chunk_bytes;
      if (type == DecodeWeight::kK4 || type == DecodeWeight::kK8) {
        pack_k_segment(type, of_tile, s % segments, s, segments, chunk);
        continue;
      }
      pack_segment(type, of_tile, s % segments, s * kBlock, chunk);
      if (type == DecodeWeight::kFp8) continue;
      uint8_t* scales = chunk + segments * (type == DecodeWeight::kQ4 ? 256 : 512);
      pack_scales(of_tile, s % segments, s * kBlock, scales);
    }
  }
}

}  // namespace tokamak::cuda
