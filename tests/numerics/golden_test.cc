// Tiny random-weight models of every architecture, as folder and as GGUF, against logits that
// transformers computed (tests/golden/numerics, made by tools/make_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "tests/numerics/golden_file.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("TOKAMAK_TINY_MODELS");
    if (!dir)
      GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder (tools/tiny_models.py writes it)";
    models_ = dir;
    golden_ = read_golden(fs::path(TK_GOLDEN_DIR) / (GetParam() + ".json"));
  }
  std::vector<std::string> paths() const {
    std::vector<std::string> out = {(models_ / golden_.model).string()};
    if (golden_.gguf) out.push_back((models_ / (golden_.model + ".gguf")).string());
    return out;
  }
  void expect_close(ModelRunner& runner, double bound, const std::string& where) {
    for (size_t s = 0; s < golden_.sequences.size(); ++s) {
      const GoldenSequence& q = golden_.sequences[s];
      auto logits = runner.all_logits(static_cast<int>(s), q.ids, 64);
      double worst = 0;
      for (size_t r = 0; r < q.rows.size(); ++r)
        worst = std::max(worst, nmse(logits[static_cast<size_t>(q.rows[r])], q.logits[r]));
      EXPECT_LE(worst, bound) << where << " sequence " << s;
      RecordProperty("nmse", fmt::format("{:.3g}", worst));
    }
  }
  fs::path models_;
  Golden golden_;
};

TEST_P(GoldenTest, RefMatchesTransformers) {
  for (const std::string& path : paths()) {
    ModelRunner runner(path, {.backend = "ref"});
    expect_close(runner, 1e-9, path);
  }
}

// Values stored as f16 and bf16 between ops, in a smaller arena. The errors are those of rounding
// to 11 and to 8 bits: their squares differ by a factor of about 64. As with f32, fusing changes no
// bit.
TEST_P(GoldenTest, RefStoresNarrow) {
  struct Case {
    const char* storage;
    double bound, worst;  // of all rows, of one row
    double error = 0;
  };
  const std::string path = paths()[0];
  const std::vector<int32_t>& ids = golden_.sequences[0].ids;
  ModelRunner wide(path, {.backend = "ref"});
  auto flat = [](const std::vector<std::vector<float>>& rows) {
    std::vector<float> all;
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  };
  std::vector<float> exact = flat(wide.all_logits(4, ids, 64));
  Case cases[] = {{"bf16", 5e-4, 4e-3}, {"f16", 1e-5, 1e-4}, {"bf16,residual=f32", 5e-4, 4e-3}};
  for (Case& c : cases) {
    SCOPED_TRACE(c.storage);
    ModelRunner narrow(path, {.backend = "ref", .storage = c.storage});
    expect_close(narrow, c.worst, path);
    EXPECT_NE(narrow.plans().numerics_id, wide.plans().numerics_id);
    EXPECT_LT(10 * narrow.plans().arena_bytes, 9 * wide.plans().arena_bytes);
    auto whole = narrow.all_logits(4, ids, 64);
    c.error = nmse(flat(whole), {exact.begin(), exact.end()});
    EXPECT_LE(c.error, c.bound);
    EXPECT_EQ(narrow.all_logits(5, ids, 5), whole);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(narrow.decode({{6, {ids[i]}}})[0], whole[i]);
    ModelRunner plain(path, {.backend = "ref", .storage = c.storage, .disabled_passes = {"fuse"}});
    EXPECT_EQ(plain.all_logits(4, ids, 64), whole);
    RecordProperty(c.storage, fmt::format("{:.3g}", c.error));
  }
  EXPECT_GT(cases[0].error, 20 * cases[1].error);
  EXPECT_LT(cases[0].error, 200 * cases[1].error);
  EXPECT_LT(cases[2].error, cases[0].error);  // rounds in fewer places
}

TEST_P(GoldenTest, CpuMatchesTransformers) {
  for (const std::string& path : paths()) {
    ModelRunner runner(path, {.backend = "cpu"});
    expect_close(runner, 1e-6, path);
    ModelRunner half(path, {.backend = "cpu", .kv_dtype = DType::kF16});
    expect_close(half, 1e-5, path + " with f16 KV");
    ModelRunner bytes(path, {.backend = "cpu", .kv_dtype = DType::kI8});
    expect_close(bytes, 2e-3, path + " with int8 KV");
  }
}

