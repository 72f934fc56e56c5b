#pragma once
// A machine as cost models see it: that of the fusion planner, and the clock of the null backend.
// docs/machine_file.md has the fields.
#include <filesystem>
#include <string>
#include <vector>

#include "base/value.h"

namespace tokamak {

struct MachineLevel {
  std::string name;      // "L1", "L2", "memory"
  double capacity = 0;   // bytes that one core sees; the last level has no limit
  double bandwidth = 0;  // bytes per second, all cores together
};

// The default is built in and the same everywhere, so that plans do not depend on where they were
// made.
struct Machine {
  std::string name = "built-in cpu";
  std::string measured_on;  // Backend::measured_on() of what was measured; empty: not measured
  int cores = 2;
  std::vector<MachineLevel> levels = {
      {"L1", 64e3, 3e11}, {"L2", 1e6, 1.4e11}, {"L3", 32e6, 7e10}, {"memory", 0, 4e10}};
  double i8_ops = 3e11;        // peak operations per second of the integer dot kernels, all cores
  double f32_flops = 1.5e11;   // of the float dot kernels
  double vector_ops = 2.5e10;  // element-wise operations per second, all cores
  double call_seconds = 1e-7;
  double barrier_seconds = 1e-6;  // until all cores have met
  // The interpreter of Loop IR: for a call, and for each step of a program and row.
  double loop_seconds = 5e-8, loop_step_seconds = 1.5e-8;
  double launch_seconds = 2e-5;  // null backend: fixed cost of a step
  bool real_time = false;        // null backend: collecting a step waits for its time to pass

  // The nearest level that holds a value of this size beside another one of the same size.
  const MachineLevel& level_of(double bytes) const;
  const MachineLevel& memory() const { return levels.back(); }
};

// Fields that are absent keep the built-in value. Throws Error(kInvalidArgument) naming the field.
Machine machine_from_value(const Value& file, const std::string& what);
Machine load_machine_file(const std::filesystem::path& path);
Value machine_value(const Machine& machine);

}  // namespace tokamak
