// Weights of the persistent kernel: what op_pack writes on the device is what pack_tiles() defines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cuda/decode_pack.h"
#include "backend/cuda/kernels.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

struct PackCase {
  DecodeWeight type;
  DType dtype;
  int width;
  std::vector<int> rows;  // of the sources
  bool alternate;
};

std::vector<uint8_t> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Scales of K-quants are multiplied, and what is not a number has many forms: makes them finite.
void make_finite(DType type, std::vector<uint8_t>& bytes) {
  if (type == DType::kQ4_K)
    for (size_t i = 0; i < bytes.size(); i += 144) bytes[i + 1] &= 0xbf, bytes[i + 3] &= 0xbf;
  if (type == DType::kQ6_K)
    for (size_t i = 0; i < bytes.size(); i += 210) bytes[i + 209] &= 0xbf;
}

// The rows in the order in which they are packed.
std::vector<uint8_t> joined(const std::vector<std::vector<uint8_t>>& sources, size_t row_bytes,
                            bool alternate) {
  std::vector<uint8_t> out;
  if (!alternate) {
    for (const auto& s : sources) out.insert(out.end(), s.begin(), s.end());
    return out;
  }
  for (size_t at = 0; at < sources[0].size(); at += row_bytes)
    for (const auto& s : sources)
      out.insert(out.end(), s.begin() + static_cast<ptrdiff_t>(at),
                 s.begin() + static_cast<ptrdiff_t>(at + row_bytes));
  return out;
}

std::vector<uint8_t> packed_on_device(const PackCase& c,
                                      const std::vector<std::vector<uint8_t>>& sources, int rows) {
  const Device device(0);
  const KernelLibrary kernels(device);
  const DeviceStream stream;
  PackArgs args{};
  std::vector<Buffer> memory;
  for (size_t i = 0; i < sources.size(); ++i) {
    memory.emplace_back(sources[i].size()).write(sources[i].data(), sources[i].size());
    args.source[i] = memory.back().as<uint8_t>();
    args.rows[i] = c.rows[i];
    args.row_bytes[i] = static_cast<int64_t>(dtype_bytes(c.dtype, c.width));
    args.type[i] = c.dtype;
  }
  const size_t bytes = packed_bytes(c.type, rows, c.width);
  const Buffer out(bytes);
  args.width = c.width;
  args.parts = decode_parts(c.type, c.width);
  args.tiles = packed_tiles(rows);
  args.to = out.as<uint8_t>();
  args.eight = c.type == DecodeWeight::kK8;
  args.alternate = c.alternate;
  LaunchList list(kernels);
  const int64_t threads = args.tiles * 16 * (args.width / 32);
  const bool segments = decode_kernel_type(c.type) == DecodeWeight::kK4;
  list.add("op_pack", segments ? "op_pack_segments" : "op_pack",
           {(threads + kElementThreads - 1) / kElementThreads}, kElementThreads, args);
  check(driver().stream_wait(nullptr), "clearing memory");
  list.run(stream);
  stream.wait();
  std::vector<uint8_t> result(bytes);
  out.read(result.data(), bytes);
  return result;
}

