#include "base/clock.h"

#include <time.h>

#include <chrono>

namespace tokamak {
namespace {

double read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

Nanos SteadyClock::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double process_cpu_seconds() { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

double thread_cpu_seconds() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tokamak
