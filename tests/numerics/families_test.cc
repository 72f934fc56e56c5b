// One tiny model per further family, as folder and as GGUF, against logits that transformers
// computed (tests/golden/families). What all families share is tested by golden_test.cc.
// TOKAMAK_FAMILY_TABLE=FILE appends a row of the table of families to FILE for each model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "compile/import/import_model.h"
#include "tests/numerics/golden_file.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class FamilyTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("TOKAMAK_TINY_FAMILIES");
    if (!dir)
      GTEST_SKIP() << "TOKAMAK_TINY_FAMILIES is not a folder (tools/tiny_models.py --families)";
    golden_ = read_golden(fs::path(TK_FAMILIES_DIR) / (GetParam() + ".json"));
    folder_ = (fs::path(dir) / golden_.model).string();
    gguf_ = golden_.gguf ? folder_ + ".gguf" : "";
  }
  // The largest error of a row.
  double error(ModelRunner& runner) const {
    double worst = 0;
    for (size_t s = 0; s < golden_.sequences.size(); ++s) {
      const GoldenSequence& q = golden_.sequences[s];
      auto logits = runner.all_logits(static_cast<int>(s), q.ids, 64);
      for (size_t r = 0; r < q.rows.size(); ++r)
        worst = std::max(worst, nmse(logits[static_cast<size_t>(q.rows[r])], q.logits[r]));
    }
    return worst;
  }
  // Tokens of the greedy continuations that agree, and how many there are.
  std::pair<int, int> greedy(ModelRunner& runner) const {
    int equal = 0, all = 0;
    for (size_t s = 0; s < golden_.sequences.size(); ++s) {
      const GoldenSequence& q = golden_.sequences[s];
      int sequence = static_cast<int>(s);
      runner.restart(sequence);
      auto got = runner.greedy(sequence, q.ids, static_cast<int>(q.greedy.size()));
      for (size_t i = 0; i < got.size(); ++i, ++all) equal += got[i] == q.greedy[i];
    }
    return {equal, all};
  }
  Golden golden_;
  std::string folder_, gguf_;
};

TEST_P(FamilyTest, MatchesTransformers) {
  std::string row = fmt::format("| {} | {}", GetParam(), import_model(folder_).config.architecture);
  for (const std::string& path : {folder_, gguf_}) {
    if (path.empty() || (path == folder_ && !golden_.folder)) {
      row += " | - | - | -";
      continue;
    }
    SCOPED_TRACE(path);
    double errors[2];
    std::pair<int, int> agree;
    for (bool cpu : {false, true}) {
      ModelRunner runner(path, {.backend = cpu ? "cpu" : "ref"});
      errors[cpu] = error(runner);
      EXPECT_LE(errors[cpu], cpu ? 1e-6 : 1e-9);
      agree = greedy(runner);
      EXPECT_EQ(agree.first, agree.second);
    }
    row +=
        fmt::format(" | {:.1e} | {:.1e} | {}/{}", errors[0], errors[1], agree.first, agree.second);
  }
  if (const char* table = std::getenv("TOKAMAK_FAMILY_TABLE"))
    std::ofstream(table, std::ios::app) << row << " |\n";
}

// The same bits whether a sequence is computed at once, in chunks, token by token, next to another
// one, with three threads or unfused.
TEST_P(FamilyTest, LogitBitsDoNotDependOnBatching) {
  const std::vector<int32_t>&ids = golden_.sequences[0].ids, &other = golden_.sequences[1].ids;
  ModelRunner runner(folder_, {.backend = "cpu"});
  auto whole = runner.all_logits(0, ids, 64);
  EXPECT_EQ(runner.all_logits(1, ids, 5), whole) << "chunks of 5";
  for (size_t i = 0; i < ids.size(); ++i) {
    auto rows = runner.decode({{2, {ids[i]}}, {3, {other[i % other.size()]}}});
    EXPECT_EQ(rows[0], whole[i]) << "decode, token " << i;
  }
  ModelRunner threads(folder_, {.backend = "cpu", .threads = 3, .disabled_passes = {"fuse"}});
  auto rows = threads.step({{1, other}, {0, ids}});
  rows.erase(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(other.size()));
  EXPECT_EQ(rows, whole) << "three threads, unfused, next to another sequence";
}

// Latent attention: absorbed in all functions by default. Asked to, `step` computes keys and values
// of each head and `decode` stays absorbed; both give transformers' logits, from one cache.
TEST_P(FamilyTest, LatentAttentionIsAbsorbed) {
  if (import_model(folder_).config.latent.rank == 0) GTEST_SKIP() << "no latent attention";
  auto calls = [](const PlanSet& plans, std::string_view function, std::string_view op) {
    size_t n = 0;
    for (const Plan& plan : plans.plans)
      if (plan.function == function)
        for (const KernelCall& call : plan.calls) n += call.op == op;
    return n;
  };
  for (bool cpu : {false, true})
    for (bool materialized : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, materialized {}", cpu ? "cpu" : "ref", materialized));
      ModelRunner runner(folder_,
                         {.backend = cpu ? "cpu" : "ref", .materialized_prefill = materialized});
      EXPECT_EQ(calls(runner.plans(), "step", "attend_latent") > 0, materialized);
      EXPECT_EQ(calls(runner.plans(), "step", "attend") > 0, !materialized);
      EXPECT_EQ(calls(runner.plans(), "decode", "attend_latent"), 0u);
      EXPECT_GT(calls(runner.plans(), "decode", "attend"), 0u);
      EXPECT_GT(calls(runner.plans(), "decode", "head_linear"), 0u);
      EXPECT_LE(error(runner), cpu ? 1e-6 : 1e-9);
      auto [equal, all] = greedy(runner);
      EXPECT_EQ(equal, all);
      const std::vector<int32_t>& ids = golden_.sequences[0].ids;
      for (int sequence : {0, 1}) runner.restart(sequence);
      auto whole = runner.all_logits(0, ids, 64);
      EXPECT_EQ(runner.all_logits(1, ids, 5), whole) << "chunks of 5";
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_LE(nmse(runner.decode({{2, {ids[i]}}})[0],
                       std::vector<double>(whole[i].begin(), whole[i].end())),
                  1e-10)
            << "decode, token " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, FamilyTest, testing::ValuesIn(golden_names(TK_FAMILIES_DIR)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tokamak
