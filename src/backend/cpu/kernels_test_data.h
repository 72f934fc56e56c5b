#pragma once
// Random weights and activations for tests of kernels.
#include <cstring>
#include <vector>

#include "backend/cpu/pack.h"
#include "base/rng.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {

inline std::vector<float> random_floats(Rng& rng, int64_t n, double scale = 1.0) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& f : out) f = static_cast<float>(rng.normal() * scale);
  return out;
}

// Random bytes with scales that are ordinary numbers: reaches every code, also those no encoder
// would write.
inline std::vector<std::byte> random_rows(Rng& rng, QFormat format, int64_t rows, int64_t k) {
  DType dtype = dtype_of(format);
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<std::byte> out(static_cast<size_t>(rows) * dtype_bytes(dtype, k));
  for (std::byte& b : out) b = static_cast<std::byte>(rng.below(256));
  for (size_t at = 0; at < out.size(); at += info.block_bytes) {
    auto put = [&](size_t offset, double scale) {
      uint16_t h = f32_to_f16(static_cast<float>(rng.normal() * scale));
      std::memcpy(out.data() + at + offset, &h, 2);
    };
    const QLayout& l = qlayout(format);
    if (format == QFormat::kMXFP4) {
      out[at] = static_cast<std::byte>(115 + rng.below(16));
      continue;
    }
    put(static_cast<size_t>(l.d), 0.02);
    if (l.head == 64) put(static_cast<size_t>(l.d) + 2, 0.05);
  }
  return out;
}

struct Activations {
  std::vector<uint8_t> blocks;  // [rows][k / 32] q8a
  std::vector<const void*> rows;
  std::vector<float> decoded;
};
inline Activations random_activations(Rng& rng, int64_t rows, int64_t k) {
  Activations a;
  size_t bytes = dtype_bytes(DType::kQ8A, k);
  a.blocks.resize(static_cast<size_t>(rows) * bytes);
  a.decoded.resize(static_cast<size_t>(rows * k));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> x = random_floats(rng, k, 3.0);
    uint8_t* to = a.blocks.data() + static_cast<size_t>(r) * bytes;
    encode_row(DType::kQ8A, x.data(), to, k);
    decode_row(DType::kQ8A, to, a.decoded.data() + r * k, k);
    a.rows.push_back(to);
  }
  return a;
}

}  // namespace tokamak::cpu
