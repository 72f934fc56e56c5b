// Layers of quantised checkpoints that are damaged or not supported: one line each. What whole ones
// decode to is tested with the tiny models (tests/numerics/quantized_test.cc).
#include "compile/import/quantized.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "compile/import/import_test_util.h"
#include "tensor/group_join.h"

namespace tokamak {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr const char* kGptq =
    R"({"quant_method":"gptq","bits":4,"group_size":32,"sym":false,"desc_act":false})";

// Tensors "m.*" of zeros, changed or left out by a test.
struct Tensors {
  struct Entry {
    DType dtype;
    std::vector<int64_t> dims;
    std::vector<std::byte> bytes = {};
  };
  std::map<std::string, Entry> entries;

  std::string error(const std::string& config) const {
    return error_of([&] { matrix(config); });
  }
  QuantizedWeights::Matrix matrix(const std::string& config,
                                  const std::vector<std::string>& modules = {"m"}) const {
    WeightTable table;
    for (const auto& [name, e] : entries) {
      size_t n = 1;
      for (int64_t d : e.dims) n *= static_cast<size_t>(d);
      std::vector<std::byte> bytes(n * dtype_info(e.dtype).block_bytes);
      if (!e.bytes.empty()) std::memcpy(bytes.data(), e.bytes.data(), e.bytes.size());
      table.add(name, e.dtype, e.dims, bytes);
    }
    Value json = parse_json(R"({"quantization_config":)" + config + "}");
    QuantizedWeights q({&json}, table, "folder");
    if (!q.quantized(modules[0])) return {};
    return q.matrix(modules);
  }
  template <class T>
  void set(const std::string& name, const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    entries.at(name).bytes = bytes;
  }
};

Tensors gptq() {
  return {{{"m.qweight", {DType::kI32, {8, 16}}},
           {"m.scales", {DType::kF16, {2, 16}}},
           {"m.qzeros", {DType::kI32, {2, 2}}}}};
}

TEST(Quantized, Gptq) {
  Tensors t = gptq();
  QuantizedWeights::Matrix m = t.matrix(kGptq);
  EXPECT_EQ(m.rows, 16);
  EXPECT_EQ(m.columns, 64);
  EXPECT_EQ(m.steps[0].dtype, DType::kInt4G32);
  EXPECT_EQ(m.steps[0].b, kGroupZeros | kGroupZerosLess1);
  EXPECT_TRUE(m.order.empty());
  std::string v2 = kGptq;
  v2.replace(v2.find("\"desc_act\""), 0, R"("checkpoint_format":"gptq_v2",)");
  EXPECT_EQ(t.matrix(v2).steps[0].b, kGroupZeros);
  // Groups of neighbours need no order.
  std::vector<int32_t> groups(64);
  for (size_t i = 0; i < 64; ++i) groups[i] = static_cast<int32_t>(i / 32);
  t.entries["m.g_idx"] = {DType::kI32, {64}};
  t.set("m.g_idx", groups);
  EXPECT_TRUE(t.matrix(kGptq).order.empty());
  std::swap(groups[0], groups[40]);
  t.set("m.g_idx", groups);
  m = t.matrix(kGptq);
  EXPECT_EQ(m.order, "m.g_idx");
  EXPECT_EQ(m.groups, 2);
  // Scales that are not f16 numbers stay f32.
  t.entries["m.scales"].dtype = DType::kF32;
  EXPECT_EQ(t.matrix(kGptq).steps[0].dtype, DType::kInt4G32);
  t.set("m.scales", std::vector<float>{0.1f});
  EXPECT_EQ(t.matrix(kGptq).steps[0].dtype, DType::kInt4G32F);
}

// Symmetric codes show whether zeros are stored minus one, whatever the name of the format.
TEST(Quantized, SymmetricZerosTellTheVersion) {
  Tensors t = gptq();
  const std::string symmetric = R"({"quant_method":"gptq","bits":4,"group_size":32,"sym":true})";
  t.set("m.qzeros", std::vector<uint32_t>(4, 0x77777777u));
  EXPECT_TRUE(t.matrix(symmetric).steps[0].b & kGroupZerosLess1);
  t.set("m.qzeros", std::vector<uint32_t>(4, 0x88888888u));
  EXPECT_FALSE(t.matrix(symmetric).steps[0].b & kGroupZerosLess1);
}

TEST(Quantized, SaysWhatIsWrongWithGptq) {
  struct Case {
    const char* tensor;
    Tensors::Entry entry;  // no extents: the tensor is missing
    const char* message;
  };
  const Case cases[] = {
      {"m.scales", {}, "tensor m.scales is missing"},
      {"m.qzeros", {}, "tensor m.qzeros is missing"},
      {"m.scales", {DType::kF16, {3, 16}}, "3 groups of scales for 64 columns"},
      {"m.scales", {DType::kF16, {1, 16}}, "groups of 64 columns, config.json says 32"},
      {"m.scales", {DType::kF16, {2, 15}}, "m.scales is f16[2, 15], expected f16[2, 16]"},
      {"m.scales", {DType::kI32, {2, 16}}, "m.scales is i32[2, 16]"},
      {"m.scales", {DType::kF16, {16}}, "tensor m.scales [16] is not a matrix"},
      {"m.qzeros", {DType::kI32, {2, 3}}, "m.qzeros is i32[2, 3], expected i32[2, 2]"},
      {"m.qweight", {DType::kI8, {8, 16}}, "m.qweight is i8[8, 16]"},
      {"m.g_idx", {DType::kI32, {64}}, "puts 64 of 64 columns into group 0, expected 32"},
      {"m.g_idx", {DType::kI64, {64}}, "m.g_idx is i64[64], expected one i32 per column"},
      {"m.g_idx", {DType::kI32, {100}}, "8 words for 100 columns"},
  };
  for (const Case& c : cases) {
    Tensors t = gptq();
    if (c.entry.dims.empty())
      t.entries.erase(c.tensor);
    else
      t.entries[c.tensor] = c.entry;
    EXPECT_THAT(t.error(kGptq), HasSubstr(c.message));
  }
  Tensors t = gptq();
  t.entries["m.g_idx"] = {DType::kI32, {64}};
  t.set("m.g_idx", std::vector<int32_t>{2});
  EXPECT_THAT(t.error(kGptq), HasSubstr("column 0 into group 2 of 2"));
  t = gptq();
  t.entries["m.scales"] = {DType::kF16, {4, 16}};
  t.entries["m.qzeros"] = {DType::kI32, {4, 2}};
  EXPECT_THAT(t.error(R"({"quant_method":"gptq","bits":4,"group_size":16})"),
              HasSubstr("in groups of 16; groups must be multiples of 32"));
}

TEST(Quantized, SaysWhatIsNotSupported) {
  Tensors t = gptq();
  struct Case {
    const char *config, *message;
  };
  const Case cases[] = {
      {R"({"quant_method":"aqlm"})", "quantised with aqlm are not supported; supported: gptq, awq"},
      {R"({})", "an unnamed method"},
      {R"({"quant_method":"gptq","bits":5})", "gptq with 5 bits is not supported"},
      {R"({"quant_method":"gptq","bits":"4"})", "bits in config.json is not an integer"},
      {R"({"quant_method":"gptq","checkpoint_format":"marlin"})", "save them as gptq"},
      {R"({"quant_method":"awq","version":"gemv"})", "layout gemv are not supported"},
      {R"({"quant_method":"awq","bits":8})", "awq with 8 bits"},
      {R"({"quant_method":"compressed-tensors","format":"marlin-24"})", "format marlin-24"},
      {R"({"quant_method":"compressed-tensors","format":"int5"})", "format int5 is not supported"},
      {"3", "quantization_config in config.json is not an object"},
      {R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-bitmask"}})",
       "sparse weights (sparse-bitmask)"},
      {R"({"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true})",
       "m.g_idx is missing (desc_act)"},
  };
  for (const Case& c : cases) EXPECT_THAT(t.error(c.config), HasSubstr(c.message));
}

