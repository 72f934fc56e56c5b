#pragma once
// What each thread of a backend did in one step, for people who look at a running server.
#include <cstdint>
#include <string>
#include <vector>

namespace tokamak {

struct StepTrace {
  struct Call {
    std::string name, kernel;
  };
  // A thread's part of one stage of a call. Times are nanoseconds since the step began; between two
  // spans a thread waits for others or has nothing to do.
  struct Span {
    uint32_t call = 0;  // index into calls
    uint16_t stage = 0;
    int64_t begin = 0, end = 0;
  };
  std::vector<Call> calls;                 // in the order in which they run
  std::vector<std::vector<Span>> threads;  // by thread, in order of time
  std::string function;
  int64_t tokens = 0, sequences = 0;
  int64_t nanos = 0;  // of the whole step
};

}  // namespace tokamak
