#include "engine/local_engine.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <thread>

#include "base/error.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

// Collects one request's answer; the future is ready after the last delta.
struct Waiter {
  explicit Waiter(int32_t n = 1) : answers(static_cast<size_t>(n)), left(n) {}
  Client::Sink sink() {
    return [this](Delta&& d) {
      Answer& a = answers[static_cast<size_t>(d.choice)];
      a.ids.insert(a.ids.end(), d.ids.begin(), d.ids.end());
      a.finish = d.finish;
      a.error = d.error;
      if (d.finish != Finish::kNone && --left == 0) done.set_value();
    };
  }
  const Answer& wait(size_t choice = 0) {
    if (future.valid()) future.get();
    return answers[choice];
  }
  std::vector<Answer> answers;
  int32_t left;
  std::promise<void> done;
  std::future<void> future = done.get_future();
};

struct Fixture {
  explicit Fixture(NullOptions o = {}, int64_t kv_tokens = 4096, int64_t max_queue = 4096) {
    o.shadow = true;
    config = default_engine_config(plans, 512, kv_tokens);
    config.max_in_flight = 2;
    config.max_queue = max_queue;
    config.max_step_failures = 100;
    model = std::make_unique<NullModel>(null_model(plans, o));
    engine = std::make_unique<LocalEngine>(plans, null_for(plans, config, o), config, clock);
  }
  PlanSet plans = fake_plan_set();
  EngineConfig config;
  SteadyClock clock;
  std::unique_ptr<NullModel> model;
  std::unique_ptr<LocalEngine> engine;
};

TEST(LocalEngine, AnswersARequest) {
  Fixture f;
  Waiter w(2);
  RequestSpec spec = request({1, 2, 3}, 30);
  spec.n = 2;
  SampleSpec sample;
  sample.seed = 5;
  spec.sample = std::make_shared<const SampleSpec>(sample);
  f.engine->submit(spec, w.sink());
  EXPECT_EQ(w.wait(0).ids, f.model->continuation(spec.prompt, 30, &sample, 0));
  EXPECT_EQ(w.wait(1).ids, f.model->continuation(spec.prompt, 30, &sample, 1));
  EXPECT_EQ(w.wait(1).finish, Finish::kLength);
  EXPECT_EQ(f.engine->info().vocab, 1000);
}

// Jobs that come between steps while two steps are in flight.
TEST(LocalEngine, JobsDoNotChangeAnswers) {
  Fixture f;
  constexpr int kRequests = 4, kTokens = 300;
  std::vector<std::unique_ptr<Waiter>> waiters;
  std::vector<RequestSpec> specs;
  for (int32_t i = 0; i < kRequests; ++i) {
    specs.push_back(request({1, 2, 3 + i}, kTokens));
    waiters.push_back(std::make_unique<Waiter>());
    f.engine->submit(specs.back(), waiters.back()->sink());
  }
  std::atomic<bool> stop = false;
  std::thread jobs([&] {
    while (!stop) f.engine->prefix_tree(100);
  });
  for (size_t i = 0; i < kRequests; ++i)
    EXPECT_EQ(waiters[i]->wait().ids, f.model->continuation(specs[i].prompt, kTokens));
  stop = true;
  jobs.join();
}

TEST(LocalEngine, MasksRestrictAnswers) {
  struct OddIds final : TokenMask {
    void allow(int32_t, std::span<const int32_t>, std::span<const int32_t>,
               std::span<uint32_t> bits) override {
      std::fill(bits.begin(), bits.end(), 0xaaaaaaaau);
    }
  };
  Fixture f;
  Waiter masked, free;
  RequestSpec spec = request({1, 2, 3}, 30);
  spec.mask = std::make_shared<OddIds>();
  f.engine->submit(spec, masked.sink());
  f.engine->submit(request({4, 5}, 30), free.sink());
  EXPECT_EQ(masked.wait().finish, Finish::kLength) << masked.wait().error;
  EXPECT_EQ(masked.wait().ids.size(), 30u);
  for (int32_t id : masked.wait().ids) EXPECT_EQ(id % 2, 1);
  EXPECT_EQ(free.wait().ids, f.model->continuation(std::vector<int32_t>{4, 5}, 30));
}

TEST(LocalEngine, StatisticsIncludeDeliveredAnswers) {
  Fixture f;
  Waiter w(1);
  EngineStats seen;
  auto sink = [&, inner = w.sink()](Delta&& d) mutable {
    if (d.finish != Finish::kNone) seen = f.engine->stats();
    inner(std::move(d));
  };
  f.engine->submit(request({1, 2, 3}, 7), sink);
  w.wait();
  EXPECT_EQ(seen.finished[static_cast<size_t>(Finish::kLength)], 1);
  EXPECT_EQ(seen.tokens_emitted, 7);
  EXPECT_EQ(seen.answer_length.sum(), 7);
  EXPECT_EQ(seen.inference_seconds.count(), 1u);
  EXPECT_EQ(seen.asked_tokens.sum(), 7);
  EXPECT_EQ(seen.longest_answer.sum(), 7);
  EXPECT_EQ(seen.asked_choices.sum(), 1);
  EXPECT_GE(seen.inference_seconds.sum(), seen.decode_seconds.sum());
}

TEST(LocalEngine, RefusesAtTheDoor) {
  Fixture f;
  auto code = [&](RequestSpec spec) {
    try {
      f.engine->submit(std::move(spec), {});
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::kInternal;
  };
  EXPECT_EQ(code(request({}, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(request({1}, 600)), ErrorCode::kOutOfRange);
  f.engine->stop(LocalEngine::Stop::kDrain);
  EXPECT_EQ(code(request({1}, 3)), ErrorCode::kUnavailable);
}

TEST(LocalEngine, AFullQueueIsAnError) {
  Fixture f({}, 4096, 3);
  RequestSpec spec = request({1, 2}, 4);
  spec.n = 3;
  std::vector<std::unique_ptr<Waiter>> waiters;
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    waiters.push_back(std::make_unique<Waiter>(3));
    try {
      f.engine->submit(spec, waiters.back()->sink());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kResourceExhausted);
      waiters.pop_back();
      ++refused;
    }
  }
  for (auto& w : waiters) EXPECT_EQ(w->wait(2).finish, Finish::kLength) << w->wait(2).error;
  EXPECT_FALSE(waiters.empty());
  fmt::print("{} of 200 refused\n", refused);
}

TEST(LocalEngine, DrainLetsRequestsEndCancelDoesNot) {
  for (auto how : {LocalEngine::Stop::kDrain, LocalEngine::Stop::kCancel}) {
    Fixture f;
    std::vector<std::unique_ptr<Waiter>> waiters;
    for (int32_t i = 0; i < 20; ++i) {
      waiters.push_back(std::make_unique<Waiter>());
      f.engine->submit(request({i, 2}, 400), waiters.back()->sink());
    }
    f.engine->stop(how);
    for (auto& w : waiters) {
      Finish finish = w->wait().finish;
      if (how == LocalEngine::Stop::kDrain) {
        EXPECT_EQ(finish, Finish::kLength);
      } else {
        EXPECT_TRUE(finish == Finish::kCancelled || finish == Finish::kLength);
      }
    }
  }
}

TEST(LocalEngine, DeadlinesPass) {
  Fixture f;
  Waiter w;
  RequestSpec spec = request({1, 2}, 400);
  spec.deadline = f.clock.now();
  f.engine->submit(spec, w.sink());
  EXPECT_EQ(w.wait().finish, Finish::kTimeout);
}

TEST(LocalEngine, ASinkThatThrowsEndsItsRequestOnly) {
  Fixture f;
  Waiter w;
  f.engine->submit(request({1}, 50), [](Delta&&) { throw std::runtime_error("sink"); });
  f.engine->submit(request({2}, 50), w.sink());
  EXPECT_EQ(w.wait().ids, f.model->continuation(std::vector<int32_t>{2}, 50));
}

TEST(LocalEngine, IdleUsesNoTime) {
  Fixture f;
  Waiter w;
  f.engine->submit(request({1, 2}, 5), w.sink());
  w.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::clock_t before = std::clock();  // CPU time of the whole process
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used, 0.15);  // a spinning thread would use 0.3
}

