#pragma once
// A machine as three numbers: what the null backend's clock runs on.
#include <filesystem>
#include <string>

#include "plan/plan.h"
#include "plan/step.h"

namespace tokamak {

// JSON file: {"name": "h200", "flops": 9.9e14, "bandwidth": 4.8e12, "launch_seconds": 2e-5}
//   flops           peak floating-point operations per second of the matrix units
//   bandwidth       bytes per second of the memory that holds weights and KV
//   launch_seconds  fixed cost of a step
//   real_time       true: steps take that long by the clock, too (what a server's clients see)
// A field that is absent keeps the value of the built-in machine, a small desktop CPU.
struct MachineSpec {
  std::string name = "desktop";
  double flops = 2e12;
  double bandwidth = 5e10;
  double launch_seconds = 2e-5;
  bool real_time = false;
};
MachineSpec load_machine(const std::filesystem::path& path);

// Time of a step on a machine: fixed cost + max(arithmetic, memory traffic). Weights are read once
// per step; two operations per weight and token; a sequence reads the KV of its context once and
// every token attends to all of it.
class Roofline {
 public:
  Roofline(const PlanSet& plans, const MachineSpec& machine);
  double seconds(const StepInputs& step) const;

 private:
  struct Group {
    int64_t window;
    double bytes_per_token, elements_per_token;
  };
  MachineSpec machine_;
  double weight_bytes_ = 0, weight_elements_ = 0;
  std::vector<Group> groups_;
};

}  // namespace tokamak
