#include "base/thread_pool.h"

#include <sched.h>

#include <chrono>
#include <utility>

namespace tokamak {
namespace {

constexpr int64_t kSpinNs = 60'000;

inline void relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; isb waits a few cycles
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

thread_local int pool_thread = 0;  // which thread of its pool this is

// Waits for a while until `word` differs from `old`; false: it does not yet.
bool spin_for_change(const std::atomic<uint32_t>& word, uint32_t old, int64_t spin_ns) {
  int64_t start = 0;  // most waits end before the clock is read
  while (spin_ns > 0) {
    for (int i = 0; i < 64; ++i) {
      if (word.load(std::memory_order_acquire) != old) return true;
      relax();
    }
    if (start == 0) start = now_ns();
    if (now_ns() - start >= spin_ns) break;
  }
  return false;
}

void park_until_change(const std::atomic<uint32_t>& word, uint32_t old) {
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

// Spins for a while, then parks.
uint32_t wait_for_change(const std::atomic<uint32_t>& word, uint32_t old, int64_t spin_ns) {
  if (!spin_for_change(word, old, spin_ns)) park_until_change(word, old);
  return word.load(std::memory_order_acquire);
}

// Moves this thread to a core that no thread of the pool was last seen on, if it may use one.
void move_to_free_core(const std::vector<std::atomic<int>>& taken) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  cpu_set_t free = all;
  for (const std::atomic<int>& core : taken) CPU_CLR(core.load(std::memory_order_relaxed), &free);
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return;
  sched_setaffinity(0, sizeof all, &all);  // it stays where it is, and is not bound to it
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    int n = CPU_COUNT(&set);
    if (n > 0) return n;
  }
  unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

ThreadPool::ThreadPool(int threads) {
  int cores = available_cores();
  if (threads <= 0) threads = cores;
  // With more threads than cores, a spinning thread could take the core of one that has work.
  spin_ns_ = threads > cores ? 0 : kSpinNs;
  cores_ = std::vector<std::atomic<int>>(static_cast<size_t>(threads));
  for (std::atomic<int>& core : cores_) core = -1;
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker(t); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void ThreadPool::spread(int thread) {
  if (spin_ns_ == 0) return;  // there are fewer cores than threads
  const int core = sched_getcpu();
  std::atomic<int>& mine = cores_[static_cast<size_t>(thread)];
  // Most often it is where it was, and the cache line stays shared.
  if (mine.load(std::memory_order_relaxed) != core) mine.store(core, std::memory_order_relaxed);
  for (size_t t = 0; t < static_cast<size_t>(thread); ++t)
    if (cores_[t].load(std::memory_order_relaxed) == core) return move_to_free_core(cores_);
}

void ThreadPool::run_part(int thread) noexcept {
  try {
    job_(body_, thread);
  } catch (...) {
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
}

void ThreadPool::fork_join(Job job, void* body) {
  job_ = job;
  body_ = body;
  auto helpers = static_cast<uint32_t>(workers_.size());
  spread(0);
  pending_.store(helpers, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  run_part(0);
  for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;)
    left = wait_for_change(pending_, left, spin_ns_);
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::barrier() {
  if (workers_.empty()) return;
  uint32_t phase =
      phase_.load(std::memory_order_relaxed);  // does not change until this thread arrives
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == workers_.size()) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else if (!spin_for_change(phase_, phase, spin_ns_)) {
    park_until_change(phase_, phase);
    spread(pool_thread);  // it may have been woken on the core of the thread that woke it
  }
}

void ThreadPool::worker(int thread) {
  pool_thread = thread;
  uint32_t seen = 0;
  while (true) {
    seen = wait_for_change(epoch_, seen, spin_ns_);
    if (stop_) return;
    spread(thread);
    run_part(thread);
    // Release: the caller sees this part's writes (and error_) once it sees the count.
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace tokamak