TEST(CudaPack, TheDevicePacksAsTheHost) {
  const PackCase cases[] = {
      {DecodeWeight::kQ8, DType::kQ8_0, 256, {16}, false},
      {DecodeWeight::kQ8, DType::kQ8_0, 2560, {40}, false},
      {DecodeWeight::kQ8, DType::kQ8_0, 512, {24, 8, 8}, false},
      {DecodeWeight::kQ8, DType::kQ8_0, 512, {20, 20}, true},
      {DecodeWeight::kQ4, DType::kQ4_0, 512, {16}, false},
      {DecodeWeight::kQ4, DType::kQ4_0, 5120, {40}, false},
      {DecodeWeight::kQ4, DType::kQ4_0, 1024, {24, 8, 8}, false},
      {DecodeWeight::kQ4, DType::kQ4_0, 512, {20, 20}, true},
      {DecodeWeight::kK4, DType::kQ4_K, 512, {16}, false},
      {DecodeWeight::kK4, DType::kQ4_K, 5120, {40}, false},
      {DecodeWeight::kK4, DType::kQ4_K, 1024, {24, 8, 8}, false},
      {DecodeWeight::kK8, DType::kQ6_K, 256, {16}, false},
      {DecodeWeight::kK8, DType::kQ6_K, 2560, {40}, false},
      {DecodeWeight::kK8, DType::kQ6_K, 512, {20, 20}, true},
  };
  for (const PackCase& c : cases) {
    const size_t row_bytes = dtype_bytes(c.dtype, c.width);
    std::vector<std::vector<uint8_t>> sources;
    int rows = 0;
    for (int n : c.rows) {
      sources.push_back(random_bytes(static_cast<size_t>(n) * row_bytes,
                                     static_cast<unsigned>(7 + sources.size())));
      make_finite(c.dtype, sources.back());
      rows += n;
    }
    std::vector<uint8_t> want(packed_bytes(c.type, rows, c.width));
    pack_tiles(c.type, joined(sources, row_bytes, c.alternate).data(), rows, c.width, 0,
               packed_tiles(rows), want.data());
    EXPECT_EQ(packed_on_device(c, sources, rows), want)
        << dtype_name(c.dtype) << ", width " << c.width << ", " << rows << " rows";
  }
}

// The byte whose value is nearest, even where two are.
uint8_t nearest_e4m3(float x) {
  int best = 0;
  float error = 1e30f;
  for (int b = 0; b < 0x7f; ++b) {
    const auto byte = static_cast<std::byte>(b);
    float value;
    decode_row(DType::kF8E4M3, &byte, &value, 1);
    const float e = std::abs(value - std::abs(x));
    if (e < error || (e == error && b % 2 == 0)) {
      error = e;
      best = b;
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(CudaPack, Bf16RowsBecomeFp8WithAScale) {
  constexpr int kRows = 40, kWidth = 512;
  std::mt19937 random(3);
  auto number = [&random] {
    return static_cast<float>(static_cast<int>(random() % 4001) - 2000) * 1e-5f;
  };
  std::vector<uint16_t> rows(kRows * kWidth);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = f32_to_bf16(i / kWidth == 5 ? 0 : number());  // a row of zeros, too
  const Device device(0);
  const KernelLibrary kernels(device);
  const DeviceStream stream;
  Buffer source(rows.size() * 2);
  source.write(rows.data(), rows.size() * 2);
  const size_t bytes = packed_bytes(DecodeWeight::kFp8, kRows, kWidth);
  const Buffer out(bytes), scales(kRows * sizeof(float));
  PackArgs args{};
  args.source[0] = source.as<uint8_t>();
  args.rows[0] = kRows;
  args.row_bytes[0] = kWidth * 2;
  args.width = kWidth;
  args.parts = decode_parts(DecodeWeight::kFp8, kWidth);
  args.tiles = packed_tiles(kRows);
  args.to = out.as<uint8_t>();
  args.scales = scales.as<float>();
  args.type[0] = DType::kBF16;
  LaunchList list(kernels);
  list.add("op_pack", "op_pack_fp8", {args.tiles * 16 * 32 / kElementThreads}, kElementThreads,
           args);
  check(driver().stream_wait(nullptr), "clearing memory");
  list.run(stream);
  stream.wait();
  std::vector<uint8_t> got(bytes), fp8(rows.size()), want(bytes);
  std::vector<float> scale(kRows);
  out.read(got.data(), bytes);
  scales.read(scale.data(), kRows * sizeof(float));
  for (size_t r = 0; r < kRows; ++r) {
    float most = 0;
    for (size_t i = 0; i < kWidth; ++i)
      most = std::max(most, std::abs(bf16_to_f32(rows[r * kWidth + i])));
    EXPECT_FLOAT_EQ(scale[r], most > 0 ? most / 448 : 1);
    for (size_t i = 0; i < kWidth; ++i)
      fp8[r * kWidth + i] = nearest_e4m3(bf16_to_f32(rows[r * kWidth + i]) / scale[r]);
  }
  pack_tiles(DecodeWeight::kFp8, fp8.data(), kRows, kWidth, 0, packed_tiles(kRows), want.data());
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace tokamak::cuda
