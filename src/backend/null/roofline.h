#pragma once
// How long a step takes on a machine that is described by three numbers: the clock of the null
// backend. The compiler's cost model reads more fields of the same file (compile/fuse/machine.h).
#include <filesystem>
#include <string>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// JSON file: {"name": "h200", "flops": 9.9e14, "bandwidth": 4.8e12, "launch_seconds": 2e-5}
//   flops           peak floating-point operations per second of the matrix units
//   bandwidth       bytes per second of the memory that holds weights and KV
//   launch_seconds  fixed cost of a step
//   real_time       true: collecting a step waits for that time to pass
// An absent field keeps its default; the defaults are those of a small desktop CPU.
struct RooflineSpec {
  std::string name = "desktop";
  double flops = 2e12;
  double bandwidth = 5e10;
  double launch_seconds = 2e-5;
  bool real_time = false;
};
RooflineSpec load_roofline(const std::filesystem::path& path);

// Time of a step: fixed cost + max(arithmetic, memory traffic). A step reads all weights once and
// does two operations per weight and token; a sequence reads the KV of its context once, and every
// token attends to all of it.
class Roofline {
 public:
  Roofline(const PlanSet& plans, const RooflineSpec& machine);
  double seconds(const StepInputs& step) const;

 private:
  struct Group {
    int64_t window;
    double bytes_per_token, elements_per_token;
  };
  RooflineSpec machine_;
  double weight_bytes_ = 0, weight_elements_ = 0;
  std::vector<Group> groups_;
};

}  // namespace tokamak