TEST_P(GoldenTest, GreedyContinuationMatches) {
  for (const char* backend : {"ref", "cpu"}) {
    ModelRunner runner(paths().back(), {.backend = backend});
    for (size_t s = 0; s < golden_.sequences.size(); ++s)
      EXPECT_EQ(runner.greedy(static_cast<int>(s), golden_.sequences[s].ids, 16),
                golden_.sequences[s].greedy)
          << backend;
  }
}

TEST_P(GoldenTest, GraphTextRoundTrips) {
  CompileOptions options;
  Module module = build_module(import_model(paths()[0]).config, options);
  specialize_decode(module);
  specialize_verify(module, 3);
  std::string text = print_module(module);
  Module again = parse_module(text);
  verify_module(again);
  EXPECT_EQ(print_module(again), text);
  for (const auto& fn : module.functions)
    EXPECT_EQ(structural_hash(*fn), structural_hash(*again.find_function(fn->name())))
        << fn->name();
}

// The largest step that the plans allow uses the whole arena, and no step uses more. The planner's
// peak is the total of the live values at the worst call: these graphs pack without gaps.
TEST_P(GoldenTest, PlannedPeakIsTouched) {
  ModelRunner runner(paths()[0], {.backend = "ref"});
  std::vector<int32_t> ids(64);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = golden_.sequences[0].ids[i % golden_.sequences[0].ids.size()];
  runner.step({{0, {ids[0]}}});
  EXPECT_LT(runner.memory().arena_touched, runner.plans().arena_bytes);
  runner.step({{1, ids}});
  EXPECT_LE(runner.memory().arena_touched, runner.plans().arena_bytes);
  EXPECT_GT(runner.memory().arena_touched + 64, runner.plans().arena_bytes);  // rounded to 64
  for (const Plan& plan : runner.plans().plans) {
    EXPECT_GT(plan.arena_lower_bound, 0u);
    EXPECT_EQ(plan.arena_bytes, plan.arena_lower_bound) << plan.function << plan.arena_method;
  }
}

// Folder and GGUF contain the same numbers, so the logits must be bit-identical.
TEST_P(GoldenTest, FolderAndGgufGiveTheSameBits) {
  if (!golden_.gguf) GTEST_SKIP() << "no GGUF of this model";
  ModelRunner folder(paths()[0], {.backend = "cpu"}), gguf(paths()[1], {.backend = "cpu"});
  const std::vector<int32_t>& ids = golden_.sequences[0].ids;
  EXPECT_EQ(folder.all_logits(0, ids, 64), gguf.all_logits(0, ids, 64));
}

// Fusion does not change a bit of the results: in chunks, alone and next to others, with keys and
// values as f32 and f16.
TEST_P(GoldenTest, FusionKeepsEveryBit) {
  const std::vector<int32_t>& ids = golden_.sequences[0].ids;
  for (DType kv : {DType::kF32, DType::kF16}) {
    ModelRunner fused(paths()[0], {.backend = "cpu", .kv_dtype = kv});
    ModelRunner plain(paths()[0], {.backend = "cpu", .kv_dtype = kv, .disabled_passes = {"fuse"}});
    EXPECT_EQ(fused.plans().numerics_id, plain.plans().numerics_id);
    auto regions = [](const PlanSet& set) {
      size_t n = 0;
      for (const KernelCall& call : set.plans[0].calls) n += call.op == "region";
      return n;
    };
    EXPECT_GT(regions(fused.plans()), 2u);
    EXPECT_EQ(regions(plain.plans()), 0u);
    EXPECT_LT(fused.plans().plans[0].calls.size(), plain.plans().plans[0].calls.size());
    auto whole = plain.all_logits(0, ids, 64);
    EXPECT_EQ(fused.all_logits(0, ids, 64), whole);
    EXPECT_EQ(fused.all_logits(1, ids, 5), whole);
    EXPECT_EQ(fused.kv(1), plain.kv(0));
    for (size_t i = 0; i < 8; ++i)  // decode reads what decode wrote
      EXPECT_EQ(fused.decode({{2, {ids[i]}}, {3, {ids[i]}}}),
                plain.decode({{2, {ids[i]}}, {3, {ids[i]}}}));
  }
}

