#pragma once
// Packs quantised weights for the persistent decode kernel, once at load.
//
// Rows go in tiles of 16, the width in decode_parts() parts, and a part to eight consumers: chunks
// lie in memory as [tile, part, consumer]. A chunk has segments of 32 elements and then the scales.
// Lane l of a warp has rows l / 4 and l / 4 + 8 and elements 8 * (l % 4) to 8 * (l % 4) + 7 of a
// segment:
//   8 bits: 16 bytes per lane and segment, first the one row, then the other. The bytes of a
//           word are in order for Q8_0, and elements 0, 2, 1, 3 for FP8.
//   Q4_0:   16 bytes per lane and two segments; a word has the eight elements of a row less 8, in
//           two's complement: byte i has element i in its lower half, element i + 4 in its upper.
//   kK4, kK8: numbers as those of Q4_0 and Q8_0 are.
//   scales: of Q8_0 and Q4_0, halves, [segment, row % 8, row / 8]; of kK4 [segment, row % 8, 2,
//           row / 8] with the offset as the second of two, of kK8 as the third of three.
#include <cstddef>
#include <cstdint>

#include "backend/cuda/decode_program.h"

namespace tokamak::cuda {

// Bytes of packed weights. Throws kUnsupported for a width that does not fall into parts.
size_t packed_bytes(DecodeWeight type, int rows, int width);
// Packs tiles [first, end) to their places in `out`, which holds packed_bytes(). `source`: kFp8:
// bytes [rows, width]; kQ8, kQ4: blocks of GGUF's Q8_0 and Q4_0; kK4, kK8: of Q4_K and Q6_K.
// Different tiles can be packed by different threads.
void pack_tiles(DecodeWeight type, const void* source, int rows, int width, int first, int end,
                uint8_t* out);
constexpr int packed_tiles(int rows) { return (rows + 15) / 16; }

}  // namespace tokamak::cuda
