#include "engine/context_shift.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "engine/local_engine.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

constexpr int64_t kContext = 64;

// Collects the answers of a request and checks that they arrive in order.
struct Collector {
  explicit Collector(int32_t n = 1) : answers(static_cast<size_t>(n)), left(n) {}
  Client::Sink sink() {
    return [this](Delta&& d) {
      std::lock_guard lock(mutex);
      Answer& a = answers[static_cast<size_t>(d.choice)];
      EXPECT_EQ(a.finish, Finish::kNone) << "a delta after the last one";
      if (d.finish != Finish::kStop) {
        EXPECT_EQ(d.position, std::ssize(a.ids));
      }
      a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
      a.finish = d.finish;
      shifted = shifted || d.shifted;
      if (d.finish != Finish::kNone) --left;
      changed.notify_all();
    };
  }
  void wait_for(size_t tokens) {  // of choice 0
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0 || answers[0].ids.size() >= tokens; });
  }
  const Answer& wait(size_t choice = 0) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
    return answers[choice];
  }
  std::vector<Answer> answers;
  int32_t left;
  bool shifted = false;
  std::mutex mutex;
  std::condition_variable changed;
};

struct ShiftFixture {
  explicit ShiftFixture(int64_t max_queue = 4096) {
    NullOptions options;
    options.shadow = true;
    config = default_engine_config(plans, kContext, 1024);
    config.max_in_flight = 2;
    config.max_queue = max_queue;
    model = std::make_unique<NullModel>(null_model(plans, options));
    engine = std::make_shared<LocalEngine>(plans, null_for(plans, config, options), config, clock);
    client = std::make_unique<ContextShift>(engine);
  }
  PlanSet plans = fake_plan_set();
  EngineConfig config;
  SteadyClock clock;
  std::unique_ptr<NullModel> model;
  std::shared_ptr<LocalEngine> engine;
  std::unique_ptr<ContextShift> client;

  // The answer by the definition: fill the context, drop half of what is not kept, go on.
  std::vector<int32_t> oracle(const RequestSpec& spec, int32_t choice) const {
    std::vector<int32_t> context = spec.prompt, answer;
    SampleSpec sample = spec.sample ? *spec.sample : SampleSpec{};
    const int64_t keep =
        std::min<int64_t>(spec.keep < 0 ? std::ssize(spec.prompt) : spec.keep, kContext - 4);
    for (uint64_t shifts = 0;; ++shifts) {
      int64_t room =
          std::min<int64_t>(kContext - std::ssize(context), spec.max_tokens - std::ssize(answer));
      if (shifts > 0) {
        auto bits = philox(spec.sample->seed, static_cast<uint64_t>(choice) + 1, shifts);
        sample.seed = uint64_t{bits[0]} << 32 | bits[1];
      }
      auto more = model->continuation(context, static_cast<int32_t>(room), &sample,
                                      shifts > 0 ? 0 : choice);
      answer.insert(answer.end(), more.begin(), more.end());
      context.insert(context.end(), more.begin(), more.end());
      if (std::ssize(answer) == spec.max_tokens) return answer;
      auto from = context.begin() + keep;
      context.erase(from, from + (std::ssize(context) - keep) / 2);
    }
  }
};

RequestSpec long_request(int32_t keep, int32_t n, int32_t max_tokens = 300) {
  RequestSpec spec = request({5, 6, 7, 8, 9, 10, 11, 12}, max_tokens);
  SampleSpec sample;
  sample.seed = 11;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  spec.n = n;
  spec.keep = keep;
  return spec;
}

TEST(ContextShift, ContinuesBeyondTheContext) {
  for (int32_t keep : {0, 3, -1, 1000}) {
    ShiftFixture f;
    RequestSpec spec = long_request(keep, 2);
    Collector all(2);
    f.client->submit(spec, all.sink());
    for (int32_t c : {0, 1}) {
      EXPECT_EQ(all.wait(static_cast<size_t>(c)).finish, Finish::kLength);
      EXPECT_EQ(all.wait(static_cast<size_t>(c)).ids, f.oracle(spec, c)) << "keep " << keep;
    }
    EXPECT_TRUE(all.shifted);
    EngineStats stats = f.client->stats();
    EXPECT_GE(stats.context_shifts, 2 * (300 - 56) / 32);
    EXPECT_GT(stats.shifted_tokens, stats.context_shifts);
    EXPECT_EQ(stats.finished[static_cast<size_t>(Finish::kLength)], 2);
    EXPECT_EQ(f.engine->info().kv_blocks_free, f.engine->info().kv_blocks_total);
  }
}

TEST(ContextShift, LeavesOtherRequestsAlone) {
  ShiftFixture f;
  RequestSpec spec = long_request(0, 1, 56);
  Collector fits;
  f.client->submit(spec, fits.sink());
  EXPECT_EQ(fits.wait().ids, f.model->continuation(spec.prompt, 56, spec.sample.get(), 0));
  EXPECT_FALSE(fits.shifted);
  EXPECT_EQ(f.client->stats().context_shifts, 0);
  RequestSpec full = request(std::vector<int32_t>(kContext, 3), 1);
  EXPECT_THROW(f.client->submit(full, {}), Error);
}

TEST(ContextShift, MasksSeeTheWholeAnswer) {
  struct Position final : TokenMask {  // token i of the answer is 100 + i
    void allow(int32_t choice, std::span<const int32_t> answer, std::span<const int32_t>,
               std::span<uint32_t> bits) override {
      auto id = 100 * (choice + 1) + answer.size();
      bits[id / 32] |= 1u << (id % 32);
    }
  };
  ShiftFixture f;
  RequestSpec spec = long_request(2, 2, 100);
  spec.mask = std::make_shared<Position>();
  Collector all(2);
  f.client->submit(spec, all.sink());
  for (int32_t c : {0, 1}) {
    const std::vector<int32_t>& ids = all.wait(static_cast<size_t>(c)).ids;
    ASSERT_EQ(ids.size(), 100u);
    for (int32_t i = 0; i < 100; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], 100 * (c + 1) + i);
  }
}

TEST(ContextShift, CanBeCancelledAndStopped) {
  ShiftFixture f;
  Collector cancelled, stopped;
  RequestId first = f.client->submit(long_request(0, 1, INT32_MAX), cancelled.sink());
  cancelled.wait_for(200);
  f.client->cancel(first);
  EXPECT_EQ(cancelled.wait().finish, Finish::kCancelled);
  RequestId second = f.client->submit(long_request(0, 1, INT32_MAX), stopped.sink());
  stopped.wait_for(200);
  f.client->stop_at(second, 0, 150);  // in a part that is over
  EXPECT_EQ(stopped.wait().finish, Finish::kStop);
  // Steps in flight keep their blocks until they are done.
  auto all_free = [&] {
    return f.engine->info().kv_blocks_free == f.engine->info().kv_blocks_total;
  };
  for (int i = 0; i < 1000 && !all_free(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(all_free());
}

}  // namespace
}  // namespace tokamak
