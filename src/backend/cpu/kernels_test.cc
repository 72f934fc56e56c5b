// The kernels of every level that runs here: bit-equal to the scalar level, and near the decoded
// values' product.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels_test_data.h"
#include "backend/cpu/pack.h"
#include "base/rng.h"
#include "tensor/block_formats.h"
#include "tensor/plane.h"

namespace tokamak::cpu {
namespace {

class QDot : public testing::TestWithParam<int> {};

TEST_P(QDot, EveryLevelEqualsScalarAndTheDecodedProduct) {
  auto format = static_cast<QFormat>(GetParam());
  DType dtype = dtype_of(format);
  Rng rng(7 + static_cast<uint64_t>(GetParam()));
  constexpr int64_t k = 1280;
  constexpr int rows = 13;
  std::vector<std::byte> weights = random_rows(rng, format, rows, k);
  auto row_bytes = static_cast<int64_t>(dtype_bytes(dtype, k));
  Activations x = random_activations(rng, kMostFewRows, k);
  std::vector<float> w(rows * k), first;
  for (int r = 0; r < rows; ++r)
    decode_row(dtype, weights.data() + r * row_bytes, w.data() + r * k, k);
  for (const KernelTable* table : available_tables()) {
    SCOPED_TRACE(table->name);
    std::vector<uint8_t> panel(static_cast<size_t>(qpanel_bytes(format, k)));
    pack_qpanel(format, table->style, weights.data(), row_bytes, rows, k, panel.data());
    std::vector<XBlock1> x1(k / 32);
    std::vector<float> alone(kMostFewRows * kPanel);
    for (size_t c = 0; c < kMostFewRows; ++c) {
      table->pack_x1(x.rows[c], k / 32, x1.data());
      table->qdot1[GetParam()](panel.data(), x1.data(), k / 32, alone.data() + c * kPanel);
    }
    for (int n = 1; n <= table->few_rows; ++n) {
      int tiles = (n + kTile - 1) / kTile;
      std::vector<XBlock4> x4(static_cast<size_t>(std::max(tiles, table->x_tiles)) * (k / 32));
      for (int t = 0; t < tiles; ++t)
        table->pack_x4(x.rows.data() + t * kTile, std::min(kTile, n - t * kTile), k / 32,
                       t % table->x_tiles, x4.data() + t / table->x_tiles * (k / 32));
      std::vector<float> few(static_cast<size_t>(tiles) * kTile * kPanel);
      table->qdot4[GetParam()](panel.data(), x4.data(), k / 32, n, few.data());
      EXPECT_EQ(0, std::memcmp(alone.data(), few.data(), static_cast<size_t>(n) * kPanel * 4))
          << "one row alone differs from " << n;
    }
    if (first.empty()) first = alone;
    EXPECT_EQ(0, std::memcmp(alone.data(), first.data(), alone.size() * 4))
        << "differs from scalar";
    for (size_t c = 0; c < kMostFewRows; ++c)
      for (size_t r = 0; r < kPanel; ++r) {
        double sum = 0, magnitude = 1e-6;
        for (size_t i = 0; r < rows && i < k; ++i) {
          double product = double(w[r * k + i]) * double(x.decoded[c * k + i]);
          sum += product;
          magnitude += std::abs(product);
        }
        EXPECT_NEAR(alone[c * kPanel + r], sum, 2e-6 * magnitude)
            << "row " << r << " of activation row " << c;
      }
  }
}

// Two panels of `weights`, one after the other.
std::array<std::vector<uint8_t>, 2> two_panels(const KernelTable& table, QFormat format,
                                               const std::vector<std::byte>& weights, int64_t k) {
  std::array<std::vector<uint8_t>, 2> out;
  auto row_bytes = static_cast<int64_t>(dtype_bytes(dtype_of(format), k));
  const std::byte* rows = weights.data();
  for (std::vector<uint8_t>& panel : out) {
    panel.resize(static_cast<size_t>(qpanel_bytes(format, k)));
    pack_qpanel(format, table.style, rows, row_bytes, kPanel, k, panel.data());
    rows += kPanel * row_bytes;
  }
  return out;
}

TEST_P(QDot, TwoPanelsAtOnceGiveTheSameBits) {
  auto format = static_cast<QFormat>(GetParam());
  Rng rng(70 + static_cast<uint64_t>(GetParam()));
  constexpr int64_t k = 768;
  std::vector<std::byte> weights = random_rows(rng, format, 2 * kPanel, k);
  Activations x = random_activations(rng, 1, k);
  for (const KernelTable* table : available_tables()) {
    if (!table->qdot1x2[GetParam()]) continue;
    SCOPED_TRACE(table->name);
    auto panels = two_panels(*table, format, weights, k);
    std::vector<XBlock1> x1(k / 32);
    table->pack_x1(x.rows[0], k / 32, x1.data());
    for (int64_t blocks : {k / 32, k / 32 - qlayout(format).blocks}) {
      std::vector<float> both(2 * kPanel), alone(2 * kPanel);
      table->qdot1x2[GetParam()](panels[0].data(), panels[1].data(), x1.data(), blocks,
                                 both.data());
      for (int i = 0; i < 2; ++i)
        table->qdot1[GetParam()](panels[i].data(), x1.data(), blocks, alone.data() + i * kPanel);
      EXPECT_EQ(0, std::memcmp(both.data(), alone.data(), both.size() * 4)) << blocks << " blocks";
    }
  }
}

TEST_P(QDot, TwoPanelsWithFewRowsGiveTheBitsOfEachAlone) {
  auto format = static_cast<QFormat>(GetParam());
  Rng rng(75 + static_cast<uint64_t>(GetParam()));
  constexpr int64_t k = 768, floats = kMostFewRows * kPanel;
  std::vector<std::byte> weights = random_rows(rng, format, 2 * kPanel, k);
  Activations x = random_activations(rng, kMostFewRows, k);
  for (const KernelTable* table : available_tables()) {
    if (!table->qdot4x2[GetParam()]) continue;
    SCOPED_TRACE(table->name);
    auto panels = two_panels(*table, format, weights, k);
    for (int64_t blocks : {k / 32, k / 32 - qlayout(format).blocks})
      for (int n = 2; n <= table->few_rows; ++n) {
        int tiles = (n + kTile - 1) / kTile;
        std::vector<XBlock4> packed(static_cast<size_t>(std::max(tiles, table->x_tiles) * blocks));
        for (int t = 0; t < tiles; ++t)
          table->pack_x4(x.rows.data() + t * kTile, std::min(kTile, n - t * kTile), blocks,
                         t % table->x_tiles, packed.data() + t / table->x_tiles * blocks);
        std::vector<float> both(2 * floats), alone(floats);
        table->qdot4x2[GetParam()](panels[0].data(), panels[1].data(), packed.data(), blocks, n,
                                   both.data());
        for (int i = 0; i < 2; ++i) {
          table->qdot4[GetParam()](panels[i].data(), packed.data(), blocks, n, alone.data());
          EXPECT_EQ(0, std::memcmp(both.data() + i * floats, alone.data(),
                                   static_cast<size_t>(n) * kPanel * 4))
              << blocks << " blocks, " << n << " rows, panel " << i;
        }
      }
  }
}

// Many rows through widened panels, k in parts, buffers without slack: the bits of one row alone.
TEST_P(QDot, WidenedPanelsGiveTheSameBitsForAnyNumberOfRows) {
  auto format = static_cast<QFormat>(GetParam());
  Rng rng(700 + static_cast<uint64_t>(GetParam()));
  constexpr int64_t k = 1280, blocks = k / 32, most = 67;
  const QLayout& layout = qlayout(format);
  int64_t first = layout.blocks > 1 ? 16 : 21;  // blocks of the first part
  std::vector<std::byte> weights = random_rows(rng, format, kPanel, k);
  auto row_bytes = static_cast<int64_t>(dtype_bytes(dtype_of(format), k));
  Activations x = random_activations(rng, most, k);
  for (const KernelTable* table : available_tables()) {
    SCOPED_TRACE(table->name);
    auto widen = table->qwiden[GetParam()];
    auto multiply = table->qwide[GetParam()];
    if (!widen) continue;
    std::vector<uint8_t> panel(static_cast<size_t>(qpanel_bytes(format, k)));
    pack_qpanel(format, table->style, weights.data(), row_bytes, kPanel, k, panel.data());
    std::vector<XBlock1> x1(blocks);
    std::vector<float> expected(most * kPanel);
    for (size_t r = 0; r < most; ++r) {
      table->pack_x1(x.rows[r], blocks, x1.data());
      table->qdot1[GetParam()](panel.data(), x1.data(), blocks, expected.data() + r * kPanel);
    }
    // The same panel up to as often as the level takes panels at once.
    int64_t panels = table->wide_panels, after = blocks - first;
    std::vector<uint8_t> parts[2];
    parts[0].resize(static_cast<size_t>(panels * first * kWideBlock));
    parts[1].resize(static_cast<size_t>(panels * after * kWideBlock));
    for (int64_t p = 0; p < panels; ++p) {
      widen(panel.data(), first, parts[0].data() + p * first * kWideBlock);
      widen(panel.data() + first / layout.blocks * layout.bytes(), after,
            parts[1].data() + p * after * kWideBlock);
    }
    for (int64_t rows = 1; rows <= most; ++rows) {
      panels = 1 + (rows / 8 + rows) % table->wide_panels;
      int64_t used = (rows + kTile - 1) / kTile, group = table->x_tiles;
      std::vector<XBlock4> x4(static_cast<size_t>((used + group - 1) / group * group * blocks));
      std::memset(static_cast<void*>(x4.data()), 0xff, x4.size() * sizeof(XBlock4));
      for (int64_t t = 0; t < used; ++t)
        table->pack_x4(x.rows.data() + t * kTile,
                       static_cast<int>(std::min<int64_t>(kTile, rows - t * kTile)), blocks,
                       static_cast<int>(t % group), x4.data() + t / group * group * blocks);
      auto size = static_cast<size_t>(rows * kPanel);
      std::vector<float> sums(static_cast<size_t>(panels) * size);
      multiply(parts[0].data(), panels, x4.data(), blocks, rows, first, sums.data());
      multiply(parts[1].data(), panels, x4.data() + group * first, blocks, rows, after,
               sums.data());
      for (size_t p = 0; p < static_cast<size_t>(panels); ++p)
        ASSERT_EQ(0, std::memcmp(sums.data() + p * size, expected.data(), size * 4))
            << rows << " rows, panel " << p;
    }
  }
}

TEST_P(QDot, PackedPanelsDecodeToTheSameBits) {
  auto format = static_cast<QFormat>(GetParam());
  DType dtype = dtype_of(format);
  Rng rng(70 + static_cast<uint64_t>(GetParam()));
  constexpr int64_t k = 512;
  std::vector<std::byte> weights = random_rows(rng, format, kPanel, k);
  auto row_bytes = static_cast<int64_t>(dtype_bytes(dtype, k));
  std::vector<float> expected(k), row(k);
  for (const KernelTable* table : available_tables()) {
    SCOPED_TRACE(table->name);
    std::vector<uint8_t> panel(static_cast<size_t>(qpanel_bytes(format, k)));
    pack_qpanel(format, table->style, weights.data(), row_bytes, kPanel, k, panel.data());
    for (int r = 0; r < kPanel; ++r) {
      decode_row(dtype, weights.data() + r * row_bytes, expected.data(), k);
      decode_qpanel_row(format, table->style, panel.data(), r, 0, k, row.data());
      EXPECT_EQ(0, std::memcmp(expected.data(), row.data(), k * 4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QDot, testing::Range(0, kQFormats), [](const auto& info) {
  return std::string(dtype_name(dtype_of(static_cast<QFormat>(info.param))));
});

// Runs a body on each level and expects the floats it gives to be the scalar level's, bit for bit.
template <class Body>
void expect_same_bits(const char* what, Body&& body) {
  std::vector<float> first;
  for (const KernelTable* table : available_tables()) {
    std::vector<float> out = body(*table);
    if (first.empty()) first = out;
    ASSERT_EQ(out.size(), first.size());
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(std::memcmp(&out[i], &first[i], 4), 0)
          << what << " on " << table->name << " at " << i << ": " << out[i] << " and " << first[i];
  }
}

TEST(VectorKernels, SameBitsOnEveryLevel) {
  Rng rng(3);
  for (int64_t n : {1, 15, 16, 33, 100}) {
    std::vector<float> a = random_floats(rng, n, 4.0), b = random_floats(rng, n),
                       w = random_floats(rng, n);
    auto size = static_cast<size_t>(n);
    for (int u = 0; u < static_cast<int>(Unary::kCount); ++u)
      expect_same_bits("unary", [&](const KernelTable& t) {
        std::vector<float> x = a, out(size);
        if (u == static_cast<int>(Unary::kSqrt) || u == static_cast<int>(Unary::kRsqrt))
          for (float& f : x) f = std::abs(f);
        t.unary[u](x.data(), out.data(), n, 30.0f);
        return out;
      });
    for (int u = 0; u < static_cast<int>(Binary::kCount); ++u)
      expect_same_bits("binary", [&](const KernelTable& t) {
        std::vector<float> out(size * 2);
        t.binary[u](a.data(), b.data(), out.data(), n);
        t.binary_scalar[u](a.data(), 1.7f, out.data() + n, n);
        return out;
      });
    expect_same_bits("rows", [&](const KernelTable& t) {
      std::vector<float> out(size * 4 + 3);
      t.rms_norm(a.data(), w.data(), out.data(), n, 1e-5f);
      t.layer_norm(a.data(), w.data(), b.data(), out.data() + n, n, 1e-5f);
      t.softmax(a.data(), out.data() + 2 * n, n);
      std::copy(a.begin(), a.end(), out.begin() + 3 * n);
      float max = 1.0f, sum = 2.0f;
      out[size * 4] = t.softmax_tile(out.data() + 3 * n, n, &max, &sum);
      out[size * 4 + 1] = max;
      out[size * 4 + 2] = sum;
      return out;
    });
    if (n % 2 == 0)
      expect_same_bits("rope", [&](const KernelTable& t) {
        std::vector<float> out(size);
        t.rope(a.data(), b.data(), w.data(), out.data(), n / 2 - 1, n);
        return out;
      });
  }
}

TEST(VectorKernels, FloatPanelsSameBitsForAnySplitOfKAndRows) {
  Rng rng(4);
  constexpr int64_t k = 77;
  for (int type = 0; type < kFTypes; ++type) {
    std::vector<float> wf = random_floats(rng, 4 * k * kPanel), x = random_floats(rng, k * kTile);
    expect_same_bits("fdot", [&](const KernelTable& t) {
      std::vector<uint8_t> panels(wf.size() * 4);
      bool i8 = type == static_cast<int>(FType::kI8);
      if (i8)
        quantize_plane_row(wf.data(), static_cast<int64_t>(wf.size()),
                           reinterpret_cast<int8_t*>(panels.data()));
      else
        t.narrow[type](wf.data(), panels.data(), static_cast<int64_t>(wf.size()));
      int64_t size = type == 0 ? 4 : i8 ? 1 : 2, stride = k * kPanel * size;
      std::vector<float> wide(4 * kPanel), parts(4 * kPanel), single(4 * kPanel), four(4 * kPanel),
          column(k);
      t.fdot4[type](panels.data(), x.data(), k, wide.data());
      t.fdot4[type](panels.data(), x.data(), 20, parts.data());
      t.fdot4[type](panels.data() + 20 * kPanel * size, x.data() + 20 * kTile, k - 20,
                    parts.data());
      EXPECT_EQ(wide, parts);
      for (int c = 0; c < kTile; ++c) {
        for (int64_t i = 0; i < k; ++i)
          column[static_cast<size_t>(i)] = x[static_cast<size_t>(i * kTile + c)];
        t.fdot1[type](panels.data(), column.data(), k, single.data() + c * kPanel);
      }
      EXPECT_EQ(wide, single);
      std::vector<float> one(4 * kPanel);
      t.fdot1x4[type](panels.data(), stride, column.data(), k, four.data());
      for (int p = 0; p < 4; ++p)
        t.fdot1[type](panels.data() + p * stride, column.data(), k, one.data() + p * kPanel);
      EXPECT_EQ(four, one);
      if (t.fdot4x2[type]) {
        std::vector<float> first(wide), second(wide), other(wide);
        t.fdot4[type](panels.data(), x.data(), k, first.data());
        t.fdot4[type](panels.data() + 3 * stride, x.data(), k, second.data());
        std::vector<float> both(wide);
        t.fdot4x2[type](panels.data(), panels.data() + 3 * stride, x.data(), k, both.data(),
                        other.data());
        EXPECT_EQ(both, first);
        EXPECT_EQ(other, second);
      }
      std::vector<float> widened(wf.size());
      t.widen[type](panels.data(), widened.data(), static_cast<int64_t>(wf.size()));
      wide.insert(wide.end(), four.begin(), four.end());
      wide.insert(wide.end(), widened.begin(), widened.end());
      return wide;
    });
  }
}

// Every half that is a number, subnormal ones too, and activations of all sizes.
TEST(VectorKernels, HalvesWithoutConversionGiveTheSameBits) {
  Rng rng(41);
  constexpr int64_t k = 1022, stride = k * kPanel * 2;
  std::vector<uint16_t> panels(4 * k * kPanel);
  for (size_t i = 0; i < panels.size(); ++i) {
    auto h = static_cast<uint16_t>(i);
    panels[i] = (h & 0x7c00) == 0x7c00 ? h & 0x83ff : h;
  }
  std::vector<float> x = random_floats(rng, k);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 24) - 12);
  x[5] = 1e-42f;
  for (const KernelTable* t : available_tables()) {
    if (!t->hdot1x4) continue;
    SCOPED_TRACE(t->name);
    std::vector<float> expected(4 * kPanel, 0.25f), sums = expected;
    t->fdot1x4[static_cast<int>(FType::kF16)](panels.data(), stride, x.data(), k, expected.data());
    ASSERT_TRUE(t->hdot1x4(panels.data(), stride, x.data(), k, sums.data()));
    EXPECT_EQ(0, std::memcmp(sums.data(), expected.data(), sums.size() * 4));
    for (float wrong : {32768.0f, -1e30f, INFINITY, NAN}) {
      for (size_t at : {size_t{3}, size_t{k - 1}}) {
        std::vector<float> large = x, kept(4 * kPanel, 0.25f);
        large[at] = wrong;
        EXPECT_FALSE(t->hdot1x4(panels.data(), stride, large.data(), k, kept.data())) << wrong;
        EXPECT_EQ(kept, std::vector<float>(4 * kPanel, 0.25f));
      }
    }
  }
}

TEST(VectorKernels, FloatPanelsSameBitsForAnyNumberOfRows) {
  Rng rng(40);
  constexpr int64_t k = 37, most = 37, tiles = (most + kTile - 1) / kTile;
  std::vector<float> wf = random_floats(rng, k * kPanel), x = random_floats(rng, tiles * k * kTile);
  for (const KernelTable* t : available_tables())
    for (int type : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{} type {}", t->name, type));
      std::vector<uint8_t> panel(wf.size() * 4);
      t->narrow[type](wf.data(), panel.data(), static_cast<int64_t>(wf.size()));
      std::vector<float> expected(most * kPanel, 0.5f), column(k);
      for (size_t r = 0; r < most; ++r) {
        for (size_t i = 0; i < k; ++i) column[i] = x[r / kTile * kTile * k + i * kTile + r % kTile];
        t->fdot1[type](panel.data(), column.data(), k, expected.data() + r * kPanel);
      }
      for (int64_t rows = 1; rows <= most; ++rows) {
        std::vector<float> sums(static_cast<size_t>(rows * kPanel), 0.5f);
        t->fdot_rows[type](panel.data(), x.data(), kTile * k, rows, k, sums.data());
        ASSERT_EQ(0, std::memcmp(sums.data(), expected.data(), sums.size() * 4)) << rows << " rows";
      }
    }
}

TEST(VectorKernels, SeveralFloatPanelsSameBitsAsOne) {
  Rng rng(41);
  constexpr int64_t k = 21, most = 27, tiles = (most + kTile - 1) / kTile, panels = 8;
  std::vector<float> w = random_floats(rng, panels * (k + 1) * kPanel),
                     x = random_floats(rng, tiles * k * kTile);
  std::vector<uint8_t> stored(w.size() * 4);
  auto check = [&](const KernelTable& t, int type, int64_t count, int64_t rows) {
    int64_t stride = (k + 1) * kPanel * (type == 0 ? 4 : 2);
    std::vector<float> sums(static_cast<size_t>(count * rows * kPanel), 0.5f), one = sums,
                                                                               far = one;
    for (int64_t p = 0; p < count; ++p)
      t.fdot_rows[type](stored.data() + p * stride, x.data(), kTile * k, rows, k,
                        one.data() + p * rows * kPanel);
    t.fdot_far[type](stored.data(), stride, count, x.data(), kTile * k, rows, k, far.data());
    ASSERT_EQ(0, std::memcmp(far.data(), one.data(), one.size() * 4)) << "far";
    if (type != 0) return;
    t.fdot_panels(w.data(), stride / 4, count, x.data(), kTile * k, rows, k, sums.data());
    ASSERT_EQ(0, std::memcmp(sums.data(), one.data(), one.size() * 4));
  };
  for (const KernelTable* t : available_tables())
    for (int type : {0, 1, 2}) {
      t->narrow[type](w.data(), stored.data(), static_cast<int64_t>(w.size()));
      for (int64_t count = 1; count <= panels; ++count)
        for (int64_t rows = 1; rows <= most; ++rows) {
          SCOPED_TRACE(fmt::format("{} type {} panels {} rows {}", t->name, type, count, rows));
          check(*t, type, count, rows);
        }
    }
}

TEST(VectorKernels, FourRowsBecomeATile) {
  Rng rng(42);
  constexpr int64_t stride = 55;
  std::vector<float> x = random_floats(rng, kTile * stride);
  for (const KernelTable* t : available_tables())
    for (int64_t k : {1, 15, 16, 32, 53}) {
      std::vector<float> tile(static_cast<size_t>(k * kTile) + 1, 7.0f);
      t->pack_x4_floats(x.data(), stride, k, tile.data());
      for (int64_t i = 0; i < k * kTile; ++i)
        ASSERT_EQ(tile[static_cast<size_t>(i)],
                  x[static_cast<size_t>(i % kTile * stride + i / kTile)])
            << t->name;
      EXPECT_EQ(tile.back(), 7.0f);
    }
}

TEST(VectorKernels, QuantizeEqualsTheFormatsEncoder) {
  Rng rng(5);
  constexpr int64_t k = 256;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> x = random_floats(rng, k, std::pow(10.0, rng.uniform(-6, 6)));
    if (round == 0) std::fill_n(x.begin(), 64, 0.0f);
    std::vector<uint8_t> expected(dtype_bytes(DType::kQ8A, k)), out(expected.size());
    encode_row(DType::kQ8A, x.data(), expected.data(), k);
    for (const KernelTable* t : available_tables()) {
      t->quantize_row(x.data(), k, out.data());
      EXPECT_EQ(out, expected) << t->name;
    }
  }
}

TEST(VectorKernels, NotANumberIsNotLost) {
  std::vector<float> x(64, 1.0f);
  for (size_t at : {size_t{0}, size_t{7}, size_t{31}}) {
    std::vector<float> bad = x;
    bad[at] = std::nanf("");
    for (const KernelTable* t : available_tables()) {
      BlockQ8A blocks[2];
      t->quantize_row(bad.data(), 64, blocks);
      EXPECT_TRUE(std::isnan(blocks[0].scale)) << t->name;
      EXPECT_EQ(blocks[1].scale, 1.0f / 127.0f) << t->name;
      std::vector<float> out(64);
      for (Unary u : {Unary::kExp, Unary::kTanh, Unary::kSilu, Unary::kGeluTanh, Unary::kGeluErf}) {
        t->unary[static_cast<int>(u)](bad.data(), out.data(), 64, 0);
        EXPECT_TRUE(std::isnan(out[at])) << t->name << " " << static_cast<int>(u);
      }
    }
  }
}

TEST(VectorKernels, FunctionsAreNearTheTrueOnes) {
  std::vector<float> x;
  for (double v = -104; v < 89; v += 0.0137) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 1; v *= 1.7) x.push_back(static_cast<float>(v));
  auto n = static_cast<int64_t>(x.size());
  std::vector<float> out(x.size());
  const KernelTable* t = available_tables().back();
  auto worst = [&](Unary u, double (*truth)(double), double floor) {
    t->unary[static_cast<int>(u)](x.data(), out.data(), n, 1.0f);
    double top = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double expected = truth(double(x[i]));
      double unit = std::max(std::abs(expected) * 0x1p-23, floor);
      if (std::abs(expected) < 3e38)
        top = std::max(top, std::abs(double(out[i]) - expected) / unit);
    }
    return top;
  };
  EXPECT_LT(worst(
                Unary::kExp, [](double v) { return std::exp(v); }, 0x1p-149),
            1.5);
  EXPECT_LT(worst(
                Unary::kTanh, [](double v) { return std::tanh(v); }, 0x1p-149),
            2.0);
  EXPECT_LT(worst(
                Unary::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, 0x1p-126),
            3.0);
  EXPECT_LT(worst(
                Unary::kSilu, [](double v) { return v / (1 + std::exp(-v)); }, 0x1p-120),
            4.0);
}

}  // namespace
}  // namespace tokamak::cpu
