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

  void push(size_t request, Delta&& delta) {
    {
      std::lock_guard lock(mutex);
      if (closed) return;
      items.emplace_back(request, std::move(delta));
    }
    wake();
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

  const std::function<void()> wake;
  std::mutex mutex;
  std::deque<std::pair<size_t, Delta>> items;
  bool closed = false;
};

}  // namespace tokamak::program