// Threads that submit, cancel and stop at random while steps fail and blocks run short.
TEST(LocalEngine, ShowsItsPrefixesAndTheProgressOfPrompts) {
  Fixture f;
  f.config.max_batched_tokens = 128;
  f.engine =
      std::make_unique<LocalEngine>(f.plans, null_for(f.plans, f.config, {}), f.config, f.clock);
  EXPECT_TRUE(f.engine->prefix_tree(100).nodes.empty());
  std::vector<int32_t> done;
  std::promise<void> ended;
  RequestSpec spec = request(std::vector<int32_t>(500, 3), 2);
  spec.progress = true;
  f.engine->submit(spec, [&](Delta&& d) {
    if (d.prompt_done > 0) done.push_back(d.prompt_done);
    EXPECT_EQ(d.ids.empty(), d.prompt_done > 0 && d.prompt_done < 500);
    if (d.finish != Finish::kNone) ended.set_value();
  });
  ended.get_future().get();
  ASSERT_GE(done.size(), 4u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 500);
  PrefixTree tree = f.engine->prefix_tree(1000);
  int64_t tokens = 0;
  for (const PrefixTreeNode& node : tree.nodes) tokens += std::ssize(node.ids);
  EXPECT_EQ(tokens, 500 / tree.unit * tree.unit);
  f.engine->stop(LocalEngine::Stop::kDrain);
  EXPECT_TRUE(f.engine->prefix_tree(100).nodes.empty());
}

TEST(LocalEngine, ManyThreads) {
  NullOptions options;
  options.fail_every = 37;
  options.fail_submit_every = 53;
  Fixture f(options, 200);
  auto client = [&](uint64_t seed) {
    Rng rng(seed);
    for (int i = 0; i < 40; ++i) {
      Waiter w;
      RequestSpec spec = request(random_prompt(rng, 1000, 1 + static_cast<int64_t>(rng.below(60))),
                                 1 + static_cast<int32_t>(rng.below(40)));
      RequestId id = f.engine->submit(spec, w.sink());
      uint64_t what = rng.below(5);
      if (what == 0) f.engine->cancel(id);
      if (what == 1) f.engine->stop_at(id, 0, static_cast<int32_t>(rng.below(10)));
      if (what == 2) f.engine->info();
      if (what == 3) f.engine->stats();
      if (what == 4) f.engine->prefix_tree(50);
      const Answer& a = w.wait();
      auto expected = f.model->continuation(spec.prompt, spec.max_tokens);
      ASSERT_LE(a.ids.size(), expected.size());
      EXPECT_TRUE(std::equal(a.ids.begin(), a.ids.end(), expected.begin()));
      if (what > 1) {
        EXPECT_EQ(a.finish, Finish::kLength) << a.error;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) threads.emplace_back(client, t);
  for (std::thread& t : threads) t.join();
  f.engine->stop(LocalEngine::Stop::kDrain);
  EngineInfo info = f.engine->info();
  EXPECT_EQ(info.kv_blocks_free, info.kv_blocks_total);
  EXPECT_EQ(info.running + info.waiting, 0);
  EngineStats stats = f.engine->stats();
  fmt::print("{} steps, {} failed, {} preemptions, {} tokens\n", stats.steps, stats.failed_steps,
             stats.preemptions, stats.tokens_emitted);
}

}  // namespace
}  // namespace tokamak
