#include "tensor/block_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "tensor/group_formats.h"

namespace tokamak {
namespace {

// Made by tools/make_block_golden.py from the reference decoders; the environment can name fresh
// data.
Value golden() {
  const char* path = std::getenv("TK_BLOCK_GOLDEN");
  return parse_json(read_text_file(path ? path : TK_TENSOR_TESTDATA "/block_golden.json"),
                    "golden");
}

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

std::string fnv1a(const void* data, size_t size) {
  uint64_t h = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
  return fmt::format("{:016x}", h);
}

DType type_named(const std::string& name) {
  auto dtype = dtype_from_name(name);
  if (!dtype) throw std::runtime_error("no type " + name);
  return *dtype;
}

TEST(BlockFormats, DecodesBitEqualToReference) {
  Value data = golden();
  for (const Value& c : data.at("decode").as_array()) {
    SCOPED_TRACE(c.at("type").as_string());
    std::vector<uint8_t> bytes = from_hex(c.at("blocks").as_string());
    std::vector<float> out(c.at("values").as_int());
    DType dtype = type_named(c.at("type").as_string());
    ASSERT_EQ(dtype_bytes(dtype, out.size()), bytes.size());
    decode_row(dtype, bytes.data(), out.data(), out.size());
    std::vector<uint32_t> bits;
    int64_t nan = 0;
    for (float v : out) {
      nan += std::isnan(v);
      bits.push_back(std::isnan(v) ? 0x7fc00000 : std::bit_cast<uint32_t>(v));
    }
    const auto& first = c.at("first").as_array();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(fmt::format("{:08x}", bits[i]), first[i].as_string()) << i;
    }
    EXPECT_EQ(nan, c.at("nan").as_int());
    EXPECT_EQ(fnv1a(bits.data(), bits.size() * 4), c.at("fnv1a").as_string());
  }
}

TEST(BlockFormats, EncodesSimpleTypesBitEqualToReference) {
  Value data = golden();
  std::vector<uint8_t> raw = from_hex(data.at("encode_source").as_string());
  std::vector<float> source(raw.size() / 4);
  std::memcpy(source.data(), raw.data(), raw.size());
  for (const Value& c : data.at("encode").as_array()) {
    SCOPED_TRACE(c.at("type").as_string());
    DType dtype = type_named(c.at("type").as_string());
    std::vector<uint8_t> out(dtype_bytes(dtype, source.size()));
    encode_row(dtype, source.data(), out.data(), source.size());
    std::vector<uint8_t> first = from_hex(c.at("first").as_string());
    EXPECT_EQ(first, std::vector<uint8_t>(out.begin(), out.begin() + first.size()));
    EXPECT_EQ(fnv1a(out.data(), out.size()), c.at("fnv1a").as_string());
  }
}

TEST(BlockFormats, EveryBlockTypeIsInTheGolden) {
  Value data = golden();
  std::string seen;
  for (const Value& c : data.at("decode").as_array()) seen += " " + c.at("type").as_string() + " ";
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& info = dtype_info(static_cast<DType>(i));
    // The activation formats are never stored in model files and have no reference decoder.
    bool activation = info.dtype == DType::kQ8_1 || info.dtype == DType::kQ8_K ||
                      info.dtype == DType::kQ8A || info.dtype == DType::kInt16G128;
    bool group = group_format(info.dtype).has_value();  // GroupFormats tests these
    if (info.block_elements > 1 && !activation && !group) {
      EXPECT_NE(seen.find(fmt::format(" {} ", info.name)), std::string::npos) << info.name;
    }
  }
}

TEST(BlockFormats, HalfRoundTripsAllBitPatterns) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    float f = f16_to_f32(static_cast<uint16_t>(h));
    uint16_t back = f32_to_f16(f);
    if (std::isnan(f)) {
      EXPECT_TRUE((back & 0x7c00) == 0x7c00 && (back & 0x3ff) != 0);
    } else {
      ASSERT_EQ(back, h);
    }
    float b = bf16_to_f32(static_cast<uint16_t>(h));
    uint16_t b_back = f32_to_bf16(b);
    if (!std::isnan(b)) {
      ASSERT_EQ(b_back, h);
    } else {
      EXPECT_TRUE(std::isnan(bf16_to_f32(b_back)));
    }
  }
}

TEST(BlockFormats, HalfRoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-INFINITY), 0xfc00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // half of the smallest: to even
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(f32_to_f16(1.0f + 0x1.8p-10f), 0x3c02);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
}

// Every value of the two 8-bit float types, from the definition of the formats.
TEST(BlockFormats, EightBitFloats) {
  for (int b = 0; b < 256; ++b) {
    uint8_t byte = static_cast<uint8_t>(b);
    float e4, e5, sign = b & 0x80 ? -1.0f : 1.0f;
    decode_row(DType::kF8E4M3, &byte, &e4, 1);
    decode_row(DType::kF8E5M2, &byte, &e5, 1);
    int exponent = b >> 3 & 15, mantissa = b & 7;
    if ((b & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4));
    } else {
      double expected = exponent == 0 ? mantissa * std::ldexp(1.0, -9)
                                      : (1 + mantissa / 8.0) * std::ldexp(1.0, exponent - 7);
      EXPECT_EQ(e4, sign * static_cast<float>(expected)) << b;
    }
    exponent = b >> 2 & 31, mantissa = b & 3;
    if (exponent == 31) {
      EXPECT_TRUE(mantissa ? std::isnan(e5) : e5 == sign * INFINITY);
    } else {
      double expected = exponent == 0 ? mantissa * std::ldexp(1.0, -16)
                                      : (1 + mantissa / 4.0) * std::ldexp(1.0, exponent - 15);
      EXPECT_EQ(e5, sign * static_cast<float>(expected)) << b;
    }
  }
}