// Batch invariance: the same bits whether a sequence is computed at once, token by token, in
// chunks, or next to others, with one thread or three.
TEST_P(GoldenTest, LogitBitsDoNotDependOnBatching) {
  const std::vector<int32_t>&ids = golden_.sequences[0].ids, &other = golden_.sequences[1].ids;
  for (DType kv : {DType::kF32, DType::kF16, DType::kI8}) {
    ModelRunner runner(paths().back(), {.backend = "cpu", .kv_dtype = kv});
    auto whole = runner.all_logits(0, ids, 64);
    EXPECT_EQ(runner.all_logits(1, ids, 7), whole) << "chunks of 7";
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(runner.decode({{2, {ids[i]}}})[0], whole[i]) << "decode, token " << i;
    // Interleaved with another sequence, in uneven parts.
    size_t at = 0, other_at = 0;
    for (size_t round = 0; at < ids.size(); ++round) {
      size_t n = std::min(ids.size() - at, round % 4 + 1),
             m = std::min(other.size() - other_at, (round * 3) % 5);
      std::vector<ModelRunner::Part> parts;
      if (m > 0)
        parts.push_back({3,
                         {other.begin() + static_cast<ptrdiff_t>(other_at),
                          other.begin() + static_cast<ptrdiff_t>(other_at + m)}});
      parts.push_back({4,
                       {ids.begin() + static_cast<ptrdiff_t>(at),
                        ids.begin() + static_cast<ptrdiff_t>(at + n)}});
      auto rows = runner.step(parts);
      for (size_t i = 0; i < n; ++i)
        EXPECT_EQ(rows[m + i], whole[at + i]) << "batched, token " << at + i;
      at += n;
      other_at += m;
    }
    ModelRunner threads(paths().back(), {.backend = "cpu", .kv_dtype = kv, .threads = 3});
    EXPECT_EQ(threads.all_logits(0, ids, 64), whole) << "three threads";
    // So are those of the cache.
    auto cached = runner.kv(0);
    EXPECT_NE(cached, runner.kv(7)) << "nothing was cached";
    for (int s : {1, 2, 4}) EXPECT_TRUE(runner.kv(s) == cached) << "KV of sequence " << s;
    EXPECT_TRUE(threads.kv(0) == cached) << "KV, three threads";
    runner.restart(0);
    EXPECT_EQ(runner.all_logits(0, ids, 11), whole) << "recomputed after preemption";
  }
}

// Steps much larger than any kernel's tiles: many sequences at once, in several combinations.
TEST_P(GoldenTest, LogitBitsDoNotDependOnLargeBatches) {
  RunnerOptions options{.backend = "cpu", .kv_dtype = DType::kF16};
  options.max_tokens = 320;
  ModelRunner runner(paths().back(), options);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<std::vector<float>>> alone;
  for (int s = 0; s < 8; ++s) {
    prompts.push_back(golden_.sequences[0].ids);
    std::rotate(prompts[static_cast<size_t>(s)].begin(),
                prompts[static_cast<size_t>(s)].begin() + s, prompts[static_cast<size_t>(s)].end());
    alone.push_back(runner.all_logits(s, prompts.back(), 320));
  }
  for (int count = 2; count <= 8; ++count) {
    std::vector<ModelRunner::Part> parts;
    for (int s = 0; s < count; ++s) {
      runner.restart(s);
      parts.push_back({s, prompts[static_cast<size_t>(s)]});
    }
    auto rows = runner.step(parts);
    size_t at = 0;
    for (int s = 0; s < count; ++s)
      for (const auto& want : alone[static_cast<size_t>(s)])
        ASSERT_EQ(rows[at++], want) << count << " sequences, sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GoldenTest, testing::ValuesIn(golden_names(TK_GOLDEN_DIR)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokamak
