// Adapters of tiny models (tools/tiny_adapters.py) against logits that PEFT computed
// (tests/golden/adapters): merged into the weights and in slots beside them, from PEFT folders and
// from GGUF. Damaged adapters end in one clear line.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "compile/adapters.h"
#include "compile/import/import_test_util.h"
#include "tests/numerics/golden_file.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSlots = 4, kRank = 24;

std::string tiny(const std::string& name) {
  const char* folder = std::getenv("TOKAMAK_TINY_MODELS");
  return folder ? (fs::path(folder) / name).string() : "";
}

CompileOptions small_options() {
  CompileOptions o;
  o.activations = "f32";
  o.kv_dtype = DType::kF32;
  o.max_sequences = 8;
  o.max_tokens = o.max_logit_rows = 64;
  return o;
}

std::unique_ptr<ModelRunner> runner_of(const std::string& model, const std::string& backend_name,
                                       const CompileOptions& compile) {
  RunnerOptions options;
  options.backend = backend_name;
  BackendOptions backend_options;
  backend_options.threads = 2;
  auto backend = make_backend(backend_name, backend_options);
  auto source = compile_model(model, *backend, compile);
  return std::make_unique<ModelRunner>(std::move(source), std::move(backend), options);
}

std::unique_ptr<ModelRunner> with_slots(const std::string& model, const std::string& backend) {
  CompileOptions compile = small_options();
  compile.adapter_slots = kSlots;
  compile.adapter_rank = kRank;
  return runner_of(model, backend, compile);
}

std::shared_ptr<const Adapter> load(const std::string& model, const std::string& adapter) {
  return make_adapter(adapter, adapter, import_adapter(adapter, import_model(model).config), kRank);
}

// Every row of a step gets the slot of its sequence.
void choose(ModelRunner& runner, std::vector<int32_t> slot_of_row) {
  runner.edit = [slots = std::move(slot_of_row)](StepInputs& step) {
    std::vector<int32_t> rows;
    for (int32_t b : step.seq)
      rows.push_back(slots[static_cast<size_t>(step.row[static_cast<size_t>(b)])]);
    step.set_input(kAdapterInput, rows);
  };
}

double error(ModelRunner& runner, const Golden& golden) {
  double worst = 0;
  for (size_t s = 0; s < golden.sequences.size(); ++s) {
    const GoldenSequence& q = golden.sequences[s];
    auto logits = runner.all_logits(static_cast<int>(s), q.ids, 7);
    for (size_t r = 0; r < q.rows.size(); ++r)
      worst = std::max(worst, nmse(logits[static_cast<size_t>(q.rows[r])], q.logits[r]));
  }
  return worst;
}

std::string failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class AdapterTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
    golden_ = read_golden(fs::path(TK_ADAPTER_GOLDEN_DIR) / (GetParam() + ".json"));
    adapter_ = tiny("adapters/" + GetParam());
  }
  Golden golden_;
  std::string adapter_;
};

TEST_P(AdapterTest, MergedEqualsPeft) {
  for (const std::string& model : {tiny(golden_.model), tiny(golden_.model + ".gguf")})
    for (const char* backend : {"ref", "cpu"}) {
      CompileOptions compile = small_options();
      compile.merge_adapters = {adapter_};
      auto runner = runner_of(model, backend, compile);
      EXPECT_LE(error(*runner, golden_), backend == std::string_view("ref") ? 1e-9 : 1e-6)
          << model << " on " << backend;
    }
}

TEST_P(AdapterTest, SlotEqualsPeft) {
  bool dora = GetParam() == "llama_dora",
       shared = GetParam() == "llama_head" || GetParam() == "llama_saved";
  std::string folder = tiny(golden_.model);
  if (dora || shared) {
    std::string why = failure([&] { load(folder, adapter_); });
    EXPECT_NE(why.find("--merge-adapter"), std::string::npos) << why;
    return;
  }
  for (const std::string& model : {folder, folder + ".gguf"})
    for (const char* backend : {"ref", "cpu"}) {
      auto runner = with_slots(model, backend);
      auto adapter = load(model, adapter_);
      runner->set_adapter(2, *adapter);
      choose(*runner, {2, 2, -1, -1, -1, -1, -1, -1});
      EXPECT_LE(error(*runner, golden_), backend == std::string_view("ref") ? 1e-9 : 1e-6)
          << model << " on " << backend;
      // A slot that is filled again holds nothing of what it held before.
      Adapter nothing;
      runner->set_adapter(2, nothing);
      for (int s : {0, 1}) runner->restart(s);
      EXPECT_GT(error(*runner, golden_), 1e-3) << model << " on " << backend;
    }
}

INSTANTIATE_TEST_SUITE_P(All, AdapterTest, testing::ValuesIn(golden_names(TK_ADAPTER_GOLDEN_DIR)),
                         [](const auto& info) { return info.param; });

TEST(Adapter, GgufAdapter) {
  std::string model = tiny("llama.gguf"), adapter = tiny("adapters/llama_all.gguf");
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  Golden golden = read_golden(fs::path(TK_ADAPTER_GOLDEN_DIR) / "llama_all.json");
  CompileOptions compile = small_options();
  compile.merge_adapters = {adapter};
  EXPECT_LE(error(*runner_of(model, "ref", compile), golden), 1e-9);
  auto runner = with_slots(model, "cpu");
  runner->set_adapter(0, *load(model, adapter));
  choose(*runner, std::vector<int32_t>(8, 0));
  EXPECT_LE(error(*runner, golden), 1e-6);
  std::string why = failure([&] { import_adapter(adapter, import_model(tiny("llama")).config); });
  EXPECT_NE(why.find("needs the model as GGUF"), std::string::npos) << why;
  why = failure([&] { import_adapter(model, import_model(model).config); });
  EXPECT_NE(why.find("is not a LoRA adapter"), std::string::npos) << why;
}

// Rows with different adapters, and with none, in one step: each row has the bits that it has when
// its sequence runs alone, in logits and in the KV cache.
TEST(Adapter, BatchesAreBitEqualToEachAlone) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  std::string model = tiny("llama");
  auto runner = with_slots(model, "cpu");
  const char* names[] = {"llama_qv", "llama_all", "llama_patterns"};
  for (int32_t slot = 0; slot < 3; ++slot)
    runner->set_adapter(
        slot, *load(model, tiny("adapters/" + std::string(names[static_cast<size_t>(slot)]))));
  const std::vector<int32_t> slots = {0, 1, -1, 2, 1, 0, 1, -1};
  std::vector<ModelRunner::Part> prompts, next;
  Rng rng(3);
  auto ids = [&](size_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& id : out) id = static_cast<int32_t>(4 + rng.below(100));
    return out;
  };
  for (int s = 0; s < 8; ++s) {
    prompts.push_back({s, ids(static_cast<size_t>(1 + s % 5 * 3))});
    next.push_back({s, ids(1)});
  }
  choose(*runner, slots);
  auto together = runner->step(prompts), decoded = runner->decode(next);
  std::vector<std::vector<std::byte>> kv;
  for (int s = 0; s < 8; ++s) kv.push_back(runner->kv(s));
  size_t row = 0;
  for (int s = 0; s < 8; ++s) {
    auto alone = with_slots(model, "cpu");
    int32_t slot = slots[static_cast<size_t>(s)];
    if (slot >= 0)
      alone->set_adapter(
          3, *load(model, tiny("adapters/" + std::string(names[static_cast<size_t>(slot)]))));
    choose(*alone, std::vector<int32_t>(8, slot >= 0 ? 3 : -1));
    for (const auto& logits : alone->step({prompts[static_cast<size_t>(s)]}))
      EXPECT_EQ(logits, together[row++]) << "sequence " << s;
    EXPECT_EQ(alone->decode({next[static_cast<size_t>(s)]})[0], decoded[static_cast<size_t>(s)])
        << "sequence " << s;
    EXPECT_EQ(alone->kv(s), kv[static_cast<size_t>(s)]) << "sequence " << s;
  }
  EXPECT_NE(together[0], together[1]);
}

TEST(Adapter, QuantisedWeightsAreNotMerged) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  OpenedModel opened = open_model(tiny("llama.gguf"));
  opened.model.config.weights.at("blk.1.attn_q.weight").dtype = DType::kQ4_0;
  CompileOptions options;
  options.merge_adapters = {tiny("adapters/llama_qv")};
  std::string why = failure([&] { add_adapters(opened, options); });
  EXPECT_NE(why.find("blk.1.attn_q.weight is quantised (q4_0)"), std::string::npos) << why;
}

// --- damaged adapters

struct TensorSpec {
  std::string name;
  std::vector<int64_t> dims;
  float value = 0.5f;
};

void write_adapter(const fs::path& folder, const std::vector<TensorSpec>& tensors,
                   const std::string& changes = "") {
  std::string header = "{", data;
  for (const TensorSpec& t : tensors) {
    size_t n = 1;
    std::string dims;
    for (int64_t d : t.dims) {
      n *= static_cast<size_t>(d);
      dims += fmt::format("{}{}", dims.empty() ? "" : ",", d);
    }
    header +=
        fmt::format("{}\"{}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    header.size() > 1 ? "," : "", t.name, dims, data.size(), data.size() + n * 4);
    for (size_t i = 0; i < n; ++i) data.append(reinterpret_cast<const char*>(&t.value), 4);
  }
  header += "}";
  uint64_t size = header.size();
  write_text_file(folder / "adapter_model.safetensors",
                  std::string(reinterpret_cast<const char*>(&size), 8) + header + data);
  write_text_file(
      folder / "adapter_config.json",
      changes.starts_with('{') ? changes : "{" + changes + R"("peft_type": "LORA", "r": 2})");
}

TEST(Adapter, DamagedOnesEndInOneLine) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  const ModelConfig config = import_model(tiny("llama")).config;
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  const TensorSpec a{q + "lora_A.weight", {2, 64}}, b{q + "lora_B.weight", {64, 2}};
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string name;
    std::vector<TensorSpec> tensors;
    std::string changes, expected;
  };
  const Case cases[] = {
      {"fine", {a, b}, "", ""},
      {"one matrix", {a}, "", "only one of its two matrices"},
      {"ranks", {a, {b.name, {64, 3}}}, "", "A has rank 2, B has rank 3"},
      {"rank of the config", {a, b}, R"({"peft_type": "LORA", "r": 8})", "r is 8, but module"},
      {"not a matrix", {{a.name, {2, 8, 8}}, b}, "", "is not a pair of matrices"},
      {"another model", {{a.name, {2, 60}}, b}, "", "the adapter is for another model"},
      {"another model's rows", {a, {b.name, {60, 2}}}, "", "the adapter is for another model"},
      {"a layer that does not exist",
       {{"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", {2, 64}},
        {"base_model.model.model.layers.7.self_attn.q_proj.lora_B.weight", {64, 2}}},
       "",
       "is not a linear layer of this model (llama, 2 layers)"},
      {"no number", {a, {b.name, {64, 2}, kNan}}, "", "not finite"},
      {"an embedding",
       {{"base_model.model.model.embed_tokens.lora_embedding_A", {2, 64}}},
       "",
       "is not a LoRA matrix of a linear layer"},
      {"a layer of the base model",
       {a, b, {"base_model.model.lm_head.base_layer.weight", {128, 64}}},
       "",
       "save_embedding_layers=False"},
      {"magnitudes without DoRA", {a, b, {q + "lora_magnitude_vector", {64}}}, "", "use_dora"},
      {"DoRA without magnitudes", {a, b}, "\"use_dora\": true,", "use_dora"},
      {"bias", {a, b}, "\"bias\": \"all\",", "biases"},
      {"lora_bias", {a, b}, "\"lora_bias\": true,", "lora_bias is not supported"},
      {"saved modules", {a, b}, "\"modules_to_save\": [\"lm_head\"],", "modules_to_save"},
      {"another kind", {a, b}, R"({"peft_type": "LOHA", "r": 2})", "LOHA"},
      {"a base that changes", {a, b}, "\"init_lora_weights\": \"pissa\",", "pissa"},
      {"a wrong type", {a, b}, "\"use_rslora\": 3,", "adapter_config.json"},
      {"regular expressions",
       {a, b},
       "\"alpha_pattern\": {\".*q_proj\": 3},",
       "regular expression"},
      {"nothing", {}, "", "the adapter is empty"},
      {"a huge scale", {a, b}, "\"lora_alpha\": 1e300,", "alpha multiplies the adapter"},
  };
  for (const Case& c : cases) {
    test::TempFolder folder;
    write_adapter(folder.path(), c.tensors, c.changes);
    std::string why = failure([&] { import_adapter(folder.path(), config); });
    EXPECT_EQ(why.empty(), c.expected.empty()) << c.name << ": " << why;
    EXPECT_NE(why.find(c.expected), std::string::npos) << c.name << ": " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << c.name << ": " << why;
    EXPECT_EQ(why.find(folder.path().string()), why.empty() ? std::string::npos : 0u)
        << c.name << ": " << why;
  }
}

TEST(Adapter, PatternsMustFit) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  const ModelConfig config = import_model(tiny("llama")).config;
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  struct Case {
    std::string pattern, expected;
  };
  for (const Case& c : {Case{R"({"q_proj": 2})", ""},
                        {R"({"q_proj": 7})", "rank_pattern is 7, but module"},
                        {R"({"q_proj": "x"})", "instead of an integer"},
                        {"[2]", "rank_pattern is not an object"}}) {
    test::TempFolder folder;
    write_adapter(folder.path(), {{q + "lora_A.weight", {2, 64}}, {q + "lora_B.weight", {64, 2}}},
                  "\"rank_pattern\": " + c.pattern + ",");
    std::string why = failure([&] { import_adapter(folder.path(), config); });
    EXPECT_EQ(why.empty(), c.expected.empty()) << why;
    EXPECT_NE(why.find(c.expected), std::string::npos) << why;
  }
}

TEST(Adapter, GgufAdapterOfAnotherArchitecture) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  const ModelConfig config = import_model(tiny("qwen2.gguf")).config;
  std::string why = failure([&] { import_adapter(tiny("adapters/llama_all.gguf"), config); });
  EXPECT_NE(why.find("the adapter is for llama models, but this is a qwen2 model"),
            std::string::npos)
      << why;
}

TEST(Adapter, MissingAndTruncatedFiles) {
  if (tiny("").empty()) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  const ModelConfig config = import_model(tiny("llama")).config;
  test::TempFolder folder;
  auto why = [&] { return failure([&] { import_adapter(folder.path(), config); }); };
  EXPECT_NE(why().find("no adapter_config.json"), std::string::npos) << why();
  fs::copy(tiny("adapters/llama_qv"), folder.path(), fs::copy_options::recursive);
  EXPECT_EQ(why(), "");
  fs::path weights = folder.path() / "adapter_model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 4);
  EXPECT_NE(why(), "");
  fs::rename(weights, folder.path() / "adapter_model.bin");
  EXPECT_NE(why().find("pickle"), std::string::npos) << why();
  write_text_file(folder.path() / "adapter_config.json", "{\"r\": ");
  write_text_file(weights, "");
  EXPECT_NE(why().find("adapter_config.json"), std::string::npos) << why();
  std::string rank = failure(
      [&] { make_adapter("x", "x", import_adapter(tiny("adapters/llama_all"), config), 4); });
  EXPECT_NE(rank.find("--max-lora-rank 8"), std::string::npos) << rank;
}

}  // namespace
}  // namespace tokamak