TEST(BlockFormats, PlainTypesMayLieUnaligned) {
  uint8_t bytes[1 + 16] = {};
  double d = -2.5;
  int64_t i = -7;
  std::memcpy(bytes + 1, &d, 8);
  std::memcpy(bytes + 9, &i, 8);
  float out;
  decode_row(DType::kF64, bytes + 1, &out, 1);
  EXPECT_EQ(out, -2.5f);
  decode_row(DType::kI64, bytes + 9, &out, 1);
  EXPECT_EQ(out, -7.0f);
}

struct Ceiling {
  DType dtype;
  double cosine_error;  // sqrt(sum of squares) / n on 0.1 + 2 cos(i): the ceiling the format's
                        // authors use
  double relative_rms;  // our own, on normally distributed weights
};

TEST(BlockFormats, EncoderErrorsStayUnderTheirCeilings) {
  const Ceiling ceilings[] = {
      {DType::kQ4_0, 0.002, 0.095},  {DType::kQ4_1, 0.002, 0.085},  {DType::kQ5_0, 0.002, 0.047},
      {DType::kQ5_1, 0.002, 0.042},  {DType::kQ8_0, 0.002, 0.006},  {DType::kQ8A, 0.002, 0.006},
      {DType::kQ4_K, 0.002, 0.077},  {DType::kQ6_K, 0.002, 0.020},  {DType::kF16, 0.0001, 0.0003},
      {DType::kBF16, 0.0005, 0.002}, {DType::kQ2_K, 0.0075, 0.33},  {DType::kQ3_K, 0.004, 0.18},
      {DType::kQ5_K, 0.002, 0.040},  {DType::kIQ4_NL, 0.002, 0.08}, {DType::kIQ4_XS, 0.002, 0.08},
      {DType::kMXFP4, 0.0055, 0.14},
  };
  constexpr int kN = 4096;
  std::vector<float> cosine(kN), normal(kN), back(kN);
  Rng rng(7);
  for (int i = 0; i < kN; ++i) cosine[i] = 0.1f + 2 * std::cos(static_cast<float>(i));
  for (float& v : normal) v = static_cast<float>(0.02 * rng.normal());
  auto square_error = [&](DType dtype, const std::vector<float>& x) {
    std::vector<uint8_t> bytes(dtype_bytes(dtype, kN));
    encode_row(dtype, x.data(), bytes.data(), kN);
    decode_row(dtype, bytes.data(), back.data(), kN);
    double sum = 0;
    for (int i = 0; i < kN; ++i) sum += (x[i] - back[i]) * (x[i] - back[i]);
    return sum;
  };
  double power = 0;
  for (float v : normal) power += v * v;
  for (const Ceiling& c : ceilings) {
    SCOPED_TRACE(std::string(dtype_name(c.dtype)));
    EXPECT_LE(std::sqrt(square_error(c.dtype, cosine)) / kN, c.cosine_error);
    EXPECT_LE(std::sqrt(square_error(c.dtype, normal) / power), c.relative_rms);
  }
}

TEST(BlockFormats, EncodersTakeNastyValues) {
  const float nasty[] = {0.0f,  -0.0f,    NAN,    INFINITY, -INFINITY,
                         1e38f, -3.4e38f, 1e-45f, 65504.0f, 1e-8f};
  Rng rng(3);
  for (int i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    std::vector<float> x(256), back(256);
    if (!can_encode(dtype)) {
      EXPECT_THROW(encode_row(dtype, x.data(), back.data(), 256), Error);
      continue;
    }
    std::vector<uint8_t> bytes(dtype_bytes(dtype, 256));
    for (int round = 0; round < 200; ++round) {
      for (float& v : x) v = round == 0 ? 0.0f : nasty[rng.below(round % 2 ? 10 : 2)];
      encode_row(dtype, x.data(), bytes.data(), 256);
      decode_row(dtype, bytes.data(), back.data(), 256);
      if (round % 2 == 0) {
        for (float v : back) ASSERT_EQ(v, 0.0f) << dtype_name(dtype);
      }
    }
  }
}

// The product of two blocks fits 32 bits, whatever they hold, and little is lost.
TEST(BlockFormats, Int16BlocksAreBoundedAndExact) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(128), back(128);
    double power = std::pow(10.0, round % 9), squares = 0, length = 0, error = 0;
    for (float& v : x)
      v = static_cast<float>(round < 5 ? 1.0 : std::pow(rng.normal(), 1 + round % 4));
    for (float& v : x) v *= static_cast<float>(power);
    BlockInt16 block;
    encode_row(DType::kInt16G128, x.data(), &block, 128);
    decode_row(DType::kInt16G128, &block, back.data(), 128);
    for (size_t i = 0; i < 128; ++i) {
      length += static_cast<double>(block.q[i]) * block.q[i];
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      error += std::pow(static_cast<double>(back[i]) - static_cast<double>(x[i]), 2);
    }
    EXPECT_LT(length, 2147483648.0) << round;
    EXPECT_LT(error, 3e-8 * squares) << round;
  }
}

TEST(BlockFormats, ActivationBlocksKeepScaleAndSum) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i - 10);
  BlockQ8A block;
  encode_row(DType::kQ8A, x.data(), &block, 32);
  EXPECT_EQ(block.scale, 21.0f / 127.0f);
  int sum = 0;
  for (int8_t q : block.q) sum += q;
  EXPECT_EQ(block.q[31], 127);
  EXPECT_EQ(block.sum, block.scale * static_cast<float>(sum));
}

}  // namespace
}  // namespace tokamak
