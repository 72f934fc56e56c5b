#include "engine/config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tokamak {
namespace {

PlanSet plan_set() {
  PlanSet p;
  p.model = "m";
  p.vocab = 100;
  p.context = 1000;
  p.symbols = {{"T", 1, 64, 1}, {"B", 1, 32, 1}, {"R", 1, 16, 1}};
  p.groups = {{"full", 0, 16}, {"window", 100, 16}};
  p.plans.resize(3);
  p.plans[0].function = "step";
  p.plans[1].function = "decode";
  p.plans[1].guard = {{"B", 1, 24, 1}};
  p.plans[2].function = "verify3";
  return p;
}

ErrorCode code_of(const EngineConfig& c, const RequestSpec& s) {
  try {
    check_request(c, s);
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode::kInternal;
}

TEST(EngineConfig, TakesItsLimitsFromThePlans) {
  EngineConfig c = default_engine_config(plan_set());
  EXPECT_EQ(c.max_batched_tokens, 64);
  EXPECT_EQ(c.max_num_seqs, 16);  // every sequence must be able to sample in every step
  EXPECT_EQ(c.max_out_rows, 16);
  EXPECT_EQ(c.decode_batch, 24);
  EXPECT_EQ(c.verify_sizes, std::vector<int32_t>{3});
  EXPECT_EQ(c.max_model_len, 1000);
  check_engine_config(c);
  EXPECT_EQ(default_engine_config(plan_set(), 200).max_model_len, 200);
}

TEST(EngineConfig, BlocksForTokens) {
  PlanSet p = plan_set();
  EXPECT_EQ(kv_blocks_for(p, 1000), (std::vector<int64_t>{63, 63}));
  // Two sequences, steps of 64: window 100 - 1 + 64 = 163 slots, 11 blocks and one for the edge.
  EXPECT_EQ(kv_blocks_for(p, 1000, 2, 64), (std::vector<int64_t>{63, 24}));
  EXPECT_EQ(kv_blocks_for(p, 0), (std::vector<int64_t>{1, 1}));
}

TEST(EngineConfig, ContradictionsAreRefused) {
  EngineConfig c = default_engine_config(plan_set());
  c.max_batched_tokens = 8;
  EXPECT_THROW(check_engine_config(c), Error);
  c = default_engine_config(plan_set());
  c.blocks.pop_back();
  EXPECT_THROW(check_engine_config(c), Error);
}

TEST(CheckRequest, SaysWhatIsWrong) {
  EngineConfig c = default_engine_config(plan_set(), 0, 320);
  RequestSpec ok;
  ok.prompt = {1, 2, 3};
  check_request(c, ok);
  RequestSpec s = ok;
  s.prompt.clear();
  EXPECT_EQ(code_of(c, s), ErrorCode::kInvalidArgument);
  s = ok;
  s.prompt[1] = 100;
  EXPECT_EQ(code_of(c, s), ErrorCode::kInvalidArgument);
  s = ok;
  s.n = 0;
  EXPECT_EQ(code_of(c, s), ErrorCode::kInvalidArgument);
  s = ok;
  s.max_tokens = -1;
  EXPECT_EQ(code_of(c, s), ErrorCode::kInvalidArgument);
  s = ok;
  s.max_tokens = 998;  // beyond the context
  EXPECT_EQ(code_of(c, s), ErrorCode::kOutOfRange);
  s.max_tokens = 317;  // 320 tokens are 20 blocks
  check_request(c, s);
  s.max_tokens = 318;
  EXPECT_EQ(code_of(c, s), ErrorCode::kOutOfRange);
}

}  // namespace
}  // namespace tokamak
