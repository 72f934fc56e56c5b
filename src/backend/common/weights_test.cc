#include "backend/common/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "tensor/block_formats.h"
#include "tensor/group_join.h"

namespace tokamak {
namespace {

using Kind = RecipeStep::Kind;

std::vector<float> iota(size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

RecipeStep step(Kind kind, int64_t a = 0, int64_t b = 0) {
  RecipeStep s;
  s.kind = kind;
  s.a = a;
  s.b = b;
  return s;
}

WeightTable source() {
  WeightTable table;
  table.add_f32("m", {8, 3}, iota(24));
  table.add_f32("n", {2, 3}, iota(6));
  std::vector<float> rows = iota(8 * 32);
  std::vector<std::byte> q(dtype_bytes(DType::kQ8_0, 8 * 32));
  for (size_t r = 0; r < 8; ++r)
    encode_row(DType::kQ8_0, rows.data() + r * 32, q.data() + r * 34, 32);
  table.add("q", DType::kQ8_0, {8, 32}, q);
  return table;
}

WeightEntry entry(DType dtype, std::vector<int64_t> dims, std::vector<std::string> sources,
                  std::vector<RecipeStep> steps = {}) {
  WeightEntry e;
  e.name = "w";
  e.dtype = dtype;
  e.dims = std::move(dims);
  e.recipe = {std::move(sources), std::move(steps)};
  return e;
}

std::vector<float> floats(const LoadedTensor& t) {
  std::vector<float> out(static_cast<size_t>(t.view.elements()));
  decode_row(t.view.dtype, t.view.bytes.data(), out.data(), t.view.elements());
  return out;
}

TEST(Weights, UnchangedTensorsAreNotCopied) {
  WeightTable table = source();
  LoadedTensor t = load_weight(entry(DType::kQ8_0, {8, 32}, {"q"}), table);
  EXPECT_EQ(t.view.bytes.data(), table.find("q")->bytes.data());
  EXPECT_TRUE(t.owned.empty());
  LoadedTensor part =
      load_weight(entry(DType::kQ8_0, {3, 32}, {"q"}, {step(Kind::kSliceRows, 2, 5)}), table);
  EXPECT_EQ(part.view.bytes.data(), table.find("q")->bytes.data() + 2 * 34);
}

TEST(Weights, PermuteRowsSplitsInterleavedPairs) {
  WeightTable table = source();
  auto recipe = {step(Kind::kPermuteRows, 2)};
  auto got = floats(load_weight(entry(DType::kF32, {8, 3}, {"m"}, recipe), table));
  std::vector<float> first_column;
  for (size_t r = 0; r < 8; ++r) first_column.push_back(got[r * 3] / 3);
  EXPECT_EQ(first_column, (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  // Only the first half of each head is rotated.
  got = floats(
      load_weight(entry(DType::kF32, {8, 3}, {"m"}, {step(Kind::kPermuteRows, 1, 4)}), table));
  first_column.clear();
  for (size_t r = 0; r < 8; ++r) first_column.push_back(got[r * 3] / 3);
  EXPECT_EQ(first_column, (std::vector<float>{0, 2, 1, 3, 4, 5, 6, 7}));
  // Whole rows of a block type move the same way, bit for bit.
  LoadedTensor q = load_weight(entry(DType::kQ8_0, {8, 32}, {"q"}, recipe), table);
  const std::byte* original = table.find("q")->bytes.data();
  EXPECT_EQ(std::memcmp(q.view.bytes.data() + 34, original + 2 * 34, 34), 0);
  EXPECT_EQ(std::memcmp(q.view.bytes.data() + 2 * 34, original + 34, 34), 0);
}

// Rows of every period: one part of a tensor whose heads are stored in turn.
TEST(Weights, SliceRowsOfEveryPeriod) {
  WeightTable table = source();
  RecipeStep every = step(Kind::kSliceRows, 1, 3);
  every.dims = {4};
  auto got = floats(load_weight(entry(DType::kF32, {4, 3}, {"m"}, {every}), table));
  std::vector<float> first_column;
  for (size_t r = 0; r < 4; ++r) first_column.push_back(got[r * 3] / 3);
  EXPECT_EQ(first_column, (std::vector<float>{1, 2, 5, 6}));
}

TEST(Weights, JoinsMxfp4) {
  WeightTable table;
  std::vector<std::byte> blocks(2 * 16), scales = {std::byte{127}, std::byte{128}};
  for (size_t i = 0; i < 32; ++i) blocks[i] = std::byte(i % 16 | (15 - i % 16) << 4);
  table.add("blocks", DType::kU8, {1, 2, 16}, blocks);
  table.add("scales", DType::kU8, {1, 2}, scales);
  RecipeStep join = step(Kind::kJoinMxfp4);
  join.tensor = "scales";
  auto got = floats(load_weight(entry(DType::kMXFP4, {1, 64}, {"blocks"}, {join}), table));
  const float values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t i = 0; i < 64; ++i) {
    size_t byte = i % 32 / 2, code = i % 2 == 0 ? byte : 15 - byte;
    float want = (code >= 8 ? -1.0f : 1.0f) * values[code % 8] * (i < 32 ? 1.0f : 2.0f);
    EXPECT_EQ(got[i], want) << i;
  }
  EXPECT_THROW(load_weight(entry(DType::kMXFP4, {2}, {"scales"}, {join}), table), Error);
}

// A matrix of fp8 with a scale per block of 32 x 32, as latent attention reads it transposed.
TEST(Weights, TransposesFp8Blocks) {
  std::vector<std::byte> codes(32 * 64), scales(2 * sizeof(float));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = std::byte(i * 7 % 120);
  const float values[] = {0.5f, 3.0f};
  std::memcpy(scales.data(), values, sizeof values);
  WeightTable table;
  table.add("w", DType::kF8E4M3, {32, 64}, codes);
  table.add("s", DType::kF32, {1, 2}, scales);
  RecipeStep join = step(Kind::kJoinGroups, static_cast<int64_t>(GroupPacking::kPlain));
  join.dtype = DType::kF8G32;
  join.dims = {32, 64, 32, 32};
  auto rows = floats(load_weight(entry(DType::kF8G32, {32, 64}, {"w", "s"}, {join}), table));
  auto columns = floats(load_weight(
      entry(DType::kF8G32, {64, 32}, {"w", "s"}, {join, step(Kind::kTranspose)}), table));
  for (size_t r = 0; r < 32; ++r)
    for (size_t c = 0; c < 64; ++c) ASSERT_EQ(rows[r * 64 + c], columns[c * 32 + r]);
  EXPECT_NE(rows[33], 0.0f);
  // A scale per row cannot be the scale of a column.
  std::vector<float> per_row(32 * 2);
  for (size_t i = 0; i < per_row.size(); ++i) per_row[i] = static_cast<float>(i + 1);
  table.add_f32("t", {32, 2}, per_row);
  join.dims = {32, 64, 1, 32};
  EXPECT_THROW(
      load_weight(entry(DType::kF8G32, {64, 32}, {"w", "t"}, {join, step(Kind::kTranspose)}),
                  table),
      Error);
  EXPECT_THROW(load_weight(entry(DType::kF8G32, {32, 64}, {"w"}, {join}), table), Error);
}

TEST(Weights, Steps) {
  WeightTable table = source();
  auto one = [&](std::vector<int64_t> dims, std::vector<std::string> from,
                 std::vector<RecipeStep> steps) {
    return floats(load_weight(entry(DType::kF32, std::move(dims), std::move(from), steps), table));
  };
  EXPECT_EQ(one({3, 2}, {"n"}, {step(Kind::kTranspose)}), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  auto joined = one({4, 3}, {"n", "n"}, {step(Kind::kConcatRows)});
  EXPECT_EQ(joined[11], 5);
  RecipeStep add = step(Kind::kAddScalar), scale = step(Kind::kScale), shape = step(Kind::kReshape);
  add.value = 1;
  scale.value = 2;
  shape.dims = {6};
  EXPECT_EQ(one({6}, {"n"}, {add, scale, shape}), (std::vector<float>{2, 4, 6, 8, 10, 12}));
  RecipeStep columns = step(Kind::kScaleColumns);
  columns.tensor = "f";
  columns.value = 1;  // 10 + 1, 20 + 1, 30 + 1
  table.add_f32("f", {3}, std::vector<float>{10, 20, 30});
  EXPECT_EQ(one({2, 3}, {"n"}, {columns}), (std::vector<float>{0, 21, 62, 33, 84, 155}));
  RecipeStep half = step(Kind::kCast);
  half.dtype = DType::kF16;
  EXPECT_EQ(floats(load_weight(entry(DType::kF16, {2, 3}, {"n"}, {half}), table)), iota(6));
  table.add_f32("rows", {3, 2}, std::vector<float>{3, 4, 0, 0, -5, 12});
  EXPECT_EQ(one({3, 2}, {"rows"}, {step(Kind::kUnitRows)}),
            (std::vector<float>{0.6F, 0.8F, 0, 0, -5 / 13.0F, 12 / 13.0F}));
  EXPECT_EQ(one({3, 2}, {"rows"}, {step(Kind::kTernary)}),  // the mean is 4
            (std::vector<float>{4, 4, 0, 0, -4, 4}));
}

TEST(Weights, Constants) {
  WeightTable table;
  WeightEntry e = entry(DType::kF32, {3}, {});
  e.constant = {1, 0.5, -2};
  EXPECT_EQ(floats(load_weight(e, table)), (std::vector<float>{1, 0.5f, -2}));
  e.dtype = DType::kI32;
  e.constant = {1, 7, -2};
  LoadedTensor t = load_weight(e, table);
  int32_t values[3];
  std::memcpy(values, t.view.bytes.data(), sizeof values);
  EXPECT_EQ(values[2], -2);
  e.dims = {4};
  EXPECT_THROW(load_weight(e, table), Error);
}

// A source whose sizes contradict its bytes, as a damaged file would give.
class Damaged final : public WeightSource {
 public:
  explicit Damaged(std::vector<int64_t> dims) : view_{DType::kF32, std::move(dims), bytes_} {}
  const TensorView* find(std::string_view) const override { return &view_; }
  std::vector<std::string> names() const override { return {"x"}; }

 private:
  std::byte bytes_[8] = {};
  TensorView view_;
};

TEST(Weights, WrongRecipesAndFilesAreErrors) {
  WeightTable table = source();
  RecipeStep to_half = step(Kind::kCast), bad_shape = step(Kind::kReshape);
  to_half.dtype = DType::kF16;
  bad_shape.dims = {7};
  RecipeStep columns = step(Kind::kScaleColumns), nowhere = step(Kind::kScaleColumns);
  columns.tensor = "n";
  nowhere.tensor = "absent";
  struct Case {
    WeightEntry entry;
    const char* message;
  };
  const Case cases[] = {
      {entry(DType::kF32, {8, 3}, {"absent"}), "no tensor absent"},
      {entry(DType::kF32, {3, 8}, {"m"}), "the plan asks for f32[3, 8]"},
      {entry(DType::kF32, {8, 3}, {"m", "n"}), "concat_rows"},
      {entry(DType::kF32, {10, 3}, {"m", "q"}, {step(Kind::kConcatRows)}),
       "cannot be concatenated"},
      {entry(DType::kF32, {8, 3}, {"m"}, {step(Kind::kPermuteRows, 3)}), "heads"},
      {entry(DType::kF32, {8, 3}, {"m"}, {step(Kind::kSliceRows, 4, 9)}), "rows [4, 9)"},
      {entry(DType::kF16, {8, 32}, {"q"}, {to_half}), "requantised"},
      {entry(DType::kQ8_0, {32, 8}, {"q"}, {step(Kind::kTranspose)}), "transpose"},
      {entry(DType::kF32, {7}, {"m"}, {bad_shape}), "reshape"},
      {entry(DType::kF32, {8, 3}, {"m"}, {columns}), "6 factors of n for [8, 3]"},
      {entry(DType::kF32, {8, 3}, {"m"}, {nowhere}), "no tensor absent"},
  };
  for (const Case& c : cases) {
    try {
      load_weight(c.entry, table);
      ADD_FAILURE() << "accepted: " << c.message;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find("weight w:"), 0u) << e.what();
    }
  }
  for (std::vector<int64_t> dims : {std::vector<int64_t>{3}, {-2}, {INT64_MAX, 2}, {INT64_MAX}})
    EXPECT_THROW(load_weight(entry(DType::kF32, {2}, {"x"}), Damaged(dims)), Error);
}

}  // namespace
}  // namespace tokamak
