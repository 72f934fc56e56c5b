#pragma once
// Front-end threads: templates, tokenising, detokenising and JSON run here, not on I/O or engine
// threads.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tokamak {

// Owner: the server. Jobs start in order. The destructor finishes the posted jobs. Sleeps when
// idle.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void post(std::function<void()> job);  // thread-safe; exceptions from jobs are logged

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tokamak
