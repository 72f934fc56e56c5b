#pragma once
// Persistent workers for loops inside one step. A loop forks and joins in about a microsecond while
// the workers spin; workers that have been idle for a while park, so an idle program uses no
// processor time.
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace tokamak {

// A contiguous part of the items 0, 1, 2 ...
struct Part {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// The part of [0, items) that `thread` of `threads` gets: contiguous, determined by the counts
// alone, and at least `grain` items long if there are that many.
inline Part part_of_items(int64_t items, int64_t grain, int thread, int threads) {
  int64_t parts = items / (grain < 1 ? 1 : grain);
  if (parts > threads) parts = threads;
  if (parts <= 1) return thread == 0 ? Part{0, items} : Part{};
  if (thread >= parts) return {};
  return {items * thread / parts, items * (thread + 1) / parts};
}

// Owned by the code that runs the loops; one thread at a time calls run or split (it takes part as
// thread 0). Loops do not nest. The assignment of work to threads depends on the counts alone,
// never on timing.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // including the caller; 0 = all cores this process may use
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(thread) once on every thread. If one throws, the exception is rethrown here after
  // all have finished.
  template <class Body>
  void run(Body&& body) {
    if (workers_.empty()) {
      body(0);
    } else {
      fork_join(
          [](void* b, int thread) { (*static_cast<std::remove_reference_t<Body>*>(b))(thread); },
          &body);
    }
  }

  // A barrier, for use inside a body of run(): waits for every thread of the pool. All threads must
  // reach it equally often, including a thread that has failed and has no work left.
  void barrier();

  // body(begin, end, thread) on contiguous parts of [0, items), each of at least `grain` items
  // if there are that many. If there is only one part, the caller runs it and wakes no worker.
  template <class Body>
  void split(int64_t items, int64_t grain, Body&& body) {
    Part first = part_of_items(items, grain, 0, size());
    if (first.end == items) {
      if (items > 0) body(int64_t{0}, items, 0);
      return;
    }
    run([&](int thread) {
      Part p = part_of_items(items, grain, thread, size());
      if (!p.empty()) body(p.begin, p.end, thread);
    });
  }

 private:
  using Job = void (*)(void* body, int thread);
  void fork_join(Job job, void* body);
  void worker(int thread);
  void run_part(int thread) noexcept;
  // Linux may leave two threads that wake each other on one core for seconds while another core is
  // idle. The later one moves away.
  void spread(int thread);

  std::vector<std::thread> workers_;
  std::vector<std::atomic<int>> cores_;  // where each thread was at its last part; -1: not seen
  int64_t spin_ns_ = 0;
  Job job_ = nullptr;
  void* body_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  // On their own cache lines: one is written by the caller, the other by the workers.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> pending_{0};
  bool stop_ = false;  // published by epoch_
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};  // counts barriers
};

int available_cores();  // that this process may run on

}  // namespace tokamak
