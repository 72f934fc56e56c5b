// The sampling kernel against the host sampler: random rows with random options.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "backend/common/sample_table.h"
#include "backend/cuda/table_sampler.h"
#include "base/rng.h"

namespace tokamak {
namespace {

class RandomRows {
 public:
  explicit RandomRows(int64_t vocab) : vocab_(vocab) {}

  float number(double low, double high) {
    return static_cast<float>(low + (high - low) * rng_.uniform());
  }
  int32_t token() { return static_cast<int32_t>(rng_.below(static_cast<uint64_t>(vocab_))); }
  bool often() { return rng_.below(3) == 0; }

  std::shared_ptr<SampleSpec> spec() {
    auto s = std::make_shared<SampleSpec>();
    s->seed = rng_.below(1u << 30);
    s->temperature = rng_.below(4) == 0 ? 0 : number(0.2, 2);
    if (often()) s->top_k = static_cast<int32_t>(1 + rng_.below(often() ? 900 : 60));
    if (often()) s->top_p = number(0, 1);
    if (often()) s->min_p = number(0, 0.2);
    if (often()) s->repetition_penalty = number(0.8, 1.6);
    if (often()) s->presence_penalty = number(-1, 1);
    if (often()) s->frequency_penalty = number(-0.5, 0.5);
    if (often()) s->dry_multiplier = number(0.5, 3);
    if (often()) s->top_logprobs = static_cast<int32_t>(rng_.below(9));
    for (int i = 0; often() && i < 20; ++i) s->logit_bias.push_back({token(), number(-4, 4)});
    if (often()) {
      s->min_tokens = 5;
      s->banned_until_min = {token(), token()};
    }
    return s;
  }
  std::vector<int32_t> history() {
    std::vector<int32_t> out;
    const uint64_t period = 2 + rng_.below(9), length = rng_.below(60);
    for (uint64_t i = 0; i < length; ++i)
      out.push_back(i < period || often() ? token() : out[i - period]);
    return out;
  }
  std::vector<uint32_t> mask() {
    std::vector<uint32_t> words(static_cast<size_t>(mask_words(vocab_)));
    for (uint32_t& w : words) w = static_cast<uint32_t>(rng_.below(uint64_t{1} << 32));
    return words;
  }
  // Some rows have many equal logits, some a certain token.
  void logits(std::vector<float>& to) {
    const auto kind = rng_.below(4);
    for (int64_t i = 0; i < vocab_; ++i) {
      const double n = rng_.normal();
      to.push_back(static_cast<float>(kind == 0 ? std::round(4 * n) / 4 : 3 * n));
    }
    if (kind == 1) to[to.size() - 1 - static_cast<size_t>(token())] = 40;
  }

 private:
  int64_t vocab_;
  Rng rng_{31};
};

class RandomTable {
 public:
  RandomTable(int64_t vocab, int rows)
      : rows_(rows), table_(vocab), host_(vocab), random_(vocab), sampler_(kernels_, vocab, rows) {}

  // Rows that the device left to the host.
  int64_t check(int round) {
    std::vector<float> logits;
    table_.clear();
    for (int r = 0; r < rows_; ++r) add_row(round, r, logits);
    table_.finish(logits.data());
    cuda::Buffer at(logits.size() * sizeof(float));
    at.write(logits.data(), logits.size() * sizeof(float));
    SampleTokens got;
    std::vector<int64_t> left;
    sampler_.run(stream_, at.address(), table_, host_, got, left);
    for (int r = 0; r < rows_; ++r)
      if (std::find(left.begin(), left.end(), r) == left.end()) compare(r, got);
    return std::ssize(left);
  }

 private:
  void add_row(int round, int r, std::vector<float>& logits) {
    random_.logits(logits);
    SampleRow row;
    row.spec = random_.spec();
    row.position = 10 * round + r;
    row.choice = r % 3;
    row.masked = random_.often();
    row.generated = r % 8;
    const std::vector<int32_t> history = random_.history();
    const auto prompt = static_cast<int32_t>(history.size() / 2);
    table_.add(row, history, prompt, row.masked ? random_.mask() : std::vector<uint32_t>());
  }
  void compare(int row, const SampleTokens& got) {
    const SampleArgs& args = table_.args();
    const auto most = static_cast<size_t>(table_.most_tops()), at = static_cast<size_t>(row);
    std::vector<int32_t> tops(most);
    std::vector<float> values(most);
    float logprob = 0;
    const int32_t expected = host_.choose(args, row);
    host_.report(args, row, expected, table_.ranks(), logprob, tops.data(), values.data());
    EXPECT_EQ(got.ids[at], expected);
    EXPECT_NEAR(got.logprobs[at], logprob, 1e-5);
    for (size_t i = 0; i < most; ++i) {
      EXPECT_EQ(got.tops[at * most + i], tops[i]);
      EXPECT_NEAR(got.values[at * most + i], values[i], 1e-5);
    }
  }

  int rows_;
  cuda::Device device_{0};
  cuda::KernelLibrary kernels_{device_};
  cuda::DeviceStream stream_;
  SampleTable table_;
  TokenChooser host_;
  RandomRows random_;
  cuda::TableSampler sampler_;
};

TEST(CudaTableSampler, RandomRowsGiveTheHostsTokensAndLogprobs) {
  const bool gpu = std::getenv("TOKAMAK_TEST_GPU") != nullptr;
  const int rows = gpu ? 64 : 12, rounds = gpu ? 8 : 2;
  RandomTable table(gpu ? 32003 : 3001, rows);
  int64_t left = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    left += table.check(round);
  }
  EXPECT_LE(left, rows * rounds / 4);
}

}  // namespace
}  // namespace tokamak
