#pragma once
// Time comes only from here, so that the engine, the server and the cluster can run under a fake
// clock.
#include <cstdint>

namespace tokamak {

using Nanos = int64_t;  // since an arbitrary origin; monotonic
constexpr Nanos kNever = INT64_MAX;
constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kSecond = 1'000'000'000;
inline double seconds(Nanos n) { return static_cast<double>(n) * 1e-9; }

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Nanos now() const override;
};

double process_cpu_seconds();  // of all threads; other programs change it little
double thread_cpu_seconds();   // of the calling thread
int64_t unix_seconds();        // wall clock, for `created` fields and logs only

}  // namespace tokamak