TEST(Quantized, OtherFormats) {
  const std::string compressed =
      R"({"quant_method":"compressed-tensors","format":"mixed-precision"})";
  Tensors t = {{{"m.weight_packed", {DType::kI32, {16, 8}}},
                {"m.weight_scale", {DType::kBF16, {16, 1}}},
                {"m.weight_shape", {DType::kI64, {2}}}}};
  EXPECT_THAT(t.error(compressed), HasSubstr("m is [0, 0], but has 16 packed rows"));
  t.set("m.weight_shape", std::vector<int64_t>{16, 64});
  EXPECT_EQ(t.matrix(compressed).steps[0].dtype, DType::kInt4G64);
  t.set("m.weight_shape", std::vector<int64_t>{16, 50});
  EXPECT_THAT(t.error(compressed), HasSubstr("packs 50 columns into 8 words"));
  t = {{{"m.weight", {DType::kI8, {16, 64}}}}};
  EXPECT_THAT(t.error(compressed), HasSubstr("tensor m.weight_scale is missing"));
  t.entries["m.weight_scale"] = {DType::kF32, {16, 3}};
  EXPECT_THAT(t.error(compressed), HasSubstr("3 groups of scales for 64 columns"));
  t.entries["m.weight_scale"] = {DType::kF32, {17}};
  EXPECT_THAT(t.error(compressed), HasSubstr("m.weight_scale [17] does not fit m.weight [16, 64]"));
  const std::string blocks = R"({"quant_method":"fp8","weight_block_size":[8,32]})";
  t = {{{"m.weight", {DType::kF8E4M3, {16, 64}}}, {"m.weight_scale_inv", {DType::kF32, {2, 2}}}}};
  EXPECT_EQ(t.matrix(blocks).steps[0].dtype, DType::kF8G32);
  t.entries["m.weight_scale_inv"].dims = {1, 2};
  EXPECT_THAT(t.error(blocks), HasSubstr("m.weight_scale_inv is [1, 2], expected [2, 2]"));
  t = {{{"m.weight", {DType::kF8E4M3, {16, 128}}}, {"m.weight_scale_inv", {DType::kF32, {4, 2}}}}};
  EXPECT_THAT(t.error(blocks), HasSubstr("expected [2, 4] for blocks of 8 x 32"));
  EXPECT_THAT(t.error(R"({"quant_method":"fp8","weight_block_size":[8]})"),
              HasSubstr("weight_block_size in config.json is not a list of two numbers"));
  t = {{{"m.weight_packed", {DType::kU8, {16, 32}}},
        {"m.weight_scale", {DType::kU8, {16, 2}}},
        {"m.weight_global_scale", {DType::kF32, {1}}}}};
  EXPECT_THAT(t.error(compressed), HasSubstr("expected f8e4m3[16, 4]"));
  t.entries["m.weight_scale"] = {DType::kF8E4M3, {16, 4}};
  EXPECT_THAT(t.error(compressed), HasSubstr("m.weight_global_scale is 0"));
  t.entries["m.weight_scale"] = {DType::kU8, {16, 2}};
  t.entries.erase("m.weight_global_scale");
  EXPECT_EQ(t.matrix(compressed).columns, 64);
  t.entries["m.weight_scale"].dims = {16, 3};
  EXPECT_THAT(t.error(compressed), HasSubstr("expected u8[16, 2]"));
  const std::string bnb = R"({"quant_method":"bitsandbytes","load_in_4bit":true})";
  t = {{{"m.weight", {DType::kU8, {512, 1}}}}};
  EXPECT_THAT(t.error(bnb), HasSubstr("quant_state.bitsandbytes__nf4 is missing"));
  std::string state = R"({"blocksize":64,"shape":[16,64]})";
  t.entries["m.weight.quant_state.bitsandbytes__nf4"] = {DType::kU8,
                                                         {static_cast<int64_t>(state.size())}};
  t.set("m.weight.quant_state.bitsandbytes__nf4", std::vector<char>(state.begin(), state.end()));
  EXPECT_THAT(t.error(bnb), HasSubstr("tensor m.weight.absmax is missing"));
  t.entries["m.weight.absmax"] = {DType::kF32, {16}};
  EXPECT_EQ(t.matrix(bnb).steps[0].dtype, DType::kNF4G64);
  t.entries["m.weight.absmax"].dims = {15};
  EXPECT_THAT(t.error(bnb), HasSubstr("m.weight.absmax is f32[15], expected 16 values of f32"));
  t.entries["m.weight.quant_state.bitsandbytes__fp4"] = {DType::kU8, {2}};
  EXPECT_THAT(t.error(bnb), HasSubstr("is bitsandbytes FP4; NF4 is supported"));
}

// Experts are one weight: their scales agree on a type, their layouts must be the same.
TEST(Quantized, ModulesOfOneWeight) {
  Tensors t = gptq();
  for (const char* part : {"qweight", "scales", "qzeros"})
    t.entries[std::string("n.") + part] = t.entries[std::string("m.") + part];
  QuantizedWeights::Matrix m = t.matrix(kGptq, {"m", "n"});
  EXPECT_EQ(m.rows, 32);
  EXPECT_EQ(m.sources.size(), 6u);
  t.entries["n.g_idx"] = {DType::kI32, {64}};
  std::vector<int32_t> groups(64);
  for (size_t i = 0; i < 64; ++i) groups[i] = static_cast<int32_t>(i % 2);
  t.set("n.g_idx", groups);
  EXPECT_THAT(error_of([&] {
                t.matrix(kGptq, {"m", "n"});
              }),
              HasSubstr("m and n are quantised differently"));
}

}  // namespace
}  // namespace tokamak
