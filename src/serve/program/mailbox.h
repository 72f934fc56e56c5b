#pragma once
// Deltas on their way from the engine's thread to the run. Private to the folder.
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "serve/program/run.h"

namespace tokamak::program {

// Shared by the run and its sinks, which may outlive it.
struct Run::Mailbox {
  explicit Mailbox(std::function<void()> f) : wake(std::move(f)) {}
  void set_wake(std::function<void()> f) {
    std::lock_guard lock(mutex);
    wake = std::move(f);
  }

  void push(size_t request, Delta&& delta) {
    std::function<void()> call;
    {
      std::lock_guard lock(mutex);
      if (closed) return;
      items.emplace_back(request, std::move(delta));
      call = wake;
    }
    call();
  }
  std::deque<std::pair<size_t, Delta>> take() {
    std::lock_guard lock(mutex);
    return std::exchange(items, {});
  }
  void close() {
    std::lock_guard lock(mutex);
    closed = true;
    items.clear();
  }

  std::mutex mutex;  // guards the rest
  std::function<void()> wake;
  std::deque<std::pair<size_t, Delta>> items;
  bool closed = false;
};

}  // namespace tokamak::program
