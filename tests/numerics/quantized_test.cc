// Quantised checkpoints (tools/tiny_quantized.py): every weight has the bits that the format stands
// for, and takes the memory of the file. Logits are tested with all families.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "backend/common/weights.h"
#include "compile/import/import_model.h"
#include "tensor/block_formats.h"
#include "tests/numerics/golden_file.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

WeightEntry entry_of(const std::string& name, const ModelConfig::Weight& w) {
  WeightEntry entry;
  entry.name = name;
  entry.dtype = w.dtype;
  entry.dims = w.dims;
  entry.recipe = w.recipe;
  return entry;
}

std::vector<float> values_of(const ImportedModel& model, const std::string& name) {
  LoadedTensor t = load_weight(entry_of(name, model.config.weights.at(name)), *model.weights);
  std::vector<float> out(static_cast<size_t>(t.view.elements()));
  decode_row(t.view.dtype, t.view.bytes.data(), out.data(), t.view.elements());
  for (float& x : out) x *= static_cast<float>(model.config.weights.at(name).factor);
  return out;
}

class QuantizedTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("TOKAMAK_TINY_FAMILIES");
    if (!dir)
      GTEST_SKIP() << "TOKAMAK_TINY_FAMILIES is not a folder (tools/tiny_models.py --families)";
    folder_ = (fs::path(dir) / GetParam()).string();
  }
  std::string folder_;
};

TEST_P(QuantizedTest, WeightsHaveTheBitsOfTheFormat) {
  ImportedModel model = import_model(folder_), decoded = import_model(folder_ + ".decoded");
  int quantized = 0;
  for (const auto& [name, plain] : decoded.config.weights) {
    SCOPED_TRACE(name);
    const ModelConfig::Weight& w = model.config.weights.at(name);
    ASSERT_EQ(w.dims, plain.dims);
    std::vector<float> got = values_of(model, name), want = values_of(decoded, name);
    std::string order = name.substr(0, name.rfind('.')) + ".order";
    if (model.config.weights.contains(order)) {
      std::vector<float> columns = values_of(model, order), sorted(want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        size_t k = columns.size();
        sorted[i] = want[i / k * k + static_cast<size_t>(columns[i % k])];
      }
      want = sorted;
    }
    quantized += is_block_type(w.dtype);
    size_t different = 0;
    for (size_t i = 0; i < got.size(); ++i) different += got[i] != want[i];
    EXPECT_EQ(different, 0u) << dtype_name(w.dtype);
  }
  EXPECT_GT(quantized, 10);
}

// Nothing is widened: a group has its own scale and a byte for the zero point. In groups of 128
// that is within 5 % of the file, also where the file has a scale per row or block; in smaller ones
// within 15 %.
TEST_P(QuantizedTest, MemoryIsThatOfTheFile) {
  ImportedModel model = import_model(folder_);
  ModelRunner runner(folder_, {.backend = "cpu"});
  std::set<std::string> sources;
  double file = 0, quantized = 0, limit = 1.05;
  uint64_t most = 0;
  for (const auto& [name, w] : model.config.weights) {
    int64_t n = 1;
    for (int64_t d : w.dims) n *= d;
    uint64_t bytes = dtype_bytes(w.dtype, n);
    constexpr uint64_t kPages = 3 * 4096;  // rounding to panels of 16 rows and to pages
    most += (is_block_type(w.dtype) ? bytes : static_cast<uint64_t>(n) * 4) + kPages;
    if (!is_block_type(w.dtype)) continue;
    quantized += static_cast<double>(bytes);
    sources.insert(w.recipe.sources.begin(), w.recipe.sources.end());
    for (const RecipeStep& step : w.recipe.steps)
      if (!step.tensor.empty()) sources.insert(step.tensor);
    if (dtype_info(w.dtype).block_elements < 128 && w.dtype != DType::kMXFP4) limit = 1.15;
  }
  for (const std::string& name : sources)
    file += static_cast<double>(model.weights->find(name)->bytes.size());
  EXPECT_GT(quantized, 0.9 * file);
  EXPECT_LE(quantized, limit * file);
  EXPECT_LE(runner.memory().weights, most);
}

// Activations in int8, as the cpu backend computes by default where it has such kernels, and in
// bf16 for all plans of more than one row where it is faster with those.
TEST_P(QuantizedTest, RoundedActivationsAreClose) {
  Golden golden = read_golden(fs::path(TK_FAMILIES_DIR) / (GetParam() + ".json"));
  const GoldenSequence& q = golden.sequences[0];
  bool tiles = make_backend("cpu", {1, "", 0})->bf16_rows() > 0;
  for (const char* activations : {"auto", "mixed"}) {
    SCOPED_TRACE(activations);
    if (activations == std::string("mixed") && !tiles) {
      EXPECT_THROW(ModelRunner(folder_, {.backend = "cpu", .activations = "mixed"}), Error);
      continue;
    }
    ModelRunner runner(folder_, {.backend = "cpu", .activations = activations, .bf16_rows = 2});
    auto logits = runner.all_logits(0, q.ids, 64);
    for (size_t r = 0; r < q.rows.size(); ++r) {
      double error = 0, power = 0;
      for (size_t i = 0; i < q.logits[r].size(); ++i) {
        double want = q.logits[r][i], d = logits[static_cast<size_t>(q.rows[r])][i] - want;
        error += d * d;
        power += want * want;
      }
      EXPECT_LE(error / power, 2e-3) << "row " << q.rows[r];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedTest,
                         testing::Values("gptq", "gptq_act_order", "gptq_bits", "gptq_experts",
                                         "awq", "compressed_pack", "compressed_int8",
                                         "compressed_fp8", "mxfp4_packed", "nvfp4_packed",
                                         "fp8_blocks", "fp8_latent", "bnb_nf4", "bnb_int8"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokamak
