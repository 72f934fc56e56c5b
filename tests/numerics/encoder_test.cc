// Tiny random-weight encoders, as folder and as GGUF, against vectors that transformers computed
// (tests/golden/encoders, made by tools/make_encoder_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/compiler.h"
#include "compile/open_model.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct Text {
  std::vector<int32_t> ids;
  int32_t second = 0;
  std::vector<double> vector;
};

struct EncoderGolden {
  std::string model;
  bool gguf = false, first = false;
  std::vector<Text> texts;
};

EncoderGolden read_encoder_golden(const fs::path& path) {
  Value v = parse_json(read_text_file(path), path.string());
  EncoderGolden g{
      v.at("model").as_string(), v.at("gguf").as_bool(), v.at("pooling").as_string() == "cls", {}};
  for (const Value& s : v.at("sequences").as_array()) {
    Text& t = g.texts.emplace_back();
    for (const Value& id : s.at("ids").as_array())
      t.ids.push_back(static_cast<int32_t>(id.as_int()));
    t.second = static_cast<int32_t>(s.at("second").as_int());
    for (const Value& x : s.at("vector").as_array()) t.vector.push_back(x.as_double());
  }
  return g;
}

std::vector<std::string> encoder_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(TK_ENCODER_GOLDEN_DIR))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

struct EncoderOptions {
  std::string backend = "cpu";
  int threads = 1;
  std::set<std::string> disabled_passes = {};
  Shapes shapes = Shapes::kAuto;
};

class EncoderRunner {
 public:
  EncoderRunner(const std::string& path, const EncoderOptions& options) {
    BackendOptions backend_options;
    backend_options.threads = options.threads;
    backend_ = make_backend(options.backend, backend_options);
    CompileOptions compile;
    compile.max_tokens = 256;
    compile.max_sequences = compile.max_logit_rows = 16;
    compile.disabled_passes = options.disabled_passes;
    compile.shapes = options.shapes;
    source_ = compile_model(path, *backend_, compile);
    first_ = source_->embedding().pooling == Pooling::kFirst;
    LoadOptions load;
    load.max_rows = 16;
    executable_ = backend_->load(source_->plans(), source_->weights(), load);
  }
  const ModelSource& source() const { return *source_; }
  const MemoryLedger& memory() const { return executable_->memory(); }

  // One step with all texts: a vector each.
  std::vector<std::vector<float>> run(const std::vector<Text>& texts) {
    StepInputs step;
    step.q_start.push_back(0);
    std::vector<int32_t> segments;
    for (const Text& t : texts) {
      auto b = static_cast<int32_t>(step.kv_len.size());
      auto begin = static_cast<int32_t>(step.ids.size());
      for (size_t i = 0; i < t.ids.size(); ++i) {
        step.ids.push_back(t.ids[i]);
        step.pos.push_back(static_cast<int32_t>(i));
        step.slot.push_back(static_cast<int32_t>(i));
        step.seq.push_back(b);
        segments.push_back(t.second > 0 && static_cast<int32_t>(i) >= t.second ? 1 : 0);
      }
      auto end = static_cast<int32_t>(step.ids.size());
      step.q_start.push_back(end);
      step.kv_len.push_back(end - begin);
      step.row.push_back(b);
      step.out_rows.push_back(first_ ? begin : end - 1);
      SampleRow sample;
      sample.mode = SampleRow::Mode::kHidden;
      step.samples.push_back(sample);
    }
    step.set_input(kSegmentInput, segments);
    StepResult result;
    executable_->collect(executable_->submit(step), result);
    size_t width = result.hidden.size() / texts.size();
    std::vector<std::vector<float>> out;
    for (size_t i = 0; i < texts.size(); ++i)
      out.emplace_back(result.hidden.begin() + static_cast<ptrdiff_t>(i * width),
                       result.hidden.begin() + static_cast<ptrdiff_t>((i + 1) * width));
    return out;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Executable> executable_;
  bool first_ = false;
};

class EncoderTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("TOKAMAK_TINY_MODELS");
    if (!dir)
      GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder (tools/tiny_models.py writes it)";
    golden_ = read_encoder_golden(fs::path(TK_ENCODER_GOLDEN_DIR) / (GetParam() + ".json"));
    paths_ = {(fs::path(dir) / golden_.model).string()};
    if (golden_.gguf) paths_.push_back((fs::path(dir) / (golden_.model + ".gguf")).string());
  }
  void expect_close(const std::string& path, const std::string& backend, double bound) {
    EncoderRunner runner(path, {.backend = backend});
    auto vectors = runner.run(golden_.texts);
    for (size_t i = 0; i < vectors.size(); ++i) {
      ASSERT_EQ(vectors[i].size(), golden_.texts[i].vector.size()) << path;
      EXPECT_LE(nmse(vectors[i], golden_.texts[i].vector), bound) << path << " text " << i;
    }
  }
  std::vector<std::string> paths_;
  EncoderGolden golden_;
};

TEST_P(EncoderTest, RefMatchesTransformers) {
  for (const std::string& path : paths_) expect_close(path, "ref", 1e-9);
}

TEST_P(EncoderTest, CpuMatchesTransformers) {
  for (const std::string& path : paths_) expect_close(path, "cpu", 1e-9);
}

// The same bits alone and in any batch, with any number of threads, fused or not, padded or not.
TEST_P(EncoderTest, BitsDoNotDependOnBatching) {
  EncoderRunner runner(paths_[0], {});
  auto all = runner.run(golden_.texts);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(runner.run({golden_.texts[i]})[0], all[i]) << "text " << i << " alone";
  std::vector<Text> reversed(golden_.texts.rbegin(), golden_.texts.rend());
  auto other = runner.run(reversed);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(other[all.size() - 1 - i], all[i]);
  for (int threads : {2, 3})
    EXPECT_EQ(EncoderRunner(paths_[0], {.threads = threads}).run(golden_.texts), all) << threads;
  EXPECT_EQ(EncoderRunner(paths_[0], {.disabled_passes = {"fuse"}}).run(golden_.texts), all);
  EXPECT_EQ(EncoderRunner(paths_[0], {.shapes = Shapes::kBuckets}).run(golden_.texts), all);
  if (golden_.gguf) {
    EXPECT_EQ(EncoderRunner(paths_[1], {}).run(golden_.texts), all) << "GGUF";
  }
}

// An encoder has no KV cache and one function; its segments change the result.
TEST_P(EncoderTest, HasNoCacheAndOneFunction) {
  EncoderRunner runner(paths_[0], {});
  EXPECT_EQ(runner.memory().kv, 0u);
  for (const Plan& plan : runner.source().plans().plans) EXPECT_EQ(plan.function, "step");
  EXPECT_TRUE(runner.source().embedding().encoder);
  EXPECT_FALSE(runner.source().embedding().generates());
  bool segments = false;
  for (const InputEntry& in : runner.source().plans().inputs)
    segments = segments || in.name == kSegmentInput;
  Text pair = golden_.texts[2], single = pair;
  pair.second = 9;
  single.second = 0;
  EXPECT_EQ(runner.run({pair}) != runner.run({single}), segments);
}

INSTANTIATE_TEST_SUITE_P(Encoders, EncoderTest, testing::ValuesIn(encoder_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokamak
