#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace tokamak {
namespace {

TEST(ThreadPool, EveryItemOnceForAnyCountOfThreads) {
  for (int threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t items : {0, 1, 2, 7, 100, 1001}) {
      for (int64_t grain : {1, 4, 1000}) {
        std::vector<int> hits(static_cast<size_t>(items), 0);
        pool.split(items, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), items);
        for (int h : hits) EXPECT_EQ(h, 1);
      }
    }
  }
}

TEST(ThreadPool, ManyShortLoopsSeeEachOthersWrites) {
  for (int threads : {2, 6}) {
    ThreadPool pool(threads);
    std::vector<int64_t> a(64, 1);
    int loops = 500;
    for (int loop = 0; loop < loops; ++loop)
      pool.split(64, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++a[static_cast<size_t>(i)];
      });
    for (int64_t v : a) EXPECT_EQ(v, loops + 1);
  }
}

TEST(ThreadPool, ThreadsOnOneCoreMoveApart) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  ThreadPool pool(2);
  int together = 0;
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    pool.run([&](int thread) {  // the worker comes to the caller's core
      if (thread == 0) return;
      sched_setaffinity(0, sizeof one, &one);
      sched_setaffinity(0, sizeof all, &all);
    });
    int cores[2];
    pool.run([&](int thread) { cores[thread] = sched_getcpu(); });
    sched_setaffinity(0, sizeof all, &all);
    together += cores[0] == cores[1] ? 1 : 0;
  }
  EXPECT_LT(together, kRounds / 10);
}

TEST(ThreadPool, BarriersSeparateWhatThreadsWrite) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<int64_t> mine(static_cast<size_t>(threads)), sums(static_cast<size_t>(threads));
    for (int repeat = 0; repeat < 3; ++repeat)
      pool.run([&](int thread) {
        auto t = static_cast<size_t>(thread);
        for (int64_t round = 0; round < 20; ++round) {
          mine[t] = round + thread;
          pool.barrier();
          sums[t] = std::accumulate(mine.begin(), mine.end(), int64_t{0});
          pool.barrier();
        }
      });
    for (int64_t sum : sums) EXPECT_EQ(sum, 19 * threads + threads * (threads - 1) / 2);
  }
}

TEST(ThreadPool, WakesParkedWorkers) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // far beyond the spin time
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    EXPECT_EQ(ran, 3);
  }
}

TEST(ThreadPool, ErrorsReachTheCallerAndThePoolGoesOn) {
  ThreadPool pool(3);
  for (int bad = 0; bad < 3; ++bad) {
    auto body = [&](int thread) {
      if (thread == bad) throw std::runtime_error("part failed");
    };
    EXPECT_THROW(pool.run(body), std::runtime_error);
  }
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace tokamak
